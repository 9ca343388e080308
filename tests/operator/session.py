"""The sessions of docs/operations.md, played: each command is run, in order, against a shop that has trouble.

``python -m tests.operator.session`` writes the outputs anew, and the tables of options. Between commands the
page may say ``<!-- prepare: name -->``, which makes trouble by the function of that name below, and
``<!-- exit: 1 -->``, which says how the next command ends.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer.main

from samekey import Executed, Response
from samekey.cli.app import app
from samekey.core.effects import Sent, SentStep
from samekey.core.record import Answer, Record
from samekey.stores.protocols import Actor
from tests.operator.command import Ran, samekey
from tests.operator.world import ANSWER, DAY, HOUR, MINUTE, SECOND, World

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"
PIECE = re.compile(
    r"<!-- (?P<verb>prepare|exit): (?P<word>\w+) -->|^```console\n(?P<block>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
URL = "sqlite:///shop.db"
SHOP = """\
from samekey import Executed, Idempotency, Response, StillUnknown

idempotency = Idempotency("sqlite:///shop.db")

@idempotency.lookup("POST /refunds")
def find_refund(record):
    return Executed(Response(201, {"refund": "re_7"}))
"""
IDS = {
    "payment": "8c1f5e0a94b7d2638f1ea20d9c64b7e3",
    "transfer": "2b7d90c41ef85a36b0c7143fd8e9a652",
    "job": "d40e6b92c8f1573aa9b2e07c5d13f846",
    "second transfer": "71fa3c5d0b9e4826d1a87ec4903b5f62",
    "second job": "e59d08a7b3c46f12905e8d7ca1f2b430",
    "refund": "a6c2f817de094b53917b0e5dc3f8a24d",
    "invoice": "09be47d1c35a8f62e7d0b1946a2cf8e3",
    "order": "f3905b7c1d2e4a6889d0c7e1b5a4f362",
    "fee": "5d21c8b07f3e4a9690d1e6c2b5f8a743",
    "one": "3e8b01f6a7d94c25b86f0e12d7c9543a",
    "another": "b4d7720e91c35f68a0e4c81f36d25b97",
}
"""Fixed, so that the page does not change with every run."""


# ------------------------------------------------------------------ trouble


def _name(world: World, record: Record, name: str) -> None:
    world.sql("update {keys} set id = ? where id = ?", IDS[name], record.id)
    for table in ("audit", "jobs", "effects", "evidence"):
        world.sql(f"update {{{table}}} set operation_id = ? where operation_id = ?", IDS[name], record.id)


def _age(world: World, by: int) -> None:
    """The audit has a clock of its own; for the reader it tells the same story."""
    world.sql("update {audit} set at = at - ? where at > ?", by, world.now - MINUTE)


def unknown_payment(world: World) -> None:
    """A card was charged, or not: the provider's answer never came. The reconciler could not tell either."""
    ago = 3 * HOUR + 5 * SECOND
    record = world.claim("order-1042", at=-ago, lease=HOUR)
    sent = Sent((SentStep("", record.downstream_key(), None, "cards"),))
    world.run(lambda: world.keys.lose(record.lease(HOUR), "OutcomeUnknown", sent=sent, now=world.now - ago))
    world.sql("update {keys} set reconcile_after = reconcile_after + ?", ago + HOUR)
    _name(world, record, "payment")
    _age(world, ago)


def dead_job(world: World) -> None:
    """Two transfers whose worker has tried all it could."""
    for name, job_name in (("transfer", "job"), ("second transfer", "second job")):
        record, job = world.dead_job(f"key of the {name}", at=-20 * MINUTE)
        _name(world, record, name)
        world.sql("update {jobs} set id = ? where id = ?", IDS[job_name], job)
        world.sql("update {effects} set place = ? where place = ?", IDS[job_name], job)
    world.sql("update {jobs} set error = 'ConnectionError: bank.example refused', attempts = 10")
    _age(world, 20 * MINUTE)


def stored_answer(world: World) -> None:
    _name(world, world.completed("key of the order", endpoint="POST /orders"), "order")


def remembered_failure(world: World) -> None:
    """A transfer that the bank declined, for a reason that is gone."""
    record = world.claim("key of the fee")
    sent = Sent((SentStep("", record.downstream_key(), None, "bank"),))
    declined = Answer(402, (), b"declined")
    world.run(lambda: world.keys.complete(record.lease(HOUR), declined, sent=sent))
    _name(world, record, "fee")


def old_audit(world: World) -> None:
    """Lines of keys that are long gone."""
    for number in range(40):
        world.completed(f"former {number}", at=-3 * DAY)
    world.sql("update {audit} set at = at - ? where key like 'former %'", 500 * DAY)
    world.sql("delete from {keys} where key like 'former %'")


def ended_leases(world: World) -> None:
    for number in range(3):
        world.claim(f"lease {number}", at=-10 * MINUTE)
    world.sql("update {keys} set reconcile_after = null where state = 'in_progress'")


def past_retention(world: World) -> None:
    # What the sweep has made unknown was found out meanwhile.
    for (found,) in world.sql("select id from {keys} where state = 'unknown'"):
        world.run(lambda found=found: world.operator.executed(found, ANSWER, Actor("reconciler", "lookup")))  # type: ignore[misc]
    for number in range(1200):
        world.completed(f"old {number}", at=-3 * DAY)


def unknown_refund(world: World) -> None:
    _name(world, world.unknown("key of the refund", endpoint="POST /refunds", at=-5 * MINUTE), "refund")
    _name(world, world.unknown("key of the invoice", endpoint="POST /invoices", at=-6 * MINUTE), "invoice")


def ambiguous_event(world: World) -> None:
    """Two payouts have the same id at the provider, and its event names that alone."""
    for name in ("one", "another"):
        record = world.claim(f"key of {name} payout")
        sent = Sent((SentStep("", record.downstream_key(), "po_5", "cards"),))
        world.run(
            lambda record=record, sent=sent: world.keys.lose(  # type: ignore[misc]
                record.lease(MINUTE), "TimeoutError", sent=sent
            )
        )
        _name(world, record, name)
    world.tell(Executed(Response(201)), "evt_77", provider_id="po_5", tenant="acme")


PREPARE: dict[str, Callable[[World], None]] = {
    function.__name__: function
    for function in (
        unknown_payment,
        dead_job,
        stored_answer,
        remembered_failure,
        old_audit,
        ended_leases,
        past_retention,
        unknown_refund,
        ambiguous_event,
    )
}


# ------------------------------------------------------------------ playing


@dataclass(frozen=True)
class Played:
    """A block of the page: its commands with what they gave, and how they were expected to end."""

    start: int
    end: int
    text: str
    commands: list[tuple[str, Ran]]
    expected: int


@contextmanager
def shop() -> Iterator[None]:
    """A directory with the shop in it, as the current one."""
    here, path = os.getcwd(), [*sys.path]
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        Path("shop.py").write_text(SHOP)
        World(URL).close()
        sys.modules.pop("shop", None)  # another test's, perhaps
        try:
            yield
        finally:
            os.chdir(here)
            sys.path[:] = path
            sys.modules.pop("shop", None)


def play(page: str) -> list[Played]:
    """Runs every command of the page."""
    played, expected = [], 0
    with shop():
        for piece in PIECE.finditer(page):
            if piece["verb"] == "prepare":
                world = World(URL)
                try:
                    PREPARE[piece["word"]](world)
                finally:
                    world.close()
            elif piece["verb"] == "exit":
                expected = int(piece["word"])
            else:
                lines = [line[2:] for line in piece["block"].splitlines() if line.startswith("$ ")]
                commands = [(line, run(line)) for line in lines if line.startswith("samekey ")]
                played.append(Played(*piece.span(), piece["block"], commands, expected))
                expected = 0
    return played


def run(line: str) -> Ran:
    program, *arguments = shlex.split(line)
    assert program == "samekey", line
    return samekey(*arguments, env={"SAMEKEY_URL": URL, "SAMEKEY_ACTOR": "ann", "COLUMNS": "80"})


def written(block: Played) -> str:
    """The block as it should stand in the page."""
    texts = [f"$ {line}\n{ran.out}{ran.err}" for line, ran in block.commands]
    return "```console\n" + "\n".join(texts) + "```"


CHANGING = (
    (re.compile(r"(\d+ min) \d+ s\b"), r"\1"),
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ"), "<time>"),
    (re.compile(r"[+-]\d+ ms from this machine's"), "<skew>"),
    (re.compile(r"(bytes +)[\d,]+$", re.MULTILINE), r"\1<size>"),
    (re.compile(r"(sqlite version +)[\d.]+"), r"\1<version>"),
    (re.compile(r"\b\d+ ms\b|\b\d+(\.\d)? s\b"), "<moment>"),
)


def comparable(text: str) -> list[str]:
    """Without what changes from run to run; spaces that only line columns up do not count."""
    for pattern, word in CHANGING:
        text = pattern.sub(word, text)
    return [re.sub(r"[ ─]+", " ", line).strip() for line in text.splitlines()]


# ------------------------------------------------------------------ the tables of options


GROUPS = ("keys", "dead", "evidence", "audit", "sweep", "reap", "reconcile", "doctor")
"""The commands of an operator; the others have pages of their own."""


def commands() -> Iterator[tuple[str, Any]]:
    """Every command of an operator by its full name."""
    group: Any = typer.main.get_command(app)
    for name, command in group.commands.items():
        if name in GROUPS:
            below = getattr(command, "commands", None)
            yield from [(name, command)] if below is None else ((f"{name} {n}", c) for n, c in below.items())


def option_table(name: str, command: Any) -> str:
    """The section of a command: what it does, and each option with its variable."""
    lines = [
        f"### samekey {name}",
        "",
        " ".join(command.help.split()),
        "",
        "| | environment | |",
        "|---|---|---|",
    ]
    for parameter in command.params:
        if parameter.name == "help":
            continue
        option = parameter.opts[-1]
        label = option if option.startswith("--") else (parameter.metavar or option).strip("[]")
        said = parameter.help
        if parameter.metavar and option.startswith("--"):
            said = f"`{parameter.metavar}`, {said[0].lower()}{said[1:]}"
        if parameter.required:
            said += " Required."
        elif parameter.default not in (None, False, ""):
            said += (
                f" Default `{parameter.default:g}`."
                if isinstance(parameter.default, float)
                else (f" Default `{parameter.default}`.")
            )
        lines.append(f"| `{label}` | `{parameter.envvar}` | {said} |")
    return "\n".join([*lines, "| `--help` | | |"]) + "\n"


def with_tables(page: str) -> str:
    head = page[: page.index("### samekey ")]
    return head + "\n".join(option_table(name, command) for name, command in commands())


if __name__ == "__main__":
    source = with_tables(PAGE.read_text())
    for found in reversed(play(source)):
        if found.commands:
            source = source[: found.start] + written(found) + source[found.end :]
    PAGE.write_text(source)
