"""The policy: the profiles as published (P), overrides, and a sentence for every set-up that cannot work."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from samekey.core.fingerprint import FingerprintRules
from samekey.core.header import KeyRules
from samekey.core.policy import Policy, ietf, milliseconds, stripe, stripe_v2
from samekey.errors import ConfigurationError

PROFILES: list[Callable[..., Policy]] = [ietf, stripe, stripe_v2]
SETTINGS = {field.name for field in dataclasses.fields(Policy)}


# --- the profiles as published (table P) ---------------------------------------------------------

PUBLISHED: dict[str, tuple[object, object, object]] = {
    # setting             ietf                 stripe            stripe_v2
    "profile": ("ietf", "stripe", "stripe_v2"),
    "header": ("Idempotency-Key",) * 3,
    "methods": ({"POST", "PATCH"}, {"POST"}, {"POST", "DELETE"}),
    "required": (True, False, False),
    "required_at_edge": (False, False, False),
    "mismatch_status": (422, 400, 400),
    "on_mismatch": ("reject",) * 3,
    "on_in_progress": ("reject",) * 3,
    "remember": ("definite", "everything", "successes"),
    "ttl": (timedelta(hours=24), timedelta(hours=24), timedelta(days=30)),
    "errors": ("problem", "stripe", "stripe"),
    "replayed_header": ("Idempotent-Replayed",) * 3,
    "scope": ("tenant",) * 3,
    "after_expiry": ("new",) * 3,
    "gone_status": (410,) * 3,
}


@pytest.mark.parametrize("setting", PUBLISHED)
def test_the_profiles_are_as_published(setting: str) -> None:
    assert tuple(getattr(profile(), setting) for profile in PROFILES) == PUBLISHED[setting]


@pytest.mark.parametrize("profile", PROFILES)
def test_a_bare_key_of_255_characters_is_accepted_by_every_profile(profile: Callable[..., Policy]) -> None:
    rules = profile().key
    assert (rules.strict, rules.min_length, rules.max_length) == (False, 1, 255)


@pytest.mark.parametrize("profile", PROFILES)
def test_every_profile_links_to_its_publication(profile: Callable[..., Policy]) -> None:
    assert profile().documentation.startswith("https://")


def test_the_defaults_of_b8() -> None:
    policy = ietf()
    assert policy.lease == timedelta(seconds=60)
    assert policy.max_run == timedelta(minutes=10)
    assert policy.ttl_from == "completion"
    assert policy == Policy()


# --- overrides -----------------------------------------------------------------------------------

OVERRIDES: dict[str, object] = {
    "profile": "stripe",
    "header": "X-Request-Key",
    "key": KeyRules(strict=True),
    "methods": frozenset({"PUT"}),
    "required": False,
    "required_at_edge": True,
    "required_from": datetime(2027, 3, 1, tzinfo=UTC),
    "scope": "tenant+endpoint",
    "fingerprint": FingerprintRules(headers=("x-version",)),
    "max_body": 0,
    "body_timeout": timedelta(seconds=5),
    "keep_headers": frozenset({"X-Session-Token"}),
    "drop_headers": frozenset({"X-Internal"}),
    "on_mismatch": "replay",
    "mismatch_status": 409,
    "on_in_progress": "wait",
    "wait": timedelta(seconds=1),
    "retry_after": 0,
    "unknown_retry_after": 7,
    "remember": "everything",
    "max_answer": 0,
    "errors": "stripe",
    "expires_header": "X-Expires",
    "replayed_header": "X-Replayed",
    "challenge": 'Basic realm="shop"',
    "documentation": "https://example.com/docs#keys",
    "status_path": None,
    "ttl": timedelta(days=3660),
    "ttl_from": "creation",
    "after_expiry": "gone",
    "gone_status": 404,
    "lease": timedelta(milliseconds=100),
    "max_run": timedelta(days=24),
    "new_keys_per_minute": 100,
    "active_keys": 10_000,
    "attempts_per_key": 50,
    "lookups_per_minute": None,
    "max_age": timedelta(minutes=5),
    "timestamp_header": "X-Time",
}


def test_every_setting_has_an_override_here() -> None:
    assert set(OVERRIDES) == SETTINGS


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("setting", OVERRIDES)
def test_every_single_choice_can_be_overridden(profile: Callable[..., Policy], setting: str) -> None:
    changed = profile(**{setting: OVERRIDES[setting]})
    assert getattr(changed, setting) == OVERRIDES[setting]
    for other in SETTINGS - {setting}:
        assert getattr(changed, other) == getattr(profile(), other)
    given: Any = {setting: OVERRIDES[setting]}
    assert profile().override(**given) == changed


def test_an_override_leaves_the_policy_that_it_was_made_from_alone() -> None:
    policy = ietf()
    policy.override(mismatch_status=409)
    assert policy.mismatch_status == 422
    with pytest.raises(dataclasses.FrozenInstanceError):
        policy.mismatch_status = 409  # type: ignore[misc]


@pytest.mark.parametrize("given", [["post"], ("Post",), {"POST"}, frozenset({"post"})])
def test_methods_may_be_any_collection_in_any_case(given: Any) -> None:
    assert ietf(methods=given).methods == frozenset({"POST"})


@pytest.mark.parametrize("make", [*PROFILES, ietf().override])
def test_an_unknown_setting_is_refused_with_the_known_ones(make: Callable[..., Policy]) -> None:
    with pytest.raises(ConfigurationError, match=r"no setting 'tll'.*\bttl\b"):
        make(tll=60)


# --- durations -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "seconds"), [("ttl", 7200), ("lease", 0.5), ("max_run", 90.5), ("wait", 3)])
def test_a_duration_may_be_a_number_of_seconds(name: str, seconds: float) -> None:
    given: Any = {name: seconds}
    assert getattr(ietf(**given), name) == timedelta(seconds=seconds)
    assert getattr(ietf().override(**given), name) == timedelta(seconds=seconds)


def test_durations_in_milliseconds_are_whole_and_exact() -> None:
    assert milliseconds(timedelta(days=3660)) == 3660 * 86_400_000
    assert milliseconds(timedelta(microseconds=1999)) == 1
    policy = ietf(ttl=timedelta(hours=2), lease=timedelta(seconds=1.5))
    assert (policy.ttl_ms, policy.lease_ms) == (7_200_000, 1500)


@pytest.mark.parametrize("name", ["ttl", "lease", "max_run", "wait", "body_timeout"])
@pytest.mark.parametrize("value", [math.inf, math.nan, 1e300])
def test_a_duration_without_an_end_is_refused(name: str, value: float) -> None:
    given: Any = {name: value}
    with pytest.raises(ConfigurationError, match=rf"^{name} must be a duration with an end"):
        ietf(**given)


@pytest.mark.parametrize("minutes", [1, 59])
def test_a_short_retention_warns(minutes: int) -> None:
    with pytest.warns(UserWarning, match="ttl=.* is under an hour.*Keep keys longer than your clients retry"):
        ietf(ttl=timedelta(minutes=minutes))


def test_an_hour_does_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ietf(ttl=timedelta(hours=1))


# --- what cannot work ----------------------------------------------------------------------------

IMPOSSIBLE: list[tuple[dict[str, Any], str]] = [
    ({"ttl": timedelta(0)}, "ttl must be longer than nothing"),
    ({"ttl": -1}, "ttl must be longer than nothing"),
    ({"ttl": timedelta(days=3661)}, "ttl must have an end"),
    ({"ttl": timedelta.max}, "ttl must have an end"),
    ({"ttl": None}, "ttl must be a timedelta or a number of seconds, not None"),
    ({"ttl": "24h"}, "ttl must be a timedelta or a number of seconds, not '24h'"),
    ({"ttl": True}, "ttl must be a timedelta or a number of seconds, not True"),
    ({"lease": 0}, "lease must be at least 0.1 s"),
    ({"lease": -5}, "lease must be at least 0.1 s"),
    ({"lease": None}, "lease must be a timedelta"),
    ({"lease": 601}, "max_run must be at least as long as lease"),
    ({"max_run": 59}, "max_run must be at least as long as lease"),
    ({"new_keys_per_minute": 0}, "new_keys_per_minute must be at least 1"),
    ({"active_keys": "many"}, "active_keys must be a whole number or None"),
    ({"attempts_per_key": 0}, "attempts_per_key must be at least 1"),
    ({"lookups_per_minute": True}, "lookups_per_minute must be a whole number or None"),
    ({"max_age": 0}, "max_age must be longer than nothing"),
    ({"max_age": timedelta(days=40)}, "max_age must be longer than nothing and shorter than ttl"),
    ({"max_age": timedelta(seconds=3599), "ttl": 3600}, "max_age must be longer than nothing and shorter"),
    ({"ttl": 0.0004}, "ttl must be at least a millisecond"),
    ({"max_age": "soon"}, "max_age must be a timedelta or a number of seconds or None"),
    ({"timestamp_header": "no header"}, "timestamp_header 'no header' is not a valid header name"),
    ({"max_run": timedelta(days=25)}, "max_run must be at most 24 days"),
    ({"wait": 0}, "wait must be longer than nothing"),
    ({"wait": "1"}, "wait must be a timedelta"),
    ({"body_timeout": 0}, "body_timeout must be longer than nothing"),
    ({"keep_headers": "X-Total"}, "keep_headers must be a set of names"),
    ({"drop_headers": {"a b"}}, "drop_headers holds 'a b', which is not the name of a header"),
    ({"max_body": -1}, "max_body is a number of bytes and cannot be negative"),
    ({"max_answer": -1}, "max_answer is a number of bytes and cannot be negative"),
    ({"max_body": None}, "max_body must be a whole number"),
    ({"max_answer": 1.5}, "max_answer must be a whole number"),
    ({"retry_after": -1}, "retry_after is a number of seconds and cannot be negative"),
    ({"unknown_retry_after": -1}, "unknown_retry_after is a number of seconds and cannot be negative"),
    ({"retry_after": 0.5}, "retry_after must be a whole number"),
    ({"mismatch_status": 200}, "mismatch_status must be a 4xx status, not 200"),
    ({"mismatch_status": 500}, "mismatch_status must be a 4xx status, not 500"),
    ({"mismatch_status": "409"}, "mismatch_status must be a whole number, not '409'"),
    ({"gone_status": 399}, "gone_status must be a 4xx status, not 399"),
    ({"gone_status": True}, "gone_status must be a whole number, not True"),
    ({"required": "yes"}, "required must be True or False, not 'yes'"),
    ({"required_at_edge": 1}, "required_at_edge must be True or False, not 1"),
    ({"methods": []}, "methods is empty"),
    ({"methods": "POST"}, "methods must be a set of names"),
    ({"methods": ["GET", "POST"]}, "methods names GET, which must not change anything"),
    ({"methods": ["head"]}, "methods names HEAD"),
    ({"methods": ["OPTIONS", "TRACE"]}, "methods names OPTIONS, TRACE"),
    ({"methods": ["PO ST"]}, "methods names 'PO ST'; a method is a word in upper case"),
    ({"header": ""}, "header '' is not a valid header name"),
    ({"header": "Idempotency Key"}, "header 'Idempotency Key' is not a valid header name"),
    ({"header": "Schlüssel"}, "header 'Schlüssel' is not a valid header name"),
    ({"header": "Κλειδί"}, "header 'Κλειδί' is not a valid header name"),
    ({"header": b"Key"}, "header must be a string, not b'Key'"),
    ({"expires_header": "Expires:"}, "expires_header 'Expires:' is not a valid header name"),
    ({"expires_header": None}, "expires_header must be a string"),
    ({"replayed_header": "a\r\nb"}, "replayed_header .* is not a valid header name"),
    ({"challenge": "Bearer\nX: y"}, "challenge must be one line"),
    ({"challenge": ""}, "challenge must be one line"),
    ({"documentation": "https://example.com/ a"}, "documentation must be a URL in ASCII"),
    ({"documentation": "https://example.com/>; rel=x"}, "documentation must be a URL in ASCII"),
    ({"documentation": "https://exämple.com"}, "documentation must be a URL in ASCII"),
    ({"documentation": ""}, "documentation must be a URL in ASCII"),
    ({"status_path": "idempotency"}, "status_path must begin with a slash, or be None"),
    ({"status_path": ""}, "status_path must begin with a slash, or be None"),
    ({"status_path": "/status of"}, "status_path must be a path in ASCII"),
    ({"status_path": 5}, "status_path must be a string or None, not 5"),
    ({"required_from": datetime(2027, 3, 1)}, "required_from must have a time zone"),
    ({"required_from": "soon"}, "required_from must be a datetime with a time zone or None, not 'soon'"),
    ({"key": "uuid"}, "key must be a KeyRules, not 'uuid'"),
    ({"fingerprint": None}, "fingerprint must be a FingerprintRules, not None"),
    ({"profile": "paypal"}, "profile must be one of ietf, stripe, stripe_v2, not 'paypal'"),
    ({"scope": "global"}, r"scope must be one of tenant, tenant\+endpoint, not 'global'"),
    ({"on_mismatch": "ignore"}, "on_mismatch must be one of reject, replay, execute, not 'ignore'"),
    ({"on_in_progress": "run"}, "on_in_progress must be one of reject, accept, wait, not 'run'"),
    ({"remember": "nothing"}, "remember must be one of successes, definite, everything, not 'nothing'"),
    ({"errors": "xml"}, "errors must be one of problem, stripe, not 'xml'"),
    ({"ttl_from": "birth"}, "ttl_from must be one of completion, creation, not 'birth'"),
    ({"after_expiry": "run"}, "after_expiry must be one of new, gone, not 'run'"),
]


@pytest.mark.parametrize(("settings", "sentence"), IMPOSSIBLE, ids=lambda value: str(value)[:60])
@pytest.mark.parametrize("profile", PROFILES)
def test_what_cannot_work_is_refused_with_a_sentence_that_names_the_setting(
    profile: Callable[..., Policy], settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"^{sentence}") as caught:
        profile(**settings)
    assert str(caught.value).endswith(".")


def test_every_setting_can_be_wrong() -> None:
    assert {name for settings, _ in IMPOSSIBLE for name in settings} == SETTINGS


def test_a_policy_made_by_hand_is_checked_as_well() -> None:
    with pytest.raises(ConfigurationError, match=r"^ttl must be a timedelta"):
        Policy(ttl=60)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"^methods names 'post'"):
        Policy(methods=frozenset({"post"}))


def test_rules_that_make_no_sense_are_refused_where_they_are_built() -> None:
    with pytest.raises(ValueError, match="min_length"):
        ietf(key=KeyRules(min_length=9, max_length=3))
