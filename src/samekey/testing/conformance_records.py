"""Conformance, part three: what is kept, and how it is found again."""

from __future__ import annotations

import unicodedata

from ..core.claim import downstream_base, downstream_key
from ..core.decide import Execute, Outstanding, Replay, Unreadable, Withheld
from ..core.program import Value
from ..core.record import Answer, Record
from ..core.states import Mode
from ..errors import CorruptRecord
from .conformance_claims import claim_at, complete, fail, hold, lose
from .conformance_subject import DAY, NOW, Subject, must_read, new_claim, retry_of

ANSWERS = {
    "all bytes": Answer(200, ((b"content-type", b"application/octet-stream"),), bytes(range(256))),
    "empty": Answer(200, (), b""),
    "no content": Answer(204),
    "looks like SQL": Answer(200, ((b"x", b"'; drop table keys; -- %s $1 ? :now"),), b"' or 1=1; --"),
    "repeated headers": Answer(
        200, ((b"link", b"</a>"), (b"Link", b"</b>"), (b"vary", b""), (b"link", b"</a>")), b"x"
    ),
    "all header bytes": Answer(200, ((b"x-latin", bytes(range(0x20, 0x100))),), b"x"),
    "one mebibyte": Answer(200, (), bytes(range(256)) * 4096),
    "declined": Answer(402, ((b"content-type", b"application/problem+json"),), b'{"code": "declined"}'),
}

CORRUPT: dict[str, dict[str, Value]] = {
    "a state of a later release": {"state": "melted"},
    "a mode of a later release": {"mode": "quantum"},
    "an answer of a later release": {"answer_version": 99},
    "an answer without a version": {"answer_version": None},
    "headers that are not JSON": {"answer_headers": b"\xff\x00"},
    "headers that are not pairs": {"answer_headers": b"[1]"},
    "headers that are half pairs": {"answer_headers": b'[["a"]]'},
    "headers that are no list": {"answer_headers": b'{"ab": 1}'},
    "headers that are no text": {"answer_headers": b'[["a", 1]]'},
    "no headers": {"answer_headers": None},
    "no body": {"answer_body": None},
}

NAMES = ("abc", "ABC", "Abc", "abc ", " abc", "abc%", "a_c", "a%", "'abc'", '"abc"', "abc\\", "a''bc")
SPECIAL = (
    "'; drop table samekey_keys; --",
    "%s %(key)s $1 ?1 :scope {keys}",
    "null",
    "0",
    "00",
    "1e1",
    "10",
    "~" * 255,
)


def _by_downstream(store: Subject, sent: str) -> Record | None:
    return store.run(lambda: store.keys.read_by_downstream(sent))


def _by_provider_id(
    store: Subject, provider_id: str, tenant: str, source: str | None = "bank"
) -> list[Record]:
    found = store.run(lambda: store.keys.read_by_provider_id(provider_id, tenant=tenant, source=source))
    return [record for _, record in found]


class RecordConformance:
    """Each test takes the store under test and one body serves every store."""

    # Identity

    def test_keys_that_only_look_alike_are_different(self, store: Subject) -> None:
        scope = new_claim().scope
        for key in (*NAMES, *SPECIAL):
            claim = new_claim(scope=scope, key=key)
            assert isinstance(claim_at(store, claim), Execute), f"{key!r} was taken for another key"
            assert must_read(store, claim).key == key
        for key in (*NAMES, *SPECIAL):
            again = new_claim(scope=scope, key=key)
            assert isinstance(claim_at(store, again), Outstanding), f"{key!r} was not found again"

    def test_scopes_that_only_look_alike_are_different(self, store: Subject) -> None:
        unique = new_claim().scope
        composed = unicodedata.normalize("NFC", "müller")
        decomposed = unicodedata.normalize("NFD", "müller")
        scopes = ["a", "A", "a ", composed, decomposed, "İi", "ßss", "😀", "％", "a" * 1000]
        for scope in scopes:
            claim = new_claim(scope=unique + scope, key="one")
            assert isinstance(claim_at(store, claim), Execute), f"{scope!r} was taken for another scope"
            assert must_read(store, claim).scope == unique + scope

    def test_scope_and_key_do_not_run_together(self, store: Subject) -> None:
        unique = new_claim().scope
        for scope, key in (("a", "bc"), ("ab", "c"), ("abc", ""), ("", "abc")):
            assert isinstance(claim_at(store, new_claim(scope=unique + scope, key=key)), Execute)

    # Answers

    def test_an_answer_is_replayed_byte_for_byte(self, store: Subject) -> None:
        for name, answer in ANSWERS.items():
            claim = new_claim()
            hold(store, claim)
            complete(store, claim, answer)
            decision = claim_at(store, retry_of(claim))
            assert isinstance(decision, Replay), f"{name}: {decision}"
            assert decision.record.answer == answer, name

    def test_a_withheld_answer_never_leads_to_a_second_run(self, store: Subject) -> None:
        claim = new_claim()
        hold(store, claim)
        assert complete(store, claim, None) == NOW + claim.ttl_ms
        decision = claim_at(store, retry_of(claim))
        assert isinstance(decision, Withheld), decision
        assert decision.record.withheld and decision.record.answer is None

    # Finding a record again

    def test_a_record_is_found_by_its_id(self, store: Subject) -> None:
        claim = new_claim()
        hold(store, claim)
        found = store.run(lambda: store.keys.read_by_id(claim.id, now=NOW + 5))
        assert found == (NOW + 5, must_read(store, claim))
        assert store.run(lambda: store.keys.read_by_id(claim.id.upper() + "0")) is None

    def test_a_record_is_found_by_any_downstream_key(self, store: Subject) -> None:
        for mode in (Mode.LEASED, Mode.REPEATABLE, Mode.PHASED, Mode.DEFERRED):
            claim = new_claim(mode=mode)
            hold(store, claim)
            record = must_read(store, claim)
            for step in ("", "charge", "receipt-2"):
                sent = downstream_key(claim.scope, claim.key, step)
                assert _by_downstream(store, sent) == record, mode
        assert _by_downstream(store, downstream_key("no", "such", "")) is None

    def test_the_downstream_key_outlives_every_attempt(self, store: Subject) -> None:
        claim = new_claim()
        hold(store, claim)
        first = must_read(store, claim).downstream
        assert first == downstream_base(claim.scope, claim.key)
        fail(store, claim)
        hold(store, retry_of(claim))
        assert must_read(store, claim).downstream == first
        complete(store, claim)
        hold(store, retry_of(claim), NOW + DAY)
        assert must_read(store, claim).downstream == first

    def test_a_record_is_found_by_the_providers_id(self, store: Subject) -> None:
        for outcome in ("complete", "lose"):
            claim = new_claim()
            hold(store, claim)
            name = f"ch_{claim.key}"
            complete(store, claim, provider_id=name) if outcome == "complete" else lose(store, claim, name)
            record = must_read(store, claim)
            assert record.provider_id == name
            assert _by_provider_id(store, name, claim.tenant) == [record], outcome
            assert _by_provider_id(store, name, claim.tenant, None) == [record], "whatever the source"
            assert _by_provider_id(store, name, "=another tenant") == [], outcome
            assert _by_provider_id(store, name, claim.tenant, "another bank") == [], outcome
            assert _by_provider_id(store, "ch_nobody", claim.tenant) == []

    def test_a_providers_id_is_kept_by_a_later_outcome_without_one(self, store: Subject) -> None:
        claim = new_claim()
        hold(store, claim)
        lose(store, claim, "ch_1")
        complete(store, claim)
        assert must_read(store, claim).provider_id == "ch_1"

    # D9: records that cannot be read

    def test_a_corrupt_record_is_an_error_and_is_never_run(self, store: Subject) -> None:
        for name, columns in CORRUPT.items():
            claim = new_claim()
            hold(store, claim)
            complete(store, claim)
            store.overwrite(claim.scope, claim.key, **columns)
            decision = claim_at(store, retry_of(claim))
            assert isinstance(decision, Unreadable), f"{name}: {decision}"

    def test_an_operation_in_progress_without_a_lease_is_an_error(self, store: Subject) -> None:
        claim = new_claim()
        hold(store, claim)
        store.overwrite(claim.scope, claim.key, locked_until=None)
        assert isinstance(claim_at(store, retry_of(claim)), Unreadable)

    def test_reading_a_corrupt_record_says_so(self, store: Subject) -> None:
        claim = new_claim()
        hold(store, claim)
        store.overwrite(claim.scope, claim.key, state="melted")
        said = None
        try:
            must_read(store, claim)
        except CorruptRecord as error:
            said = str(error)
        assert said is not None, "a corrupt record was read"
        assert "melted" in said

    def test_a_corrupt_record_does_not_change(self, store: Subject) -> None:
        claim = new_claim()
        hold(store, claim)
        store.overwrite(claim.scope, claim.key, state="melted")
        for _ in range(2):
            assert isinstance(claim_at(store, retry_of(claim), NOW + 400 * DAY), Unreadable)
        store.overwrite(claim.scope, claim.key, state="in_progress")
        assert must_read(store, claim).attempt == claim.attempt

    # S5: what nobody can tell

    def test_an_unknown_outcome_keeps_its_attempt(self, store: Subject) -> None:
        claim = new_claim()
        hold(store, claim)
        lose(store, claim)
        record = must_read(store, claim)
        assert (record.attempt, record.attempts) == (claim.attempt, 1)
