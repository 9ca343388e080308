"""The published specification: held against what is really answered, and against OpenAPI's rules."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import flask
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

from samekey import (
    ConfigurationError,
    FingerprintRules,
    Idempotency,
    KeyRules,
    Policy,
    ietf,
    stripe,
    stripe_v2,
)
from samekey.asgi import IdempotencyMiddleware
from samekey.core.header import NATIONAL_ID, PHONE, UUID, KeyRefused, parse_key
from samekey.core.problem import CODES
from samekey.ops.spec import lines, sections, span
from samekey.ops.spec_openapi import key_schema, openapi
from samekey.ops.spec_page import markdown
from samekey.tenants import single_tenant
from samekey.wsgi import IdempotencyMiddleware as WsgiMiddleware
from tests.ops.test_ledger_cli import check_page, run

Serve = Callable[..., Starlette]


async def handle(request: Request) -> Response:
    return JSONResponse({}, status_code=201)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Makes an application with one leased handler per given set of options."""
    made: list[Idempotency] = []

    def make(policy: Policy, tenant: Any = None, **handlers: dict[str, Any]) -> Starlette:
        idempotency = Idempotency(f"sqlite:///{tmp_path / f'{len(made)}.db'}", policy=policy)
        made.append(idempotency)
        routes = []
        for name, options in (handlers or {"pay": {}}).items():

            async def copy(request: Request) -> Response:
                return await handle(request)

            guarded = idempotency.leased(**options)(copy)
            routes.append(Route(f"/{name}/{{number:int}}", guarded, methods=["POST"]))
        app = Starlette(routes=routes)
        tenant = tenant or single_tenant()
        app.add_middleware(IdempotencyMiddleware, idempotency=idempotency, tenant=tenant)
        return app

    yield make
    for idempotency in made:
        idempotency.close()


# ------------------------------------------------------------------ OpenAPI

METHODS = {"get", "put", "post", "delete", "options", "head", "patch", "trace"}


def check_openapi(document: dict[str, Any]) -> None:
    """The rules of OpenAPI 3.1 for what a fragment holds; every reference leads somewhere, none is unused."""
    assert document.keys() == {"openapi", "info", "paths", "components"}
    assert re.fullmatch(r"3\.1\.\d+", document["openapi"]) and {"title", "version"} <= document["info"].keys()
    used: set[str] = set()

    def resolve(part: dict[str, Any], kind: str) -> dict[str, Any]:
        if "$ref" not in part:
            return part
        assert part.keys() == {"$ref"} and part["$ref"].startswith(f"#/components/{kind}/"), part
        used.add(part["$ref"])
        found = document["components"][kind][part["$ref"].rpartition("/")[2]]
        assert isinstance(found, dict)
        return found

    def check_schema(schema: dict[str, Any]) -> None:
        schema = resolve(schema, "schemas")
        known = {"type", "properties", "required", "items", "enum", "const", "pattern", "format", "anyOf"}
        assert schema.keys() <= known | {"minLength", "maxLength", "minimum", "description"}, schema
        if "pattern" in schema:
            re.compile(schema["pattern"])
        for inner in (*schema.get("properties", {}).values(), *schema.get("anyOf", ())):
            check_schema(inner)
        if "items" in schema:
            check_schema(schema["items"])
        assert set(schema.get("required", ())) <= schema.get("properties", {}).keys()

    def check_parameter(parameter: dict[str, Any]) -> str:
        parameter = resolve(parameter, "parameters")
        assert {"name", "in", "schema"} <= parameter.keys() and parameter["in"] in ("path", "header")
        assert parameter["in"] != "path" or parameter["required"] is True
        check_schema(parameter["schema"])
        return f"{parameter['in']}:{parameter['name']}"

    def check_response(status: str, response: dict[str, Any]) -> None:
        assert re.fullmatch(r"[1-5](\d\d|XX)|default", status)
        response = resolve(response, "responses")
        assert response["description"] and response.keys() <= {"description", "headers", "content"}
        for header in response.get("headers", {}).values():
            part = resolve(header, "headers")
            assert "name" not in part and "in" not in part
            check_schema(part["schema"])
        for media, content in response.get("content", {}).items():
            assert re.fullmatch(r"application/(problem\+)?json", media)
            check_schema(content["schema"])
            for example in content.get("examples", {}).values():
                assert example.keys() == {"value"}

    for path, item in document["paths"].items():
        assert path.startswith("/") and not re.search(r"[<>:]", path)
        shared = [check_parameter(one) for one in item.get("parameters", ())]
        assert shared == [f"path:{name}" for name in re.findall(r"{(\w+)}", path)]
        assert item.keys() - {"parameters"} and item.keys() - {"parameters"} <= METHODS
        for method in item.keys() - {"parameters"}:
            operation = item[method]
            names = [check_parameter(one) for one in operation.get("parameters", ())]
            assert len(set(names)) == len(names)
            assert operation["responses"]
            for status, response in operation["responses"].items():
                check_response(status, response)
    for kind, parts in document["components"].items():
        for name in parts:
            assert re.fullmatch(r"[a-zA-Z0-9._-]+", name)
            assert f"#/components/{kind}/{name}" in used or kind == "headers", name
    json.dumps(document, allow_nan=False)


POLICIES = [
    ietf(),
    stripe(),
    stripe_v2(),
    ietf(mismatch_status=409, after_expiry="gone", on_in_progress="accept", status_path=None),
    ietf(after_expiry="gone", gone_status=404, on_mismatch="replay", on_in_progress="wait", wait=1.5),
    ietf(on_mismatch="execute", scope="tenant+endpoint", remember="successes", errors="stripe"),
    ietf(
        key=KeyRules(strict=True, min_length=16, max_length=64, pattern=UUID, personal=(PHONE, NATIONAL_ID))
    ),
    ietf(key=KeyRules(personal=(), pattern=re.compile(r"(?P<a>x|y)+", re.I)), header="X-Once"),
    ietf(fingerprint=FingerprintRules(headers=("API-Version",), include=("/a|b",), exclude=("/c",))),
    ietf(expires_header="X-Expires", replayed_header="X-Replayed", ttl=timedelta(days=7), max_body=1000),
]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.profile)
def test_every_policy_has_a_specification(serve: Serve, policy: Policy) -> None:
    app = serve(policy)
    check_openapi(openapi(app))
    page = markdown(app)
    assert page.startswith("# Idempotent requests\n") and page.endswith("\n") and "None" not in page
    assert f"| `POST /pay/{{number}}` | {'required' if policy.required else 'optional'} |" in page
    tables = [line for line in page.splitlines() if line.startswith("|")]
    assert {len(re.split(r"(?<!\\)\|", line)) for line in tables} <= {5, 7}
    codes = {line.code for line in lines(sections(app)[0])} - {None}
    assert codes <= CODES.keys()


def test_the_fragment_in_detail(serve: Serve) -> None:
    document = openapi(serve(ietf(after_expiry="gone", ttl=timedelta(days=7))))
    operation = document["paths"]["/pay/{number}"]["post"]
    assert operation["responses"].keys() == {"2XX", "400", "401", "409", "410", "413", "422", "503"}
    assert operation["x-idempotency"] == {
        "required": True,
        "scope": "tenant",
        "retention_seconds": 7 * 86400,
        "retention_from": "completion",
        "remembered": "definite",
        "on_mismatch": "reject",
        "on_in_progress": "reject",
        "after_expiry": "gone",
    }
    parts = document["components"]
    assert parts["parameters"]["IdempotencyKey"]["name"] == "Idempotency-Key"
    assert parts["parameters"]["IdempotencyKey"]["required"] is True
    conflict = parts["responses"]["Idempotency409"]
    examples = conflict["content"]["application/problem+json"]["examples"]
    assert examples.keys() == {"in_progress", "outcome_unknown", "result_unavailable"}
    assert examples["in_progress"]["value"]["title"] == CODES["in_progress"]
    assert conflict["headers"].keys() == {"Link", "Retry-After", "Idempotency-Key-Expires"}
    answer = parts["responses"]["IdempotencyAnswer"]
    assert answer["headers"].keys() == {"Idempotent-Replayed", "Idempotency-Key-Expires"}
    assert document["paths"]["/idempotency/{operation}"]["get"]["responses"].keys() == {
        *("200", "401", "404", "410"),
        "503",
    }


def test_the_stripe_profile_speaks_its_own_way(serve: Serve) -> None:
    document = openapi(serve(stripe()))
    parts = document["components"]
    assert "IdempotencyKeyOptional" in parts["parameters"]
    bad = parts["responses"]["Idempotency400"]["content"]["application/json"]["examples"]
    assert bad["reused"]["value"]["error"]["type"] == "idempotency_error"
    assert "missing" not in bad
    busy = parts["responses"]["Idempotency409"]["content"]["application/json"]["examples"]
    assert "idempotency_key_in_use" in busy
    assert "422" not in document["paths"]["/pay/{number}"]["post"]["responses"]
    assert "`idempotency_key_in_use`" in markdown(serve(stripe()))


def test_handlers_with_settings_of_their_own(serve: Serve) -> None:
    app = serve(
        ietf(),
        plain={},
        month={"ttl": timedelta(days=30)},
        strict={"key": KeyRules(strict=True)},
        optional={"required": False},
        quick={"lease": 5, "max_run": 10},
    )
    page, document = markdown(app), openapi(app)
    check_openapi(document)
    # Retention, requirement and leases make no rules of their own; another key syntax does.
    assert [len(section.routes) for section in sections(app)] == [4, 1]
    assert "| `POST /month/{number}` | required | 30 days | [1](#rules-1) |" in page
    assert "| `POST /optional/{number}` | optional | 24 hours | [1](#rules-1) |" in page
    assert "| `POST /strict/{number}` | required | 24 hours | [2](#rules-2) |" in page
    second = page.partition("## Rules 2\n")[2]
    assert "A bare value is refused." in second and "What is kept" not in second
    month = document["paths"]["/month/{number}"]["post"]["x-idempotency"]
    assert month["retention_seconds"] == 30 * 86400
    name = document["paths"]["/strict/{number}"]["post"]["parameters"][0]["$ref"]
    assert name == "#/components/parameters/IdempotencyKeyRules2"


def test_flask_and_deferred_work(sqlite_url: str) -> None:
    idempotency = Idempotency(sqlite_url)
    app = flask.Flask("shop")
    app.add_url_rule(
        "/orders/<int:n>/<any(a,b):x>", "a", idempotency.deferred(lambda n, x: ""), methods=["POST"]
    )
    app.add_url_rule("/edge", "b", lambda: "", methods=["PATCH", "PUT"])
    app.add_url_rule("/open", "c", idempotency.exempt(lambda: ""), methods=["POST"])
    app.wsgi_app = WsgiMiddleware(  # type: ignore[method-assign]
        app.wsgi_app, idempotency=idempotency, tenant=single_tenant()
    )
    document = openapi(app)
    check_openapi(document)
    assert document["paths"].keys() == {"/orders/{n}/{x}", "/edge", "/idempotency/{operation}"}
    assert document["paths"]["/edge"].keys() == {"patch"}
    operation = document["paths"]["/orders/{n}/{x}"]["post"]
    assert "202" in operation["responses"] and "Idempotency202" in str(operation["responses"]["202"])
    assert "The operation is accepted and carried out later" in markdown(app)
    idempotency.close()


def test_nothing_to_publish() -> None:
    app = Starlette(routes=[Route("/x", handle, methods=["POST"])])
    for make in (markdown, openapi):
        with pytest.raises(ConfigurationError, match="No route of this application is guarded"):
            make(app)


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (timedelta(hours=24), "24 hours"),
        (timedelta(hours=36), "36 hours"),
        (timedelta(days=30), "30 days"),
        (timedelta(hours=1), "1 hour"),
        (timedelta(minutes=90), "90 minutes"),
        (timedelta(seconds=1.5), "1.5 seconds"),
    ],
)
def test_durations(duration: timedelta, text: str) -> None:
    assert span(duration) == text


# ------------------------------------------------------------------ the schema of the key


def accepts(schema: dict[str, Any], value: str) -> bool:
    if "anyOf" in schema:
        return any(accepts(one, value) for one in schema["anyOf"])
    return (
        schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", 9**9)
        and re.search(schema["pattern"], value) is not None
    )


VALUES = [
    *(
        "a",
        "x" * 255,
        "x" * 256,
        "",
        '""',
        '"a"',
        '"a b, c"',
        "a b",
        "a,b",
        '"a";p=1',
        r'"a\"b"',
        r'"a\b"',
        '"',
    ),
    *("8e03978e-40d5-43dd-bc93-6894a57f9324", '"8e03978e-40d5-43dd-bc93-6894a57f9324"', "é", '"é"', "a\x7f"),
    *('"' + "x" * 255 + '"', "short", '"short"', "x" * 16, '"' + "x" * 16 + '"', "%~'", ":abc:", "?1"),
]


@pytest.mark.parametrize(
    "rules",
    [
        KeyRules(personal=()),
        KeyRules(strict=True, personal=()),
        KeyRules(min_length=16, personal=()),
        KeyRules(strict=True, min_length=16, max_length=64, personal=()),
        KeyRules(pattern=UUID, personal=()),
        KeyRules(pattern=UUID, strict=True, personal=()),
        KeyRules(pattern=re.compile(r"[a-z\"]+"), personal=()),
    ],
)
@pytest.mark.parametrize("value", VALUES)
def test_the_schema_takes_every_good_key_and_few_bad_ones(rules: KeyRules, value: str) -> None:
    """A gateway that checks requests by the schema must refuse nothing that the application takes."""
    try:
        parse_key([value], rules)
        good = True
    except KeyRefused:
        good = False
    accepted = accepts(key_schema(ietf(key=rules)), value)
    assert accepted or not good
    quoted = value.startswith('"')
    assert good or not accepted or quoted, "a bare value is described exactly"


# ------------------------------------------------------------------ what is really answered


def said(app: Starlette) -> dict[str, tuple[int, str | None]]:
    """By the machine-readable code, the status and Retry-After that the page gives."""
    found = {}
    for line in re.findall(r"^\| .* \| (\d+) \| `(\w+)` \| (?:(\d+) s)? *\|$", markdown(app), re.M):
        found[line[1]] = (int(line[0]), line[2] or None)
    return found


@pytest.mark.parametrize(
    "policy",
    [
        ietf(retry_after=7, max_body=100),
        ietf(mismatch_status=409, max_body=100),
        stripe(max_body=100),
        ietf(errors="stripe", max_body=100, required=True),
    ],
    ids=["ietf", "409", "stripe", "envelope"],
)
def test_the_page_says_what_is_answered(serve: Serve, policy: Policy) -> None:
    app = serve(policy)
    client = TestClient(app)
    promised, document = said(app), openapi(app)
    asked: dict[str, Any] = {
        "malformed": client.post("/pay/1", headers={"Idempotency-Key": "a b"}),
        "personal": client.post("/pay/1", headers={"Idempotency-Key": "ann@shop.example"}),
        "too_large": client.post("/pay/1", headers={"Idempotency-Key": "l"}, content=b"x" * 101),
    }
    if policy.required:
        asked["missing"] = client.post("/pay/1")
    first = client.post("/pay/1", headers={"Idempotency-Key": "k"})
    assert policy.expires_header in first.headers
    asked["reused"] = client.post("/pay/2", headers={"Idempotency-Key": "k"})
    for code, response in asked.items():
        body = response.json()
        shown = body["error"]["code"] if policy.errors == "stripe" else body["code"]
        assert shown == code
        assert promised[code] == (response.status_code, response.headers.get("Retry-After"))
        # What is answered is what the fragment describes.
        part = document["components"]["responses"][f"Idempotency{response.status_code}"]
        [(media, content)] = part["content"].items()
        assert response.headers["content-type"] == media
        assert content["examples"][code]["value"].keys() == body.keys() - {"operation"}
        assert {name.lower() for name in part["headers"]} >= {
            name for name in response.headers if name in ("link", "idempotency-key-expires")
        }
    again = client.post("/pay/1", headers={"Idempotency-Key": "k"})
    assert again.headers[policy.replayed_header] == "true"


def test_the_caller_and_the_status(serve: Serve) -> None:
    client = TestClient(serve(ietf(), tenant=lambda scope: None))
    assert client.post("/pay/1", headers={"Idempotency-Key": "k"}).status_code == 401
    assert client.get(f"/idempotency/{'0' * 32}").status_code == 401
    assert TestClient(serve(ietf())).get(f"/idempotency/{'0' * 32}").status_code == 404


# ------------------------------------------------------------------ the command


def test_the_page_shows_what_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_page("spec.md", tmp_path, monkeypatch) >= 1
    printed = run("spec", "shop_api:app")
    assert printed.exit_code == 0
    saved = run("spec", "shop_api:app", "--output", "spec.md")
    assert (saved.exit_code, saved.output) == (0, "")
    assert (tmp_path / "spec.md").read_text() == printed.stdout
    fragment = run("spec", SAMEKEY_WEB_APP="shop_api:app", SAMEKEY_OPENAPI="1", SAMEKEY_OUTPUT="spec.json")
    assert (fragment.exit_code, fragment.output) == (0, "")
    check_openapi(json.loads((tmp_path / "spec.json").read_text()))
    nowhere = run("spec", "shop_api:app", "--output", "no/such/file")
    assert nowhere.exit_code == 2 and "no/such/file could not be written" in nowhere.stderr


def test_limits_and_the_age_of_a_request_are_published(serve: Serve) -> None:
    page = markdown(serve(ietf(new_keys_per_minute=1200, active_keys=50_000, max_age=300)))
    assert "1,200 new keys in a minute" in page and "50,000 keys at a time" in page
    assert "`Request-Timestamp`" in page and "older than 5 minutes" in page
    assert "| 429 | `limited` |" in page and "| 400 | `stale` |" in page
    plain = markdown(serve(ietf()))
    assert "Request-Timestamp" not in plain and "429" not in plain.partition("## For callers")[0].replace(
        "408, 413, 415, 425, 429", ""
    )
