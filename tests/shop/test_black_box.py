"""Every shop keeps the same promises: one run from outside, over sockets, on real servers and databases.

The rows know no framework. What they compare is what a client sees, and they count orders by ``GET /orders``.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from examples.shop import SHOPS
from lab import environment
from tests.chosen import whole
from tests.shop.served import ORDER, Customer, Shop, code_of, is_replay

MATRIX = [
    pytest.param("fastapi", "sqlite", (1, 1), id="fastapi-sqlite-1"),
    *(
        pytest.param(name, store, (4, 1, 1), id=f"{name}-{store}-4-and-1", marks=whole)
        for name in SHOPS
        for store in ("sqlite", "postgresql")
    ),
]
"""A shop, its database, and how many server processes each start has: they are killed in between."""


@whole
@pytest.mark.parametrize(("name", "store", "processes"), MATRIX)
def test_a_shop_keeps_its_promises(
    name: str, store: str, processes: tuple[int, ...], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue("sqlite_url" if store == "sqlite" else "postgres_url")
    with Shop(name, url, processes, tmp_path) as shop:
        for _ in processes[1:]:
            for row in ROWS:
                row(Customer(shop))


@whole
@pytest.mark.parametrize("name", ["starlette", "litestar", "flask"])
def test_a_shop_behind_hypercorn(name: str, tmp_path: Path, sqlite_url: str) -> None:
    """A server of another make, which serves both kinds."""
    with Shop(name, sqlite_url, (2, 1), tmp_path, "hypercorn") as shop:
        for row in ROWS:
            row(Customer(shop))


# ------------------------------------------------------------------ the rows


def ordered_once(ann: Customer) -> None:
    """A retry gets the first answer, byte for byte, and there is one order."""
    first, again = ann.post("/orders", "k"), ann.post("/orders", "k")
    assert first.status_code == 201, first.text
    assert first.json() == {"id": first.json()["id"], **ORDER}
    assert (again.status_code, again.content) == (201, first.content)
    assert not is_replay(first)
    assert is_replay(again)
    assert ann.orders() == [first.json()]


def another_key_is_another_order(ann: Customer) -> None:
    first, second = ann.post("/orders", "k1"), ann.post("/orders", "k2")
    assert first.json()["id"] != second.json()["id"]
    assert ann.orders() == [first.json(), second.json()]


def spelled_another_way(ann: Customer) -> None:
    """White space and the order of members do not make it another request."""
    first = ann.post("/orders", "k")
    again = ann.post("/orders", "k", b'{ "quantity": 2, "sku": "tea" }')
    assert is_replay(again), again.text
    assert again.content == first.content


def another_request_under_the_key(ann: Customer) -> None:
    first = ann.post("/orders", "k")
    for path, order in (("/orders", {**ORDER, "quantity": 3}), ("/orders/refused", ORDER)):
        refused = ann.post(path, "k", order)
        assert (refused.status_code, code_of(refused)) == (422, "reused"), refused.text
    assert ann.orders() == [first.json()]


def another_account(ann: Customer) -> None:
    """The same key of somebody else is nobody's business."""
    bob = Customer(ann.shop)
    first, other = ann.post("/orders", "k"), bob.post("/orders", "k", {**ORDER, "quantity": 5})
    assert (other.status_code, is_replay(other)) == (201, False), other.text
    assert ann.orders() == [first.json()]
    assert bob.orders() == [other.json()]


def without_an_account(ann: Customer) -> None:
    sent = ann.headers("k")
    del sent["Authorization"]
    assert ann.post("/orders", "k", headers=sent).status_code == 401
    assert ann.post("/orders", "k").status_code == 201


def without_a_key(ann: Customer) -> None:
    refused = ann.post("/orders", None)
    assert (refused.status_code, code_of(refused)) == (400, "missing"), refused.text
    for malformed in ("a,b", "", "x" * 300, "ann@example.com"):
        assert ann.post("/orders", malformed).status_code == 400, malformed
    assert ann.orders() == []


def corrected_under_the_same_key(ann: Customer) -> None:
    """What the framework refuses has claimed nothing."""
    for wrong in (b'{"sku": "tea", "quantity"', b"", {"sku": "tea"}, {**ORDER, "quantity": 0}, {"sku": 1}):
        refused = ann.post("/orders", "k", wrong)
        assert 400 <= refused.status_code < 500, refused.text
        assert code_of(refused) is None
    right = ann.post("/orders", "k")
    assert (right.status_code, is_replay(right)) == (201, False), right.text
    assert ann.orders() == [right.json()]


def refused_by_the_handler(ann: Customer) -> None:
    """A definite refusal is remembered, and what its handler had written is gone."""
    first, again = ann.post("/orders/refused", "k"), ann.post("/orders/refused", "k")
    assert (first.status_code, first.json()) == (409, {"detail": "sold out"})
    assert (again.status_code, again.content) == (409, first.content)
    assert (is_replay(first), is_replay(again)) == (False, True)
    assert ann.orders() == []


def many_at_once(ann: Customer) -> None:
    """However many race, one order; whoever was too early is told to come again, and gets it."""
    answers = ann.at_once(8, "/orders", "k")
    for answer in answers:
        assert answer.status_code == 201 or code_of(answer) == "in_progress", answer.text
    order = ann.until_it_is_done("/orders", "k")
    assert {answer.content for answer in answers if answer.status_code == 201} <= {order.content}
    assert ann.orders() == [order.json()]


def while_the_first_runs(ann: Customer) -> None:
    """A duplicate is answered at once; another request under its key is refused; then it replays."""
    answers = ann.at_once(3, "/orders/slow", "k")
    run = [answer for answer in answers if answer.status_code == 201 and not is_replay(answer)]
    assert len(run) == 1, [answer.text for answer in answers]
    for answer in answers:
        if answer.status_code != 201:
            assert (answer.status_code, code_of(answer)) == (409, "in_progress"), answer.text
            assert int(answer.headers["retry-after"]) >= 1
    again = ann.post("/orders/slow", "k")
    assert (is_replay(again), again.content) == (True, run[0].content)
    assert ann.orders() == [run[0].json()]


def a_client_that_left(ann: Customer) -> None:
    """It never heard its answer. Its retry gets it, and there is one order."""
    ann.leave("/orders/slow", "k")
    order = ann.until_it_is_done("/orders/slow", "k")
    assert order.status_code == 201, order.text
    assert ann.orders() == [order.json()]


def killed_in_the_middle(ann: Customer) -> None:
    """kill -9 while the handler runs, its order written and not committed: the retry makes the one order."""
    for attempt in range(5):
        key = f"k{attempt}"
        if ann.kill_the_shop_during("/orders/slow", key):
            break
    else:
        pytest.fail("no request was killed while it ran")
    before = ann.orders()
    order = ann.until_it_is_done("/orders/slow", key)
    assert order.status_code == 201, order.text
    again = ann.post("/orders/slow", key)
    assert (is_replay(again), again.content) == (True, order.content)
    assert ann.orders() == [*before, order.json()]


ROWS: list[Callable[[Customer], None]] = [
    ordered_once,
    another_key_is_another_order,
    spelled_another_way,
    another_request_under_the_key,
    another_account,
    without_an_account,
    without_a_key,
    corrected_under_the_same_key,
    refused_by_the_handler,
    many_at_once,
    while_the_first_runs,
    a_client_that_left,
    killed_in_the_middle,
]


# ------------------------------------------------------------------ how it is started


def _started(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "examples.shop", *arguments]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60, check=False)


def test_a_shop_that_is_not_there_is_said_in_a_sentence() -> None:
    ended = _started("pyramid")
    assert ended.returncode == 2
    assert "invalid choice: 'pyramid'" in ended.stderr


def test_a_server_of_the_wrong_kind_is_said_in_a_sentence() -> None:
    ended = _started("flask", "--server", "uvicorn")
    assert ended.returncode == 2
    assert "uvicorn does not serve WSGI, which flask is." in ended.stderr


def test_every_shop_is_under_sixty_lines() -> None:
    folder = Path(__file__).parents[2] / "examples" / "shop"
    for name in SHOPS:
        module = folder / name.replace("-", "_")
        files = sorted(module.glob("*.py")) if module.is_dir() else [module.with_suffix(".py")]
        lines = [line for file in files for line in file.read_text().splitlines() if line.strip()]
        assert len(lines) < 60, name
