"""How records, timelines and jobs are shown: by default without keys and bodies, which may be private."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.text import Text

from ..core.effects import KnownEffect
from ..core.fingerprint import part_digests
from ..core.record import Answer, Record
from ..core.states import Mode, State
from ..evidence import AnswerKind, kind_of
from ..stores.sql.looking import DeadJob, ShownPhase, Transition
from .output import coloured, moment, print_table, shown_id, tenant_name, when
from .sent import how_to_search
from .target import OperatorStore


def next_step(
    record: Record, now: int, effects: Sequence[KnownEffect] = (), likely: Sequence[str] = ()
) -> str | None:
    """What an operator may do about it."""
    step = _what_to_do(record, now, effects, likely)
    if step is None or record.life == 1 or "--executed" not in step:
        return step
    begins = f"  samekey keys resolve {record.id} --executed "
    return f"{former_lives(record)}\n{step}".replace(begins, f"{begins}--provider-id '…' ")


def former_lives(record: Record) -> str:
    """What whoever looks at the provider must know of a key that was used before."""
    since = when(int(record.since.timestamp() * 1000))
    return (
        f"This is life {record.life} of its key, and all of them have sent the same downstream keys: what "
        f"the provider made before {since} under one of them is a former life's, and not this one's."
    )


def _what_to_do(
    record: Record, now: int, effects: Sequence[KnownEffect], likely: Sequence[str]
) -> str | None:
    open_phase = next((e for e in effects if record.mode is Mode.PHASED and e.outcome is None), None)
    if open_phase is not None and record.state in (State.UNKNOWN, State.DEAD_LETTER):
        return (
            f"Find out at the provider what became of {open_phase.step!r}, by its downstream key or its id. "
            "What its "
            "call would have returned is its result, and the run goes on:\n"
            f"  samekey keys resolve {record.id} --executed --result '…' --reason '…'\n"
            f"  samekey keys resolve {record.id} --declined --result '…' --reason '…'\n"
            f"  samekey keys resolve {record.id} --not-executed --reason '…'"
        )
    if record.state is State.UNKNOWN and record.mode is Mode.PHASED:
        return (
            "None of its effects is open. If what stopped it is seen to, its run goes on from its recovery "
            "point:\n"
            f"  samekey keys resolve {record.id} --executed --reason '…'"
        )
    if record.state is State.UNKNOWN or (
        record.state is State.DEAD_LETTER and record.mode not in (Mode.DEFERRED, Mode.PHASED)
    ):
        call = kind_of(record) is AnswerKind.CALL
        done, refused = (
            ("--result '…'",) * 2 if call else ("--status 201 --body '…'", "--status 402 --body '…'")
        )
        return how_to_search(record, effects, likely) + (
            f"  samekey keys resolve {record.id} --executed {done} --reason '…'\n"
            f"  samekey keys resolve {record.id} --declined {refused} --reason '…'\n"
            f"  samekey keys resolve {record.id} --not-executed --reason '…'"
        )
    if record.state is State.DEAD_LETTER:
        return (
            "Nothing more is tried. Once the cause is gone, or if it is to be given up:\n"
            f"  samekey dead retry {record.id} --reason '…'\n"
            f"  samekey dead discard {record.id} --reason '…'"
        )
    if (
        record.state is State.IN_PROGRESS
        and record.mode is not Mode.PHASED
        and record.locked_until is not None
        and record.locked_until <= now
    ):
        return "Its lease has ended, and nobody has moved it yet: samekey sweep"
    return None


def facts(
    store: OperatorStore, record: Record, *, reveal: bool, body: bool
) -> Iterable[tuple[str, str | Text]]:
    yield "id", record.id
    yield "digest", store.digest(record)
    if reveal:
        yield "key", record.key
    yield "tenant", tenant_name(record.tenant)
    yield "endpoint", record.endpoint
    yield "state", coloured(record.state)
    yield "mode", str(record.mode)
    yield "attempts", str(record.attempts)
    if record.life > 1:
        yield "life of its key", str(record.life)
        made = store.ask(lambda: store.finding.past_ids(record.id))
        yield "made by former lives", ", ".join(made) or "nothing that is known by an id"
    parts = fingerprint_parts(store, record)
    if parts:
        yield "fingerprint", ", ".join(f"{name} {digest}" for name, digest in parts.items())
    for name, value in (
        ("error", record.error_code),
        ("recovery point", record.recovery_point),
        ("provider's id", record.provider_id),
    ):
        if value is not None:
            yield name, value
    for name, at in (
        ("created", record.created_at),
        ("last run", record.last_run_at),
        ("lease until", record.locked_until),
        ("asked about next", record.reconcile_after),
        ("completed", record.completed_at),
        ("expires", record.expires_at),
    ):
        if at is not None:
            yield name, when(at)
    if record.withheld:
        yield "answer", "not shown: streamed, too large, evicted or encrypted"
    if record.answer is not None:
        yield "answer", f"{record.answer.status}, {len(record.answer.body)} bytes"
        if body:
            for name_, header in record.answer.headers:
                yield name_.decode("latin-1"), header.decode("latin-1")
            yield "body", text_of(record.answer.body)


def fingerprint_parts(store: OperatorStore, record: Record) -> dict[str, str]:
    """A short keyed digest of each part of the request: two records that agree in one had the same there."""
    parts = part_digests(record.fingerprint)
    return {name: store.keyed(record.fingerprint_version, digest) for name, digest in parts.items()}


def described_record(
    store: OperatorStore, record: Record, *, reveal: bool, answer: bool = False, body: bool = False
) -> dict[str, Any]:
    described: dict[str, Any] = {
        "id": record.id,
        "digest": store.digest(record),
        "tenant": tenant_name(record.tenant),
        "endpoint": record.endpoint,
        "state": str(record.state),
        "mode": str(record.mode),
        "attempts": record.attempts,
        "life": record.life,
        "fingerprint": fingerprint_parts(store, record),
        "error": record.error_code,
        "recovery_point": record.recovery_point,
        "provider_id": record.provider_id,
        "created_at": moment(record.created_at),
        "last_run_at": moment(record.last_run_at),
        "locked_until": moment(record.locked_until),
        "reconcile_after": moment(record.reconcile_after),
        "completed_at": moment(record.completed_at),
        "expires_at": moment(record.expires_at),
    }
    if reveal:
        described["key"] = record.key
    if answer:
        described["withheld"] = record.withheld
        described["answer"] = record.answer and described_answer(record.answer, body=body)
    return described


def why_kept(left: Sequence[tuple[str, str, str]]) -> str:
    """Why the key of a record whose retention is over is not free."""
    parts = ", ".join(f"{kind} {name!r} is {state}" for kind, name, state in left)
    return (
        f"Its retention is over, but something of it is left: {parts}. Until that is seen to it is "
        "kept, a retry gets what it got before, and the key is not used again."
    )


def described_answer(answer: Answer, *, body: bool) -> dict[str, Any]:
    described: dict[str, Any] = {"status": answer.status, "bytes": len(answer.body)}
    if body:
        described["headers"] = [[n.decode("latin-1"), v.decode("latin-1")] for n, v in answer.headers]
        described["body"] = text_of(answer.body)
    return described


def text_of(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return f"hex {body.hex()}"


def described_step(step: Transition) -> dict[str, Any]:
    return {
        "at": moment(step.at),
        "from": step.before,
        "to": step.after,
        "actor": step.actor,
        "reason": step.reason,
        "attempt": step.attempt,
    }


def print_timeline(timeline: Iterable[Transition]) -> None:
    print_table(
        ("when", "from", "to", "actor", "reason"),
        (
            (when(s.at), coloured(s.before or "–"), coloured(s.after or "–"), s.actor, s.reason or "")
            for s in timeline
        ),
    )


def print_phases(phases: Iterable[ShownPhase]) -> None:
    print_table(
        ("phase", "kind", "state", "provider's id", "begun", "done"),
        (
            (
                phase.name,
                phase.kind,
                "done" if phase.done else "open",
                phase.provider_id or "",
                when(phase.begun_at),
                when(phase.done_at),
            )
            for phase in phases
        ),
        narrow=("phase", "kind", "state", "begun"),
    )


def described_phase(phase: ShownPhase) -> dict[str, Any]:
    """A phase for scripts; its result is the user's and may be private."""
    return {
        "name": phase.name,
        "kind": phase.kind,
        "done": phase.done,
        "provider_id": phase.provider_id,
        "begun_at": moment(phase.begun_at),
        "done_at": moment(phase.done_at),
    }


def print_jobs(store: OperatorStore, jobs: Iterable[DeadJob]) -> None:
    print_table(
        ("job", "name", "state", "attempts", "answers", "provider's id", "error"),
        (
            (
                shown_id(store, job.id),
                job.name,
                job.state,
                str(job.attempts),
                "yes" if job.answers else "no",
                job.provider_id or "",
                job.error or "",
            )
            for job in jobs
        ),
        narrow=("job", "name", "state", "attempts", "error"),
    )


def described_job(job: DeadJob) -> dict[str, Any]:
    """A job for scripts; its payload is the user's and may be private."""
    return {
        "id": job.id,
        "operation_id": job.operation_id,
        "tenant": tenant_name(job.tenant),
        "name": job.name,
        "state": job.state,
        "answers": job.answers,
        "attempts": job.attempts,
        "error": job.error,
        "provider_id": job.provider_id,
        "created_at": moment(job.created_at),
        "buried_at": moment(job.buried_at),
    }
