"""FastAPI: handlers that a dependency guards, and the status resource behind the handlers' authentication."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request
from pydantic import BaseModel
from starlette.testclient import TestClient

from samekey import ConfigurationError, Idempotency, Operation, current_operation
from samekey.errors import NoOperation
from samekey.fastapi import install, operation
from samekey.ops.coverage import coverage
from samekey.tenants import by_state


@pytest.fixture
def idempotency(tmp_path: Path) -> Iterator[Idempotency]:
    made = Idempotency(f"sqlite:///{tmp_path / 'fastapi.db'}")
    yield made
    made.close()


class Wanted(BaseModel):
    sku: str


def account(request: Request) -> str:
    request.state.account = request.headers.get("x-account")
    if request.state.account is None:
        raise HTTPException(401)
    return str(request.state.account)


Account = Annotated[str, Depends(account)]
ANN = {"x-account": "ann"}


def keyed(key: str, **more: str) -> dict[str, str]:
    return {**ANN, "Idempotency-Key": key, **more}


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
def test_a_dependency_guards_its_handler_after_all_others(idempotency: Idempotency, sync: bool) -> None:
    app, runs = FastAPI(), []
    install(app, idempotency, tenant=by_state("account"), authentication=[Depends(account)])
    guarding = Annotated[Operation, Depends(operation(idempotency, "leased", ttl=7200))]

    if sync:

        @app.post("/orders", status_code=201, response_model=Wanted)
        def place_sync(guarded: guarding, wanted: Wanted, account: Account) -> Any:
            runs.append(guarded is current_operation() and guarded.id)
            return {"sku": wanted.sku, "secret": 1}

    else:

        @app.post("/orders", status_code=201, response_model=Wanted)
        async def place(guarded: guarding, wanted: Wanted, account: Account) -> Any:
            runs.append(guarded is current_operation() and guarded.id)
            guarded.provider_id = "set on the operation itself"
            return {"sku": wanted.sku, "secret": 1}

    with TestClient(app) as client:
        nobody = client.post("/orders", json={"sku": "tea"}, headers={"Idempotency-Key": "k"})
        missing = client.post("/orders", json={"sku": "tea"}, headers=ANN)
        wrong = client.post("/orders", json={}, headers=keyed("k"))
        first, again = (client.post("/orders", json={"sku": "tea"}, headers=keyed("k")) for _ in range(2))
        other = client.post("/orders", json={"sku": "rum"}, headers=keyed("k"))
        (run,) = runs
        status = client.get(f"/idempotency/{run}", headers=ANN)
        head = client.head(f"/idempotency/{run}", headers=ANN)
        theirs = client.get(f"/idempotency/{run}", headers={"x-account": "bob"})
        unknown = client.get(f"/idempotency/{run}")
    assert [one.status_code for one in (nobody, missing, wrong, other)] == [401, 400, 422, 422]
    assert (first.status_code, first.json()) == (201, {"sku": "tea"}), "response_model counts"
    assert again.content == first.content and again.headers["idempotent-replayed"] == "true"
    assert (status.status_code, status.json()["state"]) == (200, "completed")
    assert (head.status_code, head.content) == (200, b"")
    assert (theirs.status_code, unknown.status_code) == (404, 401)
    assert [str(one) for one in coverage(app)] == ["POST /orders: leased, required"]
    described = TestClient(app).get("/openapi.json").json()["paths"]
    assert "x-idempotency" in described["/orders"]["post"]
    assert set(described["/idempotency/{operation}"]) >= {"get"}


def test_an_atomic_dependency_lends_its_connection(idempotency: Idempotency) -> None:
    app = FastAPI()
    install(app, idempotency, tenant=by_state("account"))

    @app.post("/orders/{fails}", status_code=201)
    async def place(
        fails: bool, one: Annotated[Operation, Depends(operation(idempotency, "atomic"))], account: Account
    ) -> dict[str, int]:
        await one.connection.execute("create table if not exists orders (id integer primary key)")
        added = await one.connection.execute("insert into orders default values")
        if fails:
            raise HTTPException(503)
        return {"id": added.lastrowid}

    with TestClient(app) as client:
        assert client.post("/orders/1", headers=keyed("a")).status_code == 503
        assert client.post("/orders/0", headers=keyed("b")).json() == {"id": 1}, "nothing was left behind"


@pytest.mark.parametrize("where", ["router", "include", "mounted", "nested"])
def test_a_router_may_have_the_dependency(idempotency: Idempotency, where: str) -> None:
    app, runs = FastAPI(), []
    install(app, idempotency, tenant=by_state("account"))
    guards = [Depends(account), Depends(operation(idempotency, "leased"))]
    router = APIRouter(dependencies=guards if where in ("router", "mounted") else None)

    @router.post("/orders/{shelf}", status_code=201)
    async def place(shelf: int) -> dict[str, int]:
        runs.append(current_operation().id)
        return {"run": len(runs)}

    @router.get("/orders")
    async def listed() -> list[str]:
        return runs

    prefix = "/v1"
    if where == "mounted":
        inner = FastAPI()
        inner.include_router(router)
        app.mount("/v1", inner)
    elif where == "nested":
        outer = APIRouter()
        outer.include_router(router, prefix="/v1", dependencies=guards)
        app.include_router(outer)
        app.include_router(outer, prefix="/again")
    else:
        app.include_router(router, prefix="/v1", dependencies=guards if where == "include" else None)
    with TestClient(app) as client:
        for key in "ab":
            answers = [client.post(f"{prefix}/orders/1", headers=keyed(key)) for _ in range(2)]
            assert [one.status_code for one in answers] == [201, 201], answers[0].text
        assert client.post(f"{prefix}/orders/1", headers=ANN).status_code == 400
        assert len(runs) == 2
        assert client.get(f"{prefix}/orders", headers=ANN).json() == runs, "a GET passes"
        if where == "nested":
            assert client.post("/again/v1/orders/1", headers=keyed("c")).json() == {"run": 3}
            assert client.post("/again/v1/orders/1", headers=keyed("c")).json() == {"run": 3}
    assert {one.describe() for one in coverage(app)} == {"leased, required"}


def test_other_dependencies_cannot_use_what_has_not_begun(idempotency: Idempotency) -> None:
    app, guard = FastAPI(), operation(idempotency, "leased")
    install(app, idempotency, tenant=by_state("account"))

    def early(one: Annotated[Operation, Depends(guard)]) -> str:
        return one.id

    @app.post("/orders")
    async def place(found: Annotated[str, Depends(early)], account: Account) -> None: ...

    with TestClient(app) as client, pytest.raises(NoOperation, match="has not begun"):
        client.post("/orders", headers=keyed("k"))


def test_misuse_of_the_dependency_is_a_sentence(idempotency: Idempotency) -> None:
    one: Any = operation(idempotency, "leased")

    def sentence(make: Callable[[FastAPI], Any]) -> str:
        app = FastAPI()
        make(app)
        with pytest.raises(ConfigurationError) as raised, TestClient(app) as client:
            client.post("/orders", headers=keyed("k"))
        return str(raised.value)

    first, second = (Annotated[Operation, Depends(each)] for each in (one, operation(idempotency, "leased")))

    async def place(given: first) -> None: ...  # type: ignore[valid-type]

    async def twice(given: first, more: second) -> None: ...  # type: ignore[valid-type]

    def with_install(handler: Any) -> Callable[[FastAPI], Any]:
        def make(app: FastAPI) -> None:
            install(app, idempotency, tenant=by_state("account"))
            app.post("/orders")(handler)

        return make

    assert "no middleware of samekey" in sentence(lambda app: app.post("/orders")(place))
    assert "guarded twice" in sentence(with_install(idempotency.leased(place)))
    assert "guarded twice" in sentence(with_install(twice))
    wrong: Any = "phased"
    with pytest.raises(ConfigurationError, match="not 'phased'"):
        operation(idempotency, wrong)
    with pytest.raises(ConfigurationError, match="leese"):
        operation(idempotency, "leased", leese=3)
    with pytest.raises(ConfigurationError, match="is an Idempotency, not a str"):
        operation(wrong)
    with pytest.raises(ConfigurationError, match="whose key it is"):
        install(FastAPI(), idempotency)  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError, match="no option 'tenat'"):
        install(FastAPI(), idempotency, tenat=by_state("account"))  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError, match="given an Idempotency"):
        install(FastAPI(), wrong, tenant=by_state("account"))


def test_a_status_that_nobody_may_ask_for_says_what_to_do(
    idempotency: Idempotency, caplog: pytest.LogCaptureFixture
) -> None:
    app = FastAPI()
    install(app, idempotency, tenant=by_state("account"))
    with TestClient(app) as client, caplog.at_level(logging.WARNING, "samekey"):
        for _ in range(2):
            assert client.get(f"/idempotency/{'0' * 32}", headers=ANN).status_code == 401
    assert len([one for one in caplog.messages if "authentication=[Depends(" in one]) == 1


def test_the_application_may_authenticate_everything_by_itself(idempotency: Idempotency) -> None:
    app, runs = FastAPI(dependencies=[Depends(account)]), []

    @app.post("/orders")
    @idempotency.leased
    async def place() -> None:
        runs.append(current_operation().id)

    @app.get("/{path:path}")
    async def everything(path: str) -> str:
        return path

    install(app, idempotency, tenant=by_state("account"))
    with TestClient(app) as client:
        assert client.post("/orders", headers=keyed("k")).status_code == 200
        assert client.get(f"/idempotency/{runs[0]}", headers=ANN).json()["state"] == "completed"
        assert client.get("/idempotency/other", headers=ANN).status_code == 404


OUTSIDE: dict[str, dict[str, Any]] = {
    "a parameter of another document": {"parameters": [{"$ref": "https://example.com/common.yaml#/trace"}]},
    "a response of another document": {"responses": {"201": {"$ref": "common.yaml#/responses/made"}}},
    "a reference that leads nowhere": {"parameters": [{"$ref": "#/components/parameters/gone"}]},
    "a reference to itself": {"parameters": [{"$ref": "#/paths/~1orders/post/parameters/0"}]},
}


@pytest.mark.parametrize("extra", OUTSIDE.values(), ids=list(OUTSIDE))
def test_a_reference_that_is_not_ours_is_left_as_it_is(
    idempotency: Idempotency, extra: dict[str, Any]
) -> None:
    app = FastAPI()
    install(app, idempotency, tenant=by_state("account"))

    @app.post("/orders", status_code=201, openapi_extra=extra)
    @idempotency.leased
    async def place() -> None: ...

    answer = TestClient(app).get("/openapi.json")
    assert answer.status_code == 200
    described = answer.json()["paths"]["/orders"]["post"]
    assert "x-idempotency" in described and extra.get("parameters", [])[:1] in (
        [],
        described["parameters"][:1],
    )
