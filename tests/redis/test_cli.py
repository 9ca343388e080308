"""The operator's commands on Redis: the same as on any store, but for what only tables can keep."""

from __future__ import annotations

import logging
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet

from lab.servers.redis import RedisServer, connect
from samekey import Idempotency, OutcomeUnknown, current_operation
from samekey.core.states import State
from samekey.drivers.run import run
from samekey.encryption import fernet
from samekey.stores.protocols import Actor
from tests.chosen import whole
from tests.operator.command import Ran, samekey
from tests.redis.looking import records
from tests.redis.subjects import RedisSubject, plain_client

pytestmark = whole


class Shop:
    """A store with something in it."""

    def __init__(self, url: str, **options: Any) -> None:
        self.url = url
        self.idempotency = Idempotency(url, **options)
        self.idempotency.check()

    def done(self, key: str) -> str:
        ids = []

        def work() -> str:
            ids.append(current_operation().id)
            return "private"

        self.idempotency.once(tenant="ann", key=key, run=work)
        return ids[0]

    def lost(self, key: str) -> str:
        ids = []

        def work() -> None:
            ids.append(current_operation().id)
            raise OutcomeUnknown

        with pytest.raises(OutcomeUnknown):
            self.idempotency.once(tenant="ann", key=key, run=work)
        return ids[0]

    def dead(self, key: str) -> str:
        found = self.lost(key)
        finding = self.idempotency.engine.store.finding
        assert run(self.idempotency.engine.drivers.sync, lambda: finding.give_up(found, Actor("test")))
        return found

    def state(self, operation_id: str) -> str:
        record = run(
            self.idempotency.engine.drivers.sync,
            lambda: self.idempotency.engine.store.finding.by_id(operation_id),
        )
        assert record is not None
        return str(record.state)

    def run(self, *arguments: str) -> Ran:
        return samekey(*arguments, "--url", self.url)


@pytest.fixture(params=["redis_url", "redis_cluster_url"])
def shop(request: pytest.FixtureRequest) -> Iterator[Shop]:
    shop = Shop(request.getfixturevalue(request.param))
    yield shop
    shop.idempotency.close()


WHY = ("--reason", "a test", "--actor", "ann")


def test_keys_are_listed_and_shown(shop: Shop) -> None:
    done, lost = shop.done("a"), shop.lost("b")
    listed = shop.run("keys", "list", "--json")
    assert {one["id"]: one["state"] for one in listed.json["records"]} == {done: "completed", lost: "unknown"}
    assert [
        one["id"] for one in shop.run("keys", "list", "--state", "unknown", "--json").json["records"]
    ] == [lost]
    assert [one["id"] for one in shop.run("keys", "list", "--key", "a", "--json").json["records"]] == [done]
    shown = shop.run("keys", "show", done)
    assert shown.code == 0 and "completed" in shown.out and "private" not in shown.out
    digest = shop.idempotency.engine.digest("ann", "a")
    for way in ((done,), ("--key", "a", "--tenant", "ann"), ("--digest", digest)):
        assert shop.run("keys", "show", *way, "--json").json["record"]["id"] == done
    assert shop.run("keys", "show", "--digest", "0" * 12).code != 0
    assert "Nothing is known of it" in shop.run("keys", "show", "f" * 64).sentence


def test_unknown_outcomes_are_resolved(shop: Shop) -> None:
    done, never = shop.lost("a"), shop.lost("b")
    ran = shop.run("keys", "resolve", done, "--executed", "--result", "{}", *WHY)
    assert ran.code == 0 and "is completed now" in ran.out
    assert "keeps no audit" in ran.out
    assert shop.run("keys", "resolve", never, "--not-executed", *WHY).code == 0
    assert (shop.state(done), shop.state(never)) == ("completed", "failed_retryable")
    assert "only what is unknown" in shop.run("keys", "resolve", done, "--not-executed", *WHY).sentence


def test_answers_are_evicted(shop: Shop) -> None:
    done = shop.done("a")
    assert "was dropped" in shop.run("keys", "evict", done, *WHY).out
    assert "nothing to evict" in shop.run("keys", "evict", done, *WHY).sentence


def test_dead_letters(shop: Shop) -> None:
    dead = shop.dead("a")
    assert [one["id"] for one in shop.run("dead", "list", "--json").json["records"]] == [dead]
    assert dead in shop.run("dead", "list").out
    assert "dead_letter" in shop.run("dead", "show", dead).out
    assert "nobody may simply run it again" in shop.run("dead", "retry", dead, *WHY).sentence
    ran = shop.run("dead", "discard", dead, "--status", "502", *WHY)
    assert ran.code == 0 and "every retry gets 502" in ran.out
    assert shop.state(dead) == "completed"


def test_sweep_and_reap(shop: Shop) -> None:
    subject = RedisSubject(shop.url)
    old = shop.done("old")
    record = run(
        shop.idempotency.engine.drivers.sync, lambda: shop.idempotency.engine.store.finding.by_id(old)
    )
    assert record is not None
    assert shop.run("sweep", "--json").json["total"] == 0
    name = subject.name_of(record.scope, record.key)
    home = name.rpartition(":")[0]
    subject.client.hset(name, "expires_at", 1)
    subject.client.zadd(f"{home}:settled", {name.rpartition(":")[2]: 1})
    assert shop.run("reap", "--dry-run", "--json").json["reaped"] == 1
    assert shop.run("reap", "--json").json["reaped"] == 1
    subject.client.delete(name)
    shop.lost("b")
    assert shop.run("reap", "--json").json == {
        "dry_run": False,
        "timed_out": 0,
        "reaped": 0,
        "tombstones": False,
    }


MODULE = """
    from samekey import Executed, Idempotency

    idempotency = Idempotency({url!r})

    @idempotency.lookup()
    def find(record):
        return Executed({{"found": True}})
"""


@pytest.fixture
def module(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    name = f"redis_shop_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(MODULE).format(url=shop.url))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield f"{name}:idempotency"
    sys.modules.pop(name, None)


def test_reconcile(shop: Shop, module: str) -> None:
    lost = shop.lost("a")
    assert [one["id"] for one in samekey("reconcile", module, "--dry-run", "--json").json] == [lost]
    assert samekey("reconcile", module).out.startswith("1 asked about, 1 found out.")
    assert shop.state(lost) == str(State.COMPLETED)


def test_there_is_nothing_to_migrate(shop: Shop) -> None:
    ran = samekey("migrate", shop.url)
    assert ran.code == 0 and "Redis has no tables: there is nothing to migrate." in ran.out


def test_the_doctor_is_content(shop: Shop, module: str) -> None:
    shop.done("a")
    ran = shop.run("doctor")
    assert (ran.code, ran.out.splitlines()[0]) == (0, "All is well."), ran.out
    seen = shop.run("doctor", "--json").json
    assert (seen["healthy"], seen["figures"]["records"]) == (True, 1)
    assert any(name.endswith("maxmemory_policy") for name in seen["facts"])
    assert samekey("doctor", "--url", module).code == 0


def test_the_doctor_finds_what_can_make_redis_forget() -> None:
    with RedisServer.start() as server, connect(server.url) as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        client.config_set("appendonly", "no")
        ran = samekey("doctor", "--url", server.url, "--json")
        assert ran.code == 1
        found = {one["code"]: one["level"] for one in ran.json["findings"]}
        assert found == {"eviction": "problem", "persistence": "problem"}
        assert "may evict keys" in samekey("keys", "list", "--url", server.url).sentence
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("appendonly", "yes")
        client.config_set("appendfsync", "everysec")
        ran = samekey("doctor", "--url", server.url, "--json")
        assert (ran.code, [one["code"] for one in ran.json["findings"]]) == (0, ["fsync"])


def test_what_is_weak_is_not_said_again_by_every_command(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    samekey("doctor", "--url", redis_url)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_an_operators_answer_is_encrypted_where_the_others_are(redis_url: str) -> None:
    secret = Fernet.generate_key().decode()
    shop = Shop(redis_url, encryption=fernet(secret))
    shop.done("a")
    lost = shop.lost("b")
    resolve = ("keys", "resolve", lost, "--executed", "--result", '"late"', *WHY)
    assert "are encrypted, and yours would not be" in shop.run(*resolve).sentence
    assert shop.run(*resolve, "--encryption-key", secret).code == 0
    assert shop.idempotency.once(tenant="ann", key="b", run=lambda: pytest.fail("it ran")) == "late"
    assert all(
        b"late" not in value for row in records(plain_client(redis_url)).values() for value in row.values()
    )
    shop.idempotency.close()
