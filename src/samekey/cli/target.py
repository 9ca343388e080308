"""Which store an operator's command works on, and how one of its keys is found."""

from __future__ import annotations

import getpass
import hashlib
import hmac
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final, TypeVar

import typer

from ..core.claim import call_part, scope_of, scope_part
from ..core.program import Program, Undecryptable
from ..core.record import Record
from ..core.states import State
from ..drivers.protocol import Driver
from ..drivers.run import run
from ..drivers.sqlite.driver import SQLiteDriver
from ..drivers.wrappers.encrypted import Cipher, EncryptedDriver
from ..encryption import fernet
from ..engine.evidence.direct import DirectResolver
from ..engine.evidence.reconcile import NotingResolver, Resolver
from ..engine.store import Store, cached
from ..engine.store import open_store as open_engine_store
from ..errors import ConfigurationError, CorruptRecord, SamekeyError
from ..idempotency import Idempotency
from ..stores.protocols import Actor
from ..stores.sql.effects import Effects
from ..stores.sql.operator import NamedKey, Operator, Transition
from ..stores.sql.overruling import Moved

T = TypeVar("T")

STORE_URL: Final = "The store: sqlite:///app.db, postgresql://…, mysql://…, redis://… or dynamodb://…"
Url = Annotated[str, typer.Option("--url", envvar="SAMEKEY_URL", help=STORE_URL)]
Schema = Annotated[
    str,
    typer.Option("--schema", envvar="SAMEKEY_SCHEMA", help="The PostgreSQL schema that holds the tables."),
]
Timeout = Annotated[
    float,
    typer.Option("--timeout", envvar="SAMEKEY_TIMEOUT", min=0.1, help="Seconds that one statement may take."),
]
DigestSecret = Annotated[
    str,
    typer.Option(
        "--digest-secret",
        envvar="SAMEKEY_DIGEST_SECRET",
        help="The digest_secret of your Idempotency, so that digests match its logs.",
    ),
]
EncryptionKeys = Annotated[
    list[str] | None,
    typer.Option(
        "--encryption-key",
        envvar="SAMEKEY_ENCRYPTION_KEYS",
        help="The Fernet keys of your Idempotency, newest first, if it encrypts: repeat the option, or put "
        "spaces between them in the variable.",
    ),
]
CacheUrl = Annotated[
    str | None,
    typer.Option(
        "--cache",
        envvar="SAMEKEY_CACHE_URL",
        help="The cache of your Idempotency, if it has one: redis://…",
    ),
]
ActorName = Annotated[
    str | None,
    typer.Option("--actor", envvar="SAMEKEY_ACTOR", help="Who acts, for the audit; else the system's user."),
]
Reason = Annotated[
    str, typer.Option("--reason", envvar="SAMEKEY_REASON", help="Why, for the audit. Required.")
]
Despite = Annotated[
    list[str] | None,
    typer.Option(
        "--despite",
        envvar="SAMEKEY_DESPITE",
        metavar="SOURCE:EVENT",
        help="An event by which a provider says that it happened: you set it aside. Repeatable.",
    ),
]

DIGEST_SECRET: Final = "samekey"  # noqa: S105 - the default of Idempotency, known to everybody
PAGE: Final = 5000
"""Keys in one look while a digest is searched for."""
MACHINES: Final = frozenset(
    {"request", "sweeper", "reaper", "reconciler", "webhook", "worker", "completer", "lookup"}
)
"""Names that stand in the audit for parts of samekey; a person must not be taken for one."""
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|d)?")
_UNITS: Final = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}


class CommandRefused(Exception):
    """A command that cannot be carried out as things stand. The sentence says why; the exit code is 1."""


def duration(text: str) -> timedelta:
    """``90``, ``90s``, ``15m``, ``24h``, ``30d``."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise typer.BadParameter(f"{text!r} is no duration; write 90s, 15m, 24h or 30d.")
    try:
        return timedelta(seconds=float(match[1]) * _UNITS[match[2] or "s"])
    except OverflowError:
        raise typer.BadParameter(f"{text!r} is too long.") from None


def actor(name: str | None, reason: str) -> Actor:
    """Who acts. A blank reason is no reason."""
    if not reason.strip():
        raise typer.BadParameter("say why: it is kept in the audit.", param_hint="--reason")
    if name is None or not name.strip():
        try:
            name = getpass.getuser()
        except (KeyError, OSError, ImportError):
            raise typer.BadParameter(
                "who are you? This system has no name for you.", param_hint="--actor"
            ) from None
    if name.strip() in MACHINES:
        raise typer.BadParameter(f"{name!r} stands for a part of samekey.", param_hint="--actor")
    return Actor(name.strip(), reason.strip())


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
        self, opened: Store, secret: str, cipher: Cipher | None = None, acting: Driver | None = None
    ) -> None:
        """``acting``: what acts go through, where a cache must hear of them. Looks never ask a cache."""
        self.opened = opened
        self.drivers = opened.drivers
        self._reader = EncryptedDriver(opened.drivers.sync, cipher or _NoKey())
        acting = acting or opened.drivers.sync
        self._writer: Driver = acting if cipher is None else EncryptedDriver(acting, cipher)
        self._has_keys = cipher is not None
        self.keys = opened.keys
        self.finding = opened.finding
        self.upkeep = opened.tending
        self._secret = secret.encode()

    @property
    def has_tables(self) -> bool:
        """Whether there are jobs, events and a timeline beside the keys."""
        return self.opened.transactional is not None

    @property
    def operator(self) -> Operator:
        """What only tables can keep."""
        return self.opened.tables.operator

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

    def by_id(self, operation_id: str) -> FoundKey:
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
    """The store of a URL; its tables fit, if that is to be ``checked``."""
    cipher = fernet(*encryption_keys) if encryption_keys else None
    opened = open_engine_store(url, schema=schema, pool_size=4, timeout=timeout)
    driver = opened.drivers.sync
    acting = cached(opened.drivers, schema, cache).sync
    try:
        if isinstance(driver, SQLiteDriver) and not Path(driver.path).exists():
            # SQLite would make one, empty, and everything would look fine.
            raise ConfigurationError(f"There is no SQLite database {driver.path}.")
        store = OperatorStore(opened, secret, cipher, acting)
        if checked:
            store.ask(opened.check)
        yield store
    finally:
        acting.close()
