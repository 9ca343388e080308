"""Jobs: what a deferred handler enqueues, what a worker runs, and how both sides write it down."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from ..core.backoff import Backoff
from ..core.claim import downstream_key
from ..core.phases import encode_value
from ..core.program import Program
from ..core.provider import ProviderId
from ..errors import ConfigurationError, NotSerialisable
from ..stores.sql.jobs import Job, Jobs
from .operation import Running

ENVELOPE_VERSION = 1
"""The layout of a stored payload. A worker of an older version leaves newer ones to others."""


@dataclass(frozen=True, slots=True)
class JobDefinition:
    """A function that does jobs of one name."""

    name: str
    function: Callable[..., Any]
    max_attempts: int = 10
    """Some four minutes with the default backoff, nine at most; after that an operator looks."""
    timeout: timedelta = timedelta(seconds=60)
    backoff: Backoff = field(default_factory=Backoff)


class JobRegistry:
    """The jobs that this process knows."""

    def __init__(self) -> None:
        self._known: dict[str, JobDefinition] = {}

    def register(self, definition: JobDefinition) -> None:
        if definition.name in self._known:
            raise ConfigurationError(f"The job {definition.name!r} is defined twice.")
        if "#" in definition.name:
            raise ConfigurationError(
                f"The job {definition.name!r} needs a name without #: downstream keys count the jobs of an "
                "operation by it, so two jobs could share one."
            )
        if definition.max_attempts < 1 or definition.timeout <= timedelta(0):
            raise ConfigurationError(
                f"The job {definition.name!r} needs at least one attempt and a time-out longer than nothing."
            )
        self._known[definition.name] = definition

    def get(self, name: str) -> JobDefinition | None:
        return self._known.get(name)

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

    def encode(self) -> bytes:
        value = {
            "version": ENVELOPE_VERSION,
            "step": self.step,
            "tenant": self.tenant,
            "payload": self.payload,
        }
        return encode_value(value, "The payload of the job")

    @staticmethod
    def decode(stored: bytes) -> Envelope:
        """``NotSerialisable`` if it cannot be read; ``NewerVersion`` if a newer worker must do it."""
        try:
            value = json.loads(stored)
            version = value["version"]
            if isinstance(version, int) and version > ENVELOPE_VERSION:
                raise NewerVersion(f"The job was written by a newer version ({version}).")
            return Envelope(str(value["step"]), str(value["tenant"]), value["payload"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise NotSerialisable(f"The payload cannot be read: {type(error).__name__}: {error}") from None


class NewerVersion(Exception):
    """A payload that only a newer worker can read."""


def enqueue_program(
    jobs: Jobs, registry: JobRegistry, running: Running, name: str, payload: Any
) -> Program[None]:
    """Writes one job. Checked before anything is written, so a mistake costs the handler nothing."""
    registry.require(name)
    count = running.operation.enqueued
    step = name if count == 0 else f"{name}#{count}"
    envelope = Envelope(step, running.tenant, payload).encode()
    return jobs.enqueue(
        secrets.token_hex(16),
        running.operation.id,
        running.claim,
        running.claim.tenant,
        name,
        envelope,
        answers=count == 0,
    )


class JobContext:
    """``job`` in a job function: who it is for, and the key to send to the provider."""

    provider_id = ProviderId()
    """Set it to the provider's own id, text; it is stored before the job is marked done."""

    def __init__(self, job: Job, envelope: Envelope) -> None:
        self._job = job
        self._writes: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = []
        self.id = job.id
        self.operation_id = job.operation_id
        self.tenant = envelope.tenant
        self.attempts = job.attempts
        """How often this job has been tried, this time included."""
        self.key = downstream_key(job.scope, job.key, envelope.step)
        """The same for every attempt: send it to the provider as its idempotency key."""

    def write(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> None:
        """Has ``function(connection, …)`` run in the transaction that marks the job done."""
        self._writes.append((function, args, kwargs))

    @property
    def writes(self) -> list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]]:
        return self._writes

    def __repr__(self) -> str:
        return f"<JobContext {self._job.name} {self.id} attempt {self.attempts}>"
