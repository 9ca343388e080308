"""The gate: what a raw request must show before any look-up, and the claim that is made of it."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from ..core.claim import Claim, call_part, identity_mark, keyed_part, scope_of, scope_part
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
from ..core.fingerprint import Intent
from ..core.freshness import stale_reason
from ..core.policy import Policy
from ..core.problem import Refusal, refuse
from ..core.record import Answer
from ..errors import ConfigurationError
from .exchange import Exchange
from .handler.rules import Rules
from .operation import Running

logger = logging.getLogger("samekey")

SHORTEST_SECRET = 16
"""Bytes of a secret: fewer than an idempotency key has would be guessed before it."""


def stale_answer(exchange: Exchange, policy: Policy) -> Answer | None:
    """A request that is too old is refused before anything is looked up."""
    if policy.max_age is None:
        return None
    name = policy.timestamp_header.lower().encode("latin-1")
    values = [v.decode("latin-1") for n, v in exchange.parts.headers if n.lower() == name]
    reason = stale_reason(values, datetime.now(UTC), policy.max_age, policy.timestamp_header)
    return None if reason is None else refuse(Refusal(400, reason, "stale"), policy)


def tenant_of(exchange: Exchange, policy: Policy) -> str | Answer:
    """Whose key it is; a refusal where nobody can tell."""
    return _resolved(exchange.tenant, exchange, policy, "tenant resolver")


def asker_of(exchange: Exchange, policy: Policy) -> tuple[str, str | None] | Answer:
    """Who looks at the status resource, and from which session where keys are bound to one."""
    tenant = tenant_of(exchange, policy)
    if isinstance(tenant, Answer):
        return tenant
    bound_to = binding_of(exchange, policy)
    return bound_to if isinstance(bound_to, Answer) else (tenant, bound_to)


def caller_of(exchange: Exchange) -> str | None:
    """Who asks, for those who count; None where nobody can tell, which is no reason to refuse anything."""
    try:
        found = exchange.tenant(exchange.context)
    except Exception:
        return None
    return found if isinstance(found, str) and found else None


def binding_of(exchange: Exchange, policy: Policy) -> str | Answer | None:
    """The session or credential that the key is bound to as well; None where it is bound to none."""
    if exchange.binding is None:
        return None
    return _resolved(exchange.binding, exchange, policy, "binding")


def _resolved(
    resolve: Callable[[Any], object], exchange: Exchange, policy: Policy, what: str
) -> str | Answer:
    try:
        found = resolve(exchange.context)
    except Exception:
        logger.exception("The %s raised, so nothing was run", what)
        return refuse(Refusal(500, "The caller could not be identified, so nothing was done."), policy)
    if found is None or found == "":
        return refuse(
            Refusal(401, "An Idempotency-Key needs an authenticated caller. Nothing was done."), policy
        )
    if not isinstance(found, str):
        logger.error("The %s gave %s; it must give a string", what, type(found).__name__)
        return refuse(Refusal(500, "The caller could not be identified, so nothing was done."), policy)
    return found


def checked_secret(secret: object) -> bytes | None:
    """The identity secret, or ``ConfigurationError``: what can be guessed hides nothing."""
    if secret is not None and not (isinstance(secret, bytes) and len(secret) >= SHORTEST_SECRET):
        raise ConfigurationError(
            f"identity_secret must be {SHORTEST_SECRET} random bytes or more, for example "
            "secrets.token_bytes(32), kept where it is never lost: it cannot be changed."
        )
    return secret


def claim_of(
    exchange: Exchange,
    intent: Intent,
    rules: Rules,
    tenant: str,
    key: str,
    operation_id: Callable[[str, str, str], str],
    has_lookup: Callable[[str], bool],
    secret: bytes | None = None,
) -> Claim:
    """The claim of a request, with ids that were never used before."""
    policy, parts = rules.policy, exchange.parts
    mark = intent.fingerprint()
    endpoint = f"{parts.method} {exchange.endpoint}"
    identity = [call_part(tenant) if exchange.is_call else scope_part(tenant)]
    if exchange.bound_to is not None:
        identity.append(scope_part(exchange.bound_to))
    if policy.scope == "tenant+endpoint":
        identity.append(scope_part(endpoint))
    if policy.on_mismatch == "execute":
        # Without the secret's id: a new secret must not turn a retry into a new operation.
        content = intent.content_id()
        identity.append(content if secret is None else keyed_part(secret, content))
    if secret is not None:
        identity.append(identity_mark(secret))

    def digest_as(version: str) -> bytes | None:
        # Usually the record was made by the same version, and the work is done already.
        return mark.digest if version == mark.version else intent.digest_as(version)

    scope = scope_of(*identity)
    named = scope_part(endpoint)[1:]
    asks = policy.after_expiry == "new" and has_lookup(named)
    return Claim(
        id=operation_id(secrets.token_hex(16), scope, key),
        attempt=secrets.token_hex(16),
        scope=scope,
        key=key,
        tenant=scope_part(tenant),
        endpoint=named,
        fingerprint=mark.digest,
        fingerprint_version=mark.version,
        digest_as=digest_as,
        mode=rules.mode,
        lease_ms=policy.lease_ms,
        ttl_ms=policy.ttl_ms,
        ttl_from=policy.ttl_from,
        after_expiry="ask" if asks else policy.after_expiry,
        has_lookup=has_lookup,
    )


def event_of(begun: Running | Verdict) -> str:
    """What metrics call the outcome of a claim."""
    match begun:
        case Running(reused=True):
            return "reserve.reused"
        case Running(attempts=attempts):
            return "reserve.created" if attempts == 1 else "reserve.failed_retry"
        case Mismatch():
            return "reserve.key_misuse"
        case Outstanding() | Accepted():
            return "reserve.in_progress"
        case Uncertain() | Ask():
            return "reserve.unknown"
        case Unreadable() | ModeChanged():
            return "store.error"
        case Replay() | Withheld() | Gone():
            return "reserve.replay"
