"""What one request asks for: its identity, its fingerprint and how it wants to run."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, TypeAlias

from .states import Mode

_PLAIN_LIMIT: Final = 200
"""A longer scope part is hashed, so that no path or principal can outgrow a database's index row."""

TtlFrom: TypeAlias = Literal["completion", "creation"]
AfterExpiry: TypeAlias = Literal["new", "ask", "gone"]


@dataclass(frozen=True, slots=True)
class Claim:
    """A request for the right to run. ``id`` and ``attempt`` are fresh random values, unused if lost."""

    id: str
    attempt: str
    scope: str
    key: str
    tenant: str
    endpoint: str
    fingerprint: bytes
    fingerprint_version: str
    digest_as: Callable[[str], bytes | None]
    """This request's digest under a stored record's version; None where it cannot be computed."""
    mode: Mode
    lease_ms: int
    ttl_ms: int
    """How long the settled record is kept."""
    ttl_from: TtlFrom = "completion"
    """From when on that is counted."""
    after_expiry: AfterExpiry = "new"
    """What follows: it runs again (``new``), after asking the provider (``ask``), or never (``gone``)."""
    has_lookup: Callable[[str], bool] = lambda _: False
    """Whether somebody can be asked, here and now, about operations of this endpoint."""
    asked: str | None = None
    """The attempt of the expired record that was asked about, and of which nothing had happened."""


def scope_part(text: str) -> str:
    """A principal or endpoint in a form that every store can hold, distinct for distinct inputs."""
    if len(text) <= _PLAIN_LIMIT and text.isascii() and text.isprintable():
        return f"={text}"
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return f"#{digest}"


def scope_of(*parts: str) -> str:
    """Parts joined so that no two different lists give the same scope: each carries its length."""
    return "".join([f"{len(part)}:{part}" for part in parts])


def call_part(tenant: str) -> str:
    """Whose key it is where no request carried it: no ``scope_part`` begins so, whatever a tenant is called.

    So the keys of plain functions, consumers and webhooks are a space that no client can reach.
    """
    return f"@{scope_part(tenant)}"


def identity_mark(secret: bytes) -> str:
    """A part of every scope, so that nobody without the secret can compute what is derived from scope and
    key: downstream keys, ids and the names of records. It stands in the store; the secret does not."""
    return "!" + hmac.new(secret, b"samekey identity 1", hashlib.sha256).hexdigest()[:32]


def keyed_part(secret: bytes, text: str) -> str:
    """In the place of a digest that is part of a scope."""
    return hmac.new(secret, b"samekey part 1\n" + text.encode(), hashlib.sha256).hexdigest()


def is_call(scope: str) -> bool:
    """Whether a key of this scope is that of a plain function's call, and not a client's."""
    return scope.partition(":")[2].startswith("@")


def owner_of(scope: str) -> str:
    """The first part of a scope: a tenant's clients, or the service's own calls for that tenant."""
    length, _, parts = scope.partition(":")
    return parts[: int(length)]


def downstream_base(scope: str, key: str) -> str:
    """What every downstream key of this operation begins with, in this life and any later one."""
    return _digest("samekey downstream 1", scope, key)[:32]


def downstream_key(scope: str, key: str, step: str) -> str:
    """A key for the provider: the same for every attempt at this step, in every process, for ever.

    It has 65 characters at most, well inside the limits that providers publish.
    """
    return f"{downstream_base(scope, key)}-{_digest('samekey step 1', step)[:32]}"


def locating_id(token: str, scope: str, key: str) -> str:
    """An operation id that says where its record lies, for stores that find by key only."""
    return token + downstream_base(scope, key)


def is_operation_id(text: str) -> bool:
    """Whether it looks like one: a random token, alone or with the place of its record."""
    return len(text) in (32, 64) and all(character in "0123456789abcdef" for character in text)


def located_by(operation_id: str) -> str:
    """The ``downstream_base`` in a ``locating_id``; something that fits no record for any other text."""
    return operation_id[32:]


DEFAULT_SCHEMA: Final = "samekey"


@lru_cache(maxsize=1_000)
def lock_number(scope: str, key: str, schema: str = DEFAULT_SCHEMA) -> int:
    """A signed 64-bit number for an advisory lock. A collision costs a 409, never a second run.

    Advisory locks are the whole database's: services with a schema each must not stand in each other's way.
    """
    # One request asks for it several times.
    other = () if schema == DEFAULT_SCHEMA else (schema,)
    digest = bytes.fromhex(_digest("samekey lock 1", scope, key, *other))
    return int.from_bytes(digest[:8], "big", signed=True)


def _digest(*parts: str) -> str:
    return hashlib.sha256(scope_of(*parts).encode("utf-8", "surrogatepass")).hexdigest()
