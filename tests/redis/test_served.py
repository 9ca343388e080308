"""A served application and ``samekey worker`` on Redis, in processes of their own; the provider fails."""

from __future__ import annotations

import http.client
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from examples.provider import Provider
from lab.processes import GuardedProcess, serve_asgi, wait_until
from tests.chosen import whole

pytestmark = whole


ROOT = Path(__file__).parent.parent.parent


def send(port: int, key: str, method: str = "POST", path: str = "/pay") -> tuple[int, dict[str, str], Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    headers = {"Content-Type": "application/json", "X-Tenant": "ann", "Idempotency-Key": key}
    connection.request(method, path, json.dumps({"reference": key}), headers)
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response.status, {k.lower(): v for k, v in response.getheaders()}, json.loads(body)


def test_what_became_unknown_is_found_out_by_the_worker(redis_url: str, tmp_path: Path) -> None:
    with Provider.start(tmp_path) as provider:
        env = {"SHOP_STORE": redis_url, "SHOP_PROVIDER": provider.url, "PYTHONUNBUFFERED": "1"}
        with serve_asgi("tests.redis.shop:app", env, directory=ROOT) as server:
            assert send(server.port, "plain")[0] == 201
            status, headers, body = send(server.port, "plain")
            assert (status, headers["idempotent-replayed"], body) == (201, "true", {"charge": "ch_1"})
            provider.fail("charge_then_drop")
            assert send(server.port, "lost")[2]["code"] == "outcome_unknown"
            assert send(server.port, "lost")[2]["code"] == "outcome_unknown"
            worker = GuardedProcess(
                [
                    *(sys.executable, "-m", "samekey.cli", "worker", "tests.redis.shop:idempotency"),
                    *("--reconciler-interval", "0.05", "--sweeper-interval", "0.05"),
                ],
                log=tmp_path / "worker.log",
                env={**os.environ, **env},
                cwd=ROOT,
            )
            try:
                wait_until(lambda: send(server.port, "lost")[0] == 201, interval=0.05)
            finally:
                ended = worker.end(signal.SIGTERM, grace=20)
            assert (ended, "has stopped" in worker.output()) == (0, True), worker.output()
            status, headers, body = send(server.port, "lost")
            assert (status, headers["idempotent-replayed"]) == (201, "true")
            assert body == {"charge": provider.charges()[1].id}
        assert [charge.reference for charge in provider.charges()] == ["plain", "lost"]
