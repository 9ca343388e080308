"""The published OpenAPI document: complete, and fuzzed against the running service. No input gives a 500."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.schemas import BaseSchema

from tests.chosen import whole
from tests.payments.running import ANN, Service, service, unique

FEW = settings(
    max_examples=12,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
"""Examples for each operation: the same in every run, since a test must not find out something new in CI."""


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Its own service: what a fuzzer leaves behind is nobody else's business."""
    directory = tmp_path_factory.mktemp("fuzzed")
    with service(f"sqlite:///{directory / 'payments.db'}", directory) as found:
        yield found


@pytest.fixture(scope="module")
def document(fuzzed: Service) -> BaseSchema:
    return schemathesis.openapi.from_url(f"{fuzzed.url}/openapi.json")


@pytest.mark.parametrize(
    "mode",
    [
        pytest.param(GenerationMode.POSITIVE, id="fits"),
        pytest.param(GenerationMode.NEGATIVE, id="does not fit", marks=whole),
    ],
)
def test_no_input_gives_a_500(document: BaseSchema, mode: GenerationMode) -> None:
    tried: Counter[tuple[str, int]] = Counter()
    for found in document.get_all_operations():
        parsed: Any = found
        operation: Any = parsed.ok()

        @FEW
        @given(operation.as_strategy(generation_mode=mode))
        def no_500(case: Any) -> None:
            # A token that is good, and a key that is new, so that handlers are reached. What is wrong with
            # a key is left as it is.
            case.headers["Authorization"] = f"Bearer {ANN}"
            if mode is GenerationMode.POSITIVE:
                case.headers["Idempotency-Key"] = unique("fuzz")
            answer = case.call(timeout=60)
            assert answer.status_code < 500, f"{case.as_curl_command()}\n{answer.status_code} {answer.text}"
            tried[case.operation.label, answer.status_code] += 1

        try:
            no_500()
        except Unsatisfiable:
            pass  # it takes nothing, so nothing can be wrong with it
    reached = (
        {("POST /payments", 202), ("POST /transfers", 201), ("POST /payments/{id}/refunds", 404)}
        if mode is GenerationMode.POSITIVE
        else {
            (f"POST {path}", 422) for path in ("/payments", "/transfers", "/orders", "/payments/{id}/refunds")
        }
    )
    assert reached <= tried.keys(), tried


@pytest.mark.parametrize(
    "content",
    [
        b'{"amount": 1, "currency": "EUR", "reference": "\\ud800"}',
        b'{"amount": 1e400, "currency": "EUR", "reference": "r"}',
        b'{"amount": NaN, "currency": "EUR", "reference": "r"}',
        b'{"amount": 1, "amount": 2, "currency": "EUR", "reference": "r", "x": ' + b"[" * 5000 + b"}",
        b'{"amount": 99999999999999999999999999, "currency": "EUR", "reference": "r"}',
        b"\xff\xfe",
        b"null",
        b"",
    ],
    ids=range(8),
)
@pytest.mark.parametrize("path", ["/payments", f"/payments/{'0' * 32}/refunds", "/orders", "/transfers"])
def test_no_strange_json_gives_a_500(fuzzed: Service, path: str, content: bytes) -> None:
    headers = {
        "Authorization": f"Bearer {ANN}",
        "Idempotency-Key": unique("strange"),
        "Content-Type": "application/json",
    }
    answer = httpx2.post(fuzzed.url + path, content=content, headers=headers, timeout=60)
    assert 400 <= answer.status_code < 500, answer.text


@pytest.mark.parametrize(
    "path", ["/payments/%00", "/orders/%00", "/transfers/%ff", "/orders?after=%00", "/idempotency/%00"]
)
def test_no_strange_path_gives_a_500(fuzzed: Service, path: str) -> None:
    assert fuzzed.get(path).status_code in (404, 422)


def test_the_document_shows_the_header_and_the_answers(fuzzed: Service) -> None:
    shown: dict[str, Any] = httpx2.get(f"{fuzzed.url}/openapi.json").json()
    answers = {
        "/payments": {"201", "202", "400", "401", "402", "409", "422", "503"},
        "/payments/{id}/refunds": {"201", "400", "401", "402", "404", "409", "422", "503"},
        "/orders": {"201", "400", "401", "409", "422", "503"},
        "/transfers": {"201", "400", "401", "402", "409", "422", "503"},
    }
    for path, expected in answers.items():
        operation = shown["paths"][path]["post"]
        assert {"$ref": "#/components/parameters/IdempotencyKey"} in operation["parameters"]
        assert expected <= operation["responses"].keys(), path
        assert operation["security"]
        # What the framework says of a body that does not fit, and what samekey says of a key used before.
        assert operation["responses"]["422"]["content"].keys() >= {
            "application/json",
            "application/problem+json",
        }
    assert "/idempotency/{operation}" in shown["paths"]
    assert "parameters" not in shown["paths"]["/webhooks/provider"]["post"]
    refund = shown["paths"]["/payments/{id}/refunds"]["post"]
    assert [one["name"] for one in refund["parameters"] if "name" in one] == ["id"]
