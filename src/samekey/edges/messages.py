"""What the ASGI edge and an application say to each other, and an answer put together from it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterable, MutableMapping
from contextvars import copy_context
from functools import partial
from types import coroutine
from typing import Any, Final, TypeVar

from ..core.record import Answer, Headers
from ..core.states import Mode
from ..engine.exchange import Exchange

T = TypeVar("T")

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

PATH: Final = "samekey.path"
"""The key in the scope under which it stands which path a request came by, where a mount hides it."""
_ENDLESS: Final = (b"text/event-stream", b"multipart/x-mixed-replace")
"""Types of answers that have no end."""


class Collected:
    """What an application has sent of its answer so far."""

    def __init__(self, start: Message | None = None) -> None:
        self.start = None if start is None else copied(start)
        self.chunks: list[bytes] = []
        self.size = 0
        self.pieces = 0

    def add(self, message: Message) -> None:
        """A piece of the body."""
        self.chunks.append(bytes(message.get("body", b"")))
        self.size += len(self.chunks[-1])
        self.pieces += 1

    @property
    def is_endless(self) -> bool:
        assert self.start is not None
        types = [value for name, value in self.start.get("headers", ()) if name.lower() == b"content-type"]
        return any(value.strip().lower().startswith(_ENDLESS) for value in types)

    @property
    def is_short(self) -> bool:
        """Less came than was announced."""
        assert self.start is not None
        length = announced(self.start["status"], self.start["headers"])
        return length is not None and self.size < length

    @property
    def shows_its_end(self) -> bool:
        """Whether what came so far proves that it is all: as much as was announced, one piece that was not
        empty, or an answer that has no body. A middleware may end an answer that broke off."""
        assert self.start is not None
        length = announced(self.start["status"], self.start["headers"])
        return self.pieces == 1 and self.size > 0 if length is None else self.size >= length

    def answer(self) -> Answer:
        """All of it, as one answer."""
        assert self.start is not None
        body = b"".join(self.chunks)
        self.chunks.clear()
        return Answer(self.start["status"], tuple(self.start["headers"]), body)


_HANDED_ON: Final = (b"x-sendfile", b"x-accel-redirect", b"x-lighttpd-send-file")
"""Headers by which the server in front is asked to send a file in the place of the body."""


def announced(status: int, headers: Iterable[tuple[bytes, bytes]]) -> int | None:
    """How long the body is to be, by the headers; None where they do not say. 0 where there is none, or where
    it is somebody else's to send, whatever is announced."""
    if status in (204, 304):
        return 0
    length = None
    for name, value in headers:
        lower = name.lower()
        if lower in _HANDED_ON:
            return 0
        if lower == b"content-length":
            length = int(value) if length is None and value.isdigit() else None
    return length


def copied(start: Message) -> Message:
    """Headers may be any iterable, which can be walked through once, and may be changed by the application
    later on. A status that is no number is an error of whoever sends it, as any server would tell."""
    if not isinstance(start.get("status"), int):
        raise TypeError(f"The application sent {start.get('status')!r} as its status.")
    headers = [(bytes(name), bytes(value)) for name, value in start.get("headers", ())]
    return {**start, "headers": headers}


REPLACED: Final = "The client was given another answer than the one that the application made."


def is_replaced(made: Answer | None, sent: Answer | None, mode: Mode) -> bool:
    """Whether the client gets another answer than the one that the application made, which it takes for the
    end of its work. A page of an error is none: the application knows that it has failed."""
    if made is None or sent is None or made.status >= 500:
        return False
    if mode is Mode.DEFERRED and sent.status == 202:
        return False  # the job is there, and the client is told where to ask for it
    return sent.status != made.status or sent.body is not made.body


async def send_answer(send: Send, answer: Answer, *, head: bool = False) -> None:
    headers = lower_case(answer.headers)
    if answer.header(b"content-length") is None and answer.status not in (204, 304):
        headers.append((b"content-length", str(len(answer.body)).encode()))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if head else answer.body, "more_body": False})


def noticing(send: Send, exchange: Exchange) -> Send:
    """What a client without a key is to be told goes with whatever it is answered."""

    async def send_noticing(message: Message) -> None:
        if exchange.notice is not None and message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), exchange.notice]}
        await send(message)

    return send_noticing


def lower_case(headers: Headers) -> list[tuple[bytes, bytes]]:
    """As the ASGI specification has the names of headers: middleware further out compares them so."""
    return [(name.lower(), value) for name, value in headers]


def from_outside(call: Callable[..., Awaitable[T]]) -> Callable[..., Awaitable[T]]:
    """``call``, each step of it in the context of this moment, whoever awaits it: the server is called from
    where the request came in, not from inside the operation.

    A server may begin the next request of a connection while the last piece of an answer is handed to it
    (uvicorn does, for clients that pipeline), and goes on reading from a connection when a body is asked for,
    whatever comes then. Tasks and callbacks take over the context that they are begun in: another request
    would be taken for a part of this one.
    """
    context = copy_context()

    @coroutine
    def calling(*given: Any) -> Generator[Any, Any, T]:
        steps = context.run(call, *given).__await__()
        step: Callable[[], Any] = partial(context.run, next, steps)
        while True:
            try:
                waits_for = step()
            except StopIteration as end:
                result: T = end.value
                return result
            try:
                step = partial(context.run, steps.send, (yield waits_for))
            except BaseException as error:  # whoever awaits it is cancelled, or closed
                step = partial(context.run, steps.throw, error)

    return calling
