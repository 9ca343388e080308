"""The code of docs/fastapi.md, docs/flask.md and docs/litestar.md is run as it stands there."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.test_docs import blocks


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module of the page, which its test imports."""
    monkeypatch.chdir(tmp_path)
    module = ModuleType("shop")
    monkeypatch.setitem(sys.modules, "shop", module)
    yield module
    module.idempotency.close()


def run(code: str, names: dict[str, Any]) -> None:
    exec(compile(code, "<documentation>", "exec", dont_inherit=True), names)


@pytest.mark.parametrize("page", ["fastapi.md", "flask.md", "litestar.md"])
def test_the_page_ends_at_a_tested_endpoint(page: str, shop: ModuleType) -> None:
    service, test, *_ = blocks(f"docs/{page}", "python")
    run(service, shop.__dict__)
    names: dict[str, Any] = {}
    run(test, names)
    names["test_a_retry_gets_the_first_answer"]()


def test_a_router_of_guarded_routes(shop: ModuleType) -> None:
    service, _, dependency, router = blocks("docs/fastapi.md", "python")
    for code in (service, dependency, router):
        run(code, shop.__dict__)
    shop.app.dependency_overrides = {}
    with TestClient(shop.app) as client:
        assert client.get("/payments/7").json() == {"order": 7}
        assert client.post("/payments/7?amount=3").status_code == 400  # a key is required
        sent = {"Authorization": "Bearer token-of-ann", "Idempotency-Key": "gift"}
        first, again = (client.post("/gifts", json={"sku": "tea"}, headers=sent) for _ in range(2))
        assert (first.status_code, again.json()) == (201, first.json())
        assert again.headers["Idempotent-Replayed"] == "true"
