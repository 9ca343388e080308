"""Which store an operator's command works on, and how one of its keys is found."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from ..core.claim import call_part, scope_of, scope_part
from ..core.program import Program, Undecryptable
from ..core.record import Record
from ..core.states import State
from ..drivers.protocol import Driver
from ..drivers.run import run
from ..drivers.sqlite.driver import SQLiteDriver
from ..drivers.wrappers.encrypted import Cipher, EncryptedDriver
from ..encryption import Sealing, fernet
from ..engine.engine import Engine
from ..engine.evidence.direct import DirectResolver
from ..engine.evidence.reconcile import NotingResolver
from ..engine.evidence.resolver import Resolver
from ..engine.store import Store, cached
from ..engine.store import open_store as open_engine_store
from ..errors import ConfigurationError, CorruptRecord, SamekeyError
from ..idempotency import Idempotency
from ..stores.sql.effects import Effects
from ..stores.sql.looking import NamedKey, Transition
from ..stores.sql.operator import Operator
from ..stores.sql.overruling import Moved
from ..stores.sql.upkeep import Upkeep
from .options import DIGEST_SECRET, CommandRefused
from .speech import say

T = TypeVar("T")

SHORTEST_ID: Final = 6
"""Characters: of a hundred million ids some six begin alike then, and an index leads to them."""
PAGE: Final = 5000
"""Keys in one look while a digest is searched for."""


@dataclass(frozen=True, slots=True)
class FoundKey:
    """What is known of a key: its record, if it is still there, and its timeline."""

    record: Record | None
    timeline: list[Transition]


class _NoKey:
    """Stands for the keys that were not given: nothing can be read with it, and nothing is written."""

    def encrypt(self, data: bytes) -> bytes:
        raise AssertionError("nothing is written with it")

    def decrypt(self, token: bytes) -> bytes:
        raise LookupError


class OperatorStore:
    """One store, as an operator's command uses it. It reads what it has the keys for, and shows the rest."""

    def __init__(
        self,
        opened: Store,
        secret: bytes,
        cipher: Cipher | None = None,
        acting: Driver | None = None,
        idempotency: Idempotency | None = None,
    ) -> None:
        """``acting``: what acts go through, where a cache must hear of them. Looks never ask a cache.
        ``idempotency``: the application's own, if the store is named by it: it has its keys itself."""
        self.idempotency = idempotency
        self.opened = opened
        self.drivers = opened.drivers
        self._reader = EncryptedDriver(opened.drivers.sync, Sealing(cipher or _NoKey(), reads_plain=True))
        acting = acting or opened.drivers.sync
        self._writer: Driver = acting if cipher is None else EncryptedDriver(acting, Sealing(cipher))
        self._has_keys = cipher is not None or idempotency is not None
        self.keys = opened.keys
        self.finding = opened.finding
        self.upkeep = opened.tending
        self._secret = secret

    @classmethod
    def of(cls, idempotency: Idempotency) -> OperatorStore:
        """The store of an application, with all that it is set to."""
        secret = idempotency.engine.digest_secret
        return cls(idempotency.engine.store, secret, idempotency=idempotency)

    def engine(self, url: str, schema: str, timeout: float) -> Engine:
        """What background work runs on: the application's own, or one of this URL."""
        if self.idempotency is not None:
            return self.idempotency.engine
        return Engine(url, schema=schema, timeout=timeout)

    @property
    def has_tables(self) -> bool:
        """Whether there are jobs, events and a timeline beside the keys."""
        return self.opened.transactional is not None

    @property
    def operator(self) -> Operator:
        """What only tables can keep."""
        return self.opened.tables.operator

    @property
    def upkeep_of_tables(self) -> Upkeep:
        """What only tables need."""
        assert isinstance(self.upkeep, Upkeep)
        return self.upkeep

    @property
    def effects(self) -> Effects:
        """What providers have said."""
        return self.opened.tables.effects

    @property
    def resolver(self) -> Resolver:
        """Applies what an operator has found out."""
        return (
            NotingResolver(self.operator, self.effects) if self.has_tables else DirectResolver(self.finding)
        )

    def ask(self, factory: Callable[[], Program[T]]) -> T:
        """Looks."""
        return run(self._reader, factory)

    def act(self, factory: Callable[[], Program[T]]) -> T:
        """Changes something."""
        try:
            return run(self._writer, factory)
        except Moved:
            raise CommandRefused("It has just moved. Nothing was changed; look at it again.") from None

    def refuse_plain_answers(self) -> None:
        """An answer that an operator writes must be no easier to read than those beside it."""
        if not self._has_keys and self._has_encrypted_answers():
            raise CommandRefused(
                "The answers in this store are encrypted, and yours would not be. Give --encryption-key. "
                "Nothing was changed."
            )

    def _has_encrypted_answers(self) -> bool:
        if self.has_tables:
            return isinstance(self.ask(self.operator.newest_answer), Undecryptable)
        for record in self.ask(lambda: self.finding.find(state=str(State.COMPLETED), limit=20)):
            if record.withheld:
                try:
                    self.ask(lambda record=record: self.keys.read(record.scope, record.key))  # type: ignore[misc]
                except CorruptRecord:
                    return True
        return False

    def now(self) -> int:
        """The store's clock, in milliseconds."""
        if not self.has_tables:
            return self.ask(self.finding.overview).now
        rows = self.drivers.sync.execute(self.opened.tables.queries.statement("clock", None))
        assert isinstance(rows[0][0], int)
        return rows[0][0]

    def digest(self, named: Record | NamedKey) -> str:
        """What stands for the key in the application's logs."""
        text = scope_of(named.tenant, named.key).encode()
        return hmac.new(self._secret, text, hashlib.sha256).hexdigest()[:12]

    def keyed(self, version: str, digest: bytes) -> str:
        """A stored digest as it may be shown: short, and keyed like those that stand for keys."""
        return hmac.new(self._secret, version.encode() + b"\n" + digest, hashlib.sha256).hexdigest()[:8]

    def record(self, operation_id: str) -> Record | None:
        return self.ask(lambda: self.finding.by_id(operation_id))

    def existing(self, operation_id: str) -> Record:
        """The record of an id, or of how one begins."""
        record = self.record(self.whole_id(operation_id))
        if record is None:
            raise CommandRefused(f"There is no operation {operation_id}. Nothing was changed.")
        return record

    def whole_id(self, text: str) -> str:
        """An id from how it begins, of an operation or a job; as it is, where none begins so."""
        if not self.has_tables or not text.isascii() or not text.isprintable():
            return text  # the id of a key store says where its record is, so it must be whole
        if len(text) < SHORTEST_ID:
            raise CommandRefused(f"{text!r} is too short for an id: give {SHORTEST_ID} characters or more.")
        found = self.ask(lambda: self.operator.ids_like(text))
        if len(found) < 2 or text in found:
            return text if text in found or not found else found[0]
        raise CommandRefused(f"Several ids begin with {text}: {', '.join(sorted(found))}. Give more of it.")

    def by_id(self, operation_id: str) -> FoundKey:
        operation_id = self.whole_id(operation_id)
        record = self.record(operation_id)
        if record is not None:
            # By its key: an index leads there, and former lives of the key belong to its story.
            return FoundKey(record, self._timeline(record.scope, record.key))
        if not self.has_tables:
            return FoundKey(None, [])
        return FoundKey(None, [*self.ask(lambda: self.operator.timeline_of(operation_id))])

    def by_key(self, tenant: str, key: str) -> FoundKey:
        part = scope_part(tenant)
        scope = scope_of(part)
        record = self.ask(lambda: self.finding.by_key(scope, key))
        called = self.ask(lambda: self.finding.by_key(scope_of(call_part(tenant)), key))
        if record is not None and called is not None:
            raise CommandRefused(
                "This tenant has the key twice, from a client and in a call of once(): use keys list, then "
                "the id."
            )
        record = record or called
        if record is None:
            # The scope may hold more than the tenant.
            records = self.ask(lambda: self.finding.find(tenant=part, key=key, limit=2))
            if len(records) > 1:
                raise CommandRefused(
                    "This tenant has used the key at several endpoints: use keys list, then the id."
                )
            record = records[0] if records else None
        if record is not None:
            return FoundKey(record, self._timeline(record.scope, record.key))
        timeline = self._timeline(scope, key)
        if not self.has_tables:
            return FoundKey(None, [])
        return FoundKey(None, timeline or [*self.ask(lambda: self.operator.timeline_of_key(part, key))])

    def by_digest(self, digest: str) -> FoundKey:
        """Looks at every key: a digest cannot be turned back."""
        wanted = digest.strip().lower()
        for named in self._every_key():
            if self.digest(named) == wanted:
                part, key = named.tenant, named.key
                if len(self.ask(lambda: self.finding.find(tenant=part, key=key, limit=2))) > 1:  # noqa: B023
                    raise CommandRefused("Several keys have this digest: use keys list, then the id.")
                record = self.ask(lambda named=named: self.finding.by_key(named.scope, named.key))  # type: ignore[misc]
                return FoundKey(record, self._timeline(named.scope, named.key))
        return FoundKey(None, [])

    def _every_key(self) -> Iterator[NamedKey]:
        if not self.has_tables:
            yield from self._every_record()
            return
        before = 2**62
        while before:
            names, before = self.ask(
                lambda before=before: self.operator.audited_keys(before=before, limit=PAGE)  # type: ignore[misc]
            )
            yield from names
        # Then those from before there was an audit.
        after = ("", "")
        while names := self.ask(lambda after=after: self.operator.stored_keys(after=after, limit=PAGE)):  # type: ignore[misc]
            yield from names
            after = (names[-1].scope, names[-1].key)

    def _every_record(self) -> Iterator[NamedKey]:
        """Page by page, from the newest; those of one moment may come twice."""
        seen: set[str] = set()
        before: int | None = None
        while True:
            records = self.ask(
                lambda before=before: self.finding.find(created_before=before, limit=PAGE)  # type: ignore[misc]
            )
            fresh = [record for record in records if record.id not in seen]
            if not fresh:
                return
            yield from (NamedKey(record.scope, record.key, record.tenant) for record in fresh)
            seen = {record.id for record in records}
            before = records[-1].created_at + 1

    def _timeline(self, scope: str, key: str) -> list[Transition]:
        if not self.has_tables:
            return []
        return [*self.ask(lambda: self.operator.timeline(scope, key))]


def application(target: str) -> Idempotency:
    """The user's own Idempotency. What goes wrong in importing it is a sentence too."""
    from .worker import load

    try:
        return load(target)
    except SamekeyError:
        raise
    except Exception as error:
        raise ConfigurationError(
            f"{target} could not be imported: {type(error).__name__}: {error}"
        ) from error


def is_application(url: str) -> bool:
    """Whether it names an Idempotency, ``module:name``, and not a store by its URL."""
    return "/" not in url


@contextmanager
def open_store(
    url: str,
    schema: str,
    timeout: float,
    secret: str = DIGEST_SECRET,
    encryption_keys: list[str] | None = None,
    *,
    checked: bool = True,
    cache: str | None = None,
) -> Iterator[OperatorStore]:
    """The store of a URL, or of the user's own Idempotency; its tables fit, if that is to be ``checked``."""
    if is_application(url):
        idempotency = application(url)
        store = OperatorStore.of(idempotency)
        close = idempotency.close
    else:
        cipher = fernet(*encryption_keys) if encryption_keys else None
        opened = open_engine_store(url, schema=schema, pool_size=4, timeout=timeout)
        acting = cached(opened.drivers, schema, cache).sync
        store = OperatorStore(opened, secret.encode(), cipher, acting)
        close = acting.close
    try:
        driver = store.drivers.sync
        if isinstance(driver, SQLiteDriver) and not Path(driver.path).exists():
            # SQLite would make one, empty, and everything would look fine.
            raise ConfigurationError(f"There is no SQLite database {driver.path}.")
        if checked:
            store.ask(store.opened.check)
        yield store
    finally:
        close()


def note_yourself(store: OperatorStore) -> None:
    if not store.has_tables:
        say(f"{store.opened.name} keeps no audit: write down elsewhere who did this, and why.")
