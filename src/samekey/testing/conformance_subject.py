"""A store under test, and the claims to test it with.

``Subject`` is all that the conformance suite asks of a store. ``SyncSubject`` and ``AsyncSubject`` make one
of any SQL driver, so that one test body serves both: an async driver is run through one event loop.
"""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, TypeVar

from ..core.claim import Claim, locating_id
from ..core.decide import Decision, Execute
from ..core.effects import NOTHING_SENT, Sent
from ..core.policy import Policy
from ..core.program import BEGIN, Dialect, Program, Value
from ..core.record import Answer, Lease, Record
from ..core.states import Mode
from ..drivers.protocol import AsyncDriver, AsyncSession, Driver, Session
from ..drivers.run import run, run_async, run_in, run_in_async
from ..stores.sql.queries import Queries

T = TypeVar("T")

SECOND = 1_000
HOUR = 3_600 * SECOND
DAY = 24 * HOUR

NOW = 1_800_000_000_000
"""A moment in milliseconds. Tests move time by passing another one."""


class KeyStore(Protocol):
    """The programs that a store offers (``samekey.stores.keys.Keys`` says what each must do)."""

    def claim(self, claim: Claim, policy: Policy, *, now: int | None = None) -> Program[Decision]: ...

    def read(self, scope: str, key: str, *, now: int | None = None) -> Program[Record | None]: ...

    def read_by_id(
        self, operation_id: str, *, now: int | None = None
    ) -> Program[tuple[int, Record] | None]: ...

    def existed(self, operation_id: str, tenant: str) -> Program[bool]: ...

    def read_by_downstream(self, downstream_key: str) -> Program[Record | None]: ...

    def read_by_provider_id(
        self, provider_id: str, *, tenant: str, source: str | None
    ) -> Program[list[tuple[str | None, Record]]]: ...

    def renew(self, leases: Sequence[Lease], *, now: int | None = None) -> Program[set[str]]: ...

    def complete(
        self,
        lease: Lease,
        answer: Answer | None,
        *,
        provider_id: str | None = None,
        sent: Sent = NOTHING_SENT,
        now: int | None = None,
    ) -> Program[int | None]: ...

    def fail(self, lease: Lease, error_code: str, *, now: int | None = None) -> Program[bool]: ...

    def lose(
        self,
        lease: Lease,
        error_code: str,
        *,
        provider_id: str | None = None,
        sent: Sent = NOTHING_SENT,
        now: int | None = None,
    ) -> Program[int | None]: ...

    def release(self, lease: Lease, *, now: int | None = None) -> Program[bool]: ...

    def expire(self, scope: str, key: str, *, now: int | None = None) -> Program[bool]: ...


class Transaction(Protocol):
    """A transaction that is open: programs run inside it and do not end it."""

    def run(self, program: Program[T]) -> T: ...


class Subject(Protocol):
    """A store under test."""

    @property
    def keys(self) -> KeyStore: ...

    def run(self, factory: Callable[[], Program[T]]) -> T:
        """Runs one program by itself."""

    def run_together(self, factories: Sequence[Callable[[], Program[T]]]) -> list[T]:
        """Runs all of them at once, each on a connection of its own; results in their order."""

    def overwrite(self, scope: str, key: str, **columns: Value) -> None:
        """Writes into a record behind the store's back: damage, or the work of another version."""

    def remove(self, scope: str, key: str) -> None:
        """Deletes a record behind the store's back, as the reaper does."""


class TransactionalSubject(Subject, Protocol):
    """A store under test that has transactions."""

    def transaction(self) -> AbstractContextManager[Transaction]:
        """One transaction: committed when the block is left, rolled back when it raises."""


_UNCHECKED: Mapping[Dialect, tuple[Sequence[str], Sequence[str]]] = {
    "postgres": (
        [f"alter table {{keys}} drop constraint if exists {name}" for name in ("keys_state", "keys_mode")],
        [],
    ),
    "sqlite": (["pragma ignore_check_constraints = on"], ["pragma ignore_check_constraints = off"]),
    # The first comment is read by MariaDB alone, the second by MySQL alone.
    "mysql": (
        [
            "/*M! set check_constraint_checks = 0 *//*!80016 alter table {keys}"
            " alter check samekey_keys_known_state not enforced,"
            " alter check samekey_keys_known_mode not enforced */"
        ],
        ["/*M! set check_constraint_checks = 1 *//*!80016 do 0 */"],
    ),
}
"""How the database is brought to take the words of a later release."""


class _SQLSubject:
    """What sync and async share: the raw writes, spelt by the store's own queries."""

    def __init__(self, keys: KeyStore, queries: Queries) -> None:
        self._keys = keys
        self._queries = queries

    @property
    def keys(self) -> KeyStore:
        return self._keys

    def run(self, factory: Callable[[], Program[T]]) -> T:
        raise NotImplementedError

    def overwrite(self, scope: str, key: str, **columns: Value) -> None:
        changes = ", ".join(f"{name} = :{name}_" for name in columns)
        values = {f"{name}_": value for name, value in columns.items()}
        self._write("update {keys} set " + changes, scope, key, values)  # noqa: S608 - names of columns

    def remove(self, scope: str, key: str) -> None:
        self._write("delete from {keys}", scope, key, {})

    def _write(self, change: str, scope: str, key: str, values: dict[str, Value]) -> None:
        here = f"where scope = :scope and {self._queries.column('key')} = :key"
        look = self._queries.build("look", "select count(*) from {keys} " + here)  # noqa: S608 - our own
        query = self._queries.build("raw", f"{change} {here}")

        def program() -> Program[object]:
            yield BEGIN
            rows = yield look(scope=scope, key=key)
            before, after = _UNCHECKED[self._queries.dialect]
            for lift in before:
                yield self._queries.build("lift", lift)()
            yield query(scope=scope, key=key, **values)
            for set_again in after:
                yield self._queries.build("set_again", set_again)()
            return rows[0][0]

        if self.run(program) != 1:
            raise LookupError(f"there is no record of {key!r} in {scope!r} to change")


class SyncSubject(_SQLSubject):
    """A sync driver under test."""

    def __init__(self, driver: Driver, keys: KeyStore, queries: Queries) -> None:
        super().__init__(keys, queries)
        self._driver = driver

    def run(self, factory: Callable[[], Program[T]]) -> T:
        return run(self._driver, factory)

    def run_together(self, factories: Sequence[Callable[[], Program[T]]]) -> list[T]:
        barrier = threading.Barrier(len(factories), timeout=30)

        def one(factory: Callable[[], Program[T]]) -> T:
            barrier.wait()
            return run(self._driver, factory)

        with ThreadPoolExecutor(len(factories)) as threads:
            return list(threads.map(one, factories))

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        session = self._driver.open()
        try:
            yield _SyncTransaction(session)
        except BaseException:
            session.rollback()
            raise
        session.commit()


class _SyncTransaction:
    def __init__(self, session: Session) -> None:
        self._session = session

    def run(self, program: Program[T]) -> T:
        return run_in(self._session, program)


class AsyncSubject(_SQLSubject):
    """An async driver under test, run through one event loop. Use it as a context manager."""

    def __init__(self, driver: AsyncDriver, keys: KeyStore, queries: Queries) -> None:
        super().__init__(keys, queries)
        self._driver = driver
        self._runner = asyncio.Runner()

    def __enter__(self) -> AsyncSubject:
        return self

    def __exit__(self, *_: object) -> None:
        self._await(self._driver.close())
        self._runner.close()

    def _await(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    def run(self, factory: Callable[[], Program[T]]) -> T:
        return self._await(run_async(self._driver, factory))

    def run_together(self, factories: Sequence[Callable[[], Program[T]]]) -> list[T]:
        async def together() -> list[T]:
            return list(await asyncio.gather(*(run_async(self._driver, factory) for factory in factories)))

        return self._await(together())

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        session = self._await(self._driver.open())
        try:
            yield _AsyncTransaction(session, self._await)
        except BaseException:
            self._await(session.rollback())
            raise
        self._await(session.commit())


class _AsyncTransaction:
    def __init__(self, session: AsyncSession, wait: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._session = session
        self._wait = wait

    def run(self, program: Program[T]) -> T:
        result: T = self._wait(run_in_async(self._session, program))
        return result


def new_claim(
    *,
    scope: str | None = None,
    key: str | None = None,
    body: bytes = b"the request",
    version: str = "1",
    mode: Mode = Mode.LEASED,
    lease_ms: int = 60 * SECOND,
    ttl_ms: int = DAY,
) -> Claim:
    """A first request: a scope and key that no other test has, unless they are given."""
    scope = f"conformance-{secrets.token_hex(8)}" if scope is None else scope
    key = secrets.token_hex(8) if key is None else key
    return Claim(
        id=new_id(scope, key),
        attempt=secrets.token_hex(16),
        scope=scope,
        key=key,
        tenant="=conformance",
        endpoint="POST /payments",
        fingerprint=body,
        fingerprint_version=version,
        digest_as=lambda stored: body if stored == version else None,
        mode=mode,
        lease_ms=lease_ms,
        ttl_ms=ttl_ms,
    )


def retry_of(claim: Claim, **changes: Any) -> Claim:
    """The same request sent again: everything is equal but the two random ids."""
    fresh = new_id(claim.scope, claim.key)
    return dataclasses.replace(claim, id=fresh, attempt=secrets.token_hex(16), **changes)


def new_id(scope: str, key: str) -> str:
    """An operation id that every kind of store can find its record by."""
    return locating_id(secrets.token_hex(16), scope, key)


def different_request(claim: Claim) -> Claim:
    """The same key with another body."""
    body = claim.fingerprint + b", but another"
    return retry_of(claim, fingerprint=body, digest_as=lambda stored: body if stored == "1" else None)


def executed(decision: Decision) -> Record:
    """The record of a claim that was won; an assertion error for any other decision."""
    assert isinstance(decision, Execute), f"the claim should have been won, but: {decision}"
    return decision.record


def lease_of(record: Record, claim: Claim) -> Lease:
    return record.lease(claim.lease_ms)


def must_read(store: Subject, claim: Claim) -> Record:
    """The record of a claim's key, which must be there."""
    record = store.run(lambda: store.keys.read(claim.scope, claim.key))
    assert record is not None, "the record is gone"
    return record
