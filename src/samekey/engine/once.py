"""The same guard for plain functions, queue consumers and incoming webhooks: no HTTP around it.

    result = idempotency.once(tenant="acme", key=event["id"], payload=event, run=lambda: book(event))

The first call runs; every later one with the same key and payload gets the first result; another payload
under the same key is refused. A call that happened and whose result cannot be kept is not run again: the
fact is kept in its place.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..core.decide import (
    Accepted,
    Ask,
    Gone,
    Mismatch,
    ModeChanged,
    Outstanding,
    Replay,
    Uncertain,
    Unreadable,
    Verdict,
    Withheld,
)
from ..core.fingerprint import RequestParts
from ..core.phases import decode_value, encode_value
from ..core.record import Answer
from ..core.states import Mode
from ..errors import (
    CallDeclined,
    ConfigurationError,
    CorruptRecord,
    DefinitionChanged,
    KeyReused,
    LeaseLost,
    NotSerialisable,
    OutcomeUnknown,
    ResultUnavailable,
    StillRunning,
    StoreUnavailable,
)
from ..evidence import CALL_DECLINED, CALL_RETURNED
from .exchange import Exchange
from .handler.boundary import Place
from .handler.forms import has_async_call, must_have_run
from .handler.options import OnceOptions
from .handler.rules import Rules, rules_from
from .modes.mode import Finished, Handled
from .operation import Running, enter, leave

if TYPE_CHECKING:
    from .engine import Engine

_JSON = ((b"content-type", b"application/json"),)
_CALLED = {"path": "function", "body": "payload"}
"""What the parts of a request are in a call."""
_MODES = {"leased": Mode.LEASED, "repeatable": Mode.REPEATABLE, "atomic": Mode.ATOMIC}


class Once:
    """One call, guarded. ``name`` tells functions apart: a key used for another one is refused."""

    def __init__(
        self,
        engine: Engine,
        *,
        tenant: str,
        key: str,
        payload: Any,
        name: str,
        mode: str,
        options: OnceOptions,
    ) -> None:
        if mode not in _MODES:
            raise ConfigurationError(f"mode must be one of {', '.join(_MODES)}, not {mode!r}.")
        if not tenant or not key:
            raise ConfigurationError("once() needs a tenant and a key; neither may be empty.")
        self._engine = engine
        self.rules: Rules = rules_from(engine.policy, _MODES[mode], options)
        body = encode_value(payload, "The payload")
        parts = RequestParts("CALL", name, b"", _JSON, body)
        self.exchange = Exchange(parts, (), {}, lambda _: tenant, name, is_call=True)
        self.tenant = tenant
        self.key = _storable(key)
        self._unserialisable: NotSerialisable | None = None

    def run(self, function: Callable[[], Any], of: Any = None) -> Any:
        """Sync. ``of``: the function that it calls and does nothing else, if there is one."""
        engine, rules = self._engine, self.rules
        connection = engine.connection_for(rules, self.exchange)
        begun = entered = None
        try:
            try:
                begun = engine.drive(
                    engine.claim_key(self.exchange, rules, self.tenant, self.key, connection)
                )
                if not isinstance(begun, Running):
                    return _earlier(begun)
                begun.lend(engine.binding, sync=True)
                entered = enter(begun.operation)
                begun.boundary.enter()
            except BaseException:
                if entered is not None:
                    leave(entered)
                if isinstance(begun, Running):
                    engine.back_out(begun)  # a signal's: the function was not called
                raise
            try:
                result = must_have_run(function(), of or function)
                begun.settle()
                begun.boundary.returned()
                handled = self._handled(result)
            except BaseException as error:
                try:
                    engine.fall(begun, error)
                finally:
                    engine.finish(begun, _broken_off(begun, error))
                raise
            finally:
                leave(entered)
            return self._result(result, handled, engine.finish(begun, handled))
        finally:
            # Whichever way out this is, nobody runs it any more, so nobody keeps its lease alive.
            if isinstance(begun, Running) and begun.lease is not None:
                engine.keeper.forget(begun.lease)

    async def run_async(self, function: Callable[[], Any]) -> Any:
        """Async; the function may be either."""
        engine, rules = self._engine, self.rules
        connection = engine.connection_for(rules, self.exchange)
        if inspect.isawaitable(connection):
            connection = await connection
        begun = await engine.claim_key_async(self.exchange, rules, self.tenant, self.key, connection)
        if not isinstance(begun, Running):
            return _earlier(begun)
        begun.lend(engine.binding, sync=False)
        entered = enter(begun.operation)
        begun.boundary.enter()
        try:
            result = function()
            result = await result if inspect.isawaitable(result) else must_have_run(result, function)
            await begun.settle_async()
            begun.boundary.returned()
            handled = self._handled(result)
        except BaseException as error:
            try:
                await engine.fall_async(begun, error)
            finally:
                await engine.finish_async(begun, _broken_off(begun, error))
            raise
        finally:
            leave(entered)
        return self._result(result, handled, await engine.finish_async(begun, handled))

    def _handled(self, result: Any) -> Handled:
        """The result as it is stored. One that cannot be is withheld, unless everything can be undone."""
        try:
            return Handled(Answer(CALL_RETURNED, _JSON, encode_value(result, "The result")))
        except NotSerialisable as error:
            if self.rules.mode is Mode.ATOMIC:
                return Handled(None, error)
            self._unserialisable = error
            return Handled(Answer(200, _JSON), streamed=True)

    def _result(self, result: Any, handled: Handled, finished: Finished) -> Any:
        if finished.error is not None:
            raise finished.error
        if self._unserialisable is not None:
            raise NotSerialisable(
                f"{self._unserialisable} The call was carried out and will not be run again under this key: "
                "later calls get ResultUnavailable."
            )
        assert finished.answer is not None and handled.answer is not None
        if finished.answer.status == 503:
            raise StoreUnavailable(
                "The store was lost at the end. Call again with the same key: it runs again only if nothing "
                "was done."
            )
        if finished.answer.status != 200 or finished.answer.body != handled.answer.body:
            raise LeaseLost(
                "The lease of this call ran out, and others have taken the operation: what is recorded there "
                "counts. What was done here is noted with it. Call again with the same key."
            )
        return result


def decorator(
    engine: Engine,
    *,
    tenant: Callable[..., str],
    key: Callable[..., str],
    payload: Callable[..., Any] | None,
    name: str | None,
    mode: str,
    options: OnceOptions,
) -> Callable[[Any], Any]:
    """Guards a function: ``tenant``, ``key`` and ``payload`` are functions of its arguments."""

    def declare(function: Any) -> Any:
        called = name or f"{function.__module__}.{function.__qualname__}"
        arguments = Arguments(function).of if payload is None else payload

        def once(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Once:
            return Once(
                engine,
                tenant=tenant(*args, **kwargs),
                key=key(*args, **kwargs),
                payload=arguments(*args, **kwargs),
                name=called,
                mode=mode,
                options=options,
            )

        if inspect.iscoroutinefunction(function) or has_async_call(function):

            @functools.wraps(function)
            async def guarded_async(*args: Any, **kwargs: Any) -> Any:
                return await once(args, kwargs).run_async(lambda: function(*args, **kwargs))

            return guarded_async

        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            return once(args, kwargs).run(lambda: function(*args, **kwargs), function)

        return guarded

    return declare


class Arguments:
    """The arguments of a call as its payload: the same however they are spelled.

    By position, by name, or left to their defaults, one call has one payload.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._signature = inspect.signature(function)
        kinds = {one.name: one.kind for one in self._signature.parameters.values()}
        self._rest = next((n for n, kind in kinds.items() if kind is inspect.Parameter.VAR_POSITIONAL), None)
        for parameter in self._signature.parameters.values():
            if parameter.default is inspect.Parameter.empty:
                continue
            try:
                encode_value(parameter.default, "It")
            except NotSerialisable:
                raise ConfigurationError(
                    f"The default of {parameter.name!r} of {function.__qualname__} cannot be compared, and "
                    "without payload= every argument counts. Give payload=, a function of the arguments that "
                    "returns plain values."
                ) from None

    def of(self, /, *args: Any, **kwargs: Any) -> Any:
        """``TypeError`` where the function could not be called so."""
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        values = dict(bound.arguments)
        if self._rest is not None:
            values[self._rest] = list(values[self._rest])
        return values


def _broken_off(begun: Running, error: BaseException) -> Handled:
    if begun.boundary.place is Place.RETURNED:
        return Handled(None, own=False)  # it was done, and what came of it cannot be kept
    begun.boundary.raised(error)
    return Handled(None, error, before_effect=begun.boundary.is_proof())


def _storable(key: str) -> str:
    """A broker's id may be anything; what no header could carry is kept as its digest.

    So is what looks like such a digest: no two keys are stored as one.
    """
    if len(key) <= 255 and key.isascii() and key.isprintable() and not key.startswith("#"):
        return key
    return "#" + hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def _earlier(verdict: Verdict) -> Any:
    """The first call's result, or an error that says why there is none."""
    match verdict:
        case Replay(record):
            assert record.answer is not None
            if record.answer.status == CALL_DECLINED:
                raise CallDeclined(decode_value(record.answer.body))
            if record.answer.status != CALL_RETURNED:
                raise ResultUnavailable(
                    "The first call failed, and its failure is remembered. Nothing was run."
                )
            return decode_value(record.answer.body)
        case Mismatch(_, differs):
            what = " and ".join(_CALLED[part] for part in differs if part in _CALLED) or "payload or function"
            raise KeyReused(f"This key was first used with another {what}. Nothing was run.")
        case Outstanding() | Accepted():
            raise StillRunning("The first call with this key is still running. Try again later.")
        case Uncertain() | Ask():
            raise OutcomeUnknown("It is not known whether the first call was carried out. Nothing was run.")
        case Gone() | Withheld():
            raise ResultUnavailable("It was done before, but its result is no longer there. Nothing was run.")
        case Unreadable(detail):
            raise CorruptRecord(detail)
        case ModeChanged():
            raise DefinitionChanged(verdict.detail)
