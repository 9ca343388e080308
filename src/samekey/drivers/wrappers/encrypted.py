"""Encryption at rest: what requests and answers say is unreadable in the database.

It sits between the programs and a driver: named parameters are encrypted on the way in, and values that carry
our mark are decrypted on the way out. Each is encrypted together with where it belongs, and whoever decodes a
row compares that (``at_home``): a value that somebody has brought from another row is as good as none. So is
one without a mark, unless values from before encryption was switched on are to be read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

from ...core.arrival import left_this_machine, may_have_happened
from ...core.program import Decrypted, NotNow, Row, Statement, Undecryptable, Unsealed, Value, home_of
from ...errors import StoreBusy, StoreUnavailable
from ..errand import moves
from ..protocol import AsyncDriver, AsyncSession, Driver, Lending, Session

SECRET_PARAMETERS: Final = frozenset({"answer_headers", "answer_body", "payload", "result", "outcome"})
"""What requests and answers say. Keys, states and times stay readable: the store must compare them."""
_MARK: Final = b"\x00samekey-encrypted-2\x00"


class Cipher(Protocol):
    """Anything that encrypts and decrypts; ``decrypt`` raises if it cannot.

    What it raises because it cannot be reached (an ``OSError``, a client library's time-out) means that it
    can be tried again, and so does ``samekey.StoreUnavailable``: for a refusal that passes.
    """

    def encrypt(self, data: bytes) -> bytes: ...

    def decrypt(self, token: bytes) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Sealing:
    """How values are encrypted, and what becomes of those that are not."""

    cipher: Cipher
    reads_plain: bool = False
    """Values without a mark are read: they are from before encryption was switched on."""

    def seal(self, statement: Statement) -> Statement:
        secret = SECRET_PARAMETERS & statement.parameters.keys()
        if not secret:
            return statement
        parameters: dict[str, Value] = dict(statement.parameters)
        for name in secret:
            value = parameters[name]
            if isinstance(value, bytes):
                home = _home(name, parameters).encode()
                try:
                    sealed = self.cipher.encrypt(len(home).to_bytes(4, "big") + home + value)
                except Exception as error:
                    # A key service that is away for a moment, say. The store is as good as busy: nothing was
                    # sent, and whoever would try it again there tries again.
                    said = f"What is to be stored cannot be encrypted just now: {type(error).__name__}."
                    raise StoreBusy(said) from error
                parameters[name] = _MARK + sealed
        return Statement(statement.query, parameters)

    def open(self, rows: Sequence[Row]) -> Sequence[Row]:
        return [[self._open(value) for value in row] for row in rows]

    def _open(self, value: Any) -> Any:
        if not isinstance(value, bytes):
            return value
        if not value.startswith(_MARK):
            return value if self.reads_plain else Unsealed(value)
        try:
            plain = self.cipher.decrypt(value[len(_MARK) :])
            end = 4 + int.from_bytes(plain[:4], "big")
            opened = Decrypted(plain[end:])
            opened.home = plain[4:end].decode()
        except Exception as error:
            # One value that nobody can read must not keep the rows beside it from being read.
            return NotNow() if _is_away(error) else Undecryptable()
        return opened


def _is_away(error: Exception) -> bool:
    """Whether a cipher could not be asked, by its own word or by the nature of the error; else it cannot."""
    return (
        isinstance(error, OSError | StoreUnavailable)
        or may_have_happened(error)
        or left_this_machine(error) is not None
    )


def _home(name: str, parameters: Mapping[str, Value]) -> str:
    """By what a statement says of the row. Whoever decodes it knows the same."""
    if name == "result":
        return home_of(name, parameters["operation_id"], parameters["position"])
    if name == "outcome":
        return home_of(name, parameters["source"], parameters["event_id"])
    for identity in ("id", "operation_id"):
        if parameters.get(identity) is not None:
            return home_of(name, parameters[identity])
    return home_of(name, parameters["scope"], parameters["key"])


class EncryptedDriver:
    """A sync driver whose secrets are encrypted at rest."""

    def __init__(self, driver: Driver, sealing: Sealing) -> None:
        self._driver = driver
        self._sealing = sealing

    def execute(self, statement: Statement) -> Sequence[Row]:
        return self._sealing.open(self._driver.execute(self._sealing.seal(statement)))

    def open(self, connection: Any = None) -> Session:
        return _EncryptedSession(self._driver.open(connection), self._sealing)

    def close(self) -> None:
        self._driver.close()


class _EncryptedSession:
    def __init__(self, session: Session, sealing: Sealing) -> None:
        self._session = session
        self._sealing = sealing
        self.wrote = session.wrote
        self.in_transaction = session.in_transaction
        self.commit = session.commit
        self.rollback = session.rollback

    @property
    def connection(self) -> Any:
        return self._session.connection

    def cut(self) -> None:
        cast(Lending, self._session).cut()

    def give_up(self) -> None:
        cast(Lending, self._session).give_up()

    def sent(self) -> int:
        return cast(Lending, self._session).sent()

    def expire_after(self, seconds: float, then: Callable[[], None]) -> None:
        cast(Lending, self._session).expire_after(seconds, then)

    def execute(self, statement: Statement) -> Sequence[Row]:
        return self._sealing.open(self._session.execute(self._sealing.seal(statement)))


class AsyncEncryptedDriver:
    """An async driver whose secrets are encrypted at rest."""

    def __init__(self, driver: AsyncDriver, sealing: Sealing) -> None:
        self._driver = driver
        self._sealing = sealing

    @property
    def moves(self) -> bool:
        return moves(self._driver)

    async def execute(self, statement: Statement) -> Sequence[Row]:
        return self._sealing.open(await self._driver.execute(self._sealing.seal(statement)))

    async def open(self, connection: Any = None) -> AsyncSession:
        return _AsyncEncryptedSession(await self._driver.open(connection), self._sealing)

    async def close(self) -> None:
        await self._driver.close()


class _AsyncEncryptedSession:
    def __init__(self, session: AsyncSession, sealing: Sealing) -> None:
        self._session = session
        self._sealing = sealing
        self.wrote = session.wrote
        self.in_transaction = session.in_transaction
        self.commit = session.commit
        self.rollback = session.rollback

    @property
    def connection(self) -> Any:
        return self._session.connection

    def cut(self) -> None:
        cast(Lending, self._session).cut()

    def give_up(self) -> None:
        cast(Lending, self._session).give_up()

    def sent(self) -> int:
        return cast(Lending, self._session).sent()

    def expire_after(self, seconds: float, then: Callable[[], None]) -> None:
        cast(Lending, self._session).expire_after(seconds, then)

    async def execute(self, statement: Statement) -> Sequence[Row]:
        return self._sealing.open(await self._session.execute(self._sealing.seal(statement)))
