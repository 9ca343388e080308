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

from ..core.claim import scope_of, scope_part
from ..core.program import Program, Unreadable
from ..core.record import Record
from ..drivers.encrypted import Cipher, EncryptedDriver
from ..drivers.protocol import Driver
from ..drivers.run import run
from ..drivers.sqlite import SQLiteDriver
from ..drivers.url import Drivers, drivers_for
from ..encryption import fernet
from ..errors import ConfigurationError, SamekeyError
from ..idempotency import Idempotency
from ..stores.protocols import Actor
from ..stores.sql.keys import Keys
from ..stores.sql.migrations import check
from ..stores.sql.operator import Named, Operator, Transition
from ..stores.sql.queries import queries_for
from ..stores.sql.upkeep import Upkeep

T = TypeVar("T")

Url = Annotated[
    str, typer.Option("--url", envvar="SAMEKEY_URL", help="The store: sqlite:///app.db or postgresql://…")
]
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
ActorName = Annotated[
    str | None,
    typer.Option("--actor", envvar="SAMEKEY_ACTOR", help="Who acts, for the audit; else the system's user."),
]
Reason = Annotated[
    str, typer.Option("--reason", envvar="SAMEKEY_REASON", help="Why, for the audit. Required.")
]

DIGEST_SECRET: Final = "samekey"  # noqa: S105 - the default of Idempotency, known to everybody
PAGE: Final = 5000
"""Keys in one look while a digest is searched for."""
MACHINES: Final = frozenset({"request", "sweeper", "reaper", "reconciler", "webhook", "worker", "completer"})
"""Names that stand in the audit for parts of samekey; a person must not be taken for one."""
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|d)?")
_UNITS: Final = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}


class Refusal(Exception):
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
class Found:
    """What is known of a key: its record, if it is still there, and its timeline."""

    record: Record | None
    timeline: list[Transition]


class _NoKey:
    """Stands for the keys that were not given: nothing can be read with it, and nothing is written."""

    def encrypt(self, data: bytes) -> bytes:
        raise AssertionError("nothing is written with it")

    def decrypt(self, token: bytes) -> bytes:
        raise LookupError


class Store:
    """One store, as an operator's command uses it. It reads what it has the keys for, and shows the rest."""

    def __init__(self, drivers: Drivers, schema: str, secret: str, cipher: Cipher | None = None) -> None:
        self.drivers = drivers
        self._reader = EncryptedDriver(drivers.sync, cipher or _NoKey())
        self._writer: Driver = drivers.sync if cipher is None else self._reader
        self._has_keys = cipher is not None
        self.queries = queries_for(drivers.dialect, schema)
        self.keys = Keys(self.queries)
        self.operator = Operator(self.keys)
        self.upkeep = Upkeep(self.keys)
        self._secret = secret.encode()

    def ask(self, factory: Callable[[], Program[T]]) -> T:
        """Looks."""
        return run(self._reader, factory)

    def act(self, factory: Callable[[], Program[T]]) -> T:
        """Changes something."""
        return run(self._writer, factory)

    def refuse_plain_answers(self) -> None:
        """An answer that an operator writes must be no easier to read than those beside it."""
        if not self._has_keys and isinstance(self.ask(self.operator.newest_answer), Unreadable):
            raise Refusal(
                "The answers in this store are encrypted, and yours would not be. Give --encryption-key. "
                "Nothing was changed."
            )

    def now(self) -> int:
        """The store's clock, in milliseconds."""
        rows = self.drivers.sync.execute(self.queries.statement("clock", None))
        assert isinstance(rows[0][0], int)
        return rows[0][0]

    def digest(self, named: Record | Named) -> str:
        """What stands for the key in the application's logs."""
        text = scope_of(named.tenant, named.key).encode()
        return hmac.new(self._secret, text, hashlib.sha256).hexdigest()[:12]

    def record(self, operation_id: str) -> Record | None:
        return self.ask(lambda: self.operator.by_id(operation_id))

    def by_id(self, operation_id: str) -> Found:
        record = self.record(operation_id)
        if record is not None:
            # By its key: an index leads there, and former lives of the key belong to its story.
            return Found(record, self._timeline(record.scope, record.key))
        return Found(None, [*self.ask(lambda: self.operator.timeline_of(operation_id))])

    def by_key(self, tenant: str, key: str) -> Found:
        part = scope_part(tenant)
        scope = scope_of(part)
        record = self.ask(lambda: self.operator.by_key(scope, key))
        if record is None:
            # The scope may hold more than the tenant.
            records = self.ask(lambda: self.operator.find(tenant=part, key=key, limit=2))
            if len(records) > 1:
                raise Refusal(
                    "This tenant has used the key at several endpoints: use keys list, then the id."
                )
            record = records[0] if records else None
        if record is not None:
            return Found(record, self._timeline(record.scope, record.key))
        timeline = self._timeline(scope, key)
        return Found(None, timeline or [*self.ask(lambda: self.operator.timeline_of_key(part, key))])

    def by_digest(self, digest: str) -> Found:
        """Looks at every key: a digest cannot be turned back."""
        wanted = digest.strip().lower()
        for named in self._every_key():
            if self.digest(named) == wanted:
                record = self.ask(lambda named=named: self.operator.by_key(named.scope, named.key))  # type: ignore[misc]
                return Found(record, self._timeline(named.scope, named.key))
        return Found(None, [])

    def _every_key(self) -> Iterator[Named]:
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

    def _timeline(self, scope: str, key: str) -> list[Transition]:
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
) -> Iterator[Store]:
    """The store of a URL; its tables fit, if that is to be ``checked``."""
    cipher = fernet(*encryption_keys) if encryption_keys else None
    drivers = drivers_for(url, pool_size=4, timeout=timeout)
    try:
        driver = drivers.sync
        if isinstance(driver, SQLiteDriver) and not Path(driver.path).exists():
            # SQLite would make one, empty, and everything would look fine.
            raise ConfigurationError(f"There is no SQLite database {driver.path}.")
        store = Store(drivers, schema, secret, cipher)
        if checked:
            store.ask(lambda: check(store.queries))
        yield store
    finally:
        drivers.sync.close()
