"""What is saved of an operation before its first byte is sent: enough to send the very same again."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import asdict, dataclass, replace
from typing import Any, Final
from uuid import uuid4

from .errors import JournalFailed, OperationChanged
from .wire import Pairs, Request, without_user

VERSION: Final = 1

_NOT_SAVED: Final = frozenset(
    {
        *("host", "content-length", "transfer-encoding", "connection", "keep-alive", "te", "trailer"),
        *("upgrade", "expect", "accept-encoding", "user-agent", "cookie", "authorization"),
        *("proxy-authorization", "dpop", "signature", "signature-input", "x-amz-date", "date"),
    }
)
_SECRET_PARTS: Final = (
    *("auth", "token", "secret", "key", "password", "passwd", "credential", "session", "cookie"),
    *("jwt", "assertion", "sign", "hmac", "cert"),
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One operation that was begun."""

    key: str
    name: str | None
    """The caller's own name for it, by which it is the same operation after a restart."""
    method: str
    url: str
    headers: Pairs
    body: bytes
    digest: str
    begun_at: float
    """Seconds since 1970."""
    expires_at: float | None = None
    """Until when the key may be sent again, where the server has said so."""
    joined: bool = False
    """Another call has begun it too, so that one of them alone cannot say that nothing was sent."""
    finished_at: float | None = None
    """A named one is remembered when it is done: its name must not get a new key."""
    refused: bool = False
    """Its answer was a refusal, which the server need not remember: begun again, it may be carried out."""
    account: str = ""
    """Whose it is, where several share a journal."""
    spelling: str = ""
    """How its key is spelled."""
    by: str = ""
    """A digest of the credentials and account among the headers of the client that began it."""

    @staticmethod
    def of(request: Request, name: str | None, key: str | None, now: float, defaults: Pairs = ()) -> Entry:
        """For a request that is about to be sent; a key is made here and nowhere else. ``defaults``: headers
        that its client adds to each request, and will add to this one again."""
        return Entry(
            key or str(uuid4()),
            name,
            request.method,
            without_user(request.url),
            saved_headers(request.headers, defaults),
            request.body,
            digest_of(request),
            now,
            by=identity_of(defaults),
        )

    @property
    def label(self) -> str:
        """What it is found by."""
        named = f"key:{self.key}" if self.name is None else f"name:{self.name}"
        named = f"account:{self.account}\n{named}" if self.account else named
        return hashlib.sha256(named.encode()).hexdigest()

    @property
    def request(self) -> Request:
        return Request(self.method, self.url, self.headers, self.body)

    # What a journal's acts make of the entry that is stored: each changes its own member and no other.

    def is_joined(self) -> Entry:
        return replace(self, joined=True)

    def begun_again(self, entry: Entry) -> Entry:
        """What was refused may be carried out this time: it is pending until it has another answer."""
        if self.finished_at is None or not self.refused or self.digest != entry.digest:
            return self.is_joined()
        return replace(self, joined=True, finished_at=None, headers=entry.headers, body=entry.body)

    def noted(self, expires_at: float | None) -> Entry:
        """The shorter life counts: of two answers, nobody can tell which the server will keep to."""
        known = [at for at in (self.expires_at, expires_at) if at is not None]
        return replace(self, expires_at=min(known, default=None))

    def finished(self, entry: Entry, now: float, expires_at: float | None = None) -> Entry:
        """What is remembered of a named one: that it was, and not what it held. ``entry``: as it ended."""
        first = now if self.finished_at is None else self.finished_at
        refused = entry.refused and (self.finished_at is None or self.refused)
        return replace(self.noted(expires_at), headers=(), body=b"", finished_at=first, refused=refused)

    def may_be_dropped(self, key: str) -> bool:
        """By the word of a call that has sent nothing, which is no word about what others have done."""
        return self.key == key and not self.joined and self.finished_at is None

    def may_be_discarded(self, key: str) -> bool:
        """What was finished since it was listed stays known; so does another of the same name."""
        return self.key == key and self.finished_at is None

    def check_same(self, request: Request) -> None:
        """``OperationChanged`` if this is not the request that it was begun with."""
        if digest_of(request) != self.digest:
            called = "under this key" if self.name is None else f"named {self.name!r}"
            raise OperationChanged(
                f"An operation {called} was begun with another request (method, URL, content type or body). "
                "Nothing was sent. Give each operation a name of its own; one that goes on sends exactly "
                "what it sent before."
            )

    def check_key(self, key: str) -> None:
        """``OperationChanged`` if it was begun under another key than the one that the caller sets now."""
        if key != self.key:
            raise OperationChanged(
                f"The operation named {self.name!r} was begun under another key than this request's own. "
                "Nothing was sent. Set no key of your own under a name, or the same one each time."
            )

    def encode(self) -> bytes:
        """As bytes that tell whether they are whole."""
        content = {**asdict(self), "version": VERSION, "body": base64.b64encode(self.body).decode()}
        text = json.dumps(content, separators=(",", ":"))
        return f"{hashlib.sha256(text.encode()).hexdigest()}\n{text}\n".encode()

    @staticmethod
    def decode(stored: bytes, where: str) -> Entry:
        """``JournalFailed`` for anything but what ``encode`` gave."""
        proof, _, text = stored.decode("utf-8", "replace").partition("\n")
        text = text.rstrip("\n")
        whole = hashlib.sha256(text.encode()).hexdigest() == proof
        content: dict[str, Any] = json.loads(text) if whole else {}
        if content.pop("version", None) != VERSION:
            raise _unreadable(where)
        try:
            content["body"] = base64.b64decode(content["body"])
            content["headers"] = tuple((name, value) for name, value in content["headers"])
            return Entry(**content)
        except (ValueError, KeyError, TypeError):
            raise _unreadable(where) from None


def _unreadable(where: str) -> JournalFailed:
    return JournalFailed(
        f"The operation in {where} cannot be read: it is damaged, or of another version of samekey. Nothing "
        "was sent. Find out what became of it before you remove it."
    )


def digest_of(request: Request) -> str:
    """What must not change between two attempts."""
    parts = (
        request.method.encode(),
        without_user(request.url).encode(),
        (request.header("content-type") or "").encode(),
        request.body,
    )
    found = hashlib.sha256()
    for part in parts:
        found.update(len(part).to_bytes(8, "big") + part)
    return found.hexdigest()


def saved_headers(headers: Pairs, defaults: Pairs = ()) -> Pairs:
    """Without credentials and the client's own headers, which are added anew, and without what belongs to one
    connection. The content type is a part of what the request says."""
    added = {(name.lower(), value) for name, value in defaults if name.lower() != "content-type"}
    return tuple(
        (name, value)
        for name, value in headers
        if not _is_left_out(name.lower()) and (name.lower(), value) not in added
    )


_ACCOUNTS: Final = ("account", "tenant", "merchant", "customer", "organi")


def identity_of(defaults: Pairs) -> str:
    """A digest of what a client says of itself with each request; empty where it says nothing. What an auth
    flow adds is not seen: tokens change."""
    said = sorted(
        (name.lower(), value)
        for name, value in defaults
        if any(part in name.lower() for part in (*_SECRET_PARTS, *_ACCOUNTS))
    )
    return hashlib.sha256(repr(said).encode()).hexdigest() if said else ""


def _is_left_out(name: str) -> bool:
    return name in _NOT_SAVED or any(part in name for part in _SECRET_PARTS)
