"""``samekey keys list|show``: find keys, and see the story of one. What can be done is beside this."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from ..core.claim import scope_part
from ..core.decide import has_expired
from ..core.policy import milliseconds
from ..core.record import Record
from ..core.states import Mode, State
from ..stores.sql.looking import LOOKED_THROUGH, DeadJob, ShownPhase, looks_through
from .describe import (
    described_job,
    described_phase,
    described_record,
    described_step,
    facts,
    next_step,
    print_jobs,
    print_phases,
    print_timeline,
    why_kept,
)
from .evidence import events_about, print_events
from .keeping import evict_command, extend_command, reopen_command
from .options import (
    DIGEST_SECRET,
    CommandRefused,
    DigestSecret,
    EncryptionKeys,
    Schema,
    Timeout,
    Url,
    duration,
)
from .output import Json, age, coloured, print_facts, print_table, sentences, shown_id, tenant_name, when
from .resolve import resolve_command
from .sent import described_effect, described_likely, effects_of, likely_steps, print_effects
from .speech import advise, print_json, say
from .target import FoundKey, OperatorStore, open_store

keys_app = typer.Typer(
    help="Find keys, see their timelines; resolve, reopen, extend and evict.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
keys_app.command("resolve")(resolve_command)
keys_app.command("reopen")(reopen_command)
keys_app.command("extend")(extend_command)
keys_app.command("evict")(evict_command)

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
    endpoint: Annotated[
        str | None,
        typer.Option(
            "--endpoint", envvar="SAMEKEY_ENDPOINT", help="Only of this endpoint: 'POST /payments'."
        ),
    ] = None,
    provider_id: Annotated[
        str | None,
        typer.Option(
            "--provider-id",
            envvar="SAMEKEY_FIND_PROVIDER_ID",
            help="Those that noted this id of the provider's; on a key store, together with --tenant.",
        ),
    ] = None,
    downstream_key: Annotated[
        str | None,
        typer.Option(
            "--downstream-key",
            envvar="SAMEKEY_DOWNSTREAM_KEY",
            help="The one that made this key for a provider.",
        ),
    ] = None,
    newer_than: Annotated[
        str | None,
        typer.Option("--newer-than", envvar="SAMEKEY_NEWER_THAN", help="Created since: 90s, 15m, 24h, 30d."),
    ] = None,
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
    older, newer = (None if one is None else milliseconds(duration(one)) for one in (older_than, newer_than))
    ways = sum(one is not None for one in (provider_id, downstream_key))
    others = any(one is not None for one in (state, key, endpoint, older, newer))
    if ways > 1 or (ways and others):
        raise typer.BadParameter(
            "--provider-id and --downstream-key find by themselves; --provider-id may have --tenant with it."
        )
    with sentences(), open_store(url, schema, timeout, digest_secret) as store:
        now = store.now()
        before, after = None if older is None else now - older, None if newer is None else now - newer
        part, in_state = None if tenant is None else scope_part(tenant), None if state is None else str(state)
        if provider_id is not None:
            records = _of_provider(store, provider_id, part, limit)
        elif downstream_key is not None:
            records = _that_made(store, downstream_key)
        else:
            records = store.ask(
                lambda: store.finding.find(
                    state=in_state,
                    tenant=part,
                    key=key,
                    endpoint=endpoint,
                    created_after=after,
                    created_before=before,
                    limit=limit,
                )
            )
        looked = looks_through(state=in_state, tenant=part, key=key, endpoint=endpoint)
        end = _looked_through_to(store, after, before) if looked and len(records) < limit else None
        if as_json:
            described = [described_record(store, record, reveal=reveal) for record in records]
            print_json({"records": described, "more": len(records) == limit or end is not None})
            return
        _print_records(store, records, now, reveal=reveal)
        if len(records) == limit:
            say(f"These are the newest {limit}; there may be more (--limit).")
        if end is not None:
            say(
                f"Only the newest {LOOKED_THROUGH:,} records were looked through, back to {when(end)}. Older "
                f"ones: --older-than {max(1, (now - end) // 1000)}s. With --tenant or --state an index leads "
                "to them."
            )


def _of_provider(store: OperatorStore, provider_id: str, tenant: str | None, limit: int) -> Sequence[Record]:
    if store.has_tables:
        found = store.ask(lambda: store.operator.noted_by_provider(provider_id, limit=limit))
        return [record for record in found if tenant in (None, record.tenant)]
    if tenant is None:
        raise CommandRefused(f"{store.opened.name} finds a provider's id only within a tenant: --tenant.")
    noted = store.ask(lambda: store.keys.read_by_provider_id(provider_id, tenant=tenant, source=None))
    return [*{record.id: record for _, record in noted}.values()]


def _that_made(store: OperatorStore, downstream_key: str) -> Sequence[Record]:
    record = store.ask(lambda: store.keys.read_by_downstream(downstream_key))
    return [] if record is None else [record]


def _looked_through_to(store: OperatorStore, after: int | None, before: int | None) -> int | None:
    if not store.has_tables:
        return None
    return store.ask(lambda: store.operator.looked_through_to(created_after=after, created_before=before))


def _print_records(store: OperatorStore, records: Sequence[Record], now: int, *, reveal: bool) -> None:
    if not records:
        say("There are no such records.")
        return
    name = "key" if reveal else "digest"
    print_table(
        ("id", name, "state", "endpoint", "age", "error", "mode", "attempts", "tenant"),
        (
            (
                shown_id(store, record.id),
                record.key if reveal else store.digest(record),
                coloured(record.state),
                record.endpoint,
                age(now - record.created_at),
                record.error_code or "",
                str(record.mode),
                str(record.attempts),
                tenant_name(record.tenant),
            )
            for record in records
        ),
        narrow=("id", "state", "endpoint", "age", "error", *(["key"] if reveal else [])),
    )


# ------------------------------------------------------------------ show


@keys_app.command("show")
def show_command(
    url: Url,
    operation_id: Annotated[
        str | None,
        typer.Argument(
            envvar="SAMEKEY_ID",
            help="The operation's id, or how it begins: six characters or more.",
            metavar="[ID]",
        ),
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
        phases = _phases(store, found.record)
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
                    "phases": [described_phase(phase) for phase in phases],
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
        if phases:
            say("")
            print_phases(phases)
        if jobs:
            say("")
            print_jobs(store, jobs)
        print_events(events)
        if left:
            say("")
            say(why_kept(left))
        hint = None if found.record is None else next_step(found.record, store.now(), effects, likely)
        if hint is not None:
            say("")
            advise(hint)


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


def _phases(store: OperatorStore, record: Record | None) -> Sequence[ShownPhase]:
    if record is None or record.mode is not Mode.PHASED or not store.has_tables:
        return ()
    return store.ask(lambda: store.operator.phases_of(record.id))


def _jobs(store: OperatorStore, record: Record | None) -> list[DeadJob]:
    if record is None or not store.has_tables:
        return []
    return [*store.ask(lambda: store.operator.jobs_of(record.id))]
