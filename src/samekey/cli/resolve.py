"""``samekey keys resolve``: say what became of an operation whose outcome is unknown."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from ..core.effects import KnownEffect
from ..core.record import Answer, Record
from ..core.states import Mode, State
from ..errors import NotExecuted, SamekeyError
from ..evidence import AnswerKind, Declined, Evidence, Executed, check_about, check_answer, kind_of
from ..response import Response
from .describe import former_lives, next_step
from .options import (
    ActorName,
    CacheUrl,
    CommandRefused,
    Despite,
    EncryptionKeys,
    Id,
    Reason,
    Schema,
    Timeout,
    Url,
    actor,
)
from .output import DryRun, sentences
from .rehearsal import rehearsed
from .sent import effects_of
from .speech import say
from .target import OperatorStore, note_yourself, open_store


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
        record = _to_resolve(store, store.whole_id(operation_id), not_executed=not_executed)
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
            if executed and provider_id is None and (phase is not None or record.mode is not Mode.PHASED):
                _ask_for_its_id(store, record)
        if dry_run:
            becomes = rehearsed(store, record, evidence, who, despite or ()) or becomes
            told = told or (_RUN_GOES_ON if becomes is State.IN_PROGRESS else "")
            say(f"It would become {becomes}{told}. It is {record.state} and stays so: this was a dry run.")
            return
        applied = store.act(lambda: store.resolver.apply(record, evidence, who, despite=despite or ()))
        now = store.record(record.id)
        if not applied:
            raise CommandRefused(
                "Somebody else was faster: it is "
                + ("gone" if now is None else f"{now.state} now")
                + ". Nothing was changed."
            )
        became = becomes if now is None else now.state
        told = told or (_RUN_GOES_ON if became is State.IN_PROGRESS else "")
        if record.mode is Mode.DEFERRED:
            told = _JOB_GOES_ON if became is State.PENDING else f"{told}{_JOB_ENDS}"
        say(f"{record.id} was {record.state} and is {became} now{told}.")
        note_yourself(store)


def _ask_for_its_id(store: OperatorStore, record: Record) -> None:
    """What was found by a downstream key may be what a former life of the key has made."""
    made = store.ask(lambda: store.finding.past_ids(record.id)) if record.life > 1 else []
    if made:
        raise CommandRefused(
            f"{former_lives(record)} Former lives have made {', '.join(made)}. Say with --provider-id what "
            "you have found. Nothing was changed."
        )


def _open_phase(store: OperatorStore, record: Record) -> KnownEffect | None:
    """The effect of phased work whose end is unknown."""
    if record.mode is not Mode.PHASED:
        return None
    return next((one for one in effects_of(store, record) if one.outcome is None), None)


_RUN_GOES_ON = ": the run goes on from what it has done"
_JOB_GOES_ON = ": its job goes on with what was found, and makes its writes"
_JOB_ENDS = ". What its job does beside the call was not done, since its function takes no `found`"
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
