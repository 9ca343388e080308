"""A store with samekey's tables, and records in it in whatever state a test needs.

Time moves by passing ``now``: ``world.now`` is the store's clock when the world was made, and records are
made at moments before or after it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
import sqlite3
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import psycopg

from lab.servers import mariadb
from samekey import Evidence, Idempotency, Policy, Resolution
from samekey.core.claim import Claim, call_part, downstream_base, scope_of, scope_part
from samekey.core.decide import Execute
from samekey.core.policy import ietf
from samekey.core.program import Program
from samekey.core.record import Answer, Record
from samekey.core.states import Mode, State
from samekey.drivers.run import run
from samekey.drivers.sqlite.driver import SQLiteDriver
from samekey.stores.protocols import Actor
from samekey.stores.sql.looking import Transition
from samekey.stores.sql.migrations import migrate
from samekey.stores.sql.operator import Operator
from samekey.stores.sql.phases import Phases, StoredInput
from samekey.stores.sql.upkeep import Upkeep
from tests.taking import begin

T = TypeVar("T")

SECOND, MINUTE, HOUR, DAY = 1000, 60_000, 3_600_000, 86_400_000
TENANT = "acme"
ANSWER = Answer(201, ((b"content-type", b"application/json"),), b'{"id":7}')
TABLES = ("keys", "jobs", "phases", "inputs", "audit", "effects", "made", "evidence")
SOURCE = "cards"


class World:
    """One store. ``engine`` is what a test hands to workers and calls ``resolve`` on."""

    def __init__(self, url: str, policy: Policy | None = None, *, migrates: bool = True) -> None:
        self.url = url
        self.engine = Idempotency(url, policy=policy or ietf(), pool_size=8)
        if migrates:
            run(self.engine.engine.drivers.sync, lambda: migrate(self.engine.engine.queries))
        self.keys = self.engine.engine.store.tables.keys
        self.operator = Operator(self.keys)
        self.upkeep = Upkeep(self.keys)
        self.jobs = self.engine.engine.outbox
        self.phases = Phases(self.keys)
        self.now = self.clock()

    def close(self) -> None:
        self.engine.close()

    def clock(self) -> int:
        return self.run(self.phases_clock)

    def phases_clock(self) -> Program[int]:
        rows = yield self.engine.engine.queries.statement("clock", None)
        assert isinstance(rows[0][0], int)
        return rows[0][0]

    def run(self, factory: Callable[[], Program[T]]) -> T:
        return run(self.engine.engine.drivers.sync, factory)

    def tell(self, evidence: Evidence, event_id: str = "e1", *, at: int = 0, **named: Any) -> Resolution:
        """A provider's event that happened at ``now + at``."""
        given = {"source": SOURCE, "tenant": None, "verify": lambda: True, **named}
        return self.engine.resolve(evidence, event_id=event_id, occurred_at=moment_of(self.now + at), **given)

    def serve(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Runs async work and gives back the connections of its event loop."""

        async def within() -> T:
            try:
                return await work()
            finally:
                await self.engine.engine.drivers.aio.close()

        return asyncio.run(within())

    # Raw SQL, for what a user's own tables and an onlooker would do

    def sql(self, text: str, *parameters: Any) -> list[Any]:
        """One statement; ``{keys}`` and the like stand for tables, ``?`` for parameters."""
        names = {name: self.table(name) for name in TABLES}
        statement = text.format(**names)
        driver = self.engine.engine.drivers.sync
        if isinstance(driver, SQLiteDriver):
            connection = sqlite3.connect(driver.path, timeout=10)
            try:
                with connection:
                    return connection.execute(statement, parameters).fetchall()
            finally:
                connection.close()
        if self.engine.engine.drivers.dialect == "mysql":
            return mariadb.ask(self.url, statement, parameters)
        with psycopg.connect(self.url, autocommit=True) as connected:
            cursor = connected.execute(statement.replace("?", "%s").encode(), parameters)
            return cursor.fetchall() if cursor.description else []

    def table(self, name: str) -> str:
        return self.engine.engine.queries.expand(f"{{{name}}}")

    def count(self, table: str, condition: str = "1 = 1") -> int:
        return int(self.sql(f"select count(*) from {{{table}}} where {condition}")[0][0])

    # Records

    def claim(
        self,
        key: str | None = None,
        *,
        mode: Mode = Mode.LEASED,
        at: int = 0,
        lease: int = MINUTE,
        ttl: int = DAY,
        tenant: str = TENANT,
        endpoint: str = "POST /payments",
        policy: Policy | None = None,
        **changes: Any,
    ) -> Record:
        """Claims a key at ``now + at``; it must be free to take."""
        chosen = policy or self.engine.engine.policy
        claim = dataclasses.replace(
            claim_of(key or secrets.token_hex(8), mode, lease, ttl, tenant, endpoint),
            **{"after_expiry": chosen.after_expiry, "ttl_from": chosen.ttl_from, **changes},
        )
        decision = self.run(lambda: self.keys.claim(claim, chosen, now=self.now + at))
        assert isinstance(decision, Execute), decision
        return decision.record

    def completed(self, key: str | None = None, *, at: int = 0, ttl: int = DAY, **options: Any) -> Record:
        record = self.claim(key, at=at, ttl=ttl, **options)
        lease = record.lease(MINUTE)
        self.run(lambda: self.keys.complete(lease, ANSWER, now=self.now + at))
        return self.read(record)

    def failed(self, key: str | None = None, *, at: int = 0, **options: Any) -> Record:
        record = self.claim(key, at=at, **options)
        self.run(lambda: self.keys.fail(record.lease(MINUTE), "status_500", now=self.now + at))
        return self.read(record)

    def unknown(self, key: str | None = None, *, at: int = 0, **options: Any) -> Record:
        """An operation whose handler could not tell, with its reconciliation due."""
        record = self.claim(key, at=at, **options)
        self.run(lambda: self.keys.lose(record.lease(MINUTE), "OutcomeUnknown", now=self.now + at))
        return self.read(record)

    def dead(self, key: str | None = None, *, at: int = 0, **options: Any) -> Record:
        record = self.unknown(key, at=at, **options)
        self.run(lambda: self.operator.give_up(record.id, Actor("reconciler", "given up"), now=self.now + at))
        return self.read(record)

    def phased(self, key: str | None = None, *, at: int = 0, begun: bool = True, **options: Any) -> Record:
        """A phased operation in progress, with its input and a finished phase if it was begun."""
        record = self.claim(key, mode=Mode.PHASED, at=at, **options)
        if begun:
            lease, moment = record.lease(MINUTE), self.now + at
            stored = StoredInput("ride", 1, b"{}")
            self.run(lambda: self.phases.begin(lease, record.id, stored, now=moment))
            self.run(lambda: self.phases.intend(lease, record.id, 0, "charge", now=moment))
        return record

    def pending(
        self, key: str | None = None, *, at: int = 0, ttl: int = DAY, second: bool = False
    ) -> tuple[Record, str]:
        """A deferred operation that waits for its job; gives the job's id too."""
        key = key or secrets.token_hex(8)
        claim = claim_of(key, Mode.DEFERRED, MINUTE, ttl, TENANT, "POST /transfers")
        moment, job = self.now + at, secrets.token_hex(16)
        if self.engine.engine.drivers.dialect != "postgres":  # where the claim commits first
            decision = self.run(lambda: self.keys.claim(claim, self.engine.engine.policy, now=moment))
            assert isinstance(decision, Execute)
        else:
            self.sql(
                "insert into {keys} (scope, key, id, tenant, endpoint, fingerprint, fingerprint_version,"
                " state, mode, attempt, attempts, downstream, created_at, last_run_at, expires_at,"
                " ttl_ms, ttl_from, after_expiry)"
                " values (?, ?, ?, ?, ?, ?, '1', 'pending', 'deferred', ?, 1, ?, ?, ?, ?, ?,"
                " 'completion', 'new')",
                claim.scope,
                key,
                claim.id,
                claim.tenant,
                claim.endpoint,
                claim.fingerprint,
                claim.attempt,
                downstream_base(claim.scope, key),
                moment,
                moment,
                moment + ttl,
                ttl,
            )
        found = self.by_key(key)
        for number, job_id in enumerate([job, secrets.token_hex(16)] if second else [job]):
            self.run(
                lambda job_id=job_id, number=number: self.jobs.enqueue(  # type: ignore[misc]
                    job_id,
                    found.id,
                    claim,
                    claim.tenant,
                    "settle" if number == 0 else "notify",
                    b'{"version":1,"step":"settle","tenant":"acme","payload":null}',
                    answers=number == 0,
                    source=SOURCE,
                    now=moment,
                )
            )
        if found.state is not State.PENDING:
            self.run(lambda: self.jobs.accept_claimed(found.lease(MINUTE), now=moment))
        return self.read(found), job

    def dead_job(self, key: str | None = None, *, at: int = 0) -> tuple[Record, str]:
        """A deferred operation whose job has failed for the last time."""
        record, job_id = self.pending(key, at=at)
        taken = self.run(lambda: begin(self.jobs, lease_ms=MINUTE, batch=100, now=self.now + at))
        job = next(job for job in taken if job.id == job_id)
        self.run(lambda: self.jobs.bury(job, error="the provider said 500", now=self.now + at))
        return self.read(record), job_id

    def by_key(self, key: str, tenant: str = TENANT) -> Record:
        """Of a client, or of a call of ``once``."""
        parts = (scope_part(tenant), call_part(tenant))
        found = [self.run(lambda part=part: self.keys.read(scope_of(part), key)) for part in parts]  # type: ignore[misc]
        (record,) = [one for one in found if one is not None]
        return record

    def find(self, record: Record | str) -> Record | None:
        operation_id = record if isinstance(record, str) else record.id
        found = self.run(lambda: self.keys.read_by_id(operation_id))
        return None if found is None else found[1]

    def read(self, record: Record | str) -> Record:
        found = self.find(record)
        assert found is not None
        return found

    def timeline(self, record: Record) -> list[Transition]:
        return [*self.run(lambda: self.operator.timeline(record.scope, record.key))]

    def story(self, record: Record) -> list[tuple[str | None, str | None, str]]:
        """From, to and by whom, in order."""
        return [(step.before, step.after, step.actor) for step in self.timeline(record)]

    def states(self, records: Sequence[Record]) -> list[str | None]:
        found = [self.find(record) for record in records]
        return [None if record is None else str(record.state) for record in found]


def moment_of(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def claim_of(key: str, mode: Mode, lease: int, ttl: int, tenant: str, endpoint: str) -> Claim:
    part = scope_part(tenant)
    return Claim(
        id=secrets.token_hex(16),
        attempt=secrets.token_hex(16),
        scope=scope_of(part),
        key=key,
        tenant=part,
        endpoint=endpoint,
        fingerprint=b"fingerprint",
        fingerprint_version="1",
        digest_as=lambda _: b"fingerprint",
        mode=mode,
        lease_ms=lease,
        ttl_ms=ttl,
    )
