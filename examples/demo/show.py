"""What the tour prints: requests, answers, the states of a key, and claims, which are counted.

On a terminal there is colour, and a line at the bottom that follows the states of the key in question. Into
a pipe or a file goes plain text.
"""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from samekey.errors import SamekeyError
from samekey.stores.sql.looking import Transition

LOOKS_PER_SECOND = 8
"""At the states of a key. Quick enough to see each one that lasts."""
HEADERS = ("Location", "Retry-After", "Idempotent-Replayed")


@dataclass(frozen=True, slots=True)
class Watched:
    """A key whose states are shown while a step goes on."""

    name: str
    look: Callable[[], Sequence[Transition]]


class Screen:
    """Prints, and keeps count of the claims."""

    def __init__(self, file: TextIO | None = None) -> None:
        file = file or sys.stdout
        # Nothing from the environment makes a terminal of what is none.
        self._console = Console(file=file, force_terminal=file.isatty(), highlight=False)
        self._watched: Watched | None = None
        self._seen = ""
        self._steps = 0
        self.claims = 0
        self.broken = 0

    # Lines

    def plain(self, text: str = "") -> None:
        self._print(Text(text))

    def title(self, text: str) -> None:
        self._print(Text(text, "bold"))

    def note(self, text: str) -> None:
        """What the tour is about to do."""
        self._print(Text(f"   {text}", "dim"))

    def event(self, text: str) -> None:
        """Something that the tour does to a process."""
        self._print(Text.assemble("   ", ("!", "bold red"), f" {text}"))

    def request(self, line: str, key: str | None = None, body: Any = None) -> None:
        told = "" if key is None else f"   Idempotency-Key: {key}"
        self._print(Text.assemble("   ", ("→", "yellow"), f" {line}{told}"))
        if body is not None:
            self._print(Text(f"     {json.dumps(body)}"))

    def answer(self, line: str, headers: Mapping[str, str], body: str) -> None:
        told = "".join(f"   {name}: {headers[name]}" for name in HEADERS if name in headers)
        self._print(Text.assemble("   ", ("←", "magenta"), f" {line}{told}"))
        self._print(Text(f"     {body}"))

    def no_answer(self, why: str) -> None:
        self._print(Text.assemble("   ", ("←", "magenta"), f" no answer: {why}"))

    def claim(self, sentence: str, held: bool) -> bool:
        """Nothing is printed as true without having been looked at."""
        self.claims += 1
        self.broken += not held
        mark = ("✓", "green") if held else ("✗ NOT TRUE:", "bold red")
        self._print(Text.assemble("   ", mark, f" {sentence}"))
        return held

    def verdict(self) -> str:
        if self.broken:
            return f"{self.broken} of {self.claims} claims did not hold."
        return f"All {self.claims} claims held: same key, same answer, one effect."

    def _print(self, text: Text) -> None:
        self._console.print(text, soft_wrap=True)

    # Steps, and the line that follows a key

    @contextmanager
    def step(self, title: str, about: str) -> Iterator[None]:
        self._steps += 1
        self.plain()
        self._print(Text(f"{self._steps}. {title}", "bold cyan"))
        self.note(about)
        self._watched = None
        if not self._console.is_terminal:
            yield
            return
        live = Live(
            get_renderable=self._states,
            console=self._console,
            refresh_per_second=LOOKS_PER_SECOND,
            transient=True,
        )
        with live:
            yield

    def watch(self, name: str, look: Callable[[], Sequence[Transition]]) -> None:
        """The key that is followed from now on."""
        self._watched = Watched(name, look)

    def _states(self) -> Text:
        watched = self._watched
        if watched is None:
            return Text("")
        try:
            self._seen = path_of(watched.look())
        except SamekeyError:
            pass  # the database is busy for a moment: the line stays as it is
        return Text.assemble("   ", ("≡", "bold blue"), f" {watched.name}: {self._seen}", style="blue")


def path_of(timeline: Sequence[Transition]) -> str:
    """The states of a key in a line, each with who moved it there."""
    moves = [f"{step.after or 'gone'} by {step.actor}" for step in timeline]
    return " → ".join(moves) or "no record"
