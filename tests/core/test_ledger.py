"""Two ledgers against each other: by example, and against a naive model on random ledgers."""

from __future__ import annotations

import csv
import io
import json
import random
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samekey.core.ledger import (
    ALL_FIELDS,
    FIELDS,
    CannotCompare,
    Comparison,
    Different,
    Duplicated,
    Entry,
    Field,
    Ledgers,
    as_csv,
    as_json,
    compare,
    compare_sorted,
    rows,
)


def entry(identity: str, amount: int | Decimal = 100, currency: str = "EUR", **more: Any) -> Entry:
    return Entry(identity, amount, currency, **more)


def test_each_kind_of_difference() -> None:
    same = entry("a")
    found = compare(
        [entry("f"), same, entry("c"), entry("d", 100), entry("e"), entry("e")],
        [entry("b"), same, entry("d", 101), entry("e"), entry("f")],
    )
    assert found == Comparison(
        ours=6,
        theirs=5,
        equal=2,
        missing=(entry("b"),),
        extra=(entry("c"),),
        different=(Different(entry("d", 100), entry("d", 101), ("amount",)),),
        duplicated=(Duplicated("e", (entry("e"), entry("e")), (entry("e"),)),),
    )
    assert found.differences == 4
    assert str(found) == (
        "The ledgers differ in 4 entries: 1 missing, 1 extra, 1 different, 1 duplicated; 2 equal. "
        "Ours has 6, the provider's 5."
    )
    assert str(compare([same], [same])) == "The ledgers agree: 1 entry on both sides."
    assert compare([], []).differences == 0


def test_a_duplicate_is_reported_even_where_the_other_side_has_none_or_the_same() -> None:
    assert compare([entry("a"), entry("a")], []).duplicated
    assert compare([], [entry("a"), entry("a", 5)]).duplicated
    assert compare([entry("a")] * 2, [entry("a")] * 2).differences == 1


@pytest.mark.parametrize(
    ("theirs", "fields"),
    [
        ({"amount": 101}, ("amount",)),
        ({"currency": "USD"}, ("currency",)),
        ({"status": "refunded"}, ("status",)),
        ({"amount": -100, "currency": "USD", "status": "x"}, ("amount", "currency", "status")),
        ({"currency": "eur"}, ()),
        ({"at": datetime(2026, 1, 1, tzinfo=UTC)}, ()),
        ({"reference": "order-2"}, ()),
    ],
)
def test_what_differs(theirs: dict[str, Any], fields: tuple[str, ...]) -> None:
    ours = {"amount": 100, "currency": "EUR", "status": "paid", "reference": "order-1"}
    found = compare([Entry("a", **ours)], [Entry("a", **{**ours, **theirs})])  # type: ignore[arg-type]
    assert [pair.fields for pair in found.different] == ([fields] if fields else [])


def test_the_fields_can_be_chosen() -> None:
    ours = entry("a", 1, reference="x", at=datetime(2026, 1, 1, tzinfo=UTC))
    theirs = entry("a", 2, reference="y")
    assert compare([ours], [theirs], ["reference"]).different[0].fields == ("reference",)
    assert compare([ours], [theirs], ALL_FIELDS).different[0].fields == ("amount", "at", "reference")
    for wrong in ([], ["colour"]):
        with pytest.raises(CannotCompare, match="field"):
            compare([ours], [theirs], wrong)  # type: ignore[arg-type]


def test_amounts_are_exact() -> None:
    assert compare([entry("a", Decimal("0.1") + Decimal("0.2"))], [entry("a", Decimal("0.3"))]).equal == 1
    assert compare([entry("a", Decimal("1.0"))], [entry("a", Decimal("1.00"))]).equal == 1
    big = 10**30
    assert compare([entry("a", big)], [entry("a", big + 1)]).differences == 1
    # More digits than the default context of decimal arithmetic keeps.
    precise, other = (Decimal(f"123456789012345678901234567890.123456789{last}") for last in "01")
    assert compare([entry("a", precise)], [entry("a", other)]).differences == 1


@pytest.mark.parametrize(
    "amount",
    [
        0.1,
        1.0,
        True,
        "1",
        None,
        Decimal("NaN"),
        Decimal("Infinity"),
        Decimal("1E+999999"),
        10**40,
        Decimal("1E-41"),
    ],
)
def test_what_is_no_amount_is_refused(amount: Any) -> None:
    with pytest.raises(CannotCompare, match="amount of entry 'a'"):
        Entry("a", amount, "EUR")


@pytest.mark.parametrize(
    "values", [("", 1, "EUR"), ("a", 1, ""), (7, 1, "EUR"), ("a", 1, None), ("a", 1, "EUR", None)]
)
def test_an_entry_without_what_it_needs_is_refused(values: tuple[Any, ...]) -> None:
    with pytest.raises(CannotCompare):
        Entry(*values)


def test_minor_units_and_decimals_are_never_compared() -> None:
    cents, euros = [entry("a", 100)], [entry("a", Decimal(100))]
    with pytest.raises(CannotCompare, match="100 cents are not 100 euros"):
        compare(cents, euros)
    with pytest.raises(CannotCompare, match="our ledger some amounts"):
        compare([*cents, entry("b", Decimal(1))], [])
    # Also where no id of one kind ever meets the other.
    with pytest.raises(CannotCompare, match="Convert one side"):
        compare(cents, [entry("b", Decimal(1))])


def test_a_sorted_comparison_refuses_another_order_and_holds_nothing() -> None:
    with pytest.raises(CannotCompare, match="the provider's ledger 'a' comes after 'b'"):
        compare_sorted([], [entry("b"), entry("a")])
    with pytest.raises(CannotCompare, match="not an Entry"):
        compare_sorted(["a"], [])  # type: ignore[list-item]
    with pytest.raises(CannotCompare, match="not an Entry"):
        compare(["a"], [])  # type: ignore[list-item]
    alive = 0
    most = 0

    class Counted(Entry):
        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    def stream() -> Iterable[Entry]:
        nonlocal alive, most
        for number in range(10_000):
            made = Counted(f"{number:05}", number, "EUR")
            alive += 1
            most = max(most, alive)
            yield made

    assert compare_sorted(stream(), stream()).equal == 10_000
    assert most < 20


# ------------------------------------------------------------------ against a naive model

ids = st.sampled_from(["a", "b", "c", "ab", "é", "\U0001f600", "\uffff", "Z"])
entries = st.builds(
    Entry,
    id=ids,
    amount=st.integers(-2, 2),
    currency=st.sampled_from(["EUR", "usd", "USD"]),
    status=st.sampled_from(["", "paid"]),
    reference=st.sampled_from([None, "r"]),
)
ledgers = st.lists(entries, max_size=8)


def naive(ours: list[Entry], theirs: list[Entry], fields: tuple[Field, ...]) -> dict[str, Any]:
    """What becomes of each id, looked up one by one."""
    found: dict[str, Any] = {}
    for identity in {one.id for one in ours + theirs}:
        mine = [one for one in ours if one.id == identity]
        yours = [one for one in theirs if one.id == identity]
        if len(mine) > 1 or len(yours) > 1:
            found[identity] = "duplicated"
        elif not mine:
            found[identity] = "missing"
        elif not yours:
            found[identity] = "extra"
        else:
            changed = {name for name in fields if getattr(mine[0], name) != getattr(yours[0], name)}
            found[identity] = changed or "equal"
    return found


@settings(max_examples=300, deadline=None)
@given(ledgers, ledgers, st.sampled_from([FIELDS, ALL_FIELDS, ("status",)]), st.randoms())
def test_the_naive_model_agrees(
    ours: list[Entry], theirs: list[Entry], fields: tuple[Field, ...], chance: random.Random
) -> None:
    found = compare(ours, theirs, fields)
    expected = naive(ours, theirs, fields)
    actual: dict[str, Any] = {one.id: "missing" for one in found.missing}
    actual |= {one.id: "extra" for one in found.extra}
    actual |= {one.ours.id: set(one.fields) for one in found.different}
    actual |= {one.id: "duplicated" for one in found.duplicated}
    assert actual == {identity: what for identity, what in expected.items() if what != "equal"}
    assert found.equal == list(expected.values()).count("equal")
    assert found.differences == len(actual)
    assert (found.ours, found.theirs) == (len(ours), len(theirs))
    for group in found.duplicated:
        assert sorted(map(repr, group.ours)) == sorted(repr(one) for one in ours if one.id == group.id)
    # Order does not matter.
    shuffled = [*ours], [*theirs]
    for side in shuffled:
        chance.shuffle(side)
    assert compare(*shuffled, fields) == found
    # Nor does which of the two ways it took.
    left, right = (sorted(side, key=lambda one: one.id) for side in (ours, theirs))
    assert compare_sorted(left, right, fields) == found
    # Seen from the other side, missing and extra change places.
    mirrored = compare(theirs, ours, fields)
    assert (mirrored.missing, mirrored.extra) == (found.extra, found.missing)
    assert mirrored.differences == found.differences


# ------------------------------------------------------------------ reports


def test_json() -> None:
    found = compare(
        [entry("a", Decimal("1.50"), at=datetime(2026, 1, 1, tzinfo=UTC))],
        [entry("b", Decimal("0.1")), entry("a", Decimal("1.5"), "USD")],
    )
    content = json.loads(as_json(found))
    assert (content["agree"], content["differences"], content["equal"]) == (False, 2, 0)
    assert content["missing"] == [
        {"id": "b", "amount": "0.1", "currency": "EUR", "status": "", "at": None, "reference": None}
    ]
    assert content["different"][0]["fields"] == ["currency"]
    assert content["different"][0]["ours"]["at"] == "2026-01-01T00:00:00+00:00"
    assert json.loads(as_json(compare([entry("a", 5)], [])))["extra"][0]["amount_minor"] == 5
    assert json.loads(as_json(compare([], [])))["agree"] is True


def read(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text, newline=""), strict=True))


def test_csv() -> None:
    found = compare([entry("a", -150), entry("c"), entry("c")], [entry("b"), entry("a", 150)])
    assert read(as_csv(found)) == [
        ["difference", "id", "side", "amount_minor", "currency", "status", "at", "reference", "fields"],
        ["missing", "b", "theirs", "100", "EUR", "", "", "", ""],
        ["different", "a", "ours", "-150", "EUR", "", "", "", "amount"],
        ["different", "a", "theirs", "150", "EUR", "", "", "", "amount"],
        ["duplicated", "c", "ours", "100", "EUR", "", "", "", ""],
        ["duplicated", "c", "ours", "100", "EUR", "", "", "", ""],
    ]
    assert len(read(as_csv(compare([], [])))) == 1
    assert read(as_csv(compare([entry("a", Decimal("1E+2"))], [])))[1][3] == "100"


@pytest.mark.parametrize(
    "text",
    [
        "=cmd|' /C calc'!A0",
        "+1+1",
        "-2+3",
        "@SUM(A1)",
        "\t=1",
        "\r=1",
        "\n=1",
        " =1",
        "x;=1",
        "x\t=1",
        'x"=1',
        "x\n=1",
        "＝1",
        "－1",
        "-1;=2",
    ],
)
def test_no_cell_begins_a_formula(text: str) -> None:
    """Neither where a comma separates cells nor where something else does."""
    report = as_csv(compare([entry("a", status=text, reference=text)], []))
    for delimiter in ",;\t|":
        for row in csv.reader(io.StringIO(report, newline=""), delimiter=delimiter):
            for cell in row:
                for line in re.split(r"[\r\n]", cell):
                    assert not re.match(r"\s*[=+@＝＋－＠]|\s*-(?![0-9]+$)", line), (delimiter, cell)


@settings(max_examples=300, deadline=None)
@given(st.text(min_size=1))
def test_any_text_stays_one_cell(text: str) -> None:
    report = as_csv(compare([entry(text)], []))
    line = read(report)[1]
    assert len(line) == 9 and line[1].replace("'", "") == text.replace("\0", "").replace("'", "")
    assert not re.match(r"[=+\-@\t\r\n]", line[1]) or re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", line[1])


def test_rows_are_all_of_it() -> None:
    found = compare([entry("a"), entry("b"), entry("b")], [entry("c"), entry("a", 5)])
    assert [(kind, side) for kind, _, side, _, _ in rows(found)] == [
        ("missing", "theirs"),
        ("different", "ours"),
        ("different", "theirs"),
        ("duplicated", "ours"),
        ("duplicated", "ours"),
    ]


def test_a_declaration_that_cannot_work_is_refused() -> None:
    assert Ledgers(list, list).fields == FIELDS
    with pytest.raises(CannotCompare, match="ours must be a function"):
        Ledgers([], list)  # type: ignore[arg-type]
    with pytest.raises(CannotCompare, match="report must be"):
        Ledgers(list, list, report="mail")  # type: ignore[arg-type]
    with pytest.raises(CannotCompare, match="no field"):
        Ledgers(list, list, fields=("colour",))  # type: ignore[arg-type]
