"""The code of docs/sqlalchemy.md is run as it stands there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from flask import Flask
from sqlalchemy import MetaData
from starlette.testclient import TestClient

from lab import environment
from samekey import Idempotency
from tests.chosen import whole
from tests.test_docs import blocks


def run(code: str, names: dict[str, Any]) -> None:
    """By itself: what this module says of annotations is not the page's."""
    exec(compile(code, "<documentation>", "exec", dont_inherit=True), names)


SERVICE, TEST, SQLMODEL, FLASK, OPERATION, SUITE = range(6)


def code(block: int) -> str:
    return blocks("docs/sqlalchemy.md", "python")[block]


def test_the_page_about_sqlalchemy_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shop = ModuleType("shop")
    monkeypatch.setitem(sys.modules, "shop", shop)
    names: dict[str, Any] = {}
    run(code(SERVICE), shop.__dict__)
    run(code(TEST), names)
    names["test_a_retry_gets_the_first_answer"]()
    run(code(OPERATION), shop.__dict__)
    with TestClient(shop.app) as client:
        for _ in range(2):
            given = client.post("/gifts", json={"sku": "cup"}, headers={"Idempotency-Key": "k-2"})
            assert given.status_code == 201, given.text
        assert given.headers["Idempotent-Replayed"] == "true"
        assert client.portal is not None
        client.portal.call(shop.idempotency.aclose)


def test_the_page_about_sqlmodel_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sqlmodel import SQLModel

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(SQLModel, "metadata", MetaData())
    names: dict[str, Any] = {"__name__": "gifts"}
    run(code(SQLMODEL), names)
    with TestClient(names["app"]) as client:
        first, again = (
            client.post("/gifts", json={"sku": "cup"}, headers={"Idempotency-Key": "k"}) for _ in range(2)
        )
    assert (first.status_code, first.json()) == (201, {"id": 1, "sku": "cup"})
    assert (again.json(), again.headers["Idempotent-Replayed"]) == (first.json(), "true")
    names["idempotency"].close()
    names["engine"].dispose()


@whole
def test_the_page_about_sqlalchemy_has_fixtures_for_a_suite(tmp_path: Path) -> None:
    """Run by pytest, as its reader would."""
    (tmp_path / "shop.py").write_text(code(SERVICE))
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["samekey.testing.plugin"]\n')
    imports = "from sqlalchemy import select\nfrom shop import Base, Order, app, idempotency\n"
    (tmp_path / "test_shop.py").write_text(imports + code(SUITE))
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(tmp_path)],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "2 passed" in ran.stdout, ran.stdout


def test_the_page_about_sqlalchemy_joins_flasks_sessions(tmp_path: Path) -> None:
    names: dict[str, Any] = {"__name__": "shop"}
    run(code(FLASK), names)
    db = names["db"]

    class Order(db.Model):  # type: ignore[name-defined, misc]
        id = db.Column(db.Integer, primary_key=True)

    app = Flask("shop")
    app.config["SQLALCHEMY_DATABASE_URI"] = f"sqlite:///{tmp_path}/shop.db"
    db.init_app(app)
    with app.app_context():
        db.create_all()
        idempotency = Idempotency(db.engine)

        def order(*, fail: bool) -> None:
            db.session.add(Order())
            db.session.commit()
            if fail:
                raise ValueError("after the commit")

        with pytest.raises(ValueError, match="after the commit"):
            idempotency.once(tenant="ann", key="k", run=lambda: order(fail=True), mode="atomic")
        db.session.remove()
        assert db.session.query(Order).count() == 0
        db.session.remove()
        idempotency.once(tenant="ann", key="k", run=lambda: order(fail=False), mode="atomic")
        db.session.remove()
        assert db.session.query(Order).count() == 1
        idempotency.close()
        db.session.remove()
        db.engine.dispose()
