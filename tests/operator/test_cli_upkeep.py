"""``samekey sweep``, ``samekey reap`` and ``samekey reconcile``: one pass by hand, or only its figures."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from samekey.core.states import Mode
from tests.operator.command import Ran, samekey
from tests.operator.world import DAY, HOUR, World


def run(world: World, command: str, *arguments: str) -> Ran:
    return samekey(command, *arguments, "--url", world.url)


# ------------------------------------------------------------------ sweep


def test_sweep(world: World) -> None:
    for mode in (Mode.LEASED, Mode.LEASED, Mode.REPEATABLE):
        world.claim(mode=mode, at=-HOUR)
    world.phased(at=-HOUR, begun=False)
    dry = run(world, "sweep", "--dry-run", "--json")
    assert dry.json == {"dry_run": True, "total": 4, "by_mode": {"leased": 2, "phased": 1, "repeatable": 1}}
    assert world.count("keys", "state = 'in_progress'") == 4
    ran = run(world, "sweep", "--batch", "1")
    assert (ran.code, ran.out.splitlines()[0]) == (0, "4 records moved.")
    rows = [line.split() for line in ran.out.splitlines()[3:]]
    assert rows == [
        ["leased", "unknown", "2"],
        ["phased", "failed_retryable", "1"],
        ["repeatable", "failed_retryable", "1"],
    ]
    assert ran.err == "", "the log's lines are not repeated"
    assert run(world, "sweep").out == "0 records moved.\n"


# ------------------------------------------------------------------ reap


def test_reap(world: World) -> None:
    for _ in range(5):
        world.completed(at=-3 * DAY)
    world.unknown(at=-3 * DAY)
    world.pending(at=-2 * DAY, ttl=30 * DAY)
    dry = run(world, "reap", "--dry-run", "--json")
    assert dry.json == {"dry_run": True, "timed_out": 1, "reaped": 5, "tombstones": False}
    assert world.count("keys") == 7
    ran = run(world, "reap", "--batch", "2", "--json")
    assert ran.json == {"dry_run": False, "timed_out": 1, "reaped": 5, "tombstones": False}
    assert sorted(state for (state,) in world.sql("select state from {keys}")) == ["completed", "unknown"]
    assert run(world, "reap").out.split() == ["timed", "out", "0", "deleted", "0"]


def test_reap_with_a_patience_of_ones_own(world: World) -> None:
    record, _ = world.pending(at=-2 * HOUR)
    assert run(world, "reap", "--json").json["timed_out"] == 0
    assert run(world, "reap", "--json", "--pending-timeout", "90m").json["timed_out"] == 1
    assert world.read(record).state == "completed"


@pytest.mark.parametrize(
    "options", [(), ("--tombstones", "--keep-tombstones", "1s")], ids=["reap", "tombstones"]
)
def test_reap_never_lets_a_key_run_again_that_is_gone(world: World, options: tuple[str, ...]) -> None:
    """The command knows no policy: the record itself says what follows its expiry."""
    record = world.completed("k", at=-3 * DAY, after_expiry="gone")
    for _ in range(3):
        assert run(world, "reap", "--json", *options).code == 0
        assert world.read(record).state == "expired"
        world.sql("update {keys} set expires_at = 1")


def test_reap_to_tombstones(world: World) -> None:
    record = world.completed(at=-3 * DAY)
    ran = run(world, "reap", "--tombstones", "--keep-tombstones", "7d", "--json")
    assert ran.json["reaped"] == 1
    stone = world.read(record)
    assert stone.state == "expired"
    assert 6 * DAY < stone.expires_at - world.now < 8 * DAY


# ------------------------------------------------------------------ reconcile

MODULE = """
    from samekey import Executed, Idempotency, Response, StillUnknown

    idempotency = Idempotency({url!r})

    @idempotency.lookup("POST /payments")
    def find(record):
        return Executed(Response(201, {{"found": True}}))

    @idempotency.lookup("POST /slow")
    async def cannot_tell(record):
        return StillUnknown
"""


@pytest.fixture
def shop(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module with an application's lookups."""
    name = f"shop_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(MODULE).format(url=world.url))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield name
    sys.modules.pop(name, None)


def test_reconcile(world: World, shop: str) -> None:
    found, slow = world.unknown(), world.unknown(endpoint="POST /slow")
    nobody = world.unknown(endpoint="POST /nobody")
    dry = samekey("reconcile", f"{shop}:idempotency", "--dry-run", "--json")
    assert {one["id"]: one["lookup"] for one in dry.json} == {found.id: True, slow.id: True, nobody.id: False}
    assert world.states([found, slow, nobody]) == ["unknown"] * 3
    ran = samekey("reconcile", f"{shop}:idempotency", "--batch", "2")
    assert ran.code == 0, ran.err
    assert ran.out.startswith("3 asked about, 1 found out.")
    lines = {line.split()[0]: line for line in ran.out.splitlines() if line}
    assert "completed" in lines[found.id] and "the lookup said Executed" in lines[found.id]
    assert "the provider cannot tell yet" in lines[slow.id]
    assert "there is no lookup for this endpoint" in lines[nobody.id]
    assert world.states([found, slow, nobody]) == ["completed", "unknown", "unknown"]


def test_reconcile_gives_up(world: World, shop: str) -> None:
    record = world.unknown(endpoint="POST /slow")
    ran = samekey("reconcile", f"{shop}:idempotency", "--max-tries", "1", "--json")
    assert [(one["id"], one["became"]) for one in ran.json] == [(record.id, "dead_letter")]


def test_nothing_to_ask(world: World, shop: str) -> None:
    ran = samekey("reconcile", f"{shop}:idempotency")
    assert (ran.code, ran.out) == (0, "0 asked about, 0 found out.\n")


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("nowhere", "names nothing: write module:name"),
        ("no_such_module:idempotency", "There is no module"),
        ("json:dumps", "is not an Idempotency"),
        ("broken_module:x", "could not be imported: ZeroDivisionError"),
    ],
)
def test_a_target_that_is_none(
    target: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_module.py").write_text("1 / 0")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    ran = samekey("reconcile", target)
    assert ran.code == 2 and sentence in ran.sentence
