"""``samekey evidence list|dismiss``: what providers have said and nobody could use yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from ..core.disputes import Yes
from ..core.effects import Says
from ..evidence import evidence_kind, unusable_answer
from ..stores.sql.effects import ProviderEvent
from .options import ActorName, CommandRefused, Reason, Schema, Timeout, Url, actor
from .output import Json, moment, print_table, sentences, shown_id, when
from .speech import print_json, say
from .target import OperatorStore, open_store

evidence_app = typer.Typer(
    help="What providers have said and nobody could use yet.", no_args_is_help=True, rich_markup_mode=None
)


@evidence_app.command("list")
def list_command(
    url: Url,
    limit: Annotated[
        int,
        typer.Option(
            "--limit", envvar="SAMEKEY_LIMIT", min=1, help="At most so many; what somebody must see to first."
        ),
    ] = 50,
    schema: Schema = "samekey",
    timeout: Timeout = 30,
    as_json: Json = False,
) -> None:
    """List events that fit more than one operation, contradict an answer, or wait for their operation."""
    with sentences(), open_store(url, schema, timeout) as store:
        _must_keep(store)
        events = store.ask(lambda: store.effects.unused(limit=limit))
        if as_json:
            print_json({"events": [described_event(event) for event in events]})
            return
        if not events:
            say("There are none: every event was used, or came too late.")
            return
        print_table(
            ("event", "source", "says", "state", "operation", "provider's id", "occurred"),
            (
                (
                    event.event_id,
                    event.source,
                    evidence_kind(event.outcome),
                    event.state,
                    shown_id(store, event.operation_id or ""),
                    event.provider_id or "",
                    when(event.occurred_at),
                )
                for event in events
            ),
            narrow=("event", "source", "says", "state", "operation"),
        )


@evidence_app.command("dismiss")
def dismiss_command(
    url: Url,
    source: Annotated[
        str, typer.Argument(envvar="SAMEKEY_SOURCE", help="Whose event it is.", metavar="SOURCE")
    ],
    event_id: Annotated[str, typer.Argument(envvar="SAMEKEY_EVENT", help="Its id.", metavar="EVENT")],
    reason: Reason,
    operation_id: Annotated[
        str | None,
        typer.Option(
            "--operation",
            envvar="SAMEKEY_OPERATION",
            help="The operation that it is about; without one, an event that fits more than one.",
        ),
    ] = None,
    actor_name: ActorName = None,
    schema: Schema = "samekey",
    timeout: Timeout = 30,
) -> None:
    """Drop an event that you have seen to, with keys resolve or otherwise. It is not used any more."""
    who = actor(actor_name, reason)
    with sentences(), open_store(url, schema, timeout) as store:
        _must_keep(store)
        about = None if operation_id is None else store.whole_id(operation_id)
        if not store.act(lambda: store.effects.dismiss(source, event_id, who, about)):
            raise CommandRefused("There is no such event to see to. Nothing was changed.")
        say("The event will not be used.")


def described_event(event: ProviderEvent) -> dict[str, Any]:
    return {
        "source": event.source,
        "id": event.event_id,
        "says": event.says,
        "unusable": unusable_answer(event.outcome),
        "state": event.state,
        "operation_id": event.operation_id,
        "about": event.about,
        "provider_id": event.provider_id,
        "occurred_at": moment(event.occurred_at),
        "at": moment(event.received_at),
    }


def events_about(store: OperatorStore, operation_id: str) -> list[dict[str, Any]]:
    """What providers have said of an operation and nobody has used. A key store keeps who said that it
    happened, and no more."""
    if store.has_tables:
        return [described_event(event) for event in store.ask(lambda: store.effects.shown(operation_id))]
    waiting = store.ask(lambda: store.finding.disputed_by(operation_id))
    return [described_yes(one) for one in waiting]


def described_yes(yes: Yes) -> dict[str, Any]:
    unknown = dict.fromkeys(("unusable", "provider_id", "occurred_at", "at"))
    said = {"says": str(Says.EXECUTED), "state": "waiting", "about": yes.about}
    return {"source": yes.source, "id": yes.event_id, **said, **unknown}


def print_events(events: Sequence[dict[str, Any]]) -> None:
    """A sentence for each; one that keeps the operation from being sent again says so."""
    for event in events:
        say("")
        about = "the operation" if event["about"] is None else str(event["about"])
        when_said = "" if event["at"] is None else f" at {event['at']}"
        said = f"{event['source']} said {event['says']} of {about}{when_said} ({event['id']})"
        end = "it is not used yet"
        if event["state"] == "conflict":
            end = "it contradicts the answer that stands"
        elif event["unusable"] is not None:
            end = f"its answer cannot be used: {event['unusable']}"
        say(f"{said}; {end}.")
        if event["says"] == Says.EXECUTED and event["state"] != "conflict":
            name = Yes(event["source"], event["id"]).name
            say(f"Until that is settled it is not sent again, unless despite {name!r}.")


def _must_keep(store: OperatorStore) -> None:
    if not store.has_tables:
        raise CommandRefused(f"{store.opened.name} keeps no events: providers are asked to send them again.")
