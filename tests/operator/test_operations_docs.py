"""docs/operations.md cannot rot: its sessions are played, its tables are held against the code."""

from __future__ import annotations

import ast
import inspect
import re
from importlib.resources import files

import samekey.ops.doctor
import samekey.ops.doctor_servers
import samekey.ops.doctor_tables
from samekey.engine.evidence.said import Resolution
from tests.chosen import whole
from tests.operator.session import (
    IDS,
    PAGE,
    PREPARE,
    URL,
    commands,
    comparable,
    play,
    shop,
    unknown_payment,
    with_tables,
    written,
)
from tests.operator.world import World

TEXT = PAGE.read_text()


COMMANDS = dict(commands())


@whole
def test_the_sessions_are_as_they_are_told() -> None:
    """``python -m tests.operator.session`` writes them anew."""
    played = play(TEXT)
    assert len(played) > 10
    for block in played:
        assert comparable(f"```console\n{block.text}```") == comparable(written(block))
        codes = [ran.code for _, ran in block.commands]
        assert codes[-1] == block.expected and set(codes[:-1]) <= {0}
        assert not any(ran.err for _, ran in block.commands if ran.code == 0)


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


def test_the_night_needs_only_what_the_tools_print() -> None:
    """From the alert to the resolved operation: whatever is typed was printed before, or is what the operator
    has found at the provider."""
    night = TEXT[TEXT.index("## Three in the morning") : TEXT.index("### Which of the three")]
    names = re.findall(r"alert: (\w+)", (files("samekey.ops") / "alerts.yml").read_text())
    assert any(f"`{name}`" in night for name in names), "it begins with an alert"
    printed = ""
    for block in re.findall(r"^```console\n(.*?)^```$", night, re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                for word in re.findall(r"\b[0-9a-f]{12,}\b", line):
                    assert word in printed, line
            else:
                printed += line + "\n"
    assert "All is well." in printed


@whole
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


def test_every_option_is_documented_with_its_variable() -> None:
    """``python -m tests.operator.session`` writes the tables anew."""
    assert with_tables(TEXT) == TEXT
    for name, command in COMMANDS.items():
        for parameter in command.params:
            assert parameter.name == "help" or parameter.envvar, f"{name} {parameter.name} has no variable"


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
    rooms = (samekey.ops.doctor, samekey.ops.doctor_servers, samekey.ops.doctor_tables)
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
