"""Jobs: what a deferred handler enqueues, what a worker runs, and how both sides write it down."""

from __future__ import annotations

import hashlib
import inspect
import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from ..core.backoff import Backoff
from ..core.claim import downstream_key
from ..core.phases import encode_value
from ..core.policy import milliseconds
from ..core.program import NotNow, Program, Undecryptable
from ..core.provider import StoredText
from ..core.texts import checked_text
from ..errors import ConfigurationError, NotSerialisable, Sealed
from ..stores.sql.jobs import Job, Jobs
from .handler.rules import seconds
from .operation import Running

ENVELOPE_VERSION = 1
"""The layout of a stored payload. A worker of an older version leaves newer ones to others."""
LONGEST_DELAY = timedelta(days=3650)
_AGAIN, _NEXT = "#", ">"
"""In a step: the second job of one name, and the one that a job enqueued."""
LARGEST_PAYLOAD = 4 * 1024 * 1024
"""Bytes. MariaDB takes no statement over 16 MiB by default, and encryption and quoting need their part."""
READABLE_STEP, LONGEST_STEP = 255, 1000
"""Bytes. A job may enqueue itself for ever: its step must not tell all of its history. MySQL keeps 1024."""


@dataclass(frozen=True, slots=True)
class JobDefinition:
    """A function that does jobs of one name."""

    name: str
    function: Callable[..., Any]
    max_attempts: int = 10
    """Some four minutes with the default backoff, nine at most; after that an operator looks."""
    timeout: timedelta = timedelta(seconds=60)
    backoff: Backoff = field(default_factory=Backoff)
    source: str | None = None
    """The provider that it calls."""

    @property
    def takes_found(self) -> bool:
        """Whether it takes what others found out about it (``found``), and then does all but the call."""
        try:
            found = inspect.signature(self.function).parameters
        except (ValueError, TypeError):  # a built-in, say
            return False
        if "found" not in found or found["found"].kind is inspect.Parameter.POSITIONAL_ONLY:
            return False
        if not _passes_found_on(self.function):
            return False  # its signature is that of what it wraps, and it is the wrapper that is called
        # The first two are the job and its payload, whatever they are called.
        return found["found"].kind is inspect.Parameter.KEYWORD_ONLY or list(found).index("found") > 1


def _names_found(function: Any) -> bool:
    try:
        return "found" in inspect.signature(function).parameters
    except (ValueError, TypeError):
        return False


def _passes_found_on(function: Any) -> bool:
    """Whether each of the decorators around a function takes ``found`` too, by its name or with ``**``."""
    while hasattr(function, "__wrapped__"):
        own = inspect.signature(function, follow_wrapped=False).parameters
        if "found" not in own and all(one.kind is not one.VAR_KEYWORD for one in own.values()):
            return False
        function = function.__wrapped__
    return True


class JobRegistry:
    """The jobs that this process knows."""

    def __init__(self) -> None:
        self._known: dict[str, JobDefinition] = {}

    def register(self, definition: JobDefinition) -> None:
        if definition.name in self._known:
            raise ConfigurationError(f"The job {definition.name!r} is defined twice.")
        if not _passes_found_on(definition.function) and _names_found(definition.function):
            raise ConfigurationError(
                f"The function of the job {definition.name!r} takes `found`, and a decorator around it does "
                "not. Have that take **kwargs, and hand them on."
            )
        if _AGAIN in definition.name or _NEXT in definition.name:
            raise ConfigurationError(
                f"The job {definition.name!r} needs a name without {_AGAIN} and {_NEXT}: downstream keys "
                "count the jobs of an operation by them, so two jobs could share one."
            )
        checked_text("The name of a job", definition.name)
        called = (definition.function, getattr(type(definition.function), "__call__", None))  # noqa: B004
        if any(inspect.isgeneratorfunction(one) or inspect.isasyncgenfunction(one) for one in called):
            raise ConfigurationError(
                f"The function of the job {definition.name!r} is a generator (it has a yield), so calling it "
                "would run nothing of it. Let it do its work and return."
            )
        if definition.source is not None:
            checked_text("source", definition.source)
        if definition.max_attempts < 1 or definition.timeout <= timedelta(0):
            raise ConfigurationError(
                f"The job {definition.name!r} needs at least one attempt and a time-out longer than nothing."
            )
        self._known[definition.name] = definition

    def get(self, name: str) -> JobDefinition | None:
        return self._known.get(name)

    def source_of(self, name: str) -> str | None:
        """The provider that jobs of this name call."""
        return None if name not in self._known else self._known[name].source

    def takes_found(self, name: str) -> bool:
        return name in self._known and self._known[name].takes_found

    def takers(self) -> list[str]:
        """The names of all that take it."""
        return [name for name, known in self._known.items() if known.takes_found]

    def require(self, name: str) -> None:
        if name not in self._known:
            known = ", ".join(sorted(self._known)) or "none"
            raise ConfigurationError(
                f"There is no job {name!r}; this process knows: {known}. Define it with "
                f'@idempotency.job("{name}") in a module that both the app and the worker import.'
            )


@dataclass(frozen=True, slots=True)
class Envelope:
    """A payload as it is stored, with what the worker needs beside it."""

    step: str
    tenant: str
    payload: Any
    delay_ms: int = 0
    """For so long after it was written it was not to be begun."""

    def encode(self) -> bytes:
        value = {
            "version": ENVELOPE_VERSION,
            "step": self.step,
            "tenant": self.tenant,
            "payload": self.payload,
            "delay_ms": self.delay_ms,
        }
        stored = encode_value(value, "The payload of the job")
        if len(stored) > LARGEST_PAYLOAD:
            raise NotSerialisable(
                f"The payload of the job has {len(stored)} bytes, and {LARGEST_PAYLOAD} at most can be "
                "stored. Keep what is large elsewhere, and give the job its place."
            )
        return stored

    @staticmethod
    def decode(stored: bytes) -> Envelope:
        """``NotSerialisable`` if nobody can read it; ``NotForUs`` if another worker can."""
        if isinstance(stored, NotNow):
            raise NotForUs(str(Sealed()))
        if isinstance(stored, Undecryptable):
            raise NotForUs(
                "Its payload cannot be decrypted here: this process lacks the encryption key that it was "
                "written with. Give it that key too, fernet(…, THAT_KEY), and it will be done"
            )
        try:
            value = json.loads(stored)
            version = value["version"]
            if isinstance(version, int) and version > ENVELOPE_VERSION:
                raise NotForUs(f"It was written by a newer version of samekey ({version})")
            delay_ms = int(value.get("delay_ms", 0))
            return Envelope(str(value["step"]), str(value["tenant"]), value["payload"], delay_ms)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise NotSerialisable(f"The payload cannot be read: {type(error).__name__}: {error}") from None


def step_of(name: str, count: int, after: str | None = None) -> str:
    """What the downstream key of a job is made of: unique in its operation, the same for every attempt.

    ``after`` is the step of the job that enqueued it, ``count`` how many of its sort were before it. A long
    history is told by its digest. That begins as no other step does: no name of a job has such a sign.
    """
    last = f"{name}{_AGAIN}{count}" if count else name
    whole = last if after is None else f"{after}{_NEXT}{last}"
    if after is not None and len(whole.encode()) > READABLE_STEP:
        shorter = f"{_NEXT}{_told(after)}{_NEXT}{last}"
    else:
        shorter = whole
    return shorter if len(shorter.encode()) <= LONGEST_STEP else f"{_NEXT}{_told(whole)}"


def _told(history: str) -> str:
    return hashlib.sha256(history.encode()).hexdigest()[:32]


class NotForUs(Exception):
    """A payload that this worker cannot read now and another can, or this one once it was set up anew."""


def enqueue_program(
    jobs: Jobs,
    registry: JobRegistry,
    running: Running,
    name: str,
    payload: Any,
    delay: float | timedelta = 0,
) -> Program[None]:
    """Writes one job. Checked before anything is written, so a mistake costs the handler nothing.

    It takes a place of its own, which is never given to another, whatever becomes of this one. Which job
    answers is for the transaction to tell: a savepoint may have taken back those before it.
    """
    registry.require(name)
    place, operation_id = running.operation.places_taken, running.operation.id
    step = step_of(name, place)
    delay_ms = _delay_ms(name, delay)
    envelope = Envelope(step, running.tenant, payload, delay_ms).encode()
    running.operation.places_taken += 1

    def written() -> Program[None]:
        yield from jobs.enqueue(
            secrets.token_hex(16),
            operation_id,
            running.claim,
            running.claim.tenant,
            name,
            envelope,
            answers=place == 0 or not (yield from jobs.has_any(operation_id)),
            goes_on=registry.takes_found(name),
            delay_ms=delay_ms,
            step=step,
            source=registry.source_of(name),
        )

    return written()


def _delay_ms(name: str, delay: float | timedelta) -> int:
    found = seconds(delay)
    if not timedelta(0) <= found <= LONGEST_DELAY:
        raise ConfigurationError(f"The delay of the job {name!r} must be between nothing and ten years.")
    return milliseconds(found)


@dataclass(frozen=True, slots=True)
class Next:
    """A job that is enqueued with the end of another."""

    name: str
    step: str
    envelope: bytes
    delay_ms: int
    source: str | None


class JobContext:
    """``job`` in a job function: who it is for, and the key to send to the provider."""

    provider_id = StoredText()
    """Set it to the provider's own id, text; it is stored before the job is marked done."""

    def __init__(self, job: Job, envelope: Envelope, registry: JobRegistry) -> None:
        self._job = job
        self._step = envelope.step
        self._registry = registry
        self._next: list[Next] = []
        self._writes: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = []
        self.id = job.id
        self.operation_id = job.operation_id
        self.tenant = envelope.tenant
        self.age = max(job.taken_at - job.created_at - envelope.delay_ms, 0) / 1000
        """Seconds since it could first have been begun, by the store's clock, when this attempt began."""
        self.attempts = job.attempts
        """How many of its attempts are used up, this one included. A clean stop, ``samekey dead retry`` and a
        finding give them back."""
        self.tried_before = job.sends > 1
        """Whether it has been begun before, so that the provider may know of it: nothing sets that back."""
        self.refused: NotSerialisable | None = None
        """Why a job after this one cannot be stored."""
        self.key = downstream_key(job.scope, job.key, envelope.step)
        """The same for every attempt: send it to the provider as its idempotency key."""

    def write(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> None:
        """Has ``function(connection, …)`` run in the transaction that marks the job done."""
        self._writes.append((function, args, kwargs))

    def enqueue(self, name: str, payload: Any = None, *, delay: float | timedelta = 0) -> None:
        """Has another job done, at once or after ``delay`` (seconds or a timedelta).

        It is written in the transaction that marks this one done: it exists exactly if this attempt counts.
        Its result is dropped: the operation's answer is that of the first job.
        """
        self._registry.require(name)
        count = sum(one.name == name for one in self._next)
        step = step_of(name, count, after=self._step)
        delay_ms = _delay_ms(name, delay)
        try:
            envelope = Envelope(step, self.tenant, payload, delay_ms).encode()
        except NotSerialisable as error:
            self.refused = error
            raise
        self._next.append(Next(name, step, envelope, delay_ms, self._registry.source_of(name)))

    def enqueue_next(self, jobs: Jobs) -> Program[None]:
        """Writes those jobs, inside the transaction that ends this one."""
        for one in self._next:
            job_id = secrets.token_hex(16)
            of, tenant = self._job.operation_id, self._job.tenant
            yield from jobs.enqueue(
                job_id,
                of,
                self._job,
                tenant,
                one.name,
                one.envelope,
                answers=False,
                goes_on=self._registry.takes_found(one.name),
                delay_ms=one.delay_ms,
                step=one.step,
                source=one.source,
            )

    def mark(self) -> tuple[int, int]:
        """How much there is to be written by now."""
        return len(self._next), len(self._writes)

    def cut_back(self, mark: tuple[int, int]) -> None:
        """Forgets what came after the mark: a write may enqueue, and is run again when its try was lost."""
        del self._next[mark[0] :], self._writes[mark[1] :]

    @property
    def writes(self) -> list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]]:
        return self._writes

    def __repr__(self) -> str:
        return f"<JobContext {self._job.name} {self.id} attempt {self.attempts}>"
