"""``samekey dead list|show|retry|discard``: jobs and operations that the machine has given up.

A job's id and its operation's id are both accepted everywhere: they mean the same dead letter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from ..core.disputes import check_set_aside
from ..core.policy import ietf
from ..core.problem import Refusal, refuse
from ..core.program import Program
from ..core.record import Answer, Record
from ..core.states import Mode, State
from ..evidence import Declined
from ..stores.protocols import Actor
from ..stores.sql.looking import DeadJob
from .describe import described_job, described_record, described_step, next_step, print_jobs, print_timeline
from .evidence import events_about, print_events
from .options import (
    DIGEST_SECRET,
    ActorName,
    CommandRefused,
    Despite,
    DigestSecret,
    EncryptionKeys,
    Reason,
    Schema,
    Timeout,
    Url,
    actor,
)
from .output import DryRun, Json, age, coloured, print_facts, print_table, sentences, shown_id, tenant_name
from .rehearsal import rehearse
from .resolve import answer_from
from .speech import advise, print_json, say
from .target import OperatorStore, open_store

dead_app = typer.Typer(
    help="Jobs and operations that were given up: try again or discard.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Id = Annotated[
    str,
    typer.Argument(
        envvar="SAMEKEY_ID", help="The id of a job or of an operation, or how it begins.", metavar="ID"
    ),
]


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter: a job, an operation, or a job that took its operation with it."""

    job: DeadJob | None
    record: Record | None

    @property
    def operation_id(self) -> str:
        found = self.record.id if self.record is not None else self.job and self.job.operation_id
        assert found
        return found


def _letter(store: OperatorStore, letter_id: str) -> Letter:
    """What the id means, or how it begins, whether it is dead or not."""
    letter_id = store.whole_id(letter_id)
    job = store.ask(lambda: store.operator.job(letter_id)) if store.has_tables else None
    if job is not None:
        return Letter(job, store.record(job.operation_id))
    record = store.record(letter_id)
    if record is None:
        raise CommandRefused(f"There is no job and no operation {letter_id}. Nothing was changed.")
    jobs = _jobs_of(store, record.id)
    dead = sorted((job for job in jobs if job.state == "dead"), key=lambda job: not job.answers)
    return Letter(dead[0] if dead else None, record)


def _jobs_of(store: OperatorStore, operation_id: str) -> Sequence[DeadJob]:
    return store.ask(lambda: store.operator.jobs_of(operation_id)) if store.has_tables else []


# ------------------------------------------------------------------ list and show


@dead_app.command("list")
def list_command(
    url: Url,
    limit: Annotated[
        int, typer.Option("--limit", envvar="SAMEKEY_LIMIT", min=1, help="At most so many of each kind.")
    ] = 50,
    schema: Schema = "samekey",
    timeout: Timeout = 30,
    as_json: Json = False,
) -> None:
    """List dead jobs, and dead operations that have no job."""
    with sentences(), open_store(url, schema, timeout) as store:
        now = store.now()
        jobs = store.ask(lambda: store.operator.dead_jobs(limit=limit)) if store.has_tables else []
        records = store.ask(lambda: store.finding.find(state=str(State.DEAD_LETTER), limit=limit))
        told = {job.operation_id for job in jobs if job.answers}
        alone = [record for record in records if record.id not in told]
        if as_json:
            described = [described_record(store, record, reveal=False) for record in alone]
            print_json({"jobs": [described_job(job) for job in jobs], "records": described})
            return
        if not jobs and not alone:
            say("There are no dead letters.")
            return
        rows = [
            (
                shown_id(store, job.id),
                "job",
                job.name,
                age(now - (job.buried_at or now)),
                str(job.attempts),
                job.error or "",
            )
            for job in jobs
        ]
        rows += [
            (
                shown_id(store, record.id),
                str(record.mode),
                record.endpoint,
                age(now - record.last_run_at),
                str(record.attempts),
                record.error_code or "",
            )
            for record in alone
        ]
        print_table(
            ("id", "kind", "what", "dead for", "attempts", "error"),
            rows,
            narrow=("id", "kind", "what", "dead for", "error"),
        )


@dead_app.command("show")
def show_command(
    url: Url,
    letter_id: Id,
    payload: Annotated[
        bool,
        typer.Option(
            "--payload", envvar="SAMEKEY_PAYLOAD", help="Show the job's payload; it may be private."
        ),
    ] = False,
    schema: Schema = "samekey",
    timeout: Timeout = 30,
    digest_secret: DigestSecret = DIGEST_SECRET,
    encryption_key: EncryptionKeys = None,
    as_json: Json = False,
) -> None:
    """Show a dead letter: why it was given up, and its timeline."""
    with sentences(), open_store(url, schema, timeout, digest_secret, encryption_key) as store:
        letter = _letter(store, letter_id)
        job, record = letter.job, letter.record
        found = store.by_id(letter.operation_id)
        jobs = _jobs_of(store, letter.operation_id)
        events = events_about(store, letter.operation_id)
        if as_json:
            print_json(
                {
                    "record": record and described_record(store, record, reveal=False),
                    "timeline": [described_step(step) for step in found.timeline],
                    "jobs": [
                        described_job(one) | ({"payload": _payload(one)} if payload else {}) for one in jobs
                    ],
                    "events": events,
                }
            )
            return
        if record is not None:
            print_facts(
                [
                    ("operation", record.id),
                    ("digest", store.digest(record)),
                    ("tenant", tenant_name(record.tenant)),
                    ("endpoint", record.endpoint),
                    ("state", coloured(record.state)),
                    ("mode", str(record.mode)),
                    ("error", record.error_code or ""),
                    ("provider's id", record.provider_id or ""),
                ]
            )
            say("")
        if store.has_tables:
            print_timeline(found.timeline)
        if jobs:
            say("")
            print_jobs(store, jobs)
        if payload and job is not None:
            say("")
            say(_payload(job))
        print_events(events)
        hint = None if record is None else next_step(record, store.now())
        if hint is not None:
            say("")
            advise(hint)


def _payload(job: DeadJob) -> str:
    return bytes(job.payload).decode("utf-8", "replace")


# ------------------------------------------------------------------ retry and discard


@dead_app.command("retry")
def retry_command(
    url: Url,
    letter_id: Id,
    reason: Reason,
    despite: Despite = None,
    actor_name: ActorName = None,
    dry_run: DryRun = False,
    schema: Schema = "samekey",
    timeout: Timeout = 30,
) -> None:
    """Have a dead letter tried again: a job by a worker, a phased operation by the completer."""
    who = actor(actor_name, reason)
    with sentences(), open_store(url, schema, timeout) as store:
        letter = _letter(store, letter_id)
        job, record = letter.job, letter.record
        _refuse_living(letter)
        if job is not None and job.answers and (record is None or record.state is not State.DEAD_LETTER):
            raise CommandRefused(
                f"Its operation is {'gone' if record is None else record.state}, so its effect must not "
                f"happen any more. Put it away: samekey dead discard {job.id}. Nothing was changed."
            )
        if job is None and record is not None and record.mode is not Mode.PHASED:
            raise CommandRefused(
                f"{record.mode.article} operation may have happened, so nobody may simply run it again. Find "
                f"out, then use samekey keys resolve {record.id}. Nothing was changed."
            )

        def retry() -> Program[bool]:
            if job is not None:
                return store.operator.retry_dead_job(job.id, who, despite=despite or ())
            return store.operator.retry_dead_operation(letter.operation_id, who, despite=despite or ())

        if dry_run:
            rehearse(store, retry, letter.operation_id, despite or ())
            say("It would be tried again. It is a dead letter and stays one: this was a dry run.")
            return
        if not store.act(retry):
            raise CommandRefused("Somebody else was faster. Nothing was changed.")
        by = "a worker" if job is not None else "the completer"
        say(f"{letter_id} is tried again as soon as {by} takes it.")


@dead_app.command("discard")
def discard_command(
    url: Url,
    letter_id: Id,
    reason: Reason,
    status: Annotated[
        int,
        typer.Option(
            "--status",
            envvar="SAMEKEY_ANSWER_STATUS",
            min=400,
            max=599,
            help="The HTTP status of its answer.",
        ),
    ] = 500,
    body: Annotated[
        str | None,
        typer.Option(
            "--body", envvar="SAMEKEY_ANSWER_BODY", help="The body of its answer; else a problem document."
        ),
    ] = None,
    despite: Despite = None,
    actor_name: ActorName = None,
    dry_run: DryRun = False,
    schema: Schema = "samekey",
    timeout: Timeout = 30,
    encryption_key: EncryptionKeys = None,
) -> None:
    """Give a dead letter up for good; every retry gets a final failure as its answer."""
    who = actor(actor_name, reason)
    answer = _failure(status, body)
    with sentences(), open_store(url, schema, timeout, encryption_keys=encryption_key) as store:
        letter = _letter(store, letter_id)
        _refuse_living(letter)
        store.refuse_plain_answers()

        def discard() -> Program[bool]:
            return _discarded(store, letter, answer, who, despite or ())

        if dry_run:
            rehearse(store, discard, letter.operation_id, despite or ())
            say(f"It would be given up with {answer.status}. It stays as it is: this was a dry run.")
            return
        if not store.act(discard):
            raise CommandRefused("Somebody else was faster. Nothing was changed.")
        record = store.record(letter.operation_id)
        if record is not None and record.answer == answer:
            say(f"{letter_id} is given up; every retry gets {answer.status}.")
        else:
            say(f"{letter_id} is given up; its operation stays as it is.")


def _discarded(
    store: OperatorStore, letter: Letter, answer: Answer, who: Actor, despite: Sequence[str]
) -> Program[bool]:
    job, operation_id = letter.job, letter.operation_id
    if job is not None:
        return (yield from store.operator.discard_dead_job(job.id, answer, who, despite=despite))
    if store.has_tables:
        return (yield from store.operator.discard_dead_operation(operation_id, answer, who, despite=despite))
    assert letter.record is not None
    waiting = yield from store.finding.disputed_by(operation_id)
    check_set_aside(waiting, despite)
    return (
        yield from store.finding.executed(
            operation_id, answer, who, attempt=letter.record.attempt, despite=waiting
        )
    )


def _refuse_living(letter: Letter) -> None:
    dead_record = letter.record is not None and letter.record.state is State.DEAD_LETTER
    if letter.job is not None and letter.job.state != "dead":
        raise CommandRefused(f"The job is {letter.job.state}, not dead. Nothing was changed.")
    if letter.job is None and not dead_record:
        assert letter.record is not None
        raise CommandRefused(
            f"The operation is {letter.record.state}, not a dead letter. Nothing was changed."
        )


def _failure(status: int, body: str | None) -> Answer:
    if body is not None:
        return answer_from(status, body, None, Declined)
    detail = (
        "The operation was given up. It will not be carried out under this key; ask before using a new one."
    )
    return refuse(Refusal(status, detail), ietf())
