"""The code of docs/sqlalchemy.md is run as it stands there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from starlette.testclient import TestClient

from lab import environment
from samekey import Idempotency
from tests.chosen import whole
from tests.test_docs import blocks


def run(code: str, names: dict[str, Any]) -> None:
    """By itself: what this module says of annotations is not the page's."""
    exec(compile(code, "<documentation>", "exec", dont_inherit=True), names)


def test_the_page_about_sqlalchemy_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    service, test, _, operations, _ = blocks("docs/sqlalchemy.md", "python")
    names: dict[str, Any] = {"__name__": "shop"}
    run(service, names)
    run(test, names)
    names["test_a_retry_orders_nothing"]()
    run(operations, names)
    with TestClient(names["app"]) as client:
        for _ in range(2):
            given = client.post("/gifts", json={"sku": "cup"}, headers={"Idempotency-Key": "k-2"})
            assert given.status_code == 201, given.text
        assert given.headers["Idempotent-Replayed"] == "true"
        assert client.portal is not None
        client.portal.call(names["engine"].dispose)
        client.portal.call(names["idempotency"].aclose)


@whole
def test_the_page_about_sqlalchemy_has_fixtures_for_a_suite(tmp_path: Path) -> None:
    """Run by pytest, as its reader would."""
    service, _, _, _, suite = blocks("docs/sqlalchemy.md", "python")
    (tmp_path / "shop.py").write_text(service)
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["samekey.testing.plugin"]\n')
    imports = "from sqlalchemy import select\nfrom shop import Base, Order, app, idempotency\n"
    (tmp_path / "test_shop.py").write_text(imports + suite)
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
    run(blocks("docs/sqlalchemy.md", "python")[2], names)
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
