"""Odd requests over real sockets: a bounded run here, a long one by hand (``python -m lab.fuzz``)."""

from __future__ import annotations

import random

import pytest

from lab.fuzz.__main__ import ASGI, WSGI, fuzz
from lab.fuzz.odd import request
from tests.chosen import whole

VALUES = 3_000


@pytest.mark.parametrize("app", ["starlette", *(pytest.param(name, marks=whole) for name in (*ASGI, *WSGI))])
def test_no_request_is_answered_with_an_error_of_the_server(app: str) -> None:
    found = fuzz(app, VALUES)
    assert VALUES <= found.values < VALUES + 100
    assert found.requests == sum(found.answers.values())
    assert found.failed == 0, found.examples
    done = found.answers.get(200, 0) + found.answers.get(201, 0)
    assert done > found.requests / 4, "many of them are refused, not most"
    assert {400, 401, 422} <= {*found.answers}
    assert found.megabytes[-1] < 400


def test_the_same_seed_gives_the_same_requests() -> None:
    assert [request(random.Random(7), n, 1) for n in range(50)] == [
        request(random.Random(7), n, 1) for n in range(50)
    ]
