"""How effects are told: a count must go on counting, answers must not be made of the request."""

from __future__ import annotations

import threading
import time
import uuid
from typing import Any, ClassVar

import pytest

from samekey.check import Budget, Endpoint, Report, check
from tests.check.base import Asked, Record, Refusal, Reply, Server, said, serving
from tests.check.broken import EmptyIsAKey, IgnoresTheQuery, ReplaysAndRuns
from tests.check.broken_together import LosesTheRecordOnDisconnect, ReplaysBeforeAuthentication
from tests.check.test_broken import report_of
from tests.chosen import whole

# ------------------------------------------------------------------ a count that is a list with pages


def paged(server: type[Server], room: int) -> Server:
    """Its count is the first page of a list, in which there is room for so many more."""

    class Paged(server):  # type: ignore[valid-type, misc]
        def answer(self, asked: Asked) -> Any:
            if asked.path == "/count":
                return said(200, {"items": [{} for _ in self.effects[:20]], "next": "x"})
            return super().answer(asked)

    found: Server = Paged()
    found.effects = ["earlier"] * (20 - room)
    return found


def same_to_everybody(server: type[Server]) -> type[Server]:
    class Same(server):  # type: ignore[valid-type, misc]
        def run(self, document: Any, tenant: str) -> Reply:
            super().run(document, tenant)
            return said(200, {"ok": True})

    return Same


@whole
@pytest.mark.parametrize("room", [2, 4, 8, 11, 13, 17])
@pytest.mark.parametrize("named", [True, False], ids=["named", "same"])
def test_a_count_that_stops_accuses_nobody_and_holds_nothing(room: int, named: bool) -> None:
    report = report_of(paged(Server if named else same_to_everybody(Server), room))
    assert [(finding.id, finding.detail) for finding in report.findings] == []
    assert "pages" in report.facts["count URL"] and "loss.ran-again" in report.not_proven


@whole
@pytest.mark.parametrize("room", [3, 20])
@pytest.mark.parametrize("server", [ReplaysAndRuns, LosesTheRecordOnDisconnect])
def test_what_a_count_that_stopped_has_held_is_not_proven(server: type[Server], room: int) -> None:
    report = report_of(paged(server, room))
    assert not report.ok or not {"replay.ran-again", "loss.ran-again"} & set(report.passed)


class Late(Server):
    """A retry gets its replay, and puts a second job into a queue."""

    late: ClassVar[float] = 0.3

    def meet(self, record: Record, asked: Asked) -> Reply:
        threading.Timer(self.late, self.effects.append, ["second"]).start()
        return super().meet(record, asked)


def test_a_second_effect_that_comes_later_is_found() -> None:
    assert [finding.id for finding in report_of(Late()).findings] == ["replay.ran-again"]


class TooLate(Server):
    """The same, so late that the next requests are long under way. No thread does it, that might be later."""

    late: ClassVar[float] = 1.6

    def answer(self, asked: Asked) -> Reply:
        if asked.path == "/count":
            due = sum(1 for at in self.__dict__.get("put_off", ()) if at <= time.monotonic())
            return said(200, {"count": len(self.effects) + due})
        return super().answer(asked)

    def meet(self, record: Record, asked: Asked) -> Reply:
        with self.lock:
            self.__dict__.setdefault("put_off", []).append(time.monotonic() + self.late)
        return super().meet(record, asked)


@pytest.mark.parametrize("late", [1.1, 1.6])
def test_one_that_comes_still_later_is_not_passed(late: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever operation is counted at the moment at which it comes."""
    monkeypatch.setattr(TooLate, "late", late)
    assert "replay.ran-again" not in report_of(TooLate()).passed


class UnreadableOnce(Server):
    """The count fails from its thirtieth reading on."""

    def answer(self, asked: Asked) -> Reply:
        if asked.path == "/count":
            self.__dict__["read"] = self.__dict__.get("read", 0) + 1
            if self.__dict__["read"] > 30:
                return said(503, {})
        return super().answer(asked)


def test_a_count_that_cannot_be_read_any_more_does_not_take_the_report_away() -> None:
    report = report_of(UnreadableOnce())
    assert report.ok and "could not be read" in report.facts["count URL"]
    assert "loss.ran-again" in report.not_proven


# ------------------------------------------------------------------ answers that are made of the request


class NamedByKey(Server):
    """Carries out every retry, under a name that is made of the key."""

    def guarded(self, asked: Asked, tenant: str, key: str) -> Reply:
        document = self.validate(asked)
        self.effects.append(tenant)
        found = self.records.setdefault((tenant, key), Record(self.fingerprint(asked)))
        if found.fingerprint != self.fingerprint(asked):
            raise Refusal(self.mismatch())
        return said(201, {"id": self.name(tenant, key), "amount": document["amount"]})

    def name(self, tenant: str, key: str) -> str:
        return f"ord_{tenant}{key}"


class NamedByUuid(NamedByKey):
    def name(self, tenant: str, key: str) -> str:
        return str(uuid.uuid5(uuid.NAMESPACE_URL, tenant + key))


class Marked(NamedByKey):
    """Says the same to everybody, and of a second run that it is a replay."""

    def guarded(self, asked: Asked, tenant: str, key: str) -> Reply:
        known = (tenant, key) in self.records
        super().guarded(asked, tenant, key)
        return said(201, {"ok": True}, *([("Idempotent-Replayed", "true")] if known else []))


RESTS_ON_EFFECTS = {"replay.ran-again", "concurrency.ran-twice", "concurrency.mixed", "lifetime.forgotten"}


@pytest.mark.parametrize("server", [NamedByKey, NamedByUuid, Marked])
def test_what_is_made_of_the_key_names_no_operation(server: type[Server]) -> None:
    report = report_of(server(), count=False)
    assert not RESTS_ON_EFFECTS & set(report.passed)


class Forgets(Server):
    """A new id, and beside it a name that is made of the key in some way."""

    def run(self, document: Any, tenant: str) -> Reply:
        return said(201, {"id": uuid.uuid4().hex, "operation_id": "op-1" if self.effects else "op-0"})

    def finish(self, scope: Any, reply: Reply) -> Reply:
        body = {**reply.document, "operation_id": str(hash(scope))}
        self.effects.append("")
        reply = said(201, body)
        super().finish(scope, reply)
        if len(self.effects) > 15:
            self.records.pop(next(iter(self.records)))
        return reply


@whole
def test_members_that_disagree_hold_nothing() -> None:
    assert "lifetime.forgotten" not in report_of(Forgets(), count=False).passed


class NamedByTheItem(Server):
    def run(self, document: Any, tenant: str) -> Reply:
        named = {"payment_id": uuid.uuid4().hex, "order_id": document["item"].upper()}
        return said(201, {**named, "reference": f"ORD-{document['item']}"})


def test_what_is_made_of_the_body_accuses_nobody() -> None:
    with serving(NamedByTheItem()) as url:
        report = _report(url, {"item": "{unique}", "amount": 100})
    assert [(finding.id, finding.detail) for finding in report.findings] == []
    assert {"isolation.tenant", "header.collision", "header.case"} <= set(report.passed)


def _report(url: str, body: Any) -> Report:
    endpoint = Endpoint(
        f"{url}/orders",
        body,
        headers=(("Authorization", "Bearer ann"),),
        other_headers=(("Authorization", "Bearer bob"),),
    )
    return check(endpoint, budget=Budget(rate=2000))


# ------------------------------------------------------------------ a server that limits its requests


def limited(server: type[Server], status: int = 429, *headers: tuple[str, str]) -> Server:
    class Limited(server):  # type: ignore[valid-type, misc]
        def answer(self, asked: Asked) -> Any:
            now = time.monotonic()
            with self.lock:
                times = self.__dict__.setdefault("times", [])
                times[:] = [at for at in times if now - at < 1]
                if asked.path != "/count" and len(times) >= 15:
                    return said(status, {"detail": "slow down"}, *headers)
                times.append(now)
            return super().answer(asked)

    found: Server = Limited()
    return found


@whole
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("server", "rule"),
    [
        (ReplaysBeforeAuthentication, "isolation.credentials"),
        (IgnoresTheQuery, "misuse.query"),
        (EmptyIsAKey, "header.empty"),
    ],
)
def test_a_limiter_holds_nothing(server: type[Server], rule: str) -> None:
    report = report_of(limited(server))
    assert [finding.id for finding in report.findings] in ([rule], [])
    assert rule not in report.passed and "429" in report.facts["limited"]


@whole
@pytest.mark.timeout(120)
@pytest.mark.parametrize("status", [429, 503])
def test_a_limiter_accuses_nobody(status: int) -> None:
    report = report_of(limited(Server, status, ("Retry-After", "1")))
    assert [(finding.id, finding.detail) for finding in report.findings] == []
