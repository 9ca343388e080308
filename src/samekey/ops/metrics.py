"""Metrics in OpenTelemetry: the engine's events are counted, the store is asked for its figures.

    instrument(idempotency)                      # the application's own meter provider
    instrument(idempotency, by_tenant=True)      # replays and misuse can be told apart by tenant

``INSTRUMENTS`` lists every metric. A key is never part of one, nor is a path, which may hold anything: an
endpoint is named by its template.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from ..core.states import Mode
from ..drivers.fork import Lock
from ..engine.engine import Engine
from ..engine.events import NAMES, Event
from ..errors import ConfigurationError
from ..idempotency import Idempotency
from .readings import Readings

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation

logger = logging.getLogger("samekey")

PREFIX: Final = "api.idempotency."
SCOPE: Final = "samekey"
"""The instrumentation scope of everything here."""
FINISHED: Final = "operation.finished"
"""The one event that is measured, not counted."""
REQUEST: Final = "request"
"""The event that is counted by endpoint, as its template."""
MAX_CALLERS: Final = 300
"""Pairs of an endpoint and a tenant that are told apart: with five values of ``key`` each, 1,500 series."""
OTHER: Final = "other"
"""Stands for every tenant beyond the cap."""
MAX_TENANTS: Final = 100
"""With five modes and some counters each this stays well below the 2,000 series at which an SDK folds a
metric's series together."""
BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600)
"""Seconds: from one local write to the default longest run. Close around 20 s, where leases are chosen
(the default is 60 s, a lease should be two to three times the 99th percentile)."""
SERVICES: Final = ("outbox", "completer", "reconciler", "sweeper", "reaper", "store")
STORE_ERRORS: Final = ("StoreUnavailable", "StoreBusy", "ConnectionLost", "SchemaMismatch")


@dataclass(frozen=True, slots=True)
class Instrument:
    """One metric, under its OpenTelemetry name."""

    name: str
    kind: Literal["counter", "histogram", "gauge"]
    unit: str
    description: str
    attributes: tuple[str, ...] = ()

    @property
    def prometheus(self) -> str:
        """Its name in Prometheus; a histogram adds ``_bucket``, ``_sum`` and ``_count`` to it."""
        seconds = "_seconds" if self.unit == "s" else ""
        return self.name.replace(".", "_") + seconds + ("_total" if self.kind == "counter" else "")


_COUNTED: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    REQUEST: ("Guarded handlers reached, by what came as a key", ("endpoint", "key", "tenant")),
    "reserve.created": ("New operations that were claimed", ("mode", "tenant")),
    "reserve.replay": ("Retries that got the stored answer", ("mode", "tenant")),
    "reserve.in_progress": ("Duplicates that met the first request still at work", ("mode", "tenant")),
    "reserve.key_misuse": ("Other requests under a used key, a security signal", ("mode", "tenant")),
    "reserve.failed_retry": ("Retries that ran a failed operation again", ("mode", "tenant")),
    "reserve.reused": ("Keys that were used again after their retention", ("mode", "tenant")),
    "reserve.unknown": ("Retries that met an unknown outcome", ("mode", "tenant")),
    "store.error": ("Requests refused because the store could not be used", ("kind",)),
    "zombie_key": ("Leases that ran out and were swept", ("mode",)),
    "ttl_pruned": ("Records past retention that were reaped", ()),
    "reconcile.scheduled": ("Outcomes that became unknown", ("mode",)),
    "reconcile.resolved": ("Unknown outcomes that were found out", ("mode",)),
    "reconcile.failed": ("Lookups that failed or could not tell", ("mode",)),
    "dead_letter": ("Operations and jobs that were given up", ("mode",)),
    "worker.trouble": ("Looks of a background service that failed; it looks again", ("service",)),
    "worker.hanging": ("Functions that ran past their time in a worker and cannot be stopped", ("service",)),
    "outgoing.keyless": ("Calls to a provider that change something and had no key", ("reason",)),
    "ledger.difference": ("Entries in which two ledgers differ", ()),
}

COUNTERS: Final[dict[str, Instrument]] = {
    event: Instrument(f"{PREFIX}{event}.count", "counter", "", *_COUNTED.get(event, (f"Events {event}", ())))
    for event in sorted(NAMES - {FINISHED})
}
"""By the event that is counted."""
DURATION: Final = Instrument(
    f"{PREFIX}operation.duration",
    "histogram",
    "s",
    "How long operations took, from the claim to the recorded end",
    ("mode", "outcome"),
)
DEAD_LETTERS: Final = Instrument(
    f"{PREFIX}dead_letter.depth",
    "gauge",
    "",
    "Operations and jobs that wait for an operator",
    ("kind",),
)
OUTBOX_LAG: Final = Instrument(
    f"{PREFIX}outbox.lag", "gauge", "s", "Age of the oldest job that is due, 0 if none is"
)
OLDEST_UNKNOWN: Final = Instrument(
    f"{PREFIX}unknown.oldest", "gauge", "s", "Age of the oldest unknown outcome, 0 if there is none"
)
BREAKER_OPEN: Final = Instrument(
    f"{PREFIX}breaker.open", "gauge", "", "1 while this process leaves the store alone, else 0"
)
INSTRUMENTS: Final = (
    *COUNTERS.values(),
    DURATION,
    DEAD_LETTERS,
    OUTBOX_LAG,
    OLDEST_UNKNOWN,
    BREAKER_OPEN,
)
"""Every metric that samekey records."""


def instrument(
    idempotency: Idempotency,
    meter_provider: MeterProvider | None = None,
    *,
    by_tenant: bool | Literal["digest"] = False,
    max_tenants: int = MAX_TENANTS,
    attributes: Mapping[str, str] | None = None,
) -> None:
    """From now on, records the metrics of this ``Idempotency``. Call it once, at start-up.

    ``meter_provider``: None for the application's own, which may be set later.

    ``by_tenant``: adds the attribute ``tenant`` to the ``reserve`` counters: True for the id as it is,
    ``"digest"`` for ``idempotency.engine.digest(tenant, "")``. The first ``max_tenants`` of a process are
    told apart, the rest are counted as ``other``.

    ``attributes``: added to every metric; they tell several stores in one process apart.

    Recording never raises. ``ConfigurationError`` if OpenTelemetry is not installed.
    """
    try:
        from opentelemetry import metrics
    except ModuleNotFoundError:
        raise ConfigurationError("Metrics need opentelemetry-api: pip install 'samekey[metrics]'.") from None
    if by_tenant not in (False, True, "digest"):
        raise ConfigurationError(f"by_tenant must be False, True or 'digest', not {by_tenant!r}.")
    provider = metrics.get_meter_provider() if meter_provider is None else meter_provider
    with _lock:
        gauges = _gauges.get(provider)
        if gauges is None:
            gauges = _gauges[provider] = _Gauges(provider)
        if not gauges.add(idempotency.engine, dict(attributes or {})):
            return  # it is recorded there already; twice would count everything double
    tenants = Tenants(idempotency.engine, max_tenants, digest=by_tenant == "digest") if by_tenant else None
    idempotency.events.subscribe(Recorder(provider, tenants, dict(attributes or {})))


class Tenants:
    """Tenants as attributes: bounded in number and length, and always text that can be encoded."""

    def __init__(self, engine: Engine, most: int, *, digest: bool) -> None:
        self._engine = weakref.ref(engine)
        self._most = most
        self._digest = digest
        self._known: set[str] = set()
        self._lock = Lock()

    def name(self, tenant: str) -> str:
        engine = self._engine()
        if self._digest and engine is not None:
            name = engine.digest(tenant, "")
        else:
            name = tenant[:128].encode("utf-8", "replace").decode()
        with self._lock:
            if name not in self._known:
                if len(self._known) >= self._most:
                    return OTHER
                self._known.add(name)
        return name


class Recorder:
    """Observes events. It never raises: an observer that did would be left out for ever."""

    def __init__(self, provider: MeterProvider, tenants: Tenants | None, attributes: dict[str, str]) -> None:
        meter = provider.get_meter(SCOPE)
        self._tenants = tenants
        self._attributes = attributes
        self._seen: set[tuple[str, ...]] = set()
        self._callers: set[tuple[str, str]] = set()
        self._failed = False
        self._counters: dict[str, Any] = {
            event: meter.create_counter(made.name, made.unit, made.description)
            for event, made in COUNTERS.items()
        }
        self._duration = meter.create_histogram(
            DURATION.name,
            DURATION.unit,
            DURATION.description,
            explicit_bucket_boundaries_advisory=list(BUCKETS),
        )
        self._safely(self._start)

    def __call__(self, event: Event) -> None:
        self._safely(lambda: self._record(event))

    def _safely(self, record: Callable[[], None]) -> None:
        try:
            record()
        except Exception:
            if not self._failed:  # once: broken instruments must not fill the log
                self._failed = True
                logger.exception("A metric could not be recorded; requests are not affected")

    def _record(self, event: Event) -> None:
        if event.name == FINISHED:
            self._duration.record(event.value, self._attributes_of(event, DURATION))
            return
        counter = self._counters.get(event.name)
        if counter is None:
            return
        made = COUNTERS[event.name]
        attributes = self._attributes_of(event, made)
        if "tenant" in attributes:
            if event.name == REQUEST:
                self._bound_callers(attributes)
            else:
                self._start_tenant(attributes)
        counter.add(event.value, attributes)

    def _bound_callers(self, attributes: dict[str, str]) -> None:
        pair = attributes["endpoint"], attributes["tenant"]
        if pair not in self._callers and len(self._callers) >= MAX_CALLERS:
            attributes["tenant"] = OTHER
        else:
            self._callers.add(pair)

    def _attributes_of(self, event: Event, made: Instrument) -> dict[str, str]:
        """Only what the instrument declares: a fact added elsewhere must not multiply the series."""
        found = {name: event.facts[name] for name in made.attributes if name in event.facts}
        if self._tenants is not None and event.tenant is not None and "tenant" in made.attributes:
            found["tenant"] = self._tenants.name(event.tenant)
        return {**self._attributes, **found}

    # A counter that appears with its first event hides it: a rate needs a value before.

    def _start(self) -> None:
        for event, made in COUNTERS.items():
            counter = self._counters[event]
            counter.add(0, self._attributes)
            known = {"mode": tuple(Mode), "kind": STORE_ERRORS, "service": SERVICES}
            for name in made.attributes:
                for value in known.get(name, ()):
                    counter.add(0, {**self._attributes, name: str(value)})

    def _start_tenant(self, attributes: dict[str, str]) -> None:
        identity = tuple(attributes.values())
        if identity not in self._seen:
            self._seen.add(identity)
            for event, made in COUNTERS.items():
                if "tenant" in made.attributes and event != REQUEST:
                    self._counters[event].add(0, attributes)


class _Gauges:
    """The gauges of one meter provider. An SDK makes each only once, so all engines share them."""

    def __init__(self, provider: MeterProvider) -> None:
        from opentelemetry.metrics import Observation

        self._engines: list[tuple[weakref.ref[Engine], Readings, dict[str, str]]] = []
        self._observation = Observation
        meter = provider.get_meter(SCOPE)
        made: dict[Instrument, Callable[[Engine, Readings], Iterable[tuple[float, dict[str, str]]]]] = {
            DEAD_LETTERS: _dead_letters,
            OUTBOX_LAG: _outbox_lag,
            OLDEST_UNKNOWN: _oldest_unknown,
            BREAKER_OPEN: _breaker_open,
        }
        for gauge, read in made.items():
            meter.create_observable_gauge(gauge.name, [self._callback(read)], gauge.unit, gauge.description)

    def add(self, engine: Engine, attributes: dict[str, str]) -> bool:
        """False if it is there already."""
        if any(known() is engine for known, _, _ in self._engines):
            return False
        self._engines.append((weakref.ref(engine), Readings(engine), attributes))
        return True

    def _callback(
        self, read: Callable[[Engine, Readings], Iterable[tuple[float, dict[str, str]]]]
    ) -> Callable[[CallbackOptions], list[Observation]]:
        def observe(_options: CallbackOptions) -> list[Observation]:
            found = []
            for reference, figures, attributes in list(self._engines):
                engine = reference()
                if engine is None:
                    continue
                try:
                    for value, own in read(engine, figures):
                        found.append(self._observation(value, {**attributes, **own}))
                except Exception:
                    logger.exception("A gauge could not be read and is left out")
            return found

        return observe


def _dead_letters(_engine: Engine, figures: Readings) -> Iterable[tuple[float, dict[str, str]]]:
    found = figures.read()
    if found is not None:
        # Apart, because an operation and its job may both be dead.
        yield found.dead_letters, {"kind": "operation"}
        yield found.dead_jobs, {"kind": "job"}


def _outbox_lag(_engine: Engine, figures: Readings) -> Iterable[tuple[float, dict[str, str]]]:
    found = figures.read()
    if found is not None:
        yield _age(found.now, found.oldest_due), {}


def _oldest_unknown(_engine: Engine, figures: Readings) -> Iterable[tuple[float, dict[str, str]]]:
    found = figures.read()
    if found is not None:
        yield _age(found.now, found.oldest_unknown), {}


def _breaker_open(engine: Engine, _figures: Readings) -> Iterable[tuple[float, dict[str, str]]]:
    yield int(engine.breaker.is_open), {}


def _age(now: int, since: int | None) -> float:
    return 0.0 if since is None else max(0, now - since) / 1000


_lock = threading.Lock()
_gauges: weakref.WeakKeyDictionary[MeterProvider, _Gauges] = weakref.WeakKeyDictionary()
