"""One guarded request of the ASGI edge: the application runs, and its answer is held back."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from ..core.decide import Outstanding
from ..core.problem import Refusal, refuse, verdict_answer, withheld_answer
from ..core.record import Answer
from ..core.states import Mode
from ..engine.errands import Waiting
from ..engine.exchange import Answered, Exchange, current_exchange, is_sign
from ..engine.handler.boundary import Pieces, Place
from ..engine.modes.anonymous import anonymous_operation
from ..engine.modes.mode import Finished, Handled, with_expiry
from ..engine.operation import Running, _current
from .guards import Guarded, own_word, unguarded_answer
from .messages import (
    REPLACED,
    App,
    Collected,
    Message,
    Receive,
    Scope,
    Send,
    copied,
    is_replaced,
    lower_case,
    send_answer,
)

logger = logging.getLogger("samekey")

_WITHHELD_EXTENSIONS: Final = frozenset(
    {"http.response.pathsend", "http.response.zerocopysend", "http.response.trailers", "http.response.push"}
)
"""Ways to send a body past us."""
_SILENCE: Final = "The application returned without sending a whole answer."
STREAM_PATIENCE = 15.0
"""Seconds after the first piece of an answer in which the last one must come for the answer to be kept. One
that takes longer may never end; it passes to the client as it comes."""


def _is_cancelled() -> bool:
    """Whether the event loop is torn down; a deadline inside the application takes its own word back."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class Held:
    """One guarded request: runs the application and holds its answer back."""

    def __init__(
        self,
        app: App,
        below: Callable[[str, Answer], Answer],
        exchange: Exchange,
        receive: Receive,
        send: Send,
        guarded: Guarded,
    ) -> None:
        assert exchange.engine is not None
        self._app = app
        self._engine = exchange.engine
        self._exchange = exchange
        self._claims = guarded.claims(bool(exchange.key_lines))
        """The edge claims, before the application runs."""
        self._left_alone = guarded.leaves_alone(bool(exchange.key_lines))
        self._policy = exchange.engine.policy
        self._root: str = exchange.context.get("root_path", "")
        self._below = below
        self._scope: Scope = exchange.context
        self._client_receive = receive
        self._send = send
        self._sent = Collected()
        self.is_alone = False
        """Whoever waited for it has left."""
        self.passing = False
        """What the application sends goes straight to the client."""
        self._passes = asyncio.Event()
        self._page: Answer | None = None
        """An error page, or an answer that may have broken off, of an application that has not ended yet:
        what it raises may follow."""
        self._handled: Handled | None = None
        """How the handler ended, once that is being made durable; whatever else the application sends is
        dropped, except for the rest of a stream."""
        self._answered = False
        """The client has its answer."""
        self._replaced = False
        """It is not the one that the application has made."""
        self._began = time.monotonic()
        self.over: Waiting | None = None
        """Where the request waits for its end."""
        self.running_out: asyncio.Task[None] | None = None
        self._patience: asyncio.Task[None] | None = None
        """Waits for the rest of an answer whose first piece is there."""
        self._streams = False
        """The rest was not waited for any longer."""

    @property
    def name(self) -> str:
        return f"{self._exchange.parts.method} {self._exchange.endpoint}"

    def ends(self, longest: float) -> float:
        """When its longest run is over; ``longest`` for what has not reached its handler."""
        running = self._exchange.running
        if running is None:
            return self._began + longest
        return running.started + running.rules.policy.max_run.total_seconds()

    @property
    def has_begun(self) -> bool:
        """Whether a handler holds the key."""
        return self._exchange.running is not None

    @property
    def is_on_their_connection(self) -> bool:
        """Whether the handler's transaction is, or will be, on a connection of the application's."""
        running = self._exchange.running
        rules = self._exchange.rules if running is None else running.rules
        return rules is not None and rules.connection is not None

    @property
    def is_waited_for(self) -> bool:
        """Whether a shutdown has to wait for it."""
        return not self.passing and (self.has_begun or not self._left_alone)

    @property
    def is_recorded(self) -> bool:
        """Whether the outcome is, or is being, made durable."""
        return self._handled is not None

    async def run_out(self) -> None:
        """The longest run is over, and whoever waits leaves when nothing is left to wait for: a handler that
        still runs is left to whoever runs it, and what passes to the client is waited for."""
        running = self._exchange.running
        if running is None or self._answered or self.passing or self._handled is not None:
            return
        try:
            if self._page is not None:
                await self._finish(self._whole_page())
            elif self._sent.start is not None and self._is_answering(running):
                await self._finish(self._sent.answer(), streamed=True)
            elif running.boundary.place is Place.RETURNED:
                await self._finish(None)
            else:
                self._abandon()
                await self._deliver(self._still_runs())
        except Exception:
            logger.exception("%s was ended at its longest run", self.name)
        if not self.passing and self.over is not None:
            self.over.leave()

    def _is_answering(self, running: Running) -> bool:
        """Whether what was sent so far is the handler's own answer."""
        if running.boundary.place is Place.RUNNING and running.boundary.said is not None:
            running.boundary.returned()  # a bare application sends while it runs
        return self._exchange.at_edge or running.boundary.place is Place.RETURNED

    async def _lose_patience(self) -> None:
        await asyncio.sleep(STREAM_PATIENCE)
        running = self._exchange.running
        assert running is not None
        if (
            self._handled is None
            and not self._answered
            and self._page is None
            and self._is_answering(running)
        ):
            self._streams = True
            await self._finish(self._sent.answer(), streamed=True)

    async def _calm(self) -> None:
        """Whoever waits for the rest of the answer does not any more, or has passed it on."""
        patience = self._patience
        if patience is None or patience.done():
            return
        if self._streams:
            await asyncio.wait({patience})
        else:
            patience.cancel()

    async def run(self) -> None:
        token = current_exchange.set(self._exchange)
        try:
            if self._claims:
                rules = self._exchange.rules
                assert rules is not None
                begun = await self._engine.begin_async(self._exchange, rules)
                if isinstance(begun, Answer):
                    await self._deliver(begun)
                    return
                _current.set(begun.operation)
                begun.boundary.enter()
                self._exchange.at_edge = True
            elif self._left_alone:
                self._exchange.anonymous.append(anonymous_operation(Mode.LEASED, self._exchange.endpoint))
                _current.set(self._exchange.anonymous[-1])
            await self._run_app()
        finally:
            self._exchange.over()
            current_exchange.reset(token)
            _current.set(None)  # or the task's context and the operation hold each other

    async def _run_app(self) -> None:
        scope = self._scope
        if scope.get("extensions"):
            kept = {k: v for k, v in scope["extensions"].items() if k not in _WITHHELD_EXTENSIONS}
            scope["extensions"] = kept
        # A retry may not be able to read what a compressor inside would make of the answer for this client.
        sent = scope["headers"]
        if self._exchange.key_lines:
            scope["headers"] = [pair for pair in sent if pair[0].lower() != b"accept-encoding"]
        try:
            await self._app(scope, self._receive, self._capture)
        except BaseException as error:
            await self._calm()
            if await self._app_raised(error):
                raise
        else:
            await self._calm()
            await self._app_returned()
        finally:
            scope["headers"] = sent

    async def _app_returned(self) -> None:
        exchange = self._exchange
        if self._answered or self.passing:
            return
        if exchange.answer is not None:
            await self._deliver(exchange.answer)
        elif self._sent.start is not None and exchange.running is None:
            await self._pass_held({"type": "http.response.body", "body": b"", "more_body": False})
        elif not exchange.let_go():
            page = self._whole_page()
            if page is None and self._handled is None:
                raise_again = await self._app_raised(silence := RuntimeError(_SILENCE))
                if raise_again:
                    raise silence
            else:
                await self._finish(page)

    async def _app_raised(self, error: BaseException) -> bool:
        """Records what is to be recorded. True: raise the error, so that the server reports it."""
        exchange = self._exchange
        if self._answered or self.passing:
            # After the answer: a background task or a clean-up failed. Our own sign to the framework that
            # nothing may run is no failure.
            return not is_sign(error)
        if exchange.answer is not None:
            await self._deliver(exchange.answer)
            return False
        if exchange.let_go():
            return True
        assert exchange.running is not None
        boundary = exchange.running.boundary
        late = self._handled is not None  # it was raised while its outcome was being made durable
        if not late and exchange.at_edge:
            boundary.raised(error)
        elif not late and self._abandon():
            if exchange.running.anonymous:
                return True  # no key was sent, so there is nothing to say of one
            await self._deliver(self._still_runs())
            return not isinstance(error, asyncio.CancelledError) or _is_cancelled()
        page = self._page if exchange.at_edge and self._is_error_page() else None
        try:
            finished = await self._finish(page)
        except Exception as found:
            if found is error:
                return True
            raise found from error
        if isinstance(error, asyncio.CancelledError):
            return _is_cancelled()
        # An error that was answered on purpose (``NotExecuted``) is nobody's failure.
        return finished.answer is None or late or boundary.place is Place.RETURNED or page is not None

    def _abandon(self) -> bool:
        """Whether the handler still runs: then whoever runs it will finish, and nobody else."""
        running = self._exchange.running
        assert running is not None
        return self._engine.abandon(running)

    async def _receive(self) -> Message:
        """What the client sends. A handler whose outcome is still to be recorded does not see it leave."""
        message = await self._client_receive()
        if message["type"] == "http.disconnect" and self._exchange.key_lines and self._exchange.is_claimed:
            await self._passes.wait()
        return message

    async def _capture(self, message: Message) -> None:
        """What the application sends to: holds the answer back until its outcome is durable."""
        exchange = self._exchange
        if self._streams:
            await self._calm()
        if self.passing:
            await self._send(message)
        elif self._answered or self._handled is not None or self._page is not None:
            self._go_on()
            return
        elif exchange.answer is not None:
            await self._deliver(exchange.answer)
        elif exchange.stream_due:
            self._hold(message)
        elif exchange.running is None and self._sent.start is not None:
            await self._pass_held(message)
        elif exchange.running is None and message["type"] != "http.response.start":
            await self._send(message)  # an early hint, say: it decides nothing
        elif exchange.running is None:
            # No handler claimed: the router refused, validation failed, or no key was sent.
            if exchange.let_go():
                if exchange.key_lines and not self._left_alone:
                    unguarded_answer(self.name, message["status"])
                self._pass()
                await self._send(message)
            else:
                await self._capture(message)
        elif message["type"] == "http.response.start":
            if self._sent.start is not None:
                raise RuntimeError("The application sent http.response.start twice.")
            self._sent.start = copied(message)
        elif message["type"] == "http.response.body":
            await self._collect(message)
        else:
            await self._send(message)

    def _hold(self, message: Message) -> None:
        """A generator has been called, and claims at its first step: what is sent before waits for that."""
        if message["type"] == "http.response.start":
            self._sent = Collected(message)  # the last one counts: nobody has seen another
        else:
            self._sent.add(message)

    async def _pass_held(self, message: Message) -> None:
        """Nobody has claimed after all: what was held is the client's."""
        if not self._exchange.let_go():
            await self._capture(message)
            return
        held, self._sent.start = self._sent.start, None
        assert held is not None
        self._pass()
        if message["type"] != "http.response.start":  # else somebody answers in the place of what was held
            await self._send(held)
            for chunk in self._sent.chunks:
                await self._send({"type": "http.response.body", "body": chunk, "more_body": True})
        await self._send(message)

    async def _collect(self, message: Message) -> None:
        if self._sent.start is None:
            raise RuntimeError("The application sent a body before http.response.start.")
        self._sent.add(message)
        running = self._exchange.running
        assert running is not None
        if not message.get("more_body", False):
            await self._calm()
            if (self._exchange.at_edge and self._is_error_page()) or not self._is_whole(running):
                self._page = self._sent.answer()
            else:
                await self._finish(self._sent.answer())
                self._go_on()
        elif self._is_too_long(running) or self._sent.is_endless:
            await self._calm()
            await self._finish(self._sent.answer(), streamed=True)
            self._go_on()
        elif self._patience is None and running.rules.mode in (Mode.LEASED, Mode.REPEATABLE):
            self._patience = asyncio.create_task(self._lose_patience())

    def _is_too_long(self, running: Running) -> bool:
        """Whether it is not waited for to its end. What is all there already, and a layer only hands on in
        pieces, is: a transaction commits no stream."""
        all_there = running.session is not None and running.boundary.pieces is Pieces.WHOLE
        return self._sent.size > running.rules.policy.max_answer and not all_there

    def _go_on(self) -> None:
        """What the application does after its answer belongs to that answer: a receipt for an order that was
        rolled back must not be sent."""
        if self._replaced:
            raise Answered(REPLACED)

    def _is_error_page(self) -> bool:
        return self._sent.start is not None and self._sent.start["status"] >= 500

    def _is_whole(self, running: Running) -> bool:
        """Whether the last message is the end of the answer. Its handler says so, or the answer itself does;
        else the application's end tells."""
        pieces = running.boundary.pieces
        if pieces is Pieces.NOT_SEEN:
            return self._sent.shows_its_end
        return pieces is Pieces.WHOLE and not self._sent.is_short

    def _whole_page(self) -> Answer | None:
        """The page of an application that has ended; None where it broke off."""
        running = self._exchange.running
        broke_off = running is not None and running.boundary.pieces in (Pieces.OPEN, Pieces.BROKEN)
        return None if broke_off or self._page is None or self._sent.is_short else self._page

    async def _finish(self, page: Answer | None, *, streamed: bool = False) -> Finished:
        """The outcome becomes durable, once; only then does the first byte leave.

        Whoever is cancelled while it waits here comes back at the application's end for the same result.
        """
        running = self._exchange.running
        assert running is not None
        policy, first = running.rules.policy, self._handled is None
        if self._handled is None:
            at_edge = self._exchange.at_edge
            if at_edge and running.boundary.place is Place.RUNNING and page is not None:
                running.boundary.said = own_word(page.status, running.rules)
                running.boundary.returned()
            elif running.boundary.place is Place.RUNNING and self._sends_itself(running):
                running.boundary.returned()
            elif not at_edge and self._abandon():
                # Somebody answers in the place of a handler that still runs; whoever runs it will finish.
                assert page is not None
                dated = page if running.anonymous else with_expiry(page, policy, running.expires_at)
                shown = Finished(dated)
                await self._deliver(shown.answer)
                return shown
            self._handled = self._exchange.handled(page, streamed=streamed)
        handled = self._handled
        finished = await self._engine.finish_async(running, handled)
        answer = finished.answer
        self._replaced = is_replaced(handled.answer, answer, running.rules.mode)
        if handled.streamed and answer is not None and handled.answer is not None:
            if answer.body is not handled.answer.body:
                await self._deliver(answer)
            elif first:
                await self._begin_stream(answer)
            else:  # cancelled meanwhile: what should have followed is lost
                await self._deliver(withheld_answer(policy, running.operation.id, running.expires_at))
        else:
            await self._deliver(answer)
        if finished.error is not None and not isinstance(finished.error, asyncio.CancelledError):
            raise finished.error
        return finished

    def _sends_itself(self, running: Running) -> bool:
        """Whether the answer comes from the handler itself while it runs, as a bare application's does."""
        boundary = running.boundary
        if _current.get() is running.operation and self._sent.start is not None:
            boundary.said = self._sent.start["status"]
            return True
        return boundary.sent_all

    async def _begin_stream(self, answer: Answer) -> None:
        """Sends what there is; the rest passes."""
        self._pass()
        answer = self._below(self._root, answer) if self._root else answer
        await self._send(
            {"type": "http.response.start", "status": answer.status, "headers": lower_case(answer.headers)}
        )
        await self._send({"type": "http.response.body", "body": answer.body, "more_body": True})

    def _pass(self) -> None:
        self.passing = True
        self._passes.set()

    def _still_runs(self) -> Answer:
        """The application gave up while its handler still runs, and its outcome is not known yet."""
        running = self._exchange.running
        assert running is not None
        if running.anonymous:  # no key was sent, so there is nothing to say of one
            return refuse(
                Refusal(503, "The operation still runs; how it will end is not known."), self._policy
            )
        operation_id = None if running.lease is None else running.operation.id
        return verdict_answer(Outstanding(operation_id, running.expires_at), running.rules.policy)

    async def _deliver(self, answer: Answer | None) -> None:
        """Sends the answer. None: the error that follows is for the server to answer. What is recorded may
        hear that its client has gone: a streaming response may wait for that before it ends."""
        self._answered = True
        self._passes.set()
        if answer is None:
            return
        try:
            await send_answer(self._send, self._below(self._root, answer) if self._root else answer)
        except OSError:
            logger.info("The client was gone before its answer; a retry with the same key will get it")
