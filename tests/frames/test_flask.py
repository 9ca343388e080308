"""The extension for Flask, through Flask's own test client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flask import Blueprint, Flask, abort, g, request
from flask.views import MethodView

from samekey import ConfigurationError, Idempotency, current_operation
from samekey.flask import Samekey
from samekey.tenants import single_tenant


@pytest.fixture
def idempotency(tmp_path: Path) -> Iterator[Idempotency]:
    made = Idempotency(f"sqlite:///{tmp_path / 'flask.db'}")
    yield made
    made.close()


def authenticate() -> None:
    g.account = request.headers.get("X-Account")
    if g.account is None:
        abort(401)


def statuses(client: Any, path: str, *bodies: Any, key: str = "k", account: str = "ann") -> list[Any]:
    headers = {"Idempotency-Key": key, "X-Account": account}
    answers = [client.post(path, json=body, headers=headers) for body in bodies]
    return [(one.status_code, one.headers.get("Idempotent-Replayed") == "true") for one in answers]


def test_application_factories_blueprints_and_classes(idempotency: Idempotency) -> None:
    """One extension, views that were decorated before there was an application, and two applications."""
    samekey, orders = Samekey(idempotency, tenant=lambda: g.account), Blueprint("orders", __name__)
    runs: list[Any] = []

    @orders.post("/")
    @idempotency.leased
    def place() -> Any:
        runs.append(request.get_json())
        return {"run": len(runs)}, 201

    class Refunds(MethodView):
        @idempotency.leased
        def post(self, number: int) -> Any:
            runs.append(number)
            return {"refund": number}, 201

    def create_app() -> Flask:
        app = Flask(__name__)
        app.before_request(authenticate)
        samekey.init_app(app)
        app.register_blueprint(orders, url_prefix="/orders")
        app.add_url_rule("/refunds/<int:number>", view_func=Refunds.as_view("refunds"))
        return app

    client = create_app().test_client()
    assert statuses(client, "/orders/", {"a": 1}, {"a": 1}, {"a": 2}) == [
        (201, False),
        (201, True),
        (422, False),
    ]
    assert statuses(client, "/orders/", {"a": 1}, account="bob") == [(201, False)]
    assert statuses(client, "/refunds/7", None, None, key="r") == [(201, False), (201, True)]
    assert client.post("/orders/", json={}, headers={"Idempotency-Key": "k"}).status_code == 401
    other = create_app().test_client()
    assert statuses(other, "/orders/", {"a": 1}) == [(201, True)]  # one store, one promise
    assert runs == [{"a": 1}, {"a": 1}, 7]


def test_the_status_is_asked_for_behind_what_runs_before_each_request(idempotency: Idempotency) -> None:
    app = Flask(__name__)
    app.before_request(authenticate)
    Samekey(idempotency, app, tenant=lambda: g.account)

    @app.post("/orders")
    @idempotency.leased
    def place() -> Any:
        return {"operation": current_operation().id}

    client = app.test_client()
    headers = {"Idempotency-Key": "k", "X-Account": "ann"}
    path = f"/idempotency/{client.post('/orders', headers=headers).get_json()['operation']}"
    assert client.get(path, headers={"X-Account": "ann"}).get_json()["state"] == "completed"
    assert client.get(path, headers={"X-Account": "bob"}).status_code == 404
    assert client.get(path).status_code == 401


def test_the_configuration_says_what_the_extension_does_not(idempotency: Idempotency) -> None:
    samekey, app = Samekey(idempotency), Flask(__name__)
    app.config.update(SAMEKEY_TENANT=single_tenant(), SAMEKEY_ROUTES={"/orders": "required"})
    samekey.init_app(app)
    app.add_url_rule("/orders", view_func=lambda: "done", endpoint="orders", methods=["POST"])
    client = app.test_client()
    assert client.post("/orders").status_code == 400
    assert statuses(client, "/orders", None, None) == [(200, False), (200, True)]


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({}, "Nothing says whose keys"),
        ({"SAMEKEY_TENNANT": 1}, "SAMEKEY_TENNANT is no setting"),
        ({"SAMEKEY_TENANT": "g.account"}, "no function that could say"),
        ({"SAMEKEY_TENANT": single_tenant(), "SAMEKEY_UNDECORATED": "no"}, "undecorated must be"),
    ],
)
def test_misuse_is_a_sentence(idempotency: Idempotency, config: dict[str, Any], sentence: str) -> None:
    app = Flask(__name__)
    app.config.update(config)
    with pytest.raises(ConfigurationError, match=sentence):
        Samekey(idempotency, app)


def test_what_is_given_in_the_wrong_place_is_a_sentence(idempotency: Idempotency) -> None:
    wrong: Any = Flask(__name__)
    with pytest.raises(ConfigurationError, match="is given an Idempotency"):
        Samekey(wrong, tenant=single_tenant())
    samekey = Samekey(idempotency, wrong, tenant=single_tenant())
    with pytest.raises(ConfigurationError, match="guarded already"):
        samekey.init_app(wrong)
    with pytest.raises(ConfigurationError, match="not a function"):
        samekey.init_app(wrong.wsgi_app.__call__ and (lambda: None))  # type: ignore[arg-type]
