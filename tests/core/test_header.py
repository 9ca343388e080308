"""The Idempotency-Key header (K1 to K4): what is a key, what is refused, and in which words."""

from __future__ import annotations

import random
import re
import string
import time
import traceback
import uuid

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from samekey.core.header import (
    EMAIL,
    NATIONAL_ID,
    PHONE,
    UUID,
    KeyRefused,
    KeyRules,
    PersonalPattern,
    parse_key,
)

LENIENT = KeyRules()
STRICT = KeyRules(strict=True)
A_UUID = "0b9e2f5c-7d31-4c8e-9a44-5f0d6f1f2a77"


def refusal(line: bytes | str, rules: KeyRules = LENIENT) -> KeyRefused:
    with pytest.raises(KeyRefused) as caught:
        parse_key([line], rules)
    return caught.value


def quoted(value: str) -> bytes:
    return ('"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"').encode("ascii")


# --- how many lines ------------------------------------------------------------------------------


def test_no_line_is_missing() -> None:
    with pytest.raises(KeyRefused) as caught:
        parse_key([], LENIENT)
    assert caught.value.code == "missing"
    assert str(caught.value) == caught.value.detail


@pytest.mark.parametrize("lines", [[b"a", b"b"], [b"a", b"a"], [b"a", b""], ['"a"', b'"b"', "c"]])
def test_more_than_one_line_is_malformed_even_if_equal(lines: list[bytes | str]) -> None:
    with pytest.raises(KeyRefused) as caught:
        parse_key(lines, LENIENT)
    assert caught.value.code == "malformed"


# --- spellings of one key ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        b"abc",
        "abc",
        b" abc",
        b"\tabc \t",
        b'"abc"',
        '"abc"',
        b'  "abc"\t',
        b'"abc";v=1',
        b'"abc"; a; b="x, y"; c=?0; d=1.5; e=:aGk=:; f=tok/en',
    ],
)
def test_every_spelling_is_the_same_key(line: bytes | str) -> None:
    assert parse_key([line], LENIENT) == "abc"


@pytest.mark.parametrize(
    ("line", "key"),
    [
        (b'"a b"', "a b"),
        (b'" a "', " a "),
        (b'"a,b"', "a,b"),
        (rb'"a\"b\\c"', 'a"b\\c'),
        (rb'a"b\c', 'a"b\\c'),  # opaque: escapes have a meaning only inside quotation marks
        (b"a;v=1", "a;v=1"),
        (b"1", "1"),
        (b":aGk=:", ":aGk=:"),
        (b"?1", "?1"),
        (b"%22", "%22"),
        (b"~!#$%&'()*+-./:;<=>?@[]^_`{|}", "~!#$%&'()*+-./:;<=>?@[]^_`{|}"),
    ],
)
def test_values_that_are_keys(line: bytes, key: str) -> None:
    assert parse_key([line], LENIENT) == key


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b" ",
        b"\t \t",
        b'""',
        b'"   "',
        b",",
        b"a,b",
        b"a, b",
        b'"a", "b"',
        b'"a","a"',
        b"a b",
        b"a\tb",
        b'"a\tb"',
        b'"a',
        b'"a"b',
        b'"a" b',
        b'"a";',
        b'"a";B=1',
        b'"a";b=',
        b'"a\\b"',
        b'"a\\',
        b'"',
        b"a\x00b",
        b'"a\x00b"',
        b"a\r\nb",
        b"\x7f",
        b'"\x7f"',
        "schlüssel",
        "schlüssel".encode(),
        '"schlüssel"'.encode(),
        "key\u2028",
        "\ud800",
        "🔑",
        b"\xff",
        b"\xa0abc",
        b"\x0babc",
    ],
)
def test_malformed_values(line: bytes | str) -> None:
    for rules in (LENIENT, STRICT):
        assert refusal(line, rules).code == "malformed"


@pytest.mark.parametrize(
    "line", [b"abc", A_UUID.encode(), b"12", b"1.5", b"?1", b":aGk=:", b"*a", b"@1", b'%"a"', b"()"]
)
def test_strict_takes_a_string_and_no_other_item(line: bytes) -> None:
    assert refusal(line, STRICT).code == "malformed"
    assert parse_key([b'"' + line.replace(b'"', b'\\"') + b'"'], STRICT)


def test_strict_ignores_parameters() -> None:
    assert parse_key([b'"abc";origin=mobile'], STRICT) == "abc"


# --- lengths and patterns ------------------------------------------------------------------------


def test_length_counts_the_key_not_its_spelling() -> None:
    assert parse_key([b"k" * 255], LENIENT) == "k" * 255
    assert parse_key([quoted('"' * 255)], STRICT) == '"' * 255
    assert "256" in refusal(b"k" * 256).detail
    assert refusal(quoted("k" * 256)).code == "malformed"
    eight = KeyRules(min_length=8, max_length=10)
    assert parse_key([b"k" * 8], eight) == "k" * 8
    assert "at least 8" in refusal(b"k" * 7, eight).detail
    assert "at most 10" in refusal(b"k" * 11, eight).detail


def test_raw_length_is_bounded_before_anything_is_parsed() -> None:
    assert parse_key([b'"a"' + b";p=1" * 200], LENIENT) == "a"
    assert refusal(b'"a"' + b";p=1" * 300).code == "malformed"
    began = time.perf_counter()
    for line in (b'"' * 10_000_000, b" " * 10_000_000, "é" * 5_000_000):
        assert refusal(line).code == "malformed"
    assert time.perf_counter() - began < 2


def test_pattern_must_match_the_whole_key() -> None:
    rules = KeyRules(pattern=UUID)
    assert parse_key([A_UUID], rules) == A_UUID
    assert parse_key([quoted(A_UUID.upper())], rules) == A_UUID.upper()
    for value in (A_UUID + "0", "x" + A_UUID, A_UUID.replace("-", ""), "abc"):
        assert refusal(value, rules).code == "malformed"


@pytest.mark.parametrize(
    ("rules", "complaint"),
    [
        ({"min_length": 0}, "min_length is 0"),
        ({"min_length": -1}, "min_length"),
        ({"max_length": 256}, "at most 255"),
        ({"max_length": 0}, "above max_length"),
        ({"min_length": 9, "max_length": 8}, "above max_length"),
        ({"pattern": re.compile(b"a")}, "compiled from a str"),
    ],
)
def test_impossible_rules_are_refused_when_built(rules: dict[str, object], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        KeyRules(**rules)  # type: ignore[arg-type]


# --- personal data -------------------------------------------------------------------------------

EVERY_PERSONAL = KeyRules(personal=(EMAIL, PHONE, NATIONAL_ID))


@pytest.mark.parametrize(
    "key",
    [
        "jane@example.com",
        "jane.doe+shop@mail.example.co.uk",
        "order-17-jane@example.com-3",
        "mailto:jane@example.com",
        "jane%40example.com",
        "JANE_@EXAMPLE.COM",
    ],
)
def test_an_email_address_is_refused_by_default(key: str) -> None:
    for line in (key.encode(), quoted(key)):
        assert refusal(line).code == "personal"
    assert "e-mail" in refusal(key).detail
    assert parse_key([key], KeyRules(personal=())) == key


@pytest.mark.parametrize(
    "key",
    ["a@b", "@", "@example.com", "deploy@1.2.3", "a@b.c", "user@@x", "a@.com", "a@-x", "p@q.1a"],
)
def test_not_every_at_sign_is_an_address(key: str) -> None:
    assert parse_key([key], LENIENT) == key


@pytest.mark.parametrize(
    "key",
    [
        "+442079460958",
        "+44 20 7946 0958",
        "+1(555)010-9999",
        "call-+15550109999",
        "(555) 010-9999",
        "555-010-9999",
        "555.010.9999",
        "tel:5550109999",
    ],
)
def test_telephone_numbers_when_asked(key: str) -> None:
    assert refusal(quoted(key), KeyRules(personal=(PHONE,))).code == "personal"
    assert parse_key([quoted(key)], LENIENT) == key


@pytest.mark.parametrize(
    "key",
    [
        "123-45-6789",
        "ssn:123-45-6789",
        "cust-123-45-6789-v2",
        "AB123456C",
        "AB 12 34 56 C",
        "123.456.789-09",
        "RSSMRA85T10A562S",
    ],
)
def test_national_ids_when_asked(key: str) -> None:
    assert refusal(quoted(key), KeyRules(personal=(NATIONAL_ID,))).code == "personal"
    assert parse_key([quoted(key)], LENIENT) == key


@pytest.mark.parametrize(
    "key",
    [
        A_UUID,
        "12345678-1234-1234-1234-123456789012",
        "00000000-0000-4000-8000-555010999912",
        "01ARZ3NDEKTSV4RRFFQ69G5FAV",
        "01234567890123456789012345",
        "ord_1MowQVLkdIwHu7ixeraPKQbM",
        "9f86d081884c7d659a2feaa0c55ad015",
        "1",
        "42",
        "123456789",
        "000-12-3456",
        "666-12-3456",
        "1234-45-6789",
        "2024-01-15",
    ],
)
def test_ordinary_keys_are_never_personal(key: str) -> None:
    assert parse_key([key], EVERY_PERSONAL) == key


def test_counters_are_personal_only_where_phones_are_looked_for() -> None:
    assert parse_key(["20240115123045"], LENIENT) == "20240115123045"
    assert refusal("20240115123045", EVERY_PERSONAL).code == "personal"


@settings(deadline=None, max_examples=300)
@given(st.uuids())
def test_no_uuid_is_ever_personal(value: uuid.UUID) -> None:
    assert parse_key([str(value)], EVERY_PERSONAL) == str(value)


def test_own_personal_pattern() -> None:
    card = PersonalPattern("a card number", re.compile(r"[0-9]{16}"))
    assert "a card number" in refusal("4242424242424242", KeyRules(personal=(card,))).detail


def test_personal_patterns_are_linear() -> None:
    hostile = [
        "a@" * 50_000,
        "a@" + "b." * 50_000,
        "a@" + "b-" * 50_000 + "!",
        "+" + "1 " * 50_000,
        "1" * 100_000,
        "1-" * 50_000,
        "+1" * 50_000,
        "123-" * 25_000,
        "a" * 100_000,
    ]
    began = time.perf_counter()
    for text in hostile:
        for personal in (EMAIL, PHONE, NATIONAL_ID):
            personal.pattern.search(text)
    assert time.perf_counter() - began < 2


# --- what a refusal says -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        b"zebra-crossing,zebra",
        b"zebra-crossing zebra",
        b'"zebra-crossing',
        b'"zebra-crossing\\zebra"',
        b"zebra-crossing@zebra.com",
        b"zebra-crossing" * 30,
        b"zebra-crossing\xff",
        "zebra-crossing\u2028",
    ],
)
def test_a_refusal_never_repeats_the_key(line: bytes | str) -> None:
    for rules in (LENIENT, STRICT, KeyRules(pattern=UUID)):
        error = refusal(line, rules)
        assert "zebra" not in error.detail
        assert "zebra" not in repr(error)
        assert "zebra" not in "".join(traceback.format_exception_only(error))
        assert error.__cause__ is None
        assert error.__context__ is None
        assert error.detail[0].isupper()
        assert error.detail[-1] in '."'


# --- any bytes at all ----------------------------------------------------------------------------


def key_or_none(line: bytes | str, rules: KeyRules) -> str | None:
    try:
        return parse_key([line], rules)
    except KeyRefused:
        return None


def check(line: bytes | str) -> None:
    """Nothing but KeyRefused is raised, and what is accepted is a key in both its spellings."""
    lenient, strict = key_or_none(line, LENIENT), key_or_none(line, STRICT)
    if strict is not None:
        assert strict == lenient
    if lenient is not None:
        assert 1 <= len(lenient) <= 255
        assert all(" " <= character <= "~" for character in lenient)
        assert lenient.strip()
        assert parse_key([quoted(lenient)], STRICT) == lenient


@settings(deadline=None, max_examples=500)
@given(st.one_of(st.binary(max_size=300), st.text(max_size=300)))
@example(b'"a";d=@9999999999999999')
@example(b'"a";d=@999999999999999')
@example(b'"a";d=%"%ff"')
@example(b'"a";d=:=:')
def test_arbitrary_values_raise_nothing_else(line: bytes | str) -> None:
    check(line)


@settings(deadline=None, max_examples=500)
@given(st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1, max_size=255))
def test_every_visible_text_is_a_key_when_quoted(value: str) -> None:
    rules = KeyRules(strict=True, personal=())
    if value.strip(" "):
        assert parse_key([quoted(value)], rules) == value
        assert parse_key([b" " + quoted(value) + b";p"], rules) == value
    else:
        assert refusal(quoted(value), rules).code == "malformed"


def test_fuzz_of_almost_valid_values() -> None:
    rng = random.Random(20260)
    pieces = [b'"', b"\\", b";", b"=", b",", b" ", b"\t", b"a", b"Z", b"0", b"9", b".", b"-", b"@"]
    pieces += [
        b":",
        b"?",
        b"%",
        b"*",
        b"(",
        b")",
        b"\x00",
        b"\x7f",
        b"\x80",
        b"\xff",
        b'"a"',
        b";p=",
    ]
    pieces += [character.encode() for character in string.punctuation]
    for _ in range(12_000):
        line = b"".join(rng.choices(pieces, k=rng.randrange(12)))
        check(rng.choice((b"", b'"', b'"a";', b'"a";p=')) + line)
