"""The policy: every choice that a user may make, with the defaults of the published profiles.

    ietf()        draft-ietf-httpapi-idempotency-key-header, the default
    stripe()      as the Stripe API v1 publishes it
    stripe_v2()   as the Stripe API v2 publishes it

Each profile takes overrides by name: ``ietf(ttl=timedelta(days=7), mismatch_status=409)``. A policy
that cannot work is refused when it is made, with a sentence that says what to change.
"""

from __future__ import annotations

import dataclasses
import warnings
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

from ..errors import ConfigurationError
from .fingerprint import FingerprintRules
from .header import KeyRules

Remember = Literal["successes", "definite", "everything"]

NEVER_REMEMBERED = frozenset({401, 403, 408, 413, 415, 425, 429})
"""Refusals that say nothing about the operation: come back logged in, later, smaller …"""

ROUTER_REFUSALS = frozenset({404, 405})
"""Not remembered when the router made them: no handler ever saw the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How keys are read, compared, answered and kept. See the module for the ready-made profiles."""

    profile: Literal["ietf", "stripe", "stripe_v2"] = "ietf"

    # The key
    header: str = "Idempotency-Key"
    key: KeyRules = field(default_factory=KeyRules)
    methods: frozenset[str] = frozenset({"POST", "PATCH"})
    required: bool = True
    """Whether a decorated handler refuses a request without a key."""
    required_at_edge: bool = False
    """Whether an undecorated route does."""
    scope: Literal["tenant", "tenant+endpoint"] = "tenant"

    # The request
    fingerprint: FingerprintRules = field(default_factory=FingerprintRules)
    max_body: int = 1024 * 1024
    """Bytes of a guarded request's body. A larger one is refused with 413."""

    # The second request
    on_mismatch: Literal["reject", "replay", "execute"] = "reject"
    mismatch_status: int = 422
    on_in_progress: Literal["reject", "accept", "wait"] = "reject"
    wait: timedelta = timedelta(seconds=10)
    """With ``on_in_progress="wait"``: the longest wait for the first request's answer."""
    retry_after: int = 1
    """Seconds that a client is asked to wait while the first request runs or the store is down."""
    unknown_retry_after: int = 30
    """Seconds that a client is asked to wait while an outcome is being found out."""

    # The answer
    remember: Remember = "definite"
    max_answer: int = 1024 * 1024
    """Bytes of an answer's body that are kept. A larger one is sent once and then withheld."""
    errors: Literal["problem", "stripe"] = "problem"
    expires_header: str = "Idempotency-Key-Expires"
    replayed_header: str = "Idempotent-Replayed"
    documentation: str = "https://datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header/"
    """What an error answer links to. Point it at your own published specification."""
    status_path: str | None = "/idempotency"
    """Where the status resource is; None switches it off."""

    # Time
    ttl: timedelta = timedelta(hours=24)
    ttl_from: Literal["completion", "creation"] = "completion"
    after_expiry: Literal["new", "gone"] = "new"
    gone_status: int = 410
    lease: timedelta = timedelta(seconds=60)
    """How long a silent process keeps its claim. A heartbeat renews it three times as often."""
    max_run: timedelta = timedelta(minutes=10)
    """The longest run of a handler; after it the heartbeat stops and the lease runs out."""

    def __post_init__(self) -> None:
        for problem in _problems(self):
            raise ConfigurationError(problem)
        if self.ttl < timedelta(hours=1):
            warnings.warn(
                f"ttl={self.ttl} is under an hour: a client that retries later runs the operation "
                "again. Keep keys longer than your clients retry.",
                UserWarning,
                stacklevel=4,
            )

    def override(self, **changes: Any) -> Policy:
        """This policy with some choices replaced; unknown names are refused."""
        return _override(self, changes)

    @property
    def ttl_ms(self) -> int:
        return milliseconds(self.ttl)

    @property
    def lease_ms(self) -> int:
        return milliseconds(self.lease)


def ietf(**overrides: Any) -> Policy:
    """The Internet-Draft: 400 without a key, 422 for another request, 409 while it runs."""
    return _override(Policy(), overrides)


def stripe(**overrides: Any) -> Policy:
    """Stripe's API v1: keys are optional, every answer counts once execution began, 500 included."""
    base = Policy(
        profile="stripe",
        methods=frozenset({"POST"}),
        required=False,
        mismatch_status=400,
        remember="everything",
        errors="stripe",
        documentation="https://docs.stripe.com/api/idempotent_requests",
    )
    return _override(base, overrides)


def stripe_v2(**overrides: Any) -> Policy:
    """Stripe's API v2: POST and DELETE, thirty days, and only successes are remembered."""
    base = stripe(
        profile="stripe_v2",
        methods=frozenset({"POST", "DELETE"}),
        remember="successes",
        ttl=timedelta(days=30),
        documentation="https://docs.stripe.com/api-v2-overview",
    )
    return _override(base, overrides)


def milliseconds(span: timedelta) -> int:
    return span // timedelta(milliseconds=1)


def _override(base: Policy, changes: dict[str, Any]) -> Policy:
    known = {f.name for f in dataclasses.fields(Policy)}
    for name in changes:
        if name not in known:
            raise ConfigurationError(
                f"There is no setting {name!r}. The settings are: {', '.join(sorted(known))}."
            )
    if "methods" in changes:
        changes["methods"] = frozenset(method.upper() for method in changes["methods"])
    return dataclasses.replace(base, **changes)


def _problems(policy: Policy) -> list[str]:
    """Why a policy cannot work; the first is raised."""
    found = []
    if policy.ttl <= timedelta(0):
        found.append("ttl must be longer than nothing: a key that expires at once protects nobody.")
    if policy.ttl > timedelta(days=3660):
        found.append("ttl must have an end: keys that are never forgotten fill the table for ever.")
    if policy.lease < timedelta(milliseconds=100):
        found.append("lease must be at least 0.1 s, or it ends before a handler can start.")
    if policy.max_run < policy.lease:
        found.append("max_run must be at least as long as lease.")
    if policy.max_body < 0 or policy.max_answer < 0:
        found.append("max_body and max_answer are numbers of bytes and cannot be negative.")
    if policy.wait <= timedelta(0):
        found.append("wait must be longer than nothing.")
    for name in ("mismatch_status", "gone_status"):
        status = getattr(policy, name)
        if not 400 <= status <= 499:
            found.append(f"{name} must be a 4xx status, not {status}.")
    for name, choices in _CHOICES.items():
        if getattr(policy, name) not in choices:
            found.append(f"{name} must be one of {', '.join(choices)}, not {getattr(policy, name)!r}.")
    if not policy.methods:
        found.append("methods is empty, so nothing would be guarded; remove the middleware instead.")
    unsafe = policy.methods & {"GET", "HEAD", "OPTIONS", "TRACE"}
    if unsafe:
        found.append(f"methods names {', '.join(sorted(unsafe))}, which must not change anything.")
    if not all(c.isalnum() or c in "!#$%&'*+-.^_`|~" for c in policy.header) or not policy.header:
        found.append(f"header {policy.header!r} is not a valid header name.")
    if policy.status_path is not None and not policy.status_path.startswith("/"):
        found.append("status_path must begin with a slash, or be None.")
    return found


_CHOICES = {
    "scope": ("tenant", "tenant+endpoint"),
    "on_mismatch": ("reject", "replay", "execute"),
    "on_in_progress": ("reject", "accept", "wait"),
    "remember": ("successes", "definite", "everything"),
    "errors": ("problem", "stripe"),
    "ttl_from": ("completion", "creation"),
    "after_expiry": ("new", "gone"),
}
