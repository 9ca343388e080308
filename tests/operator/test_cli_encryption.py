"""The commands on a store whose answers are encrypted: readable with the keys, the rest without."""

from __future__ import annotations

import json

import pytest
from cryptography.fernet import Fernet

from samekey import Idempotency
from samekey.core.program import home_of
from samekey.encryption import fernet
from tests.operator.command import Ran, samekey
from tests.operator.world import World

OLD, NEW = (Fernet.generate_key().decode() for _ in range(2))


@pytest.fixture
def secretive(world: World) -> World:
    """A store with one encrypted answer."""
    engine = Idempotency(world.url, encryption=fernet(OLD))
    engine.once(tenant="acme", key="k", run=lambda: {"card": "4242"})
    engine.close()
    return world


def run(world: World, *arguments: str, env: dict[str, str] | None = None) -> Ran:
    return samekey(*arguments, "--url", world.url, env=env)


def answer_of(world: World, operation_id: str) -> bytes:
    [(body,)] = world.sql("select answer_body from {keys} where id = ?", operation_id)
    return bytes(body)


def test_without_the_keys_everything_else_is_shown(secretive: World) -> None:
    [listed] = run(secretive, "keys", "list", "--json").json["records"]
    assert listed["state"] == "completed"
    shown = run(secretive, "keys", "show", listed["id"], "--body")
    assert shown.code == 0 and "4242" not in shown.out
    assert "not shown: " in shown.out and "timeline" not in shown.err


def test_with_a_key_the_body_is_shown(secretive: World) -> None:
    [listed] = run(secretive, "keys", "list", "--json").json["records"]
    for arguments, env in (
        (("--encryption-key", OLD), {}),
        (("--encryption-key", NEW, "--encryption-key", OLD), {}),
        ((), {"SAMEKEY_ENCRYPTION_KEYS": f"{NEW} {OLD}"}),
    ):
        shown = run(secretive, "keys", "show", listed["id"], "--body", "--json", *arguments, env=env)
        assert json.loads(shown.json["record"]["answer"]["body"]) == {"card": "4242"}


def test_an_operators_answer_is_no_easier_to_read(secretive: World) -> None:
    record = secretive.unknown()
    order = ("keys", "resolve", record.id, "--executed", "--status", "201", "--body", "4242", "--reason", "r")
    ran = run(secretive, *order)
    assert ran.code == 1 and "--encryption-key" in ran.sentence
    assert secretive.read(record).state == "unknown"
    assert run(secretive, *order, "--encryption-key", NEW, "--encryption-key", OLD).code == 0
    assert b"4242" not in answer_of(secretive, record.id)
    engine = Idempotency(secretive.url, encryption=fernet(NEW, OLD))
    found = engine.engine.drivers.sync.execute(
        engine.engine.queries.statement("find_by_id", None, id=record.id)
    )
    assert b"4242" in found[0]
    engine.close()


def test_a_dead_letter_too(secretive: World) -> None:
    record = secretive.dead()
    order = ("dead", "discard", record.id, "--body", "4242", "--reason", "r")
    assert run(secretive, *order).code == 1
    assert run(secretive, *order, "--encryption-key", OLD).code == 0
    assert b"4242" not in answer_of(secretive, record.id)


def test_what_stores_no_answer_needs_no_key(secretive: World) -> None:
    record = secretive.unknown()
    assert run(secretive, "keys", "resolve", record.id, "--not-executed", "--reason", "r").code == 0
    [done] = run(secretive, "keys", "list", "--state", "completed", "--json").json["records"]
    assert run(secretive, "keys", "evict", done["id"], "--reason", "erasure").code == 0
    assert secretive.sql("select answer_body from {keys} where id = ?", done["id"]) == [(None,)]
    assert run(secretive, "keys", "evict", done["id"], "--reason", "again").code == 1


def test_a_store_in_the_clear_needs_none(world: World) -> None:
    world.completed()
    record = world.unknown()
    order = ("keys", "resolve", record.id, "--executed", "--status", "200", "--body", "x", "--reason", "r")
    assert run(world, *order).code == 0


def test_a_key_that_is_none(lite: World) -> None:
    ran = run(lite, "keys", "show", "x", "--encryption-key", "hunter2")
    assert ran.code == 2 and "not a Fernet key" in ran.sentence


def test_payloads_of_dead_jobs(world: World) -> None:
    record, job = world.dead_job()
    cipher = fernet(OLD)
    home = home_of("payload", job).encode()
    plain = len(home).to_bytes(4, "big") + home + b"four two four two"
    sealed = b"\x00samekey-encrypted-2\x00" + cipher.encrypt(plain)
    world.sql("update {jobs} set payload = ?", sealed)
    assert "four" not in run(world, "dead", "show", job, "--payload").out
    assert "four two" in run(world, "dead", "show", record.id, "--payload", "--encryption-key", OLD).out
