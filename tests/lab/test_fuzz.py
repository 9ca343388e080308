"""Odd requests over real sockets: a bounded run here, a long one by hand (``python -m lab.fuzz``)."""

from __future__ import annotations

import random

import pytest

from lab.fuzz.__main__ import ASGI, WSGI, fuzz
from lab.fuzz.odd import request
from tests.chosen import whole

REQUESTS = 150


@pytest.mark.parametrize("app", ["starlette", *(pytest.param(name, marks=whole) for name in (*ASGI, *WSGI))])
def test_no_request_is_answered_with_an_error_of_the_server(app: str) -> None:
    found = fuzz(app, REQUESTS)
    assert found.requests == sum(found.answers.values()) == REQUESTS
    assert found.failed == 0, found.examples
    assert found.answers[200] + found.answers[201] > REQUESTS / 8, "most of them are refused, not all"
    assert found.answers[400] and found.last_mb < 400


def test_the_same_seed_gives_the_same_requests() -> None:
    assert [request(random.Random(7), n) for n in range(50)] == [
        request(random.Random(7), n) for n in range(50)
    ]
