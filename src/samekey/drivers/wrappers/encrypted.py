"""Encryption at rest: what requests and answers say is unreadable in the database.

It sits between the programs and a driver, so neither knows of it: named parameters are encrypted on the
way in, and values that carry our mark are decrypted on the way out. Values written before encryption was
switched on have no mark and stay readable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, cast

from ...core.program import Row, Statement, Undecryptable, Value
from ..protocol import AsyncDriver, AsyncSession, Driver, Lending, Session

SECRET_PARAMETERS: Final = frozenset({"answer_headers", "answer_body", "payload", "result", "outcome"})
"""What requests and answers say. Keys, states and times stay readable: the store must compare them."""
_MARK: Final = b"\x00samekey-encrypted-1\x00"


class Cipher(Protocol):
    """Anything that encrypts and decrypts; ``decrypt`` raises if it cannot."""

    def encrypt(self, data: bytes) -> bytes: ...

    def decrypt(self, token: bytes) -> bytes: ...


def _sealed(statement: Statement, cipher: Cipher) -> Statement:
    secret = SECRET_PARAMETERS & statement.parameters.keys()
    if not secret:
        return statement
    parameters: dict[str, Value] = dict(statement.parameters)
    for name in secret:
        value = parameters[name]
        if isinstance(value, bytes):
            parameters[name] = _MARK + cipher.encrypt(value)
    return Statement(statement.query, parameters)


def _opened(rows: Sequence[Row], cipher: Cipher) -> Sequence[Row]:
    return [[_open(value, cipher) for value in row] for row in rows]


def _open(value: Any, cipher: Cipher) -> Any:
    if not isinstance(value, bytes) or not value.startswith(_MARK):
        return value
    try:
        return cipher.decrypt(value[len(_MARK) :])
    except Exception:
        # One value that nobody can read must not keep the rows beside it from being read.
        return Undecryptable()


class EncryptedDriver:
    """A sync driver whose secrets are encrypted at rest."""

    def __init__(self, driver: Driver, cipher: Cipher) -> None:
        self._driver = driver
        self._cipher = cipher

    def execute(self, statement: Statement) -> Sequence[Row]:
        return _opened(self._driver.execute(_sealed(statement, self._cipher)), self._cipher)

    def open(self, connection: Any = None) -> Session:
        return _EncryptedSession(self._driver.open(connection), self._cipher)

    def close(self) -> None:
        self._driver.close()


class _EncryptedSession:
    def __init__(self, session: Session, cipher: Cipher) -> None:
        self._session = session
        self._cipher = cipher
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
        return _opened(self._session.execute(_sealed(statement, self._cipher)), self._cipher)


class AsyncEncryptedDriver:
    """An async driver whose secrets are encrypted at rest."""

    def __init__(self, driver: AsyncDriver, cipher: Cipher) -> None:
        self._driver = driver
        self._cipher = cipher

    async def execute(self, statement: Statement) -> Sequence[Row]:
        return _opened(await self._driver.execute(_sealed(statement, self._cipher)), self._cipher)

    async def open(self, connection: Any = None) -> AsyncSession:
        return _AsyncEncryptedSession(await self._driver.open(connection), self._cipher)

    async def close(self) -> None:
        await self._driver.close()


class _AsyncEncryptedSession:
    def __init__(self, session: AsyncSession, cipher: Cipher) -> None:
        self._session = session
        self._cipher = cipher
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
        return _opened(await self._session.execute(_sealed(statement, self._cipher)), self._cipher)
