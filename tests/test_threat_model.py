"""The threat model (T8): what it names must exist, it must be whole, and its checklist must fit one page.

Below that, tests of controls over HTTP that no other file shows from end to end.
"""

from __future__ import annotations

import ast
import logging
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from samekey import Idempotency, OutcomeUnknown, ietf
from samekey.asgi import IdempotencyMiddleware
from samekey.tenants import by_api_key
from tests.edges.counting import touches

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "threat-model.md"

REQUIREMENTS = {
    "T1": "the store is down",
    "T2": "another tenant's key",
    "T3": "limits per tenant",
    "T4": "a captured request",
    "T5": "authentication first",
    "T6": "hostile input",
    "T7": "encryption at rest",
    "T8": "this document",
}
"""The requirements about threats, each of which a heading must cite."""

LINES, COLUMNS = 55, 110
"""What a page of A4 holds in a small type, with a margin to write in."""

_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
_THREAT = re.compile(r"^### (.+?)(?: \((T\d)\))?\n(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)


def text() -> str:
    return PAGE.read_text("utf-8")


def threats() -> dict[str, tuple[str | None, str]]:
    return {name: (requirement or None, body) for name, requirement, body in _THREAT.findall(text())}


@cache
def names_in(file: str) -> frozenset[str]:
    """The names of the tests in a file, read without running it."""
    tree = ast.parse((ROOT / file).read_text("utf-8"))
    classes = [node.body for node in tree.body if isinstance(node, ast.ClassDef)]
    return frozenset(
        node.name
        for body in (tree.body, *classes)
        for node in body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test")
    )


def checklist() -> list[str]:
    lines = text().partition("\n## Checklist\n")[2].strip().splitlines()
    return [line for line in lines if line]


# ------------------------------------------------------------------ the document


def test_every_named_test_exists() -> None:
    named = _TEST.findall(text())
    assert len(named) > 80
    missing = [f"{file}::{test}" for file, test in named if not (ROOT / file).is_file()]
    missing += [f"{f}::{test}" for f, test in named if (ROOT / f).is_file() and test not in names_in(f)]
    assert not missing, f"the threat model names tests that are not there: {missing}"


def test_nothing_that_looks_like_a_test_escapes_the_check() -> None:
    assert text().count("::test_") == len(_TEST.findall(text()))


def test_every_requirement_about_threats_is_covered() -> None:
    cited = {requirement for requirement, _ in threats().values() if requirement}
    assert cited == REQUIREMENTS.keys()


@pytest.mark.parametrize("name", threats())
def test_every_threat_has_a_control_and_a_test(name: str) -> None:
    _, body = threats()[name]
    for part in ("- **Threat:** ", "- **Control:** ", "- **Tests:** "):
        assert body.count(part) == 1, f"{name}: {part}"
    assert _TEST.search(body.partition("- **Tests:** ")[2]), name


def test_every_heading_is_a_threat() -> None:
    assert len(threats()) == len(re.findall(r"^### ", text(), re.MULTILINE)) > 25


def test_the_checklist_fits_one_page() -> None:
    lines = checklist()
    items = [line for line in lines if line.startswith("- [ ] ")]
    groups = [line for line in lines if re.fullmatch(r"\*\*[\w ]+\*\*", line)]
    assert len(items) + len(groups) == len(lines), "one line each, or it cannot be ticked"
    assert len(items) >= 15
    # Each group stands apart by a blank line above and below.
    assert len(lines) + 2 * len(groups) <= LINES
    assert max(map(len, lines)) <= COLUMNS


# ------------------------------------------------------------------ controls, from end to end

SECRET_KEY = "a-key-that-nobody-must-read-77"


class Shop:
    """A small application, and how often its handler ran."""

    def __init__(self, url: str, **policy: Any) -> None:
        self.idempotency = Idempotency(url, policy=ietf(**policy))
        self.runs = 0
        self.raises: Exception | None = None

        @self.idempotency.leased
        async def pay(request: Request) -> JSONResponse:
            self.runs += 1
            if self.raises is not None:
                raise self.raises
            return JSONResponse({"run": self.runs}, status_code=201)

        app = Starlette(routes=[Route("/pay", pay, methods=["POST"])])
        callers = by_api_key({"ann": "ann", "bob": "bob"})
        app.add_middleware(IdempotencyMiddleware, idempotency=self.idempotency, tenant=callers)
        self.client = TestClient(app, raise_server_exceptions=False)

    def pay(self, key: str, cents: int = 1, *, caller: str = "ann", sent: float | None = None) -> Answered:
        headers = {"Authorization": caller, "Idempotency-Key": key}
        if sent is not None:
            headers["Request-Timestamp"] = f"{sent:.3f}"
        return Answered(self.client.post("/pay", json={"cents": cents}, headers=headers))

    def look(self, operation: str, *, caller: str = "ann") -> Answered:
        return Answered(self.client.get(f"/idempotency/{operation}", headers={"Authorization": caller}))


class Answered:
    """An answer, as these tests look at it."""

    def __init__(self, answer: Any) -> None:
        self.status: int = answer.status_code
        self.headers: dict[str, str] = dict(answer.headers)
        self.content: bytes = answer.content
        is_problem = self.headers.get("content-type") == "application/problem+json"
        self.code: str | None = answer.json().get("code") if is_problem else None
        self.replayed = self.headers.get("idempotent-replayed") == "true"


OpenShop = Callable[..., Shop]


@pytest.fixture
def open_shop(sqlite_url: str) -> Iterator[OpenShop]:
    with ExitStack() as stack:

        def open_one(**policy: Any) -> Shop:
            shop = Shop(sqlite_url, **policy)
            stack.enter_context(shop.client)  # its end gives connections back
            return shop

        yield open_one


def test_a_sprayer_gets_429_and_its_retries_do_not(open_shop: OpenShop) -> None:
    shop = open_shop(active_keys=3)
    firsts = [shop.pay(f"k{number}") for number in range(3)]
    over = shop.pay("k3")
    assert (over.status, over.code, shop.runs) == (429, "limited", 3)
    assert int(over.headers["retry-after"]) > 0
    assert shop.pay("k3").status == 429, "a refused key is not a known one"
    for number, first in enumerate(firsts):
        again = shop.pay(f"k{number}")
        assert again.replayed and again.content == first.content
    assert shop.pay("k0", cents=2).code == "reused"
    assert shop.pay("k3", caller="bob").status == 201, "another tenant has its own limit"


def test_status_look_ups_are_limited(open_shop: OpenShop) -> None:
    shop = open_shop(lookups_per_minute=5)
    guesses = [shop.look(f"{number:032x}") for number in range(30)]
    # A minute may end among them; then as many again are let through.
    allowed = [guess for guess in guesses if guess.status == 404]
    refused = [guess for guess in guesses if guess.status == 429]
    assert len(allowed) + len(refused) == 30 and 5 <= len(allowed) <= 10
    assert {guess.code for guess in refused} == {"limited"}
    assert all(int(guess.headers["retry-after"]) > 0 for guess in refused)
    assert shop.look("0" * 32, caller="bob").status == 404, "each caller is counted apart"


def test_a_captured_request_is_refused_before_any_look(open_shop: OpenShop) -> None:
    shop = open_shop(max_age=300)
    now = time.time()
    assert shop.pay("k", sent=now - 10).status == 201
    again = shop.pay("k", sent=now)
    assert again.replayed, "each attempt has its own time, and is the same request"
    with touches(shop.idempotency) as touched:
        for key in ("k", "never-seen"):
            for sent in (now - 3600, now + 3600, None):
                captured = shop.pay(key, sent=sent)
                assert (captured.status, captured.code, captured.replayed) == (400, "stale", False)
    assert (touched, shop.runs) == ([], 1)


def test_no_key_is_logged_whatever_becomes_of_it(
    open_shop: OpenShop, caplog: pytest.LogCaptureFixture
) -> None:
    shop = open_shop()
    with caplog.at_level(logging.DEBUG, "samekey"):
        assert shop.pay(SECRET_KEY).status == 201
        assert shop.pay(SECRET_KEY).replayed
        assert shop.pay(SECRET_KEY, cents=2).code == "reused"
        shop.raises = OutcomeUnknown("the provider was cut off")
        assert shop.pay(f"{SECRET_KEY}-2").status == 409
        shop.raises = RuntimeError("it failed")
        assert shop.pay(f"{SECRET_KEY}-3").code == "outcome_unknown"
    assert "was used with another request" in caplog.text
    assert SECRET_KEY not in caplog.text
