"""A program: what to ask of a database, without asking it.

A store operation is a generator. It yields statements, is sent the rows of each, and returns a result.
It holds all of the logic and performs no I/O, so one implementation serves sync and async code, our
connections and the user's, and a test can stop it at every point (``samekey.testing.crash``).

A program never calls user code. Database errors are thrown into it; it may catch them.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, TypeVar

Value: TypeAlias = str | int | bytes | Sequence[str] | Sequence[int] | Sequence[bytes] | None
"""What a parameter may be: the types on which all drivers agree."""

Row: TypeAlias = Sequence[str | int | bytes | None]
Dialect: TypeAlias = Literal["postgres", "sqlite", "mysql", "redis", "dynamodb"]
Style: TypeAlias = Literal["numeric", "format", "qmark", "lua"]
"""How a driver spells parameters: ``$1`` (asyncpg), ``%s`` (psycopg, MySQL's), ``?`` (sqlite3).
``lua`` is no spelling of SQL but a script of Redis's, with its parameters in their order.
"""


@dataclass(frozen=True, slots=True)
class Query:
    """One named SQL statement, rendered for every parameter style when it was loaded."""

    name: str
    sql: str
    """As written, with ``:name`` parameters."""
    rendered: Mapping[Style, tuple[str, tuple[str, ...]]]
    """For each style, the text and the names of its parameters in order."""
    then: tuple[Query, ...] = ()
    """Where a change cannot give rows back (no RETURNING): what follows it on the same connection, with the
    same parameters. The rows of the last are the rows of the statement."""

    def __call__(self, **parameters: Value) -> Statement:
        return Statement(self, parameters)


@dataclass(frozen=True, slots=True)
class Statement:
    """A query with its parameters: the one thing that a driver must be able to execute."""

    query: Query
    parameters: Mapping[str, Value]

    @property
    def name(self) -> str:
        return self.query.name

    def render(self, style: Style) -> tuple[str, list[Value]]:
        text, names = self.query.rendered[style]
        parameters = self.parameters
        return text, [parameters[name] for name in names]


class Undecryptable(bytes):
    """In place of a value that cannot be decrypted: nothing may be made of it."""


class NotNow(Undecryptable):
    """In place of a value that cannot be decrypted just now: whoever decrypts could not be asked."""


class Decrypted(bytes):
    """A value that was encrypted, and where it belongs: in another row or column it is nobody's."""

    home = ""


class Unsealed(bytes):
    """A value that was not encrypted, where all that are secret must be. Most are no secret."""


def home_of(column: str, *identity: object) -> str:
    """Where an encrypted value belongs. Each part carries its length, so that no two lists give the same."""
    return "".join(f"{len(part)}:{part}" for part in (column, *map(str, identity)))


def at_home(value: Any, *homes: str) -> Any:
    """A secret as it was read, or ``Undecryptable`` where it was brought here from elsewhere, or in clear."""
    if isinstance(value, Decrypted):
        return value if value.home in homes else Undecryptable()
    return Undecryptable() if isinstance(value, Unsealed) else value


class Begin:
    """Yielded first by a program whose statements must commit together.

    Without it each statement commits by itself: most operations are one statement that compares and
    sets, and a transaction around it would cost two round trips and buy nothing.
    """

    __slots__ = ()
    name = "begin"


BEGIN: Final = Begin()

T = TypeVar("T")
Program: TypeAlias = Generator[Statement | Begin, Sequence[Row], T]
