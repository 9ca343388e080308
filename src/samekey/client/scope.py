"""Which operation a request is: named by the caller, or one that is being finished.

What the caller says is meant for the request that he sends. Whatever else goes out on its behalf, such as an
auth flow's request for a new token, is not his operation.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from ..errors import ConfigurationError
from .entry import Entry, digest_of
from .errors import OperationChanged
from .wire import Pairs, Request, origin_of

logger = logging.getLogger("samekey")

SAID: Final = "samekey.said"
"""Where the request that the caller sends carries what he said of it."""
DEFAULTS: Final = "samekey.defaults"
"""Where it carries the headers that its client adds to each request."""


@dataclass(slots=True)
class Named:
    """The caller's own name for it."""

    name: str
    taken: bool = False
    """A request was sent under it."""
    over: bool = False
    """Its block has ended. What was started inside, and goes on, is another operation."""
    _first: Request | None = field(default=None, repr=False)

    def check_first(self, request: Request) -> None:
        """For a transport without a client of ours, which cannot tell who sends: the first request is the
        operation. Any other is refused: without the name it would go out under a new key at each retry."""
        if self._first is None:
            self._first = request
        if digest_of(request) != digest_of(self._first):
            raise OperationChanged(
                f"A second request inside operation({self.name!r}) is not the first one again. It was not "
                "sent. Give each operation a name of its own. If an auth flow sends one of them, use "
                "samekey's own Client or Session, which can tell."
            )


@dataclass(frozen=True, slots=True)
class Listed:
    """It was begun before, and ``pending()`` has listed it."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class Sending:
    """A client of ours is sending the request that has this carrier."""

    carrier: MutableMapping[str, Any]
    url: str

    def is_for(self, url: str) -> bool:
        """Whether a request is this one, in whatever form an auth flow has sent it: a copy with a signature.
        What goes elsewhere, such as a request for a token, is sent on its behalf."""
        return _place(url) == _place(self.url)


Said = Named | Listed | Sending | None

_current: ContextVar[Said] = ContextVar("samekey_client_operation", default=None)


@contextmanager
def _saying(said: Said) -> Iterator[None]:
    token = _current.set(said)
    try:
        yield
    finally:
        _current.reset(token)


@contextmanager
def operation(name: str) -> Iterator[None]:
    """Says what the request inside is, in words that are the same after a restart: ``"pay order 17"``.

    Under one name there is one key and one request. Begun again, also by another process, it goes on under
    the same key, and once it is done it gets the same answer.
    """
    if not name or not isinstance(name, str):
        raise ConfigurationError(f"An operation's name is a text that is not empty, not {name!r}.")
    named = Named(name)
    try:
        with _saying(named):
            yield
    finally:
        named.over = True
    if not named.taken:
        logger.warning(
            "No request with a key was sent inside operation(%r). What a thread sends that was started "
            "without this context (contextvars.copy_context()) goes out without its name.",
            name,
        )


@contextmanager
def going_on_with(entry: Entry) -> Iterator[None]:
    """The request inside is that of an operation that was listed."""
    with _saying(Listed(entry)):
        yield


@contextmanager
def sending(carrier: MutableMapping[str, Any], defaults: Pairs, url: str) -> Iterator[None]:
    """The request that carries this is the one that was meant, and nothing else that goes out meanwhile.
    ``defaults``: the client's own headers."""
    carrier[SAID], carrier[DEFAULTS] = current(), defaults
    with _saying(Sending(carrier, url)):
        yield


@contextmanager
def nothing_said() -> Iterator[None]:
    """Around the wire: a server that runs in this very process makes requests of its own."""
    with _saying(None):
        yield


def current() -> Said:
    """What the next request was said to be."""
    said = _current.get()
    if isinstance(said, Named) and said.over:
        raise OperationChanged(
            f"operation({said.name!r}) has ended, and what was started inside of it goes on under its name. "
            "Nothing was sent. Start it outside of the block, or with a context of its own."
        )
    return said


def _place(url: str) -> tuple[object, ...]:
    parts = urlsplit(url)
    return (*origin_of(url), parts.path or "/")
