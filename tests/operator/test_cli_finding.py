"""How an operator finds a record: by what the provider knows, by endpoint, tenant, state and time, by how its
id begins; and that what is printed can be read on a terminal of 80 columns and in a pipe."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer.main

from samekey.cli.app import app
from samekey.core.effects import Sent, SentStep
from samekey.core.record import Record
from samekey.core.states import Mode, State
from samekey.stores.sql import looking
from tests.operator.command import Ran, samekey
from tests.operator.world import ANSWER, DAY, HOUR, MINUTE, TENANT, World

TERMINAL = {"COLUMNS": "80"}


def keys(world: World, *arguments: str, env: dict[str, str] | None = None) -> Ran:
    return samekey("keys", *arguments, "--url", world.url, env=env)


def found(world: World, *arguments: str) -> list[str]:
    ran = keys(world, "list", "--json", *arguments)
    assert ran.code == 0, ran.err
    return [row["id"] for row in ran.json["records"]]


def called(world: World, key: str, provider_id: str, tenant: str = TENANT) -> Record:
    """A leased call that the provider has made something for."""
    record = world.claim(key, tenant=tenant)
    sent = Sent((SentStep("charge", record.downstream_key("charge"), provider_id, "cards"),))
    world.run(lambda: world.keys.complete(record.lease(MINUTE), ANSWER, sent=sent))
    return record


# ------------------------------------------------------------------ by what


def test_by_what_the_provider_knows(world: World) -> None:
    mine, other = called(world, "a", "ch_1"), called(world, "b", "ch_2")
    theirs = called(world, "c", "ch_1", tenant="beta")
    assert set(found(world, "--provider-id", "ch_1")) == {mine.id, theirs.id}
    assert found(world, "--provider-id", "ch_1", "--tenant", TENANT) == [mine.id]
    assert found(world, "--provider-id", "ch_9") == []
    assert found(world, "--downstream-key", other.downstream_key("charge")) == [other.id]
    assert found(world, "--downstream-key", "nobody's") == []


def test_a_job_is_found_by_the_provider_s_id(world: World) -> None:
    record, job = world.dead_job()
    world.sql("update {jobs} set provider_id = 'po_7' where id = ?", job)
    assert found(world, "--provider-id", "po_7") == [record.id]


def test_by_endpoint_and_time(world: World) -> None:
    old = world.completed("a", at=-2 * DAY, endpoint="POST /refunds")
    young = world.completed("b", endpoint="POST /refunds")
    world.completed("c")
    lost = world.unknown("d", endpoint="POST /refunds")
    assert set(found(world, "--endpoint", "POST /refunds")) == {old.id, young.id, lost.id}
    assert found(world, "--endpoint", "POST /refunds", "--older-than", "1d") == [old.id]
    assert set(found(world, "--endpoint", "POST /refunds", "--newer-than", "1d")) == {young.id, lost.id}
    assert found(world, "--endpoint", "POST /refunds", "--state", "unknown") == [lost.id]
    assert set(found(world, "--endpoint", "POST /refunds", "--tenant", TENANT)) == {old.id, young.id, lost.id}
    assert found(world, "--endpoint", "POST /nothing") == []


def test_a_tenant_s_calls_are_found_with_its_requests(world: World) -> None:
    world.completed("a")
    world.engine.once(tenant=TENANT, key="k", name="book", run=lambda: 1)
    world.completed("b", tenant=TENANT + "x")
    assert len(found(world, "--tenant", TENANT)) == 2
    assert len(found(world, "--tenant", TENANT, "--key", "k")) == 1


def test_a_search_that_no_index_helps_is_bounded_and_says_so(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    rare = world.completed("rare", endpoint="POST /rare", at=-3 * HOUR)
    for number in range(4):
        world.completed(f"k{number}", at=-number * MINUTE)
    monkeypatch.setattr(looking, "LOOKED_THROUGH", 3)
    monkeypatch.setattr("samekey.cli.keys.LOOKED_THROUGH", 3)
    ran = keys(world, "list", "--endpoint", "POST /rare")
    assert "There are no such records." in ran.out
    assert "Only the newest 3 records were looked through" in ran.out
    further = re.search(r"--older-than (\d+s)", ran.out)
    assert further is not None
    assert found(world, "--endpoint", "POST /rare", "--older-than", further[1]) == [rare.id]
    assert found(world, "--endpoint", "POST /rare", "--tenant", TENANT) == [rare.id], "an index leads there"


@pytest.mark.parametrize(
    "more", [("--endpoint", "POST /a"), ("--downstream-key", "x"), ("--state", "unknown")]
)
def test_ways_that_do_not_go_together(lite: World, more: tuple[str, str]) -> None:
    ran = keys(lite, "list", "--provider-id", "ch_1", *more)
    assert ran.code == 2 and "find by themselves" in ran.err


# ------------------------------------------------------------------ ids by how they begin


def test_an_id_by_how_it_begins(world: World) -> None:
    record = world.unknown("a")
    assert record.id in keys(world, "show", record.id[:8]).out
    why = ("--reason", "ticket", "--actor", "ann")
    ran = keys(world, "resolve", record.id[:12], "--not-executed", *why)
    assert ran.out.startswith(f"{record.id} was unknown and is failed_retryable now")
    record, job = world.dead_job()
    assert record.id in samekey("dead", "show", job[:9], "--url", world.url).out
    done = world.completed("b")
    assert keys(world, "evict", done.id[:8], *why).code == 0


def test_beginnings_that_are_too_short_or_fit_several(world: World) -> None:
    first, second = world.unknown("a"), world.unknown("b")
    for record, name in ((first, "abcdef01"), (second, "abcdef02")):
        world.sql("update {keys} set id = ? where id = ?", name, record.id)
        world.sql("update {audit} set operation_id = ? where operation_id = ?", name, record.id)
    ran = keys(world, "show", "abcdef")
    assert ran.code == 1 and "Several ids begin with abcdef: abcdef01, abcdef02" in ran.sentence
    assert "too short" in keys(world, "show", "abc").sentence
    assert keys(world, "show", "abcdef01").code == 0
    ran = keys(world, "extend", "ffffffff", "--by", "1h", "--reason", "x")
    assert ran.code == 1 and "There is no operation ffffffff" in ran.sentence


def test_a_record_that_is_gone_is_found_by_how_its_id_began(world: World) -> None:
    record = world.completed("a")
    world.sql("delete from {keys} where id = ?", record.id)
    assert "The record is gone" in keys(world, "show", record.id[:10]).out


# ------------------------------------------------------------------ shown


def test_every_phase_and_every_job_is_shown(world: World) -> None:
    record = world.phased("a", at=-HOUR)
    ran = keys(world, "show", record.id)
    assert re.search(r"^charge +effect +open", ran.out, re.MULTILINE)
    [phase] = keys(world, "show", record.id, "--json").json["phases"]
    assert (phase["name"], phase["done"], phase["done_at"]) == ("charge", False, None)
    record, job = world.pending("b", second=True)
    jobs = keys(world, "show", record.id, "--json").json["jobs"]
    assert {one["name"] for one in jobs} == {"settle", "notify"}
    assert job in keys(world, "show", record.id).out


@pytest.mark.parametrize("state", [State.UNKNOWN, State.COMPLETED, State.DEAD_LETTER])
def test_a_list_fits_a_terminal_of_80_columns(lite: World, state: State) -> None:
    {"unknown": lite.unknown, "completed": lite.completed, "dead_letter": lite.dead}[state]("a")
    lite.sql("update {keys} set endpoint = ?, error_code = 'ProviderUnclear'", "POST /payments/{id}/refunds")
    [identifier] = [row[0] for row in lite.sql("select id from {keys}")]
    out = keys(lite, "list", env=TERMINAL).out
    assert max(len(line) for line in out.splitlines()) <= 80
    assert identifier[:12] in out and state in out, "they are not broken"
    assert keys(lite, "show", identifier[:12]).code == 0


def test_what_is_copied_is_on_one_line(lite: World) -> None:
    record = called(lite, "a", "ch_" + "1" * 90)
    out = keys(lite, "show", record.id, env=TERMINAL).out
    assert record.downstream_key("charge") in out and "ch_" + "1" * 90 in out


def test_each_command_to_paste_is_a_line_of_its_own(lite: World) -> None:
    record = lite.unknown("a")
    lines = keys(lite, "show", record.id).out.splitlines()
    for outcome in ("--executed", "--declined", "--not-executed"):
        [line] = [line for line in lines if outcome in line]
        assert line.startswith(f"  samekey keys resolve {record.id} {outcome}") and "\\n" not in line


def test_one_record_is_one_line_in_a_pipe(lite: World) -> None:
    record = lite.unknown("a", endpoint="POST /" + "long/" * 60)
    lines = keys(lite, "list").out.splitlines()
    assert len(lines) == 3 and record.id in lines[2] and "long/" * 60 in lines[2]


def test_states_have_colours_on_a_terminal_only(lite: World) -> None:
    lite.unknown("a")
    assert "\x1b[" not in keys(lite, "list").out
    coloured = {"FORCE_COLOR": "1", "TERM": "xterm-256color", "COLUMNS": "100"}
    assert re.search(r"\x1b\[[\d;]*31m *unknown", keys(lite, "list", env=coloured).out)


# ------------------------------------------------------------------ the command itself


def commands() -> list[tuple[str, ...]]:
    def below(command: object, path: tuple[str, ...]) -> list[tuple[str, ...]]:
        children = getattr(command, "commands", {})
        return [path, *(one for name, child in children.items() for one in below(child, (*path, name)))]

    return below(typer.main.get_command(app), ())


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_help_is_whole_at_80_columns(command: tuple[str, ...]) -> None:
    out = samekey(*command, "--help", env=TERMINAL).out
    group: object = typer.main.get_command(app)
    for name in command:
        group = group.commands[name]  # type: ignore[attr-defined]
    for parameter in group.params:  # type: ignore[attr-defined]
        for option in parameter.opts:
            assert not option.startswith("--") or option in out
    assert "…" not in out.replace("://…", "").replace("'…'", "")


def test_the_version() -> None:
    ran = samekey("--version")
    assert ran.code == 0 and re.fullmatch(r"samekey \d+\.\d+\S*\n", ran.out)


def test_the_store_may_be_named_by_the_application(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "shop_of_" + world.engine.engine.drivers.dialect
    (tmp_path / f"{name}.py").write_text(
        f"from samekey import Idempotency\nidempotency = Idempotency({world.url!r}, digest_secret=b'ours')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    record = world.unknown("a")
    target = ("--url", f"{name}:idempotency")
    digest = samekey("keys", "show", record.id, "--json", *target).json["record"]["digest"]
    assert (
        digest
        == samekey("keys", "show", record.id, "--json", "--url", world.url, "--digest-secret", "ours").json[
            "record"
        ]["digest"]
    )
    for words in (("sweep",), ("reap",), ("doctor",), ("dead", "list"), ("evidence", "list"), ("migrate",)):
        assert samekey(*words, *target).code in (0, 1)
    ran = samekey("keys", "list", "--url", "no_such_shop:idempotency")
    assert ran.code == 2 and "There is no module" in ran.sentence


def test_every_list_is_an_object_whose_records_are_alike(world: World) -> None:
    world.dead("a")
    [listed] = keys(world, "list", "--json").json["records"]
    dead = samekey("dead", "list", "--json", "--url", world.url).json
    shown = keys(world, "show", listed["id"], "--json").json["record"]
    assert dead["records"] == [listed] and {name: shown[name] for name in listed} == listed
    assert samekey("evidence", "list", "--json", "--url", world.url).json == {"events": []}
    assert Mode(listed["mode"]) is Mode.LEASED
