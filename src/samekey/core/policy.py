"""The policy: every choice that a user may make, with the defaults of the published profiles.

    ietf()        draft-ietf-httpapi-idempotency-key-header, the default
    stripe()      as the Stripe API v1 publishes it
    stripe_v2()   as the Stripe API v2 publishes it

Each profile takes overrides by name: ``ietf(ttl=timedelta(days=7), mismatch_status=409)``. Durations may
also be numbers of seconds there. A policy that cannot work is refused when it is made, with a sentence that
says what to change.
"""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final, Literal, Unpack

from ..errors import ConfigurationError
from .fingerprint import FingerprintRules
from .freshness import longest_fresh
from .header import KeyRules
from .replayable import NEVER
from .settings import Remember, Settings

NEVER_REMEMBERED = frozenset({401, 403, 408, 413, 415, 425, 429})
"""Refusals that say nothing about the operation: come back logged in, later, smaller …"""

ROUTER_REFUSALS = frozenset({404, 405})
"""Not remembered where a router may have made them: no handler ever saw the request."""


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
    required_from: datetime | None = None
    """Until then a request without a required key is served as before, and a header of its answer names this
    day. None: it is refused at once."""
    scope: Literal["tenant", "tenant+endpoint"] = "tenant"

    # The request
    fingerprint: FingerprintRules = field(default_factory=FingerprintRules)
    max_body: int = 1024 * 1024
    """Bytes of a guarded request's body. A larger one is refused with 413."""
    body_timeout: timedelta = timedelta(seconds=60)
    """How long a client may take to send it. A slower one is refused with 408."""

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
    keep_headers: frozenset[str] = frozenset()
    """Headers that are kept although they look like a credential or are true for one moment only."""
    drop_headers: frozenset[str] = frozenset()
    """Headers that are not kept although they look harmless."""
    errors: Literal["problem", "stripe"] = "problem"
    expires_header: str = "Idempotency-Key-Expires"
    replayed_header: str = "Idempotent-Replayed"
    documentation: str = "https://datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header/"
    """What an error answer links to. Point it at your own published specification."""
    challenge: str = "Bearer"
    """What ``WWW-Authenticate`` says on a 401 of ours: how your callers authenticate."""
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

    # Limits
    new_keys_per_minute: int | None = None
    """New keys that a tenant may use in a minute; a retry of a known key is never limited."""
    active_keys: int | None = None
    """Keys that a tenant may have stored at a time."""
    attempts_per_key: int | None = None
    """How often a key may be tried that has failed each time, before it expires."""
    lookups_per_minute: int | None = 600
    """Look-ups of the status resource by one tenant in a minute, in each process."""
    max_age: timedelta | None = None
    """How old a request may be, by its timestamp. Keep it shorter than ``ttl``."""
    timestamp_header: str = "Request-Timestamp"
    """Where the client says when it made the request, if ``max_age`` is set. Have it signed."""

    def __post_init__(self) -> None:
        for problem in _problems(self):
            raise ConfigurationError(problem)

    def override(self, **changes: Unpack[Settings]) -> Policy:
        """This policy with some choices replaced; unknown names are refused. Durations may be seconds."""
        return _override(self, changes)

    @property
    def ttl_ms(self) -> int:
        return milliseconds(self.ttl)

    @property
    def lease_ms(self) -> int:
        return milliseconds(self.lease)


def ietf(**overrides: Unpack[Settings]) -> Policy:
    """The Internet-Draft: 400 without a key, 422 for another request, 409 while it runs."""
    return _override(Policy(), overrides)


def stripe(**overrides: Unpack[Settings]) -> Policy:
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


def stripe_v2(**overrides: Unpack[Settings]) -> Policy:
    """Stripe's API v2: POST and DELETE, thirty days, and only successes are remembered."""
    base = stripe(
        profile="stripe_v2",
        methods=frozenset({"POST", "DELETE"}),
        remember="successes",
        ttl=timedelta(days=30),
        documentation="https://docs.stripe.com/api-v2-overview",
    )
    return _override(base, overrides)


@lru_cache(maxsize=100)
def milliseconds(span: timedelta) -> int:
    return span // timedelta(milliseconds=1)


def _override(base: Policy, changes: Settings) -> Policy:
    known = {f.name for f in dataclasses.fields(Policy)}
    for name in changes:
        if name not in known:
            raise ConfigurationError(
                f"There is no setting {name!r}. The settings are: {', '.join(sorted(known))}."
            )
    policy = dataclasses.replace(base, **{name: _converted(name, value) for name, value in changes.items()})
    if "ttl" in changes and policy.ttl < timedelta(hours=1):
        warnings.warn(
            f"ttl={policy.ttl} is under an hour: a client that retries later runs the operation again. Keep "
            "keys longer than your clients retry.",
            UserWarning,
            stacklevel=3,
        )
    return policy


def _converted(name: str, value: Any) -> Any:
    """A setting in the form that the policy keeps; what cannot be converted is left to be refused."""
    if name in (*_DURATIONS, "max_age") and isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return timedelta(seconds=value)
        except (OverflowError, ValueError):
            raise ConfigurationError(f"{name} must be a duration with an end, not {value!r}.") from None
    if name in _HEADERS and isinstance(value, set | frozenset | list | tuple):
        return frozenset(value)
    if name == "methods" and isinstance(value, set | frozenset | list | tuple):
        return frozenset(str(method).upper() for method in value)
    return value


def _problems(policy: Policy) -> Iterator[str]:
    """Why a policy cannot work; the first is raised, so each may rely on those before it."""
    yield from _wrong_types(policy)
    if policy.ttl <= timedelta(0):
        yield "ttl must be longer than nothing: a key that expires at once protects nobody."
    if policy.ttl > timedelta(days=3660):
        yield "ttl must have an end: keys that are never forgotten fill the table for ever."
    if policy.ttl_ms < 1:
        yield "ttl must be at least a millisecond."
    if policy.lease < timedelta(milliseconds=100):
        yield "lease must be at least 0.1 s, or it ends before a handler can start."
    if policy.max_run < policy.lease:
        yield "max_run must be at least as long as lease."
    if policy.max_run > timedelta(days=24):
        yield "max_run must be at most 24 days: a database cannot time a longer transaction out."
    if policy.wait <= timedelta(0):
        yield "wait must be longer than nothing."
    if policy.body_timeout <= timedelta(0):
        yield "body_timeout must be longer than nothing."
    for name in ("max_body", "max_answer"):
        if getattr(policy, name) < 0:
            yield f"{name} is a number of bytes and cannot be negative."
    for name in ("retry_after", "unknown_retry_after"):
        if getattr(policy, name) < 0:
            yield f"{name} is a number of seconds and cannot be negative."
    for name in ("mismatch_status", "gone_status"):
        status = getattr(policy, name)
        if not 400 <= status <= 499:
            yield f"{name} must be a 4xx status, not {status}."
    for name, choices in _CHOICES.items():
        if getattr(policy, name) not in choices:
            yield f"{name} must be one of {', '.join(choices)}, not {getattr(policy, name)!r}."
    yield from _wrong_methods(policy.methods)
    for name in _LIMITS:
        limit = getattr(policy, name)
        if limit is not None and limit < 1:
            yield f"{name} must be at least 1, or None for no limit."
    if policy.max_age is not None and not timedelta(0) < longest_fresh(policy.max_age) < policy.ttl:
        yield (
            "max_age must be longer than nothing and shorter than ttl, with half a minute to spare for "
            "clocks that differ: else a request outlives its key."
        )
    yield from _wrong_headers(policy)
    for name in ("header", "expires_header", "replayed_header", "timestamp_header"):
        if not _TOKEN.fullmatch(getattr(policy, name)):
            yield f"{name} {getattr(policy, name)!r} is not a valid header name."
    if not _URL.fullmatch(policy.documentation):
        yield "documentation must be a URL in ASCII, without spaces or angle brackets: it goes into a header."
    if not _VISIBLE.fullmatch(policy.challenge):
        yield "challenge must be one line of visible ASCII, such as 'Bearer': it goes into a header."
    if policy.status_path is not None and not policy.status_path.startswith("/"):
        yield "status_path must begin with a slash, or be None."
    if policy.status_path is not None and not _URL.fullmatch(policy.status_path):
        yield "status_path must be a path in ASCII, without spaces or angle brackets: it goes into a header."


def _wrong_types(policy: Policy) -> Iterator[str]:
    for kinds, (expected, names) in _TYPES.items():
        for name in names:
            value = getattr(policy, name)
            if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool):
                yield f"{name} must be {expected}, not {value!r}."
    for name, kind, expected in (
        ("required_from", datetime, "a datetime with a time zone"),
        *((name, int, "a whole number") for name in _LIMITS),
        ("max_age", timedelta, "a timedelta or a number of seconds"),
    ):
        optional = getattr(policy, name)
        if optional is not None and (not isinstance(optional, kind) or isinstance(optional, bool)):
            yield f"{name} must be {expected} or None, not {optional!r}."
    if policy.required_from is not None and policy.required_from.utcoffset() is None:
        yield (
            "required_from must have a time zone, or it is another moment on every machine: "
            "datetime(2027, 3, 1, tzinfo=UTC)."
        )
    status_path: object = policy.status_path
    if status_path is not None and not isinstance(status_path, str):
        yield f"status_path must be a string or None, not {status_path!r}."


def _wrong_headers(policy: Policy) -> Iterator[str]:
    for name in _HEADERS:
        for header in sorted(getattr(policy, name), key=str):
            if not isinstance(header, str) or not _TOKEN.fullmatch(header):
                yield f"{name} holds {header!r}, which is not the name of a header."
    for header in sorted(policy.keep_headers):
        if header.lower().encode() in NEVER:
            yield f"keep_headers holds {header!r}, which is one session's or connection's and never kept."


def _wrong_methods(methods: frozenset[str]) -> Iterator[str]:
    if not methods:
        yield "methods is empty, so nothing would be guarded; remove the middleware instead."
    for method in sorted(methods):
        if not _TOKEN.fullmatch(method) or method != method.upper():
            yield f"methods names {method!r}; a method is a word in upper case, such as POST."
    unsafe = methods & {"GET", "HEAD", "OPTIONS", "TRACE"}
    if unsafe:
        yield f"methods names {', '.join(sorted(unsafe))}, which must not change anything."


_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VISIBLE: Final = re.compile(r"[!-~](?:[ -~]*[!-~])?")
_URL: Final = re.compile(r"[!-;=?-~]+")

_DURATIONS: Final = ("ttl", "lease", "max_run", "wait", "body_timeout")
_HEADERS: Final = ("keep_headers", "drop_headers")
_LIMITS: Final = ("new_keys_per_minute", "active_keys", "attempts_per_key", "lookups_per_minute")

_TYPES: Final[Mapping[type, tuple[str, tuple[str, ...]]]] = {
    timedelta: ("a timedelta or a number of seconds", _DURATIONS),
    int: (
        "a whole number",
        ("max_body", "max_answer", "retry_after", "unknown_retry_after", "mismatch_status", "gone_status"),
    ),
    bool: ("True or False", ("required", "required_at_edge")),
    str: (
        "a string",
        ("header", "expires_header", "replayed_header", "documentation", "timestamp_header", "challenge"),
    ),
    frozenset: ('a set of names, such as {"POST", "PATCH"} or {"X-Total"}', ("methods", *_HEADERS)),
    KeyRules: ("a KeyRules", ("key",)),
    FingerprintRules: ("a FingerprintRules", ("fingerprint",)),
}

_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "profile": ("ietf", "stripe", "stripe_v2"),
    "scope": ("tenant", "tenant+endpoint"),
    "on_mismatch": ("reject", "replay", "execute"),
    "on_in_progress": ("reject", "accept", "wait"),
    "remember": ("successes", "definite", "everything"),
    "errors": ("problem", "stripe"),
    "ttl_from": ("completion", "creation"),
    "after_expiry": ("new", "gone"),
}
