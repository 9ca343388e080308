"""``samekey keys list|show|resolve|extend|evict``: find a key and its story; override where one must."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from ..core.claim import scope_part
from ..core.decide import has_expired
from ..core.effects import KnownEffect
from ..core.policy import milliseconds
from ..core.record import Answer, Record
from ..core.states import Mode, State
from ..engine.extending import Extension, moment, new_end
from ..errors import NotExecuted, NotExtended, SamekeyError
from ..evidence import AnswerKind, Declined, Evidence, Executed, check_about, check_answer, kind_of
from ..response import Response
from ..stores.sql.operator import DeadJob
from .describe import (
    described_job,
    described_record,
    described_step,
    facts,
    next_step,
    print_jobs,
    print_timeline,
    why_kept,
)
from .evidence import events_about, print_events
from .output import (
    DryRun,
    Json,
    age,
    print_facts,
    print_json,
    print_table,
    printable,
    say,
    sentences,
)
from .rehearsal import rehearsed
from .sent import described_effect, described_likely, effects_of, likely_steps, print_effects
from .target import (
    DIGEST_SECRET,
    ActorName,
    CacheUrl,
    CommandRefused,
    Despite,
    DigestSecret,
    EncryptionKeys,
    FoundKey,
    OperatorStore,
    Reason,
    Schema,
    Timeout,
    Url,
    actor,
    duration,
    open_store,
)

keys_app = typer.Typer(
    help="Find keys, see their timelines, resolve, extend and evict.", no_args_is_help=True
)

Id = Annotated[str, typer.Argument(envvar="SAMEKEY_ID", help="The operation's id.", metavar="ID")]
Reveal = Annotated[
    bool, typer.Option("--reveal", envvar="SAMEKEY_REVEAL", help="Show the key itself, not only its digest.")
]


# ------------------------------------------------------------------ list


@keys_app.command("list")
def list_command(
    url: Url,
    state: Annotated[
        State | None, typer.Option("--state", envvar="SAMEKEY_STATE", help="Only records in this state.")
    ] = None,
    tenant: Annotated[
        str | None, typer.Option("--tenant", envvar="SAMEKEY_TENANT", help="Only this tenant's.")
    ] = None,
    key: Annotated[str | None, typer.Option("--key", envvar="SAMEKEY_KEY", help="Only this key.")] = None,
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", envvar="SAMEKEY_OLDER_THAN", help="Created before: 90s, 15m, 24h, 30d."),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", envvar="SAMEKEY_LIMIT", min=1, help="At most so many, newest first.")
    ] = 50,
    reveal: Reveal = False,
    schema: Schema = "samekey",
    timeout: Timeout = 30,
    digest_secret: DigestSecret = DIGEST_SECRET,
    as_json: Json = False,
) -> None:
    """List records, newest first. Keys are shown as digests, as in the logs."""
    younger = None if older_than is None else milliseconds(duration(older_than))
    with sentences(), open_store(url, schema, timeout, digest_secret) as store:
        now = store.now()
        records = store.ask(
            lambda: store.finding.find(
                state=None if state is None else str(state),
                tenant=None if tenant is None else scope_part(tenant),
                key=key,
                created_before=None if younger is None else now - younger,
                limit=limit,
            )
        )
        if as_json:
            print_json([described_record(store, record, reveal=reveal) for record in records])
            return
        if not records:
            say("There are no such records.")
            return
        print_table(
            ("id", "key" if reveal else "digest", "state", "mode", "endpoint", "age", "attempts", "error"),
            (
                (
                    record.id,
                    record.key if reveal else store.digest(record),
                    str(record.state),
                    str(record.mode),
                    record.endpoint,
                    age(now - record.created_at),
                    str(record.attempts),
                    record.error_code or "",
                )
                for record in records
            ),
        )
        if len(records) == limit:
            say(f"These are the newest {limit}; there may be more (--limit).")


# ------------------------------------------------------------------ show


@keys_app.command("show")
def show_command(
    url: Url,
    operation_id: Annotated[
        str | None, typer.Argument(envvar="SAMEKEY_ID", help="The operation's id.", metavar="[ID]")
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", envvar="SAMEKEY_KEY", help="The key, together with --tenant.")
    ] = None,
    tenant: Annotated[
        str | None, typer.Option("--tenant", envvar="SAMEKEY_TENANT", help="Whose key it is.")
    ] = None,
    digest: Annotated[
        str | None,
        typer.Option("--digest", envvar="SAMEKEY_DIGEST", help="The digest from a log. Looks at every key."),
    ] = None,
    body: Annotated[
        bool, typer.Option("--body", envvar="SAMEKEY_SHOW_BODY", help="Show the stored answer's body too.")
    ] = False,
    step: Annotated[
        str | None,
        typer.Option(
            "--step", envvar="SAMEKEY_STEP", help="Also the downstream key of this step, sent or not."
        ),
    ] = None,
    reveal: Reveal = False,
    schema: Schema = "samekey",
    timeout: Timeout = 30,
    digest_secret: DigestSecret = DIGEST_SECRET,
    encryption_key: EncryptionKeys = None,
    as_json: Json = False,
) -> None:
    """Show all that is known of a key, with its timeline; the timeline also after the record is gone."""
    with sentences(), open_store(url, schema, timeout, digest_secret, encryption_key) as store:
        found = _find(store, operation_id, key, tenant, digest)
        if found.record is None and not found.timeline:
            raise CommandRefused("Nothing is known of it: no record, and no timeline.")
        jobs = _jobs(store, found.record)
        events = [] if found.record is None else events_about(store, found.record.id)
        effects = effects_of(store, found.record)
        likely = likely_steps(store, found.record, effects)
        left = _left(store, found.record)
        derived = None if step is None or found.record is None else found.record.downstream_key(step)
        if as_json:
            print_json(
                {
                    "record": found.record
                    and described_record(store, found.record, reveal=reveal, answer=True, body=body),
                    "timeline": [described_step(step) for step in found.timeline],
                    "effects": [
                        described_effect(found.record, effect)
                        for effect in effects
                        if found.record is not None
                    ],
                    "may_have_been_sent": []
                    if found.record is None
                    else described_likely(found.record, likely),
                    "jobs": [described_job(job) for job in jobs],
                    "events": events,
                    "kept_by": [{"kind": kind, "name": name, "state": state} for kind, name, state in left],
                    **({} if derived is None else {"derived": {"step": step, "downstream_key": derived}}),
                }
            )
            return
        if found.record is None:
            say("The record is gone; this is its timeline.")
        else:
            print_facts(facts(store, found.record, reveal=reveal, body=body))
            print_effects(found.record, effects)
            if derived is not None:
                say("")
                say(f"The downstream key of the step {step!r}, whether or not it was sent: {derived}")
        if store.has_tables:
            say("")
            print_timeline(found.timeline)
        if jobs:
            say("")
            print_jobs(jobs)
        print_events(events)
        if left:
            say("")
            say(printable(why_kept(left)))
        hint = None if found.record is None else next_step(found.record, store.now(), effects, likely)
        if hint is not None:
            say("")
            say(hint)


def _find(
    store: OperatorStore, operation_id: str | None, key: str | None, tenant: str | None, digest: str | None
) -> FoundKey:
    ways = [operation_id is not None, key is not None or tenant is not None, digest is not None]
    if sum(ways) != 1:
        raise typer.BadParameter("give an ID, or --key with --tenant, or --digest.")
    if operation_id is not None:
        return store.by_id(operation_id)
    if digest is not None:
        return store.by_digest(digest)
    if key is None or tenant is None:
        raise typer.BadParameter("a key means something only together with its tenant: --key with --tenant.")
    return store.by_key(tenant, key)


def _left(store: OperatorStore, record: Record | None) -> Sequence[tuple[str, str, str]]:
    """What keeps a record whose retention is over."""
    if record is None or not has_expired(record, store.now()):
        return ()
    return store.ask(lambda: store.keys.unfinished(record.id))


def _jobs(store: OperatorStore, record: Record | None) -> list[DeadJob]:
    if record is None or record.mode is not Mode.DEFERRED or not store.has_tables:
        return []
    return [*store.ask(lambda: store.operator.jobs_of(record.id))]


# ------------------------------------------------------------------ resolve


@keys_app.command("resolve")
def resolve_command(
    url: Url,
    operation_id: Id,
    reason: Reason,
    executed: Annotated[
        bool, typer.Option("--executed", envvar="SAMEKEY_EXECUTED", help="It happened: this is its answer.")
    ] = False,
    declined: Annotated[
        bool,
        typer.Option(
            "--declined", envvar="SAMEKEY_DECLINED", help="The provider said no: this failure is its answer."
        ),
    ] = False,
    not_executed: Annotated[
        bool,
        typer.Option(
            "--not-executed", envvar="SAMEKEY_NOT_EXECUTED", help="It never happened: one retry may run."
        ),
    ] = False,
    status: Annotated[
        int | None,
        typer.Option("--status", envvar="SAMEKEY_ANSWER_STATUS", help="The HTTP status of the answer."),
    ] = None,
    body: Annotated[
        str, typer.Option("--body", envvar="SAMEKEY_ANSWER_BODY", help="The body of the answer.")
    ] = "",
    content_type: Annotated[
        str | None,
        typer.Option(
            "--content-type",
            envvar="SAMEKEY_ANSWER_CONTENT_TYPE",
            help="Its media type; else JSON where it is JSON, or plain text.",
        ),
    ] = None,
    result: Annotated[
        str | None,
        typer.Option(
            "--result",
            envvar="SAMEKEY_RESULT",
            help="Of phased work, or a call of once(): what it would have returned, as JSON.",
        ),
    ] = None,
    provider_id: Annotated[
        str | None,
        typer.Option("--provider-id", envvar="SAMEKEY_PROVIDER_ID", help="The provider's own id for it."),
    ] = None,
    despite: Despite = None,
    actor_name: ActorName = None,
    dry_run: DryRun = False,
    schema: Schema = "samekey",
    cache: CacheUrl = None,
    timeout: Timeout = 30,
    encryption_key: EncryptionKeys = None,
) -> None:
    """Say what became of an operation whose outcome is unknown, or that is a dead letter."""
    if executed + declined + not_executed != 1:
        raise typer.BadParameter("say one of --executed, --declined and --not-executed.")
    who = actor(actor_name, reason)
    if not_executed and (status is not None or body or result is not None):
        raise typer.BadParameter(
            "what never happened has no answer: leave out --status, --body and --result."
        )
    with sentences(), open_store(url, schema, timeout, encryption_keys=encryption_key, cache=cache) as store:
        record = _to_resolve(store, operation_id, not_executed=not_executed)
        phase = _open_phase(store, record)
        evidence: Evidence = NotExecuted
        becomes, told = State.FAILED_RETRYABLE, ""
        if not not_executed:
            store.refuse_plain_answers()
            kind = Declined if declined else Executed
            match kind_of(record):
                case AnswerKind.PHASE if phase is not None:
                    stopped = f"it is phased and stopped at {phase.step!r}"
                    evidence = kind(_result_of(stopped, _GOES_ON, result, status, body), provider_id)
                    becomes, told = State.IN_PROGRESS, f": {phase.step!r} has its result, and the run goes on"
                case AnswerKind.PHASE:
                    _only_goes_on(result, status, body, declined=declined)
                    evidence = Executed(None)
                    becomes, told = State.IN_PROGRESS, ": the run goes on from its recovery point"
                case AnswerKind.CALL:
                    called = "it is a call of once()"
                    evidence = kind(_result_of(called, "", result, status, body), provider_id)
                    becomes, told = State.COMPLETED, " with that result"
                case AnswerKind.ANSWER:
                    if result is not None:
                        raise typer.BadParameter("--result is for phased work and for calls of once().")
                    answer = answer_from(status, body, content_type, kind)
                    evidence = kind(answer, provider_id)
                    becomes, told = State.COMPLETED, f" with {answer.status}, {len(answer.body)} bytes"
            _checked(evidence, record)
        if dry_run:
            becomes = rehearsed(store, record, evidence, who, despite or ()) or becomes
            told = told or (_RUN_GOES_ON if becomes is State.IN_PROGRESS else "")
            say(f"It would become {becomes}{told}. It is {record.state} and stays so: this was a dry run.")
            return
        applied = store.act(lambda: store.resolver.apply(record, evidence, who, despite=despite or ()))
        now = store.record(operation_id)
        if not applied:
            raise CommandRefused(
                "Somebody else was faster: it is "
                + ("gone" if now is None else f"{now.state} now")
                + ". Nothing was changed."
            )
        became = becomes if now is None else now.state
        told = told or (_RUN_GOES_ON if became is State.IN_PROGRESS else "")
        say(f"{operation_id} was {record.state} and is {became} now{told}.")
        _note_yourself(store)


def _open_phase(store: OperatorStore, record: Record) -> KnownEffect | None:
    """The effect of phased work whose end is unknown."""
    if record.mode is not Mode.PHASED:
        return None
    return next((one for one in effects_of(store, record) if one.outcome is None), None)


_RUN_GOES_ON = ": the run goes on from what it has done"
_GOES_ON = " The phases after it still have to run."


def _result_of(what: str, why: str, result: str | None, status: int | None, body: str) -> Any:
    if result is None or status is not None or body:
        raise typer.BadParameter(
            f"{what}: give what that call would have returned, as JSON, and no --status or --body.{why}",
            param_hint="--result",
        )
    try:
        return json.loads(result)
    except ValueError as error:
        raise typer.BadParameter(f"it is not JSON: {error}", param_hint="--result") from None


def _only_goes_on(result: str | None, status: int | None, body: str, *, declined: bool) -> None:
    if declined or result is not None or status is not None or body:
        raise typer.BadParameter(
            "it is phased, and none of its effects is open: say --executed alone, and its run goes on from "
            "its recovery point. An answer would leave the phases after that undone.",
            param_hint="--executed",
        )


def _checked(evidence: Evidence, record: Record) -> None:
    """By the same check as a webhook's word."""
    try:
        check_about(evidence, record)
    except SamekeyError as error:
        raise typer.BadParameter(str(error)) from None


def _to_resolve(store: OperatorStore, operation_id: str, *, not_executed: bool) -> Record:
    record = store.record(operation_id)
    if record is None:
        raise CommandRefused(f"There is no operation {operation_id}. Nothing was changed.")
    freed = record.state is State.FAILED_RETRYABLE and record.mode in (Mode.LEASED, Mode.REPEATABLE)
    if record.state not in (State.UNKNOWN, State.DEAD_LETTER) and (not_executed or not freed):
        hint = next_step(record, store.now())
        raise CommandRefused(
            f"It is {record.state}; only what is {State.UNKNOWN} or {State.DEAD_LETTER} can be resolved. "
            "Nothing was changed." + ("" if hint is None else f" {hint}")
        )
    if not_executed and record.state is State.DEAD_LETTER and record.mode is Mode.DEFERRED:
        raise CommandRefused(
            "Its handler has committed and only its job is dead, so it must not be run again from the start. "
            f"Have the job tried again: samekey dead retry {record.id}. Nothing was changed."
        )
    return record


def answer_from(
    status: int | None, body: str, content_type: str | None, kind: type[Executed | Declined]
) -> Answer:
    """The answer that an operator writes down for every retry."""
    if status is None:
        raise typer.BadParameter(
            "the answer needs its status, as the client would have got it.", param_hint="--status"
        )
    content, media = (None, None) if not body else (body.encode(), content_type or _media_type(body))
    try:
        answer = Response(status, content, {} if media is None else {"content-type": media}).answer()
        check_answer(kind(answer))
        return answer
    except (SamekeyError, UnicodeError) as error:
        raise typer.BadParameter(str(error), param_hint="--status") from None


def _media_type(body: str) -> str:
    try:
        json.loads(body)
    except ValueError:
        return "text/plain; charset=utf-8"
    return "application/json"


# ------------------------------------------------------------------ extend


@keys_app.command("extend")
def extend_command(
    url: Url,
    operation_id: Id,
    reason: Reason,
    by: Annotated[
        str | None, typer.Option("--by", envvar="SAMEKEY_BY", help="How much longer: 24h, 30d.")
    ] = None,
    until: Annotated[
        str | None,
        typer.Option("--until", envvar="SAMEKEY_UNTIL", help="Until when: 2027-01-31, or with a time; UTC."),
    ] = None,
    actor_name: ActorName = None,
    dry_run: DryRun = False,
    schema: Schema = "samekey",
    timeout: Timeout = 30,
) -> None:
    """Keep the answer of a completed operation for longer."""
    who = actor(actor_name, reason)
    extension = Extension(_moment(until), None if by is None else duration(by))
    try:
        extension.check()
    except SamekeyError as error:
        raise typer.BadParameter(str(error), param_hint="--by, --until") from None
    with sentences(), open_store(url, schema, timeout) as store:
        record = store.record(operation_id)
        if record is None:
            raise CommandRefused(f"There is no operation {operation_id}. Nothing was changed.")
        try:
            end = new_end(record, extension, store.ask(store.finding.overview).now)
        except NotExtended as error:
            raise CommandRefused(str(error)) from None
        if dry_run:
            say(f"It would be kept until {moment(end):%Y-%m-%d %H:%M:%SZ}. Nothing was changed: a dry run.")
            return
        if not store.act(lambda: store.finding.extend(record.id, end, who, attempt=record.attempt)):
            raise CommandRefused("It has just moved. Nothing was changed; look at it again.")
        say(f"{operation_id} is kept until {moment(end):%Y-%m-%d %H:%M:%SZ}.")
        _note_yourself(store)


def _moment(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        given = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is no date; write 2027-01-31 or 2027-01-31T12:00:00.", param_hint="--until"
        ) from None
    return given if given.tzinfo is not None else given.replace(tzinfo=UTC)


# ------------------------------------------------------------------ evict


@keys_app.command("evict")
def evict_command(
    url: Url,
    operation_id: Id,
    reason: Reason,
    actor_name: ActorName = None,
    dry_run: DryRun = False,
    schema: Schema = "samekey",
    cache: CacheUrl = None,
    timeout: Timeout = 30,
) -> None:
    """Drop a stored answer. The fact stays: a retry is told that it was done, and is not run."""
    who = actor(actor_name, reason)
    with sentences(), open_store(url, schema, timeout, cache=cache) as store:
        record = store.record(operation_id)
        if record is None:
            raise CommandRefused(f"There is no operation {operation_id}. Nothing was changed.")
        if record.state is not State.COMPLETED:
            raise CommandRefused(f"It is {record.state}: there is nothing to evict. Nothing was changed.")
        if dry_run:
            say("Its answer, if it has one, would be dropped. It stays: this was a dry run.")
            return
        if not store.act(lambda: store.finding.evict(record.id, who)):
            raise CommandRefused(
                "It has no stored answer any more: there is nothing to evict. Nothing was changed."
            )
        say(f"The answer of {operation_id} was dropped; a retry is told that it was done.")
        _note_yourself(store)


def _note_yourself(store: OperatorStore) -> None:
    if not store.has_tables:
        say(f"{store.opened.name} keeps no audit: write down elsewhere who did this, and why.")
