"""What a request asks for: scopes that cannot collide, downstream keys that never change, lock numbers."""

from __future__ import annotations

import re
import string

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from samekey.core.claim import (
    call_part,
    downstream_base,
    downstream_key,
    is_operation_id,
    located_by,
    locating_id,
    lock_number,
    owner_of,
    scope_of,
    scope_part,
)

# Any code point, lone surrogates included: a tenant may come from anywhere.
anything = st.text(st.characters(exclude_categories=()), max_size=300)
SAFE = set(string.printable) - set(string.whitespace) | {" "}


def split(scope: str) -> list[str]:
    """Reads a scope back, which is possible only because no two lists of parts share one."""
    parts = []
    while scope:
        length, _, rest = scope.partition(":")
        parts.append(rest[: int(length)])
        scope = rest[int(length) :]
    return parts


# --- scopes --------------------------------------------------------------------------------------


@given(st.lists(anything, max_size=5))
@example(["", ""])
@example([""])
@example([])
@example(["1:a"])
@example(["1", "a"])
@example(["a:b", "c"])
@example(["a", "b:c"])
def test_a_scope_can_be_taken_apart_again(parts: list[str]) -> None:
    assert split(scope_of(*parts)) == parts


@given(st.lists(anything, max_size=4), st.lists(anything, max_size=4))
def test_different_parts_give_different_scopes(one: list[str], other: list[str]) -> None:
    assert (scope_of(*one) == scope_of(*other)) == (one == other)


@given(anything, st.lists(anything, max_size=3), anything, st.lists(anything, max_size=3))
@example("@acme", [], "acme", [])
@example("@=acme", [], "acme", [])
def test_no_client_reaches_the_keys_of_the_services_own_calls(
    tenant: str, more: list[str], called: str, others: list[str]
) -> None:
    """Whatever the tenants are called, and whatever else the scopes hold."""
    client = scope_of(scope_part(tenant), *map(scope_part, more))
    call = scope_of(call_part(called), *map(scope_part, others))
    assert client != call
    assert (owner_of(client), owner_of(call)) == (scope_part(tenant), call_part(called))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("ab", "c"), ("a", "bc")),
        (("a", ""), ("a",)),
        (("", "a"), ("a", "")),
        (("1:a",), ("a",)),
        (("a1:b",), ("a", "b")),
    ],
)
def test_no_delimiter_can_be_forged(one: tuple[str, ...], other: tuple[str, ...]) -> None:
    assert scope_of(*one) != scope_of(*other)


# --- parts ---------------------------------------------------------------------------------------


@given(anything)
@example("\x00")
@example("tenant\x00")
@example("\ud800")
@example("\ud83d\ude00")
@example("😀")
@example("a" * 200)
@example("a" * 201)
@example("\n")
@example("\x7f")
@example("é")
def test_a_part_is_short_printable_ascii(text: str) -> None:
    part = scope_part(text)
    assert set(part) <= SAFE
    assert 1 <= len(part) <= 201


@given(anything, anything)
@example("a" * 201, "a" * 202)
@example("\ud83d\ude00", "😀")
@example("a", "a\x00")
@example("a", "a ")
@example("a", "A")
@example("é", "e\u0301")
def test_different_texts_give_different_parts(one: str, other: str) -> None:
    assume(one != other)
    assert scope_part(one) != scope_part(other)


@given(anything)
def test_nobody_can_take_the_name_that_another_was_given(text: str) -> None:
    """A tenant that is called like the hash of another one is still another one."""
    assert scope_part(scope_part(text)) != scope_part(text)


def test_a_plain_part_stays_readable_for_operators() -> None:
    assert scope_part("acct_42") == "=acct_42"
    assert scope_part("a" * 200) == "=" + "a" * 200
    assert re.fullmatch(r"#[0-9a-f]{64}", scope_part("a" * 201))


# --- downstream keys -----------------------------------------------------------------------------

VECTORS = [
    ("6:=alice", "k-1", "", "57a7a638557e1ea3dee0eab1d0d19e54-5a3b674354ede687b5669b4e9f8b29ed"),
    ("6:=alice", "k-1", "charge", "57a7a638557e1ea3dee0eab1d0d19e54-72ce9d6688f6e98c789b91ff28dba09a"),
    (
        scope_of(scope_part("é"), scope_part("POST /x")),
        '"',
        "步",
        "4b8c97ca4756559ac9dca3ef29f2f3ec-f84dca037fa7c64336bd22355a37d797",
    ),
]


@pytest.mark.parametrize(("scope", "key", "step", "fixed"), VECTORS)
def test_d8_a_downstream_key_is_the_same_in_every_release(
    scope: str, key: str, step: str, fixed: str
) -> None:
    """If this fails, every operation in flight at the time of an upgrade may be charged twice."""
    assert downstream_key(scope, key, step) == fixed


def test_locks_and_scopes_are_the_same_in_every_release() -> None:
    """Two releases run side by side during a deployment, and must agree."""
    assert lock_number("6:=alice", "k-1") == -6263241482776753612
    assert scope_of("=alice", "=POST /payments") == "6:=alice15:=POST /payments"
    assert scope_part("é") == "#4a99557e4033c3539de2eb65472017cad5f9557f7a0625a09f1c3f6e2ba69c4c"


keys = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=40)


@given(anything, keys, anything)
def test_a_downstream_key_fits_every_provider(scope: str, key: str, step: str) -> None:
    made = downstream_key(scope, key, step)
    assert re.fullmatch(r"[0-9a-f]{32}-[0-9a-f]{32}", made)
    assert len(made) == 65
    assert made == downstream_key(scope, key, step)
    assert made.startswith(downstream_base(scope, key))


Identity = tuple[str, str, str]


@given(st.tuples(anything, keys, anything), st.tuples(anything, keys, anything))
@example(("a", "bc", ""), ("ab", "c", ""))
@example(("a", "b", "c"), ("a", "bc", ""))
@example(("a", "b", "1"), ("a", "b", "2"))
@example(("a", "b", "s"), ("c", "b", "s"))
def test_downstream_keys_are_distinct_by_scope_key_and_step(one: Identity, other: Identity) -> None:
    assume(one != other)
    assert downstream_key(*one) != downstream_key(*other)


def test_a_downstream_key_shows_neither_tenant_nor_key() -> None:
    made = downstream_key("6:=alice", "secret", "charge")
    assert not re.search("alice|secret|charge", made)


# --- locks ---------------------------------------------------------------------------------------


@given(anything, anything)
@example("\ud800", "\udfff")
def test_a_lock_number_is_a_signed_bigint(scope: str, key: str) -> None:
    assert -(2**63) <= lock_number(scope, key) < 2**63
    assert lock_number(scope, key) == lock_number(scope, key)


def test_lock_numbers_are_spread_over_the_whole_range() -> None:
    numbers = {lock_number("6:=alice", f"k-{i}") for i in range(2000)}
    assert len(numbers) == 2000
    assert min(numbers) < -(2**62)
    assert max(numbers) > 2**62


@given(st.tuples(anything, anything), st.tuples(anything, anything))
@example(("a", "bc"), ("ab", "c"))
def test_different_operations_take_different_locks(one: tuple[str, str], other: tuple[str, str]) -> None:
    assume(one != other)
    assert lock_number(*one) != lock_number(*other)


def test_a_locating_id_leads_to_its_key_and_cannot_be_guessed_from_it() -> None:
    token = "0123456789abcdef" * 2
    made = locating_id(token, "scope", "key")
    assert made.startswith(token) and located_by(made) == downstream_base("scope", "key")
    assert located_by("anything else") == ""
    assert is_operation_id(token) and is_operation_id(made)
    assert not any(is_operation_id(text) for text in ("", token[1:], made[1:], "x" * 32, token.upper()))
