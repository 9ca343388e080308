"""A page for callers, part of the specification: how to make, keep and retry a key, in their language.

The programs are made for the API that is described: its header, its spelling of a key, its codes, its first
route. All of them are run by tests, where their language is installed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Final

from ..core.policy import Policy
from .spec import Section, lines, openapi_path, shown_code, span

_DOUBTFUL: Final = "401, 403, 404, 405, 407, 410, 413, 415, 421, 431"
"""What a gateway may answer by itself: after a lost attempt that is not final."""

HOST: Final = "https://api.example.com"


def callers(found: Sequence[Section]) -> Iterator[str]:
    """Sections of Markdown, at the level below the page's title."""
    style = _style_of(found)
    yield "## For callers"
    yield ""
    yield (
        "1. **Make the key once for each operation**, a random UUID, where the user decides: at the press of "
        "the button, not inside the function that sends."
    )
    yield (
        "2. **Save it before the first attempt**, with the body that you will send, next to the order that "
        "it is for. A process that dies after sending finds both again."
    )
    yield (
        "3. **Send the same bytes with the same key** until there is a final answer: after a time-out, a "
        f"lost connection, {style.open_words}. Wait as long as `Retry-After` says, else a random time that "
        "grows."
    )
    yield (
        "4. **Everything else is final**, unless an attempt was lost before it: then a redirect, 401, 403, "
        "404 or a page in HTML may be a gateway's, and not the operation's answer. Keep the key. A new key "
        "is a new operation: make one only if the user wants it done once more."
    )
    rules = [route.rules for section in found for route in section.routes if route.rules is not None]
    shortest = min(one.policy.ttl for one in rules)
    yield (
        f"5. **Do not retry for longer than the key is kept** ({span(shortest)}): then look at the resource "
        "itself, with GET."
    )
    yield ""
    for title, language, file in _PROGRAMS:
        program = resources.files(__package__).joinpath("callers", file).read_text("utf-8")
        yield f"### {title}"
        yield ""
        yield f"```{language}"
        yield from style.filled(program).rstrip("\n").split("\n")
        yield "```"
        yield ""


@dataclass(frozen=True, slots=True)
class _Style:
    """What differs from one API to the next."""

    header: str
    quoted: bool
    replayed: str
    codes: tuple[str, ...]
    accepts: bool
    """A 202 is not final: the same request gets the final answer later."""
    url: str

    @property
    def open_words(self) -> str:
        codes = " or ".join(f"`{code}`" for code in self.codes)
        accepted = "202, " if self.accepts else ""
        return (
            f"{accepted}408, 425, 429, 5xx (unless it is marked `{self.replayed}: true`), and 409 with the "
            f"code {codes}"
        )

    def filled(self, program: str) -> str:
        statuses = ("202, " if self.accepts else "") + "408, 425, 429"
        any_code = "|".join(self.codes)
        marks = {
            "@HEADER@": self.header,
            "@REPLAYED@": self.replayed,
            "@CODES@": any_code,
            "@STATUSES@": statuses,
            "@CASES@": statuses.replace(", ", " | "),
            "@DOUBTFUL@": _DOUBTFUL,
            "@DOUBTFUL_CASES@": _DOUBTFUL.replace(", ", " | "),
            "@URL@": self.url,
            "@Q@": '"' if self.quoted else "",
            "@EQ@": '\\"' if self.quoted else "",
        }
        for mark, text in marks.items():
            program = program.replace(mark, text)
        return program


def _style_of(found: Sequence[Section]) -> _Style:
    """By the first rules; what some of them leave open is left open."""
    section = found[0]
    policy: Policy = section.policy
    route = next((one for one in section.routes if one.method.upper() == "POST"), section.routes[0])
    open_codes = [line for line in lines(section) if line.code in ("in_progress", "outcome_unknown")]
    codes = tuple(dict.fromkeys(shown_code(line, policy) or "" for line in open_codes))
    return _Style(
        section.edge.header,
        policy.key.strict or policy.errors != "stripe",
        policy.replayed_header,
        codes,
        any(one.deferred or one.policy.on_in_progress == "accept" for one in found),
        HOST + openapi_path(route.path),
    )


_PROGRAMS: Final = (
    ("curl", "bash", "send.sh"),
    ("JavaScript", "js", "send.js"),
    ("Go", "go", "send.go"),
    ("Java", "java", "Sender.java"),
    ("PHP", "php", "send.php"),
)
"""In ``callers/``, with ``@MARKS@`` for what differs from one API to the next."""
