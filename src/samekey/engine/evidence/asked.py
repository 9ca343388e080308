"""What a lookup or an operator finds out is about one effect: the one that is open.

Where others have moved the operation meanwhile, a lookup's yes is an event like any other.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Sequence
from typing import Final

from ...core.effects import KnownEffect, another_step
from ...core.placing import life_found
from ...core.record import Record
from ...core.states import Mode
from ...core.whose import Whose
from ...errors import ConfigurationError
from ...evidence import Declined, Evidence, Executed
from ...stores.protocols import Actor
from .said import Said

LOOKUP: Final = "lookup"
"""The source of what a lookup tells about an effect of which nobody has said whom it was sent to."""

OPERATOR: Final = "operator"
"""The same for what a person has found out."""


def told_by_lookup(finding: Executed, record: Record, effects: Sequence[KnownEffect]) -> Said:
    """A lookup's yes about a record as it was asked, as an event. It is one for each attempt, however often
    that is asked about."""
    effect = record.open_effect
    about = None if effect is None else effect.downstream_key
    if effect is None and record.mode is not Mode.PHASED and not any(e.run == record.run for e in effects):
        about = record.downstream_key()
    source = None if effect is None else effect.source
    return Said(finding, source or LOOKUP, f"lookup-{record.run}", None, about=about, is_ours=True)


def told_by(actor: Actor, finding: Evidence, job: KnownEffect) -> Said:
    """An operator's word about a dead job, as the event that the job's function is told of."""
    event_id = f"{actor.name}-{secrets.token_hex(8)}"
    return Said(finding, job.source or OPERATOR, event_id, None, about=job.downstream_key, is_ours=True)


def check_step(finding: Evidence, record: Record, effects: Sequence[KnownEffect]) -> None:
    """``ConfigurationError`` if it names what another step of the same operation has made: money that was set
    aside is not money that was taken."""
    given = finding.provider_id if isinstance(finding, Executed | Declined) else None
    step = another_step(given, record, effects)
    if step is None:
        return
    raise ConfigurationError(
        f"The provider's id {given!r} is that of the step {step!r}, and that is not the one asked about: "
        "nothing was settled. A lookup finds that one in record.open_effect, with its downstream key. Where "
        "one object of the provider's stands for both steps, leave out its id."
    )


def check_life(
    finding: Evidence,
    asked: Record,
    effects: Sequence[KnownEffect],
    record: Record,
    past: Collection[str | None],
) -> None:
    """``ConfigurationError`` if it is what a former life of the key has made, or may be: this one is another
    operation, and what became of it is not known from that. In doubt a lookup is believed that has asked from
    when on to look, and a person, who has looked at this very operation."""
    if not isinstance(finding, Executed | Declined):
        return
    given = finding.provider_id
    since = asked.asking is None or asked.asking.looked_since
    life = life_found(given, record, effects, past, since=since)
    if life is not Whose.OURS:
        named = "What was found" if given is None else f"The provider's id {given!r}"
        raise ConfigurationError(
            f"{named} {'is' if life is Whose.NOT_OURS else 'may be'} that of what a former life of the key "
            "has made, and this is another operation: nothing was settled. All lives of a key have the same "
            "downstream keys: a lookup must look for nothing older than record.since, and name what it has "
            "found."
        )
