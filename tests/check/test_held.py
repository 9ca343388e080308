"""A rule is held only by something that was seen: where nothing was seen, it is not proven."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from samekey.check import Budget, Endpoint, Report, Variation, check, serving_asgi
from samekey.check.plan import read_plan
from tests.check.base import BODY, Asked, Refusal, Reply, Server, digest, said, serving
from tests.check.test_broken import report_of
from tests.chosen import whole

ANN = (("Authorization", "Bearer ann"),)


def report_at(url: str, **given: Any) -> Report:
    endpoint = Endpoint(f"{url}/orders", json.loads(BODY), headers=ANN, **given)
    return check(endpoint, budget=Budget(rate=2000))


# ------------------------------------------------------------------ failures


class StuckOnRequest(Server):
    """A failure that is asked for leaves its key in progress for ever."""

    def guarded(self, asked: Asked, tenant: str, key: str) -> Reply:
        if asked.header("x-fail") and self.claim(self.scope(asked, tenant, key), "") is None:
            return said(500, {"detail": "as asked"})
        return super().guarded(asked, tenant, key)

    def fingerprint(self, asked: Asked) -> str:
        return "" if asked.header("x-fail") else super().fingerprint(asked)


@whole
@pytest.mark.parametrize("times", [1, None])
@pytest.mark.parametrize("profile", ["ietf", "stripe"])
def test_a_key_in_conflict_for_ever_after_a_failure_is_found(times: int | None, profile: str) -> None:
    failing = Variation(headers=(("X-Fail", "1"),), times=times)
    with serving(StuckOnRequest(profile)) as url:
        endpoint = Endpoint(f"{url}/orders", json.loads(BODY), headers=ANN, failing=failing)
        report = check(endpoint, profile, budget=Budget(rate=2000))
    assert [finding.id for finding in report.findings] == ["errors.stuck"]
    assert not {"errors.remembered-5xx", "errors.forgotten-5xx", "errors.stuck"} & set(report.passed)


# ------------------------------------------------------------------ other places


class OneStoreForAllEndpoints(Server):
    """A decorator at each route, whose keys know no route: what is not routed is not there."""

    def fingerprint(self, asked: Asked) -> str:
        return digest(asked.query, self.content(asked.body))

    def route(self, asked: Asked) -> None:
        super().route(Asked(asked.method, asked.path.replace("/refunds", "/orders"), "", {}, b""))


def test_what_is_not_there_proves_nothing_about_other_paths_and_methods() -> None:
    report = report_of(OneStoreForAllEndpoints())
    assert report.ok and {"misuse.path", "misuse.method"} <= set(report.not_proven)
    assert "misuse.query" in report.passed and "404" in report.not_proven["misuse.path"]


@pytest.mark.parametrize("server", [OneStoreForAllEndpoints, Server])
def test_a_plan_tries_the_keys_of_each_endpoint_at_the_others(server: type[Server], tmp_path: Path) -> None:
    class Both(server):  # type: ignore[valid-type, misc]
        def route(self, asked: Asked) -> None:
            super().route(Asked(asked.method, asked.path.replace("/refunds", "/orders"), "", {}, b""))

    rows = [
        f'[[endpoint]]\nurl = "{{url}}/{name}"\nbody = {{{{item = "{name}", amount = 1}}}}\n'
        for name in ("orders", "refunds")
    ]
    with serving(Both()) as url:
        plan = tmp_path / "plan.toml"
        top = 'headers = {{Authorization = "Bearer ann"}}\n'
        plan.write_text((top + "".join(rows)).format(url=url))
        reports = [check(endpoint, budget=Budget(rate=2000)) for endpoint in read_plan(plan).endpoints]
    found = [[finding.id for finding in report.findings] for report in reports]
    assert found == ([["misuse.path"]] * 2 if server is OneStoreForAllEndpoints else [[], []])
    assert all(("misuse.path" in report.passed) is (server is Server) for report in reports)


# ------------------------------------------------------------------ at the same moment


class LosersFail(Server):
    """Both kinds are carried out, and whoever comes later in a burst gets a 500; one single one did too."""

    def guarded(self, asked: Asked, tenant: str, key: str) -> Reply:
        with self.lock:
            seen = self.__dict__.setdefault("seen", {}).setdefault(key, {})
            first = asked.body not in seen and len(self.__dict__["seen"]) > 1
            seen[asked.body] = True
            running = self.__dict__.setdefault("running", {})
            running[key] = running.get(key, 0) + 1
            busy = running[key] > 1
        try:
            if len(self.__dict__["seen"]) == 1 and not self.__dict__.setdefault("failed", False):
                self.__dict__["failed"] = True
                return said(500, {"detail": "once"})
            if busy and not first:
                return said(500, {"detail": "constraint"})
            if busy:
                return self.run(self.validate(asked), tenant)
            time.sleep(0.05)
            return super().guarded(asked, tenant, key)
        finally:
            with self.lock:
                running[key] -= 1


@whole
def test_failures_in_a_burst_do_not_hide_a_second_effect() -> None:
    report = report_of(LosersFail())
    assert "concurrency.mixed" in {finding.id for finding in report.findings}


class OneAtATime(Server):
    """The plainest race; nobody sees it where requests come one after the other."""

    def claim(self, scope: Any, fingerprint: str) -> Any:
        found = self.records.get(scope)
        if found is None:
            return super().claim(scope, fingerprint)
        if found.fingerprint != fingerprint:
            raise Refusal(self.mismatch())
        return found


@pytest.mark.timeout(60)
def test_a_server_that_handles_one_request_at_a_time_proves_nothing_about_concurrency() -> None:
    with serving(OneAtATime(), threads=False) as url:
        report = report_at(url, count_url=f"{url}/count")
    assert report.findings == []
    assert "one request at a time" in report.not_proven["concurrency.ran-twice"]
    assert "concurrency.mixed" in report.not_proven


# ------------------------------------------------------------------ an application that hangs


@pytest.mark.timeout(60)
def test_an_application_that_hangs_does_not_keep_the_test() -> None:
    over = threading.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        import asyncio

        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        while not over.is_set():
            await asyncio.sleep(0.01)

    def served() -> None:
        with serving_asgi(app) as url, pytest.raises(Exception, match="no answer in time"):
            check(Endpoint(f"{url}/orders", json.loads(BODY)), budget=Budget(timeout=0.3))

    thread = threading.Thread(target=served, daemon=True)
    thread.start()
    thread.join(20)
    hung = thread.is_alive()
    over.set()
    assert not hung
