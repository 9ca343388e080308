"""``samekey keys extend|evict|reopen``: keep an answer for longer, drop it, or have a failure tried again."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from ..core.agreement import ERRORS_FROM
from ..core.record import Record
from ..core.states import Mode, State
from ..engine.extending import Extension, moment, new_end
from ..errors import NotExtended, SamekeyError
from .evidence import events_about
from .options import ActorName, CacheUrl, CommandRefused, Id, Reason, Schema, Timeout, Url, actor, duration
from .output import DryRun, sentences
from .sent import effects_of
from .speech import say
from .target import OperatorStore, note_yourself, open_store


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
        record = store.existing(operation_id)
        try:
            end = new_end(record, extension, store.now())
        except NotExtended as error:
            raise CommandRefused(str(error)) from None
        if dry_run:
            say(f"It would be kept until {moment(end):%Y-%m-%d %H:%M:%SZ}. Nothing was changed: a dry run.")
            return
        if not store.act(lambda: store.finding.extend(record.id, end, who, attempt=record.attempt)):
            raise CommandRefused("It has just moved. Nothing was changed; look at it again.")
        say(f"{record.id} is kept until {moment(end):%Y-%m-%d %H:%M:%SZ}.")
        note_yourself(store)


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
        record = store.existing(operation_id)
        if record.state is not State.COMPLETED:
            raise CommandRefused(f"It is {record.state}: there is nothing to evict. Nothing was changed.")
        if dry_run:
            say("Its answer, if it has one, would be dropped. It stays: this was a dry run.")
            return
        if not store.act(lambda: store.finding.evict(record.id, who)):
            raise CommandRefused(
                "It has no stored answer any more: there is nothing to evict. Nothing was changed."
            )
        say(f"The answer of {record.id} was dropped; a retry is told that it was done.")
        note_yourself(store)


def reopen_command(
    url: Url,
    operation_id: Id,
    reason: Reason,
    sent_again: Annotated[
        bool,
        typer.Option(
            "--sent-again",
            envvar="SAMEKEY_SENT_AGAIN",
            help="What it has sent may be sent again, under the same downstream keys.",
        ),
    ] = False,
    written_again: Annotated[
        bool,
        typer.Option(
            "--written-again",
            envvar="SAMEKEY_WRITTEN_AGAIN",
            help="Atomic work: nothing was committed with its refusal, or that may be written again.",
        ),
    ] = False,
    actor_name: ActorName = None,
    dry_run: DryRun = False,
    schema: Schema = "samekey",
    cache: CacheUrl = None,
    timeout: Timeout = 30,
) -> None:
    """Let a failure that was remembered as the answer be tried again: the next retry runs."""
    who = actor(actor_name, reason)
    with sentences(), open_store(url, schema, timeout, cache=cache) as store:
        record = store.existing(operation_id)
        _refuse_to_reopen(store, record, sent_again=sent_again, written_again=written_again)
        if dry_run:
            say("Its answer would be dropped, and the next retry would run. It stays: this was a dry run.")
            return
        if not store.act(lambda: store.finding.reopen(record.id, who, attempt=record.attempt)):
            raise CommandRefused("It has just moved. Nothing was changed; look at it again.")
        say(f"{record.id} may be tried again: the next retry with its key runs.")
        note_yourself(store)


def _refuse_to_reopen(store: OperatorStore, record: Record, *, sent_again: bool, written_again: bool) -> None:
    if record.state is not State.COMPLETED or record.answer is None or record.answer.status < ERRORS_FROM:
        is_now = record.state if record.answer is None else f"{record.state} with {record.answer.status}"
        raise CommandRefused(
            f"It is {is_now}: only a failure that was remembered as the answer can be tried again. "
            "Nothing was changed."
        )
    if record.mode in (Mode.PHASED, Mode.DEFERRED):
        raise CommandRefused(
            f"It is {record.mode}: its finished parts would be done twice. Its client has to use a new key. "
            "Nothing was changed."
        )
    if record.mode is Mode.ATOMIC and not written_again:
        raise CommandRefused(
            'It is atomic: what a handler with on_4xx="commit" wrote stands beside its refusal, and the '
            "retry writes it again. Any other was rolled back. If nothing stands, or it may be written "
            "again, say --written-again. Nothing was changed."
        )
    if any(event["says"] == "executed" for event in events_about(store, record.id)):
        raise CommandRefused(
            f"A provider says that it happened: samekey keys show {record.id}. If that is not so, put the "
            "event away first: samekey evidence dismiss. Nothing was changed."
        )
    if not sent_again and effects_of(store, record):
        raise CommandRefused(
            f"It has sent something: samekey keys show {record.id}. The retry sends it again, under the same "
            "downstream keys. If that is right, say --sent-again. Nothing was changed."
        )
