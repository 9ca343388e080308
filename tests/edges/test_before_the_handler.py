"""What fails before the handler is called leaves no key behind: nothing has run under it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from fastapi import Depends, FastAPI, Response
from starlette.testclient import TestClient

from samekey import Idempotency
from samekey.asgi import IdempotencyMiddleware

Handler = TypeVar("Handler", bound=Callable[..., Any])


class Lazy:
    """A proxy that shows the class of what it stands for, which it has to make first."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise RuntimeError("It was woken.")


class Odd(Response):
    """A response whose status cannot be read at times."""

    away = True

    @property
    def status_code(self) -> int:
        if Odd.away:
            raise RuntimeError("Not now.")
        return 200

    @status_code.setter
    def status_code(self, value: int) -> None: ...


def _guard(idempotency: Idempotency, mode: str) -> Callable[[Handler], Handler]:
    return idempotency.atomic if mode == "atomic" else idempotency.leased


def _app(idempotency: Idempotency, given: Any, mode: str, runs: list[int]) -> FastAPI:
    app = FastAPI()

    def make() -> Any:
        return given

    @app.post("/")
    @_guard(idempotency, mode)
    def handler(one: Any = Depends(make)) -> dict[str, int]:  # noqa: B008
        runs.append(1)
        return {"run": len(runs)}

    app.add_middleware(IdempotencyMiddleware, idempotency=idempotency, tenant=lambda _: "t")
    return app


@pytest.mark.parametrize("mode", ["leased", "atomic"])
@pytest.mark.filterwarnings("ignore:The atomic handler answered 200")
def test_a_lazy_argument_is_not_woken(sqlite_url: str, mode: str) -> None:
    idempotency, runs = Idempotency(sqlite_url), list[int]()
    with TestClient(_app(idempotency, Lazy(), mode, runs)) as client:
        answers = [client.post("/", headers={"Idempotency-Key": "k"}) for _ in range(2)]
    assert [(one.status_code, one.json()) for one in answers] == [(200, {"run": 1})] * 2
    idempotency.close()


@pytest.mark.parametrize("mode", ["leased", "atomic"])
@pytest.mark.filterwarnings("ignore:The atomic handler answered 200")
def test_an_argument_that_cannot_be_read_leaves_the_key_free(
    sqlite_url: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    idempotency, runs = Idempotency(sqlite_url), list[int]()
    app = _app(idempotency, Odd.__new__(Odd), mode, runs)
    with TestClient(app, raise_server_exceptions=False) as client:
        assert client.post("/", headers={"Idempotency-Key": "k"}).status_code == 500
        monkeypatch.setattr(Odd, "away", False)
        assert client.post("/", headers={"Idempotency-Key": "k"}).json() == {"run": 1}
    idempotency.close()
