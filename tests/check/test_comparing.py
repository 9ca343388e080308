"""Servers that compare a part of the body, or compare loosely: the draft leaves that open; a note says it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from samekey.check import Budget, Endpoint, Report, check
from tests.check.base import Asked, Server, serving
from tests.chosen import whole

BODY = {"item": "book", "amount": 100, "gift": False, "tags": ["a", "b"]}


class ComparesTheAmountOnly(Server):
    def content(self, body: bytes) -> str:
        return str(json.loads(body)["amount"])


class TextsAndNumbersAreOne(Server):
    def validate(self, asked: Asked) -> Any:
        document = super().validate(replace(asked, body=asked.body.replace(b'"100"', b"100")))
        return {**document, "amount": int(document["amount"])}

    def content(self, body: bytes) -> str:
        return json.dumps({name: _loose(item) for name, item in json.loads(body).items()}, sort_keys=True)


class NothingIsAbsent(Server):
    def content(self, body: bytes) -> str:
        return json.dumps({name: item for name, item in json.loads(body).items() if item}, sort_keys=True)


class ListsAreSets(Server):
    def content(self, body: bytes) -> str:
        document = json.loads(body)
        return json.dumps({**document, "tags": sorted(document.get("tags", []))}, sort_keys=True)


def _loose(item: Any) -> Any:
    return str(item) if isinstance(item, int) and not isinstance(item, bool) else item


def report_of(server: Server, body: Any = BODY) -> Report:
    with serving(server) as url:
        endpoint = Endpoint(
            f"{url}/orders", body, headers=(("Authorization", "Bearer ann"),), count_url=f"{url}/count"
        )
        return check(endpoint, budget=Budget(rate=1000))


@pytest.mark.parametrize(
    ("server", "what"),
    [
        (ComparesTheAmountOnly, "another /item"),
        pytest.param(TextsAndNumbersAreOne, "/amount as a string", marks=whole),
        pytest.param(NothingIsAbsent, "no /gift", marks=whole),
        pytest.param(ListsAreSets, "/tags in another order", marks=whole),
    ],
)
def test_what_is_not_compared_is_noted(server: type[Server], what: str) -> None:
    report = report_of(server())
    notes = {note.id: note.detail for note in report.notes}
    assert what in notes["misuse.partly"] and "misuse.body" in report.passed
    assert [finding.id for finding in report.findings if finding.id != "misuse.duplicates"] == []


def test_a_server_that_compares_all_of_it_has_no_note() -> None:
    report = report_of(Server())
    assert "misuse.partly" in report.passed and report.ok


class ComparesAllButTheLastTwo(Server):
    def content(self, body: bytes) -> str:
        return json.dumps(
            {name: item for name, item in json.loads(body).items() if name not in ("to", "iban")}
        )


@whole
def test_each_member_is_looked_at_and_not_the_first_few() -> None:
    others = {f"m{number}": number for number in range(6)}
    report = report_of(ComparesAllButTheLastTwo(), {**BODY, **others, "to": "Ann", "iban": "DE1"})
    assert ["/to" in note.detail and "/iban" in note.detail for note in report.notes] == [True]


@whole
def test_of_a_body_of_very_many_the_rest_is_not_proven() -> None:
    report = report_of(Server(), {**BODY, **{f"m{number}": number for number in range(40)}})
    assert "only 30" in report.not_proven["misuse.partly"]
