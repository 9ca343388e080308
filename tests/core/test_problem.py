"""Verdicts and refusals as HTTP answers: each one, under each profile, as D and the table P say."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from email.utils import parsedate_to_datetime
from typing import Any

import pytest

from samekey.core.decide import (
    Accepted,
    Gone,
    Mismatch,
    Outstanding,
    Replay,
    Uncertain,
    Unreadable,
    Verdict,
    Withheld,
)
from samekey.core.policy import Policy, ietf, stripe, stripe_v2
from samekey.core.problem import (
    CODES,
    Refusal,
    accepted_answer,
    expiry_header,
    refuse,
    status_url,
    uncertain_answer,
    verdict_answer,
)
from samekey.core.record import Answer, Record
from samekey.core.states import State
from tests.core.test_decide import NOW, record

KEY = "a-key-nobody-may-see-3f1c"
STORED = replace(record(), key=KEY, expires_at=NOW + 86_400_000)
ID = STORED.id
STATUS_URL = f"/idempotency/{ID}"
PROFILES = {"ietf": ietf(), "stripe": stripe(), "stripe_v2": stripe_v2()}
STRIPES = ["stripe", "stripe_v2"]

# verdict: (status under ietf, status under stripe, code)
REFUSED: list[tuple[Verdict, int, int, str]] = [
    (Mismatch(STORED), 422, 400, "reused"),
    (Outstanding(ID, STORED.expires_at), 409, 409, "in_progress"),
    (Outstanding(None, STORED.expires_at), 409, 409, "in_progress"),
    (Uncertain(STORED), 409, 409, "outcome_unknown"),
    (Withheld(STORED), 409, 409, "result_unavailable"),
    (Gone(STORED), 410, 410, "expired"),
    (Unreadable("secret detail about " + KEY), 500, 500, "result_unavailable"),
]
NAMES = [type(verdict).__name__ for verdict, *_ in REFUSED]
ALL: list[Verdict] = [*(verdict for verdict, *_ in REFUSED), Replay(STORED), Accepted(STORED)]


def values(answer: Answer, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in answer.headers if key.lower() == name]


def links(answer: Answer) -> dict[str, str]:
    found = {}
    for line in values(answer, b"link"):
        match = re.fullmatch(r'<([^<>]+)>; rel="([a-z]+)"', line)
        assert match is not None, line
        assert match[2] not in found
        found[match[2]] = match[1]
    return found


def content(answer: Answer) -> dict[str, Any]:
    loaded = json.loads(answer.body)
    assert isinstance(loaded, dict)
    return loaded


# --- every refusal, under every profile ----------------------------------------------------------


@pytest.mark.parametrize(("verdict", "status", "_stripe", "code"), REFUSED, ids=NAMES)
def test_under_ietf_a_refusal_is_a_problem_document(
    verdict: Verdict, status: int, _stripe: int, code: str
) -> None:
    policy = ietf()
    answer = verdict_answer(verdict, policy)
    assert answer.status == status
    assert values(answer, b"content-type") == ["application/problem+json"]
    assert values(answer, b"content-language") == ["en"]
    assert values(answer, b"cache-control") == ["no-store"]
    assert links(answer)["describedby"] == policy.documentation
    body = content(answer)
    assert body["type"] == f"urn:samekey:problem:{code}"
    assert body["title"] == CODES[code]
    assert body["status"] == status
    assert body["code"] == code
    assert re.fullmatch(r"[A-Z].+\.", body["detail"])
    assert set(body) <= {"type", "title", "status", "detail", "code", "operation"}


@pytest.mark.parametrize("profile", STRIPES)
@pytest.mark.parametrize(("verdict", "_ietf", "status", "code"), REFUSED, ids=NAMES)
def test_under_stripe_a_refusal_is_its_error_envelope(
    profile: str, verdict: Verdict, _ietf: int, status: int, code: str
) -> None:
    policy = PROFILES[profile]
    answer = verdict_answer(verdict, policy)
    assert answer.status == status
    assert values(answer, b"content-type") == ["application/json"]
    assert values(answer, b"content-language") == ["en"]
    assert links(answer)["describedby"] == policy.documentation
    assert set(content(answer)) == {"error"}
    error = content(answer)["error"]
    assert error["type"] in {"api_error", "idempotency_error", "invalid_request_error"}
    assert error["code"] == {"in_progress": "idempotency_key_in_use"}.get(code, code)
    assert error["doc_url"] == policy.documentation
    assert re.fullmatch(r"[A-Z].+\.", error["message"])


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("verdict", ALL, ids=lambda verdict: type(verdict).__name__)
@pytest.mark.parametrize("on_in_progress", ["reject", "accept", "wait"])
def test_k5_the_key_never_appears_in_an_answer(profile: str, verdict: Verdict, on_in_progress: Any) -> None:
    answer = verdict_answer(verdict, PROFILES[profile].override(on_in_progress=on_in_progress))
    everything = b"\n".join([answer.body, *(part for pair in answer.headers for part in pair)])
    for secret in (KEY, STORED.scope, STORED.tenant, STORED.attempt, STORED.fingerprint.hex()):
        assert secret.encode() not in everything


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("verdict", ALL, ids=lambda verdict: type(verdict).__name__)
def test_every_header_can_be_sent(profile: str, verdict: Verdict) -> None:
    for name, value in verdict_answer(verdict, PROFILES[profile]).headers:
        assert re.fullmatch(rb"[A-Za-z0-9-]+", name)
        assert re.fullmatch(rb"[ -~]+", value)


# --- which answers say when to come back, when the key expires, and where to look -----------------

RETRY_AFTER = {Outstanding: "1", Uncertain: "30", Accepted: "1"}
"""D4, D6, D7. Nowhere else: waiting changes nothing about a mismatch."""

WITHOUT_EXPIRY = {Gone, Unreadable}
"""D12 asks for it everywhere else; what is gone has none left, what is unreadable shows none."""


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("verdict", ALL, ids=lambda verdict: type(verdict).__name__)
def test_retry_after_stands_where_d_says(profile: str, verdict: Verdict) -> None:
    answer = verdict_answer(verdict, PROFILES[profile])
    expected = RETRY_AFTER.get(type(verdict))
    assert values(answer, b"retry-after") == ([] if expected is None else [expected])


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("verdict", ALL, ids=lambda verdict: type(verdict).__name__)
def test_d12_every_guarded_answer_tells_when_the_key_expires(profile: str, verdict: Verdict) -> None:
    policy = PROFILES[profile].override(expires_header="X-Key-Until")
    found = values(verdict_answer(verdict, policy), b"x-key-until")
    if type(verdict) in WITHOUT_EXPIRY:
        assert found == []
    else:
        assert [parsedate_to_datetime(value).timestamp() * 1000 for value in found] == [STORED.expires_at]


STATUS_LINK: dict[str, set[type]] = {
    "reject": {Outstanding, Uncertain, Withheld},
    "accept": {Uncertain, Withheld},
}


@pytest.mark.parametrize("on_in_progress", ["reject", "accept"])
@pytest.mark.parametrize("verdict", ALL, ids=lambda verdict: type(verdict).__name__)
def test_a_link_leads_to_the_status_where_there_is_an_operation(
    verdict: Verdict, on_in_progress: Any
) -> None:
    answer = verdict_answer(verdict, ietf(on_in_progress=on_in_progress))
    known = not (isinstance(verdict, Outstanding) and verdict.operation_id is None)
    shown = type(verdict) in STATUS_LINK[on_in_progress] and known
    assert links(answer).get("status") == (STATUS_URL if shown else None)
    if shown:
        assert content(answer)["operation"] == ID


@pytest.mark.parametrize("verdict", ALL, ids=lambda verdict: type(verdict).__name__)
def test_without_a_status_resource_nothing_leads_to_it(verdict: Verdict) -> None:
    answer = verdict_answer(verdict, ietf(status_path=None))
    assert "status" not in links(answer)
    assert values(answer, b"location") == []


@pytest.mark.parametrize("path", ["/ops", "/ops/"])
def test_the_status_url_has_one_slash_wherever_it_is(path: str) -> None:
    assert status_url(ietf(status_path=path), ID) == f"/ops/{ID}"
    assert status_url(ietf(status_path="/"), ID) == f"/{ID}"


# --- the rows of table P -------------------------------------------------------------------------


def test_p_the_titles_of_the_draft() -> None:
    assert CODES["missing"] == "Idempotency-Key is missing"
    assert CODES["reused"] == "Idempotency-Key is already used"
    assert CODES["in_progress"] == "A request is outstanding for this Idempotency-Key"


def test_p_missing_is_400_with_the_drafts_title() -> None:
    answer = refuse(Refusal(400, "Send a key.", "missing"), ietf())
    assert (answer.status, content(answer)["title"]) == (400, "Idempotency-Key is missing")


def test_titles_name_the_configured_header() -> None:
    answer = verdict_answer(Mismatch(STORED), ietf(header="X-Request-Key"))
    assert content(answer)["title"] == "X-Request-Key is already used"


@pytest.mark.parametrize("profile", PROFILES)
def test_p_a_different_request_is_told_in_a_sentence_what_a_key_can_be_used_with(profile: str) -> None:
    policy = PROFILES[profile]
    body = content(verdict_answer(Mismatch(STORED), policy))
    sentence = body["error"]["message"] if profile in STRIPES else body["detail"]
    assert "Keys can only be used with the same endpoint and the same parameters" in sentence
    assert "they were first used with." in sentence
    assert "nothing was done" in sentence
    assert "new key" in sentence


def test_p_where_the_endpoint_is_part_of_the_scope_only_parameters_can_differ() -> None:
    body = content(verdict_answer(Mismatch(STORED), ietf(scope="tenant+endpoint")))
    assert "Keys can only be used with the same parameters they were first used with." in body["detail"]


@pytest.mark.parametrize("profile", STRIPES)
def test_p_stripe_mismatch(profile: str) -> None:
    answer = verdict_answer(Mismatch(STORED), PROFILES[profile])
    assert (answer.status, content(answer)["error"]["type"]) == (400, "idempotency_error")


@pytest.mark.parametrize("profile", STRIPES)
@pytest.mark.parametrize("operation_id", [ID, None])
def test_p_stripe_in_progress(profile: str, operation_id: str | None) -> None:
    answer = verdict_answer(Outstanding(operation_id, STORED.expires_at), PROFILES[profile])
    error = content(answer)["error"]
    assert (answer.status, error["code"], error["type"]) == (
        409,
        "idempotency_key_in_use",
        "invalid_request_error",
    )


STRIPE_TYPES = [
    (Refusal(400, "x", "malformed"), "idempotency_error"),
    (Refusal(400, "x", "personal"), "idempotency_error"),
    (Refusal(400, "x", "missing"), "invalid_request_error"),
    (Refusal(413, "x", "too_large"), "invalid_request_error"),
    (Refusal(401, "x"), "invalid_request_error"),
    (Refusal(404, "x"), "invalid_request_error"),
    (Refusal(429, "x", "limited"), "rate_limit_error"),
    (Refusal(500, "x"), "api_error"),
    (Refusal(503, "x"), "api_error"),
    (Refusal(503, "x", "store_unavailable"), "api_error"),
    (Refusal(500, "x", "result_unavailable"), "api_error"),
]


@pytest.mark.parametrize(("refusal", "kind"), STRIPE_TYPES)
def test_stripe_types_tell_whose_fault_it_is(refusal: Refusal, kind: str) -> None:
    error = content(refuse(refusal, stripe()))["error"]
    assert error["type"] == kind
    assert error.get("code") == refusal.code


@pytest.mark.parametrize("profile", PROFILES)
def test_the_status_of_a_mismatch_and_of_an_expired_key_can_be_overridden(profile: str) -> None:
    policy = PROFILES[profile].override(mismatch_status=409, gone_status=404)
    assert verdict_answer(Mismatch(STORED), policy).status == 409
    assert verdict_answer(Gone(STORED), policy).status == 404


def test_the_shape_of_errors_can_be_chosen_apart_from_the_profile() -> None:
    assert "error" in content(verdict_answer(Mismatch(STORED), ietf(errors="stripe")))
    assert "title" in content(verdict_answer(Mismatch(STORED), stripe(errors="problem")))


# --- D3: replay ----------------------------------------------------------------------------------


def replayed(first: Answer, policy: Policy | None = None) -> Answer:
    return verdict_answer(Replay(replace(STORED, answer=first)), policy or ietf())


@pytest.mark.parametrize("status", [200, 201, 204, 302, 404, 422, 500])
def test_d3_the_first_answer_byte_for_byte_with_a_mark(status: int) -> None:
    headers = ((b"X-Two", b"1"), (b"x-two", b"2"), (b"content-type", b"text/plain; charset=latin-1\xe9"))
    answer = replayed(Answer(status, headers, b"\x00\xff body"))
    assert answer.status == status
    assert answer.body == b"\x00\xff body"
    assert answer.headers[:3] == headers
    assert answer.headers[3:] == (
        (b"Idempotent-Replayed", b"true"),
        expiry_header(ietf(), STORED.expires_at),
    )


@pytest.mark.parametrize("profile", PROFILES)
def test_p_the_mark_is_the_same_in_every_profile_and_can_be_renamed(profile: str) -> None:
    first = Answer(200, (), b"")
    assert values(replayed(first, PROFILES[profile]), b"idempotent-replayed") == ["true"]
    renamed = replayed(first, PROFILES[profile].override(replayed_header="X-Seen"))
    assert values(renamed, b"x-seen") == ["true"]
    assert values(renamed, b"idempotent-replayed") == []


def test_marks_that_a_handler_passed_on_do_not_stand_beside_ours() -> None:
    policy = ietf(replayed_header="X-Seen", expires_header="X-Until")
    passed_on = Answer(200, ((b"x-seen", b"false"), (b"X-UNTIL", b"never"), (b"x-other", b"1")), b"")
    answer = replayed(passed_on, policy)
    assert values(answer, b"x-seen") == ["true"]
    assert len(values(answer, b"x-until")) == 1
    assert values(answer, b"x-until") != ["never"]
    assert values(answer, b"x-other") == ["1"]


# --- D4, D7: 202 ---------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", PROFILES)
def test_d4_accept_answers_202_with_the_status_resource(profile: str) -> None:
    policy = PROFILES[profile].override(on_in_progress="accept", retry_after=3)
    answer = verdict_answer(Outstanding(ID, STORED.expires_at), policy)
    assert answer.status == 202
    assert values(answer, b"location") == [STATUS_URL]
    assert values(answer, b"retry-after") == ["3"]
    assert values(answer, b"content-type") == ["application/json"]
    assert content(answer) == {"id": ID, "state": "in_progress"}


@pytest.mark.parametrize("profile", PROFILES)
def test_d4_accept_of_atomic_work_is_202_without_a_place_to_look(profile: str) -> None:
    """Nobody can see its record before it commits; it is still no error."""
    policy = PROFILES[profile].override(on_in_progress="accept", retry_after=3)
    answer = verdict_answer(Outstanding(None, STORED.expires_at), policy)
    assert answer.status == 202
    assert values(answer, b"location") == []
    assert values(answer, b"link") == []
    assert values(answer, b"retry-after") == ["3"]
    assert values(answer, b"content-type") == ["application/json"]
    assert values(answer, b"idempotency-key-expires")
    assert content(answer) == {"state": "in_progress"}


@pytest.mark.parametrize("on_in_progress", ["reject", "wait"])
def test_d4_without_accept_it_is_409(on_in_progress: Any) -> None:
    for operation_id in (ID, None):
        verdict = Outstanding(operation_id, STORED.expires_at)
        assert verdict_answer(verdict, ietf(on_in_progress=on_in_progress)).status == 409


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("state", [State.PENDING, State.IN_PROGRESS])
def test_d7_accepted_work_is_202_with_its_state(profile: str, state: State) -> None:
    waiting: Record = replace(STORED, state=state, answer=None)
    answer = verdict_answer(Accepted(waiting), PROFILES[profile])
    assert answer.status == 202
    assert values(answer, b"location") == [STATUS_URL]
    assert content(answer) == {"id": ID, "state": str(state)}
    assert content(accepted_answer(PROFILES[profile], ID, NOW)) == {"id": ID, "state": "in_progress"}


# --- D6, and refusals that no verdict makes ------------------------------------------------------


def test_d6_the_unknown_asks_to_wait_as_configured() -> None:
    answer = uncertain_answer(ietf(unknown_retry_after=99), ID, STORED.expires_at)
    assert (answer.status, content(answer)["code"]) == (409, "outcome_unknown")
    assert values(answer, b"retry-after") == ["99"]
    assert links(answer)["status"] == STATUS_URL


def test_d6_without_a_record_there_is_no_link() -> None:
    answer = uncertain_answer(ietf(), None, None)
    assert "status" not in links(answer)
    assert values(answer, b"idempotency-key-expires") == []


def test_d14_the_codes_are_a_closed_list() -> None:
    listed = (
        "missing, malformed, personal, reused, in_progress, outcome_unknown, result_unavailable, expired, "
        "store_unavailable, limited, stale, too_large"
    )
    assert list(CODES) == listed.split(", ")


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("profile", PROFILES)
def test_every_code_makes_an_answer(profile: str, code: str) -> None:
    body = content(refuse(Refusal(400, "A sentence.", code), PROFILES[profile]))
    assert code in json.dumps(body) or (code, profile) in {("in_progress", p) for p in STRIPES}


@pytest.mark.parametrize("status", [401, 404, 500, 503])
def test_a_refusal_without_a_code_is_about_blank(status: int) -> None:
    """RFC 9457: then the title is the status's own phrase."""
    body = content(refuse(Refusal(status, "A sentence."), ietf()))
    assert body["type"] == "about:blank"
    assert "code" not in body
    titles = {401: "Unauthorized", 404: "Not Found", 500: "Internal Server Error", 503: "Service Unavailable"}
    assert body["title"] == titles[status]


def test_d9_what_is_wrong_with_a_record_is_for_operators_only() -> None:
    answer = verdict_answer(Unreadable("column state is 'frozen'"), ietf())
    assert answer.status == 500
    assert b"frozen" not in answer.body


@pytest.mark.parametrize("expires_at", [0, 999, 1_700_000_000_999, 253_402_300_799_999])
def test_the_expiry_is_an_http_date(expires_at: int) -> None:
    _, value = expiry_header(ietf(), expires_at)
    assert re.fullmatch(rb"(Mon|Tue|Wed|Thu|Fri|Sat|Sun), \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT", value)
    assert parsedate_to_datetime(value.decode()).timestamp() == expires_at // 1000
