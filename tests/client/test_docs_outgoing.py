"""The code in docs/outgoing.md, against a provider on a socket of its own."""

from __future__ import annotations

from typing import Any

from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from samekey import Idempotency
from samekey.asgi import IdempotencyMiddleware
from samekey.tenants import single_tenant
from tests.test_docs import blocks, rows, section

from .scripted import Say, scripted


def test_the_examples_of_outgoing(sqlite_url: str) -> None:
    names: dict[str, Any] = {"idempotency": Idempotency(sqlite_url), "JSONResponse": JSONResponse}
    with scripted(Say(200, b'{"id": "ch_1"}')) as provider:
        for code in blocks("docs/outgoing.md", "python"):
            exec(compile(code.replace("https://api.stripe.com", provider.url), "<doc>", "exec"), names)
        routes = [Route(f"/{name}", names[name], methods=["POST"]) for name in ("charge_card", "buy")]
        app = Starlette(routes=routes)
        app.add_middleware(IdempotencyMiddleware, idempotency=names["idempotency"], tenant=single_tenant())
        with TestClient(app) as client:
            for path in ("charge_card", "buy"):
                first, again = (client.post(f"/{path}", headers={"Idempotency-Key": path}) for _ in range(2))
                assert (first.status_code, again.content) == (201, first.content)
            client.portal.call(names["stripe"].aclose)  # type: ignore[union-attr]
    assert [one.path for one in provider.seen] == [
        "/v1/charges",
        "/v1/payment_intents",
        "/v1/payment_intents/ch_1/capture",
    ]
    assert len(provider.keys) == 3 and None not in provider.keys
    names["idempotency"].close()


def test_every_profile_is_described_as_it_is() -> None:
    from samekey import outgoing

    described = rows(section("docs/outgoing.md", "## Providers"))
    profiles = {name: found for name, found in vars(outgoing).items() if isinstance(found, outgoing.Profile)}
    assert described.keys() == profiles.keys()
    for name, profile in profiles.items():
        where, longest, _, place = described[name]
        assert int(longest) == profile.dialect.longest and place == f"`{profile.provider_id}`"
        assert (profile.dialect.member or profile.dialect.header).lower() in where.lower()
