"""What the README says of stores: a leased handler is the same on each of them, but for the URL."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx2
import pytest

from lab import environment
from lab.processes import serve_asgi
from lab.servers.redis import find_server as find_redis
from tests.chosen import whole
from tests.test_docs import HEADERS, blocks

pytestmark = whole


@pytest.fixture(params=["sqlite", "postgres", "mariadb", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with ExitStack() as after:
        if request.param == "redis":
            yield after.enter_context(find_redis()).create_database()
        else:
            names = {"postgres": "postgres_url", "mariadb": "mariadb_url"}
            name = names.get(request.param)
            yield f"sqlite:///{tmp_path}/payments.db" if name is None else request.getfixturevalue(name)


def test_a_leased_handler_is_the_same_on_each(url: str, tmp_path: Path) -> None:
    code = blocks("README.md", "python")[0]
    begin, end = code.index('@app.post("/payments"'), code.index('@app.post("/transfers"')
    code = code[:begin] + code[end:]  # atomic work is written in the SQL of its database
    assert code.count('"sqlite:///payments.db"') == 1
    (tmp_path / "payments.py").write_text(code.replace('"sqlite:///payments.db"', repr(url)))
    if not url.startswith(("sqlite", "redis")):
        command = [sys.executable, "-m", "samekey.cli", "migrate", url]
        subprocess.run(command, check=True, capture_output=True, env=environment())
    with serve_asgi("payments:app", directory=tmp_path) as api:
        headers = {**HEADERS, "Idempotency-Key": "transfer-1"}
        first, again = (
            httpx2.post(f"{api.url}/transfers", headers=headers, json={"cents": 450}) for _ in range(2)
        )
        assert first.status_code == 201, (first.text, api.output())
        assert (again.status_code, again.content) == (201, first.content)
        assert again.headers["Idempotent-Replayed"] == "true"
        other = httpx2.post(f"{api.url}/transfers", headers=headers, json={"cents": 451})
        assert (other.status_code, other.json()["code"]) == (422, "reused")
