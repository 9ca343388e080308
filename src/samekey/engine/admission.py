"""What a request must show before its body is read. Whoever is refused here has cost next to nothing."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.header import KeyRefused, parse_key
from ..core.problem import Refusal, refuse
from ..core.record import Answer
from .exchange import Exchange
from .gate import binding_of, stale_answer, tenant_of
from .handler.rules import Rules
from .keyuse import KeyUse


@dataclass(frozen=True, slots=True)
class Admitted:
    """What a request has shown of itself, before its body was read: a good key, and its caller."""

    key: str
    tenant: str
    bound_to: str | None


def admitted(exchange: Exchange, rules: Rules, use: KeyUse) -> Admitted | Answer | None:
    """None: there is no key, and none is required. An answer refuses it."""
    policy = rules.policy
    try:
        key = parse_key(exchange.key_lines, policy.key)
    except KeyRefused as refused:
        if refused.code != "missing":
            use.malformed(exchange)
        elif not use.without(exchange, rules):
            return None
        return refuse(Refusal(400, refused.detail, refused.code), policy)
    stale = stale_answer(exchange, policy)
    if stale is not None:
        return stale
    tenant = tenant_of(exchange, policy)
    if isinstance(tenant, Answer):
        return tenant
    bound_to = binding_of(exchange, policy)
    if isinstance(bound_to, Answer):
        return bound_to
    exchange.bound_to = bound_to
    use.sent(exchange, tenant)
    return Admitted(key, tenant, bound_to)
