"""The names and types of all settings, so that an editor knows them: ``leased(leese=3)`` is an error there.

``Policy`` has the defaults and the meaning of each; a test keeps the two lists the same.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Literal, TypedDict

from .fingerprint import FingerprintRules
from .header import KeyRules

Remember = Literal["successes", "definite", "everything"]

Duration = float | timedelta
"""Seconds, or a timedelta."""


class CallSettings(TypedDict, total=False):
    """The settings that a call of ``once`` can have of its own."""

    required: bool
    scope: Literal["tenant", "tenant+endpoint"]
    fingerprint: FingerprintRules
    max_body: int
    body_timeout: Duration
    on_mismatch: Literal["reject", "replay", "execute"]
    mismatch_status: int
    on_in_progress: Literal["reject", "accept", "wait"]
    wait: Duration
    retry_after: int
    unknown_retry_after: int
    remember: Remember
    max_answer: int
    keep_headers: Collection[str]
    drop_headers: Collection[str]
    errors: Literal["problem", "stripe"]
    expires_header: str
    replayed_header: str
    documentation: str
    challenge: str
    ttl: Duration
    ttl_from: Literal["completion", "creation"]
    after_expiry: Literal["new", "gone"]
    gone_status: int
    lease: Duration
    max_run: Duration
    new_keys_per_minute: int | None
    active_keys: int | None
    attempts_per_key: int | None
    max_age: Duration | None
    timestamp_header: str


class HandlerSettings(CallSettings, total=False):
    """The settings of the policy that one handler can have of its own."""

    key: KeyRules
    required_from: datetime | None


class Settings(HandlerSettings, total=False):
    """Every setting of the policy."""

    profile: Literal["ietf", "stripe", "stripe_v2"]
    header: str
    methods: Collection[str]
    required_at_edge: bool
    status_path: str | None
    lookups_per_minute: int | None
