"""Answers of WSGI applications to requests that are not guarded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from ..engine.exchange import Exchange, Unguarded


class Unclaimed:
    """The answer to a request that is not guarded. An application may be a generator, and run no earlier than
    when it is iterated over: then it is, all of it, in the context that it was called in."""

    def __init__(self, context: Callable[[], AbstractContextManager[None]], seen: Unguarded | None) -> None:
        self._context = context
        self._seen = seen
        self._chunks: Iterable[bytes] = ()
        self._rest: Iterator[bytes] | None = None
        self._started = False

    def run(
        self, app: Any, environ: dict[str, Any], start_response: Callable[..., Callable[[bytes], object]]
    ) -> Iterable[bytes]:
        """The application's own iterable, if it has begun to answer; else this one in its place."""

        def start(*args: Any, **kwargs: Any) -> Callable[[bytes], object]:
            self._started = True
            write: Callable[[bytes], object] = start_response(*args, **kwargs)
            return write

        try:
            with self._context():
                self._chunks = app(environ, start)
        except BaseException:
            self._end()
            raise
        if not self._started:
            return self
        self._end()
        return self._chunks

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        with self._context():
            if self._rest is None:
                self._rest = iter(self._chunks)
            return next(self._rest)

    def close(self) -> None:
        try:
            with self._context():
                close(self._chunks)
        finally:
            self._end()

    def _end(self) -> None:
        if self._seen is not None:
            self._seen.over = True


def noticing(start_response: Callable[..., Any], exchange: Exchange) -> Callable[..., Any]:
    """What a client without a key is to be told goes with whatever it is answered."""

    def start(status: str, headers: list[tuple[str, str]], *more: Any) -> Any:
        if exchange.notice is not None:
            name, value = (part.decode("latin-1") for part in exchange.notice)
            headers = [*headers, (name, value)]
        return start_response(status, headers, *more)

    return start


def close(chunks: Any) -> None:
    """As a server ends an iterable."""
    closes = getattr(chunks, "close", None)
    if closes is not None:
        closes()
