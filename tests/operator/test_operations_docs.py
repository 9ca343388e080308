"""docs/operations.md cannot rot: its sessions are played, its tables are held against the code."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main

import samekey.ops.doctor
import samekey.ops.doctor_servers
from samekey.cli.app import app
from samekey.engine.evidence.said import Resolution
from tests.operator.session import IDS, PAGE, PREPARE, URL, comparable, play, shop, unknown_payment, written
from tests.operator.world import World

TEXT = PAGE.read_text()


def commands() -> Iterator[tuple[str, Any]]:
    """Every command of an operator by its full name; the others have pages of their own."""
    group: Any = typer.main.get_command(app)
    for name, command in group.commands.items():
        if name not in ("keys", "dead", "evidence", "sweep", "reap", "reconcile", "doctor"):
            continue
        if hasattr(command, "commands"):
            for sub, inner in command.commands.items():
                yield f"{name} {sub}", inner
        else:
            yield name, command


COMMANDS = dict(commands())


def test_the_sessions_are_as_they_are_told() -> None:
    """``python -m tests.operator.session`` writes them anew."""
    played = play(TEXT)
    assert len(played) > 10
    for block in played:
        assert comparable(f"```console\n{block.text}```") == comparable(written(block))
        codes = [ran.code for _, ran in block.commands]
        assert codes[-1] == block.expected and set(codes[:-1]) <= {0}
        assert not any(ran.err for _, ran in block.commands)


def test_from_the_doctor_to_a_resolved_record() -> None:
    """The story of the night, checked where it matters: in the store."""
    night = TEXT[TEXT.index("## Three in the morning") : TEXT.index("### Which of the three")]
    with shop():
        world = World(URL)
        unknown_payment(world)
        assert world.read(IDS["payment"]).state == "unknown"
        world.close()
        from tests.operator import session

        for line in re.findall(r"^\$ (samekey .+)$", night, re.MULTILINE):
            ran = session.run(line)
        assert (ran.code, ran.out.splitlines()[0]) == (0, "All is well.")
        world = World(URL)
        record = world.read(IDS["payment"])
        assert record.answer is not None
        assert (record.answer.status, record.answer.body) == (201, b'{"payment": "ch_1042"}')
        assert world.story(record)[-1] == ("unknown", "completed", "ann")
        world.close()


def test_every_command_is_shown_with_its_output() -> None:
    shown = {
        name
        for block in play(TEXT)
        for line, _ in block.commands
        for name in COMMANDS
        if line.startswith(f"samekey {name}")
    }
    assert shown == set(COMMANDS)


def test_every_trouble_is_used() -> None:
    assert set(re.findall(r"<!-- prepare: (\w+) -->", TEXT)) == set(PREPARE)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_documented_with_its_variable(name: str) -> None:
    start = TEXT.index(f"### samekey {name}\n")
    end = TEXT.find("\n### ", start + 1)
    section = TEXT[start : end if end > 0 else None]
    described = dict(re.findall(r"^\| `([\w-]+)` \| `(\w+)` \| \S", section, re.MULTILINE))
    expected = {}
    for parameter in COMMANDS[name].params:
        if parameter.name == "help":
            continue
        option = parameter.opts[-1]
        label = option if option.startswith("--") else (parameter.metavar or option).strip("[]")
        assert parameter.envvar, f"{option} has no environment variable"
        expected[label] = parameter.envvar if isinstance(parameter.envvar, str) else parameter.envvar[0]
    assert described == expected


def test_nothing_is_documented_that_is_not_there() -> None:
    assert set(re.findall(r"^### samekey (.+)$", TEXT, re.MULTILINE)) == set(COMMANDS)


def test_one_variable_means_one_thing() -> None:
    """A variable that is set for one command must not break another: flags and texts do not share a name."""
    kinds: dict[str, set[str]] = {}
    for command in COMMANDS.values():
        for parameter in command.params:
            if parameter.name != "help":
                variable = parameter.envvar if isinstance(parameter.envvar, str) else parameter.envvar[0]
                flag = "flag" if getattr(parameter, "is_flag", False) else "value"
                kinds.setdefault(variable, set()).add(flag)
    assert {variable for variable, found in kinds.items() if len(found) > 1} == set()


def test_every_finding_is_explained() -> None:
    section = TEXT[TEXT.index("## What the doctor finds") : TEXT.index("## The audit")]
    described = set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE))
    rooms = (samekey.ops.doctor, samekey.ops.doctor_servers)
    codes = {
        node.args[0].value
        for room in rooms
        for node in ast.walk(ast.parse(inspect.getsource(room)))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "Diagnosis"
        and isinstance(node.args[0], ast.Constant)
    }
    assert described == codes


def test_every_resolution_is_explained() -> None:
    section = TEXT[TEXT.index("### If the provider tells") : TEXT.index("## Dead letters")]
    assert set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == {*Resolution}


def test_the_sql_runs(pg: World) -> None:
    pg.completed()
    pg.sql("drop table if exists payments")
    pg.sql("create table payments (cents integer)")
    for block in re.findall(r"^```sql\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL):
        for statement in block.split(";\n"):
            if statement.strip():
                pg.sql(statement)
    assert pg.count("audit") == 2, "nothing is that old"
    pg.sql("drop table payments")
