"""The tour: its steps in order, and what they all use.

A step is a function that makes claims about what happened inside, and checks each one as it prints it. Where
something must die in the middle, it waits for a sign that the middle has come (a line in the provider's
ledger, a row that is written and not committed), never for a time.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx2 as httpx

from examples.provider import Kind
from lab.processes import ProcessFailed, wait_until
from samekey.cli.target import FoundKey
from samekey.errors import SamekeyError

from .client import Client
from .show import Screen, path_of
from .stage import PATIENCE, Account, Stage

Body = dict[str, Any]
Move = tuple[str, ...]
"""A state, and who may have moved the key there."""


@dataclass(frozen=True, slots=True)
class Step:
    """``about`` says what the tour is going to do; what came of it is said by claims."""

    name: str
    title: str
    about: str
    run: Callable[["Tour"], None]
    needs: tuple[str, ...] = ()
    """Steps that come first, because this one goes on with their key."""


class Tour:
    """Screen, stage and client, and what the steps have set in motion so far."""

    def __init__(self, screen: Screen, stage: Stage, client: Client) -> None:
        self.screen = screen
        self.stage = stage
        self.client = client
        self.claim = screen.claim
        self.moved: list[tuple[Kind, str, int]] = []
        """All money that the tour's operations should have moved: kind, reference, amount."""

    def run(self, steps: Iterable[Step]) -> None:
        """A step that breaks off has not kept its promise; the next one is tried all the same."""
        for step in steps:
            with self.screen.step(step.title, step.about):
                try:
                    step.run(self)
                except (
                    OSError,
                    httpx.HTTPError,
                    SamekeyError,
                    ProcessFailed,
                    LookupError,
                    ValueError,
                ) as error:
                    self.claim(f"This step came to its end ({type(error).__name__}: {error}).", False)
                self.stage.set_right()

    # Steps speak of these

    def moves(self, kind: Kind, reference: str, amount: int) -> None:
        """Money is about to be moved, once."""
        self.moved.append((kind, reference, amount))

    def look_up(self, account: Account, key: str) -> FoundKey:
        return self.stage.look_up(account, self.client.first_key(account, key))

    def went(self, account: Account, key: str, mode: str, *expected: Move) -> None:
        """Claims the mode of a key, and its states with who moved it, as the audit table has them."""
        found = self.look_up(account, key)
        held = len(found.timeline) == len(expected) and all(
            step.after == state and step.actor in actors
            for step, (state, *actors) in zip(found.timeline, expected, strict=True)
        )
        told = "none" if found.record is None else str(found.record.mode)
        self.claim(f"{key} ({told}): {path_of(found.timeline)}", held and told == mode)

    def wait_for_state(self, account: Account, key: str, state: str) -> None:
        def is_there() -> bool:
            timeline = self.look_up(account, key).timeline
            return bool(timeline) and timeline[-1].after == state

        wait_until(is_there, PATIENCE, interval=0.05)

    @contextmanager
    def silence(self, reference: str) -> Iterator[None]:
        """The provider moves the money and keeps silent. Inside, it has moved; afterwards it talks again."""
        self.stage.provider.fail("charge_then_time_out", reference=reference)
        yield
        self.stage.provider.recover()

    def wait_for_entry(self, reference: str) -> None:
        """Until the provider has moved the money."""
        wait_until(lambda: self.stage.entries(reference), PATIENCE)

    def asked(self) -> int:
        """How often the provider was asked to move money."""
        return self.stage.provider.figures()["requests"]

    def count(self, table: str, reference: str) -> int:
        """Committed rows in one of the service's tables."""
        (found,) = self.stage.rows(f"select count(*) from {table} where reference = ?", reference)  # noqa: S608
        return int(found[0])

    def row(self, table: str, reference: str) -> tuple[Any, ...]:
        """Status and provider's id, as the service's own books have them."""
        (found,) = self.stage.rows(
            f"select status, provider_id from {table} where reference = ? limit 1",  # noqa: S608
            reference,
        )
        return tuple(found)

    def stock(self, item: str) -> int:
        (found,) = self.stage.rows("select quantity from stock where item = ?", item)
        return int(found[0])


def ledgers(tour: Tour) -> None:
    """The last step: both sides, side by side."""
    entries = tour.stage.provider.entries()
    tour.screen.plain("   The provider's ledger, from its own file:")
    for entry in entries:
        amount = f"{entry.amount / 100:>9.2f}"
        tour.screen.plain(f"     {entry.id:<6} {entry.kind:<9} {entry.reference:<11} {amount}")
    tour.claim(
        "Every operation of this tour stands there once, and nothing else.",
        sorted((entry.kind, entry.reference, entry.amount) for entry in entries) == sorted(tour.moved),
    )
    tour.screen.request("samekey ledger run examples.payments.app:idempotency --json")
    exit_code, text = tour.stage.compare_ledgers()
    report = json.loads(text) if text else {}
    tour.screen.plain(f"     exit code {exit_code}: {json.dumps(report)}")
    tour.claim(
        "The service's own books agree with it: nothing missing, nothing extra, nothing different.",
        exit_code == 0
        and not any(report[name] for name in ("missing", "extra", "different", "duplicated"))
        and report["equal"] == len(entries),
    )


def chosen(steps: Sequence[Step], names: Sequence[str]) -> list[Step]:
    """The steps of these names and those that they need, in order; all of them if there are no names."""
    wanted = set(names or (step.name for step in steps))
    for step in reversed(steps):
        if step.name in wanted:
            wanted.update(step.needs)
    return [step for step in steps if step.name in wanted]
