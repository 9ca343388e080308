"""Records as rows: what is written is read again, and what cannot be read is ``CorruptRecord`` (D9)."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from samekey.core.record import (
    ANSWER_VERSION,
    COLUMNS,
    LAST_TIME,
    Answer,
    Headers,
    Lease,
    Record,
    decode_headers,
    decode_record,
    encode_headers,
)
from samekey.core.states import Mode, State
from samekey.errors import CorruptRecord
from tests.core.test_decide import record

TEXT = {"id", "scope", "key", "tenant", "endpoint", "fingerprint_version", "state", "mode", "attempt"}
OPTIONAL_TEXT = {"recovery_point", "error_code", "downstream", "provider_id"}
TIMES = {"created_at", "last_run_at", "expires_at"}
OPTIONAL_TIMES = {"locked_until", "reconcile_after", "completed_at"}
INTEGERS = {"attempts", "life", "ttl_ms"}
WORDS = {"ttl_from": ("completion", "creation"), "after_expiry": ("new", "ask", "gone")}
OPTIONAL_INTEGERS = {"answer_version", "answer_status"}
BYTES = {"fingerprint"}
ANSWER_BYTES = {"answer_headers", "answer_body"}


def row_of(record: Record) -> dict[str, Any]:
    """A record as a store holds it."""
    completed, answer = record.state is State.COMPLETED, record.answer
    row: dict[str, Any] = {
        "answer_version": ANSWER_VERSION if completed else None,
        "answer_status": None if answer is None else answer.status,
        "answer_headers": None if answer is None else encode_headers(answer.headers),
        "answer_body": None if answer is None else answer.body,
    }
    row |= {name: getattr(record, name) for name in COLUMNS if name not in row}
    return row | {"state": str(record.state), "mode": str(record.mode)}


def read(row: dict[str, Any]) -> Record:
    return decode_record([row[name] for name in COLUMNS])


def stored(state: State = State.COMPLETED, /, **changes: Any) -> dict[str, Any]:
    return row_of(record(state)) | changes


def test_every_column_has_a_kind_here() -> None:
    kinds = [
        TEXT,
        OPTIONAL_TEXT,
        TIMES,
        OPTIONAL_TIMES,
        INTEGERS,
        OPTIONAL_INTEGERS,
        BYTES,
        ANSWER_BYTES,
        WORDS,
    ]
    assert sorted(COLUMNS) == sorted(name for kind in kinds for name in kind)


@pytest.mark.parametrize("name", WORDS)
def test_what_is_said_of_retention_is_one_of_few_words(name: str) -> None:
    for word in WORDS[name]:
        assert getattr(read(stored(**{name: word})), name) == word
    for other in ("", "New", "never", None, 1, b"new"):
        with pytest.raises(CorruptRecord):
            read(stored(**{name: other}))


def test_every_field_of_a_record_is_a_column_or_made_of_the_answers() -> None:
    """But what a lookup is asked about, which is made of the operation's effects, and the question itself."""
    fields = {field.name for field in dataclasses.fields(Record)}
    made = {"answer", "withheld", "open_effect", "asking"}
    assert fields - made == set(COLUMNS) - OPTIONAL_INTEGERS - ANSWER_BYTES


# --- round trips ---------------------------------------------------------------------------------

headers_of = st.lists(st.tuples(st.binary(max_size=20), st.binary(max_size=40)), max_size=8).map(tuple)
times = st.integers(0, LAST_TIME)
texts = st.text(max_size=30)
answers = st.builds(Answer, st.integers(100, 999), headers_of, st.binary(max_size=100))


@st.composite
def records(draw: st.DrawFn) -> Record:
    state = draw(st.sampled_from(State))
    answer = draw(st.none() | answers) if state is State.COMPLETED else None
    return Record(
        id=draw(texts),
        life=draw(st.integers(1, 2**62)),
        ttl_ms=draw(st.integers(1, 2**62)),
        ttl_from=draw(st.sampled_from(["completion", "creation"])),
        after_expiry=draw(st.sampled_from(["new", "ask", "gone"])),
        scope=draw(texts),
        key=draw(texts),
        tenant=draw(texts),
        endpoint=draw(texts),
        fingerprint=draw(st.binary(max_size=40)),
        fingerprint_version=draw(texts),
        state=state,
        mode=draw(st.sampled_from(Mode)),
        attempt=draw(texts),
        attempts=draw(st.integers(0, 2**62)),
        recovery_point=draw(st.none() | texts),
        locked_until=draw(st.none() | times),
        answer=answer,
        withheld=state is State.COMPLETED and answer is None,
        error_code=draw(st.none() | texts),
        downstream=draw(st.none() | texts),
        provider_id=draw(st.none() | texts),
        reconcile_after=draw(st.none() | times),
        created_at=draw(times),
        last_run_at=draw(times),
        completed_at=draw(st.none() | times),
        expires_at=draw(times),
    )


@given(records())
def test_what_is_written_is_read_again(made: Record) -> None:
    assert read(row_of(made)) == made


@given(headers_of)
@example(((b"Set", b"\x00\xff\r\n"), (b"set", b""), (b"Set", b"\x80")))
def test_headers_survive_with_their_bytes_order_and_repetitions(headers: Headers) -> None:
    encoded = encode_headers(headers)
    assert encoded.isascii()
    assert decode_headers(encoded) == headers


def test_bytes_may_come_as_a_memoryview() -> None:
    """As psycopg gives them where a user's connection loads them so."""
    row = stored()
    views = {name: memoryview(row[name]) for name in (*BYTES, *ANSWER_BYTES)}
    assert read(row | views) == read(row)


def test_a_completed_record_without_an_answer_is_withheld() -> None:
    row = stored(answer_status=None, answer_headers=None, answer_body=None)
    assert (read(row).withheld, read(row).answer) == (True, None)


@pytest.mark.parametrize("state", sorted(set(State) - {State.COMPLETED}))
def test_only_a_completed_record_has_an_answer(state: State) -> None:
    """A record that was completed once and is being run again shows nothing of its former life."""
    leftovers = {name: value for name, value in stored().items() if name.startswith("answer_")}
    made = read(stored(state) | leftovers)
    assert (made.answer, made.withheld) == (None, False)


def test_a_lease_is_cut_from_its_record() -> None:
    made = record(State.IN_PROGRESS)
    assert made.lease(500) == Lease(made.scope, made.key, made.attempt, 500)


def test_the_first_header_of_a_name_is_found_in_any_case() -> None:
    answer = Answer(200, ((b"X-A", b"1"), (b"x-a", b"2")))
    assert answer.header(b"x-a") == b"1"
    assert answer.header(b"x-b") is None


# --- corruption ----------------------------------------------------------------------------------


def refused(row: dict[str, Any]) -> str:
    with pytest.raises(CorruptRecord) as caught:
        read(row)
    sentence = str(caught.value)
    assert "the operation was not run" in sentence
    return sentence


SAMPLES: list[Any] = ["text", b"bytes", 7, 1.5, True, None, [], {}, object()]


def allowed(column: str, value: object) -> bool:
    """Whether a value has the type of its column. State, mode and answer have rules of their own below."""
    if column in OPTIONAL_TEXT | OPTIONAL_TIMES and value is None:
        return True
    if column in TEXT | OPTIONAL_TEXT:
        return isinstance(value, str)
    if column in BYTES | ANSWER_BYTES:
        return isinstance(value, bytes)
    return type(value) is int


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("value", SAMPLES, ids=lambda value: type(value).__name__)
def test_a_wrong_type_is_corrupt(column: str, value: object) -> None:
    if not allowed(column, value):
        refused(stored(**{column: value}))


@pytest.mark.parametrize("column", sorted(TIMES | OPTIONAL_TIMES))
@pytest.mark.parametrize("value", [-1, LAST_TIME + 1, 2**63 - 1, 10**30])
def test_a_time_that_no_date_can_name_is_corrupt(column: str, value: int) -> None:
    assert "is not a time" in refused(stored(**{column: value}))


@pytest.mark.parametrize("state", ["", "COMPLETED", "frozen", "completed ", "none"])
def test_d9_a_state_that_this_version_does_not_know_is_corrupt(state: str) -> None:
    assert "newer version" in refused(stored(state=state))


@pytest.mark.parametrize("mode", ["", "LEASED", "quantum"])
def test_a_mode_that_this_version_does_not_know_is_corrupt(mode: str) -> None:
    refused(stored(mode=mode))


@pytest.mark.parametrize("version", [None, 0, ANSWER_VERSION + 1, -1])
@pytest.mark.parametrize("withheld", [True, False])
def test_a_completed_record_of_another_answer_version_is_corrupt(version: int | None, withheld: bool) -> None:
    gone = {"answer_status": None, "answer_headers": None, "answer_body": None} if withheld else {}
    assert "answer version" in refused(stored(answer_version=version, **gone))


@pytest.mark.parametrize("status", [-1, 0, 99, 1000, 2**40])
def test_an_impossible_status_is_corrupt(status: int) -> None:
    assert "is not an HTTP status" in refused(stored(answer_status=status))


@pytest.mark.parametrize("missing", ["answer_headers", "answer_body"])
def test_half_an_answer_is_corrupt(missing: str) -> None:
    refused(stored(**{missing: None}))
    refused(stored(answer_status=None, **{missing: None}))


def test_an_answer_without_a_status_is_corrupt_not_withheld() -> None:
    assert "without a status" in refused(stored(answer_status=None))


BROKEN_HEADERS = [
    b"",
    b"[",
    b"{}",
    b"null",
    b"1",
    b'"ab"',
    b"[1]",
    b'["ab"]',
    b'[{"a": 1, "b": 2}]',
    b'{"ab": 1}',
    b"[[]]",
    b'[["a"]]',
    b'[["a", "b", "c"]]',
    b"[[1, 2]]",
    b'[["a", 2]]',
    b'[["a", null]]',
    b'[["a", ["b"]]]',
    b'[["a", "\\u0100"]]',
    b'[["a", "\\ud800"]]',
    '[["a", "é"]]'.encode(),
    b"\xff\xfe[\x00]\x00",
    b"\x00",
    b"NaN",
    b"[" * 100_000,
    b"[" * 100_000 + b"]" * 100_000,
    b"[" + b"9" * 10_000 + b"]",
]


@pytest.mark.parametrize("broken", BROKEN_HEADERS, ids=lambda value: repr(value[:24]))
def test_broken_headers_are_corrupt(broken: bytes) -> None:
    refused(stored(answer_headers=broken))


@pytest.mark.parametrize("change", [-1, 1])
def test_a_row_of_another_width_is_corrupt(change: int) -> None:
    row = [stored()[name] for name in COLUMNS]
    with pytest.raises(CorruptRecord):
        decode_record(row[:-1] if change < 0 else [*row, None])


scalars: st.SearchStrategy[Any] = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.binary(max_size=20)
)
stored_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
).map(lambda value: json.dumps(value).encode())


@given(st.dictionaries(st.sampled_from(COLUMNS), scalars | stored_json, min_size=1, max_size=4))
def test_any_damage_gives_a_record_or_corrupt_record_and_nothing_else(damage: dict[str, Any]) -> None:
    try:
        made = read(stored() | damage)
    except CorruptRecord:
        return
    assert read(row_of(made)) == made


@given(st.lists(scalars, max_size=30))
def test_any_row_at_all_gives_a_record_or_corrupt_record(row: list[Any]) -> None:
    try:
        decode_record(row)
    except CorruptRecord:
        return


def test_the_sentence_says_what_is_wrong_without_the_key() -> None:
    sentence = refused(stored(key="a-secret-key", state="frozen"))
    assert "frozen" in sentence
    assert "a-secret-key" not in sentence
