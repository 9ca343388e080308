"""A provider's yes that waits: which events say so, and which of them an operator sets aside, each by name.

While one waits that nobody has set aside, nobody may have the operation sent again, or say that it never
happened.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from ..errors import ConfigurationError, Contradicted
from .effects import SentStep
from .program import Row

MOST_DISPUTES: Final = 32
"""Events that one record of a key store keeps: it must stay small. Whether there were more is kept too."""


@dataclass(frozen=True, slots=True)
class Yes:
    """An event by which a provider says that it happened, and which could not settle its operation."""

    source: str
    event_id: str
    about: str | None = None
    """The downstream key of the effect that it is about; None: it does not say."""
    provider_id: str | None = None
    """What the provider has made, by its id; None: it does not say."""

    @property
    def name(self) -> str:
        """As an operator names it: two providers may number alike."""
        return f"{self.source}:{self.event_id}"

    def __str__(self) -> str:
        if self.about is not None:
            return f"{self.name!r} about {self.about}"
        # Perhaps of another effect, which has made that: whoever looks knows it by its id.
        return f"{self.name!r}" + (
            "" if self.provider_id is None else f" about the object {self.provider_id!r}"
        )


MORE: Final = Yes("samekey", "more")
"""Stands for all further events, where a record keeps no more of them."""


def check_set_aside(waiting: Sequence[Yes], despite: Sequence[str]) -> None:
    """``Contradicted`` unless each is named, as SOURCE:EVENT; ``ConfigurationError`` if a name means two."""
    for name in despite:
        meant = {(one.source, one.event_id) for one in waiting if one.name == name}
        if len(meant) > 1:
            raise ConfigurationError(
                f"{name!r} may be either of two events. Dismiss each by itself: samekey evidence dismiss. "
                "Nothing was changed."
            )
    unnamed = [one for one in waiting if one.name not in despite]
    if unnamed:
        raise Contradicted([one.name for one in unnamed], ", ".join(map(str, unnamed)))


def is_known_to(yes: Yes, steps: Sequence[SentStep], *, sends: int) -> bool:
    """Whether the handler that gives an answer knew of what this event tells, when it gave it: then the
    answer is no contradiction, whatever its status. It may have given the money back.

    ``steps`` are what the handler has sent, in their order. It knows of what it has noted the provider's id
    of: of that object, where the event names one. It knows of a step after which it went on to another, too.
    Where it was sent more than once, only the same id says that it knows: another attempt may have done it.
    """
    meant = [one for one in steps if yes.about in (None, one.downstream_key)]
    meant = meant or [one for one in steps if one.downstream_key is None]
    if yes.provider_id is not None and any(one.provider_id == yes.provider_id for one in meant):
        return True
    if not meant or sends > 1:
        return False
    names_none = yes.provider_id is None
    return all((names_none and one.provider_id is not None) or one is not steps[-1] for one in meant)


def yes_of(event: Row) -> Yes:
    """An event that says yes, as the SQL stores keep it."""
    source, event_id, _, about, provider_id = event[:5]
    return Yes(
        str(source),
        str(event_id),
        str(about) if about else None,
        None if provider_id is None else str(provider_id),
    )


def encode_yes(yes: Yes) -> str:
    """As a key store keeps it with its record."""
    return json.dumps([yes.source, yes.event_id, yes.about, yes.provider_id])


def decode_yes(stored: str) -> Yes:
    return Yes(*json.loads(stored))


def encode_all(disputes: Iterable[Yes]) -> str:
    return json.dumps([encode_yes(one) for one in disputes])


def decode_all(stored: str) -> list[Yes]:
    return [decode_yes(one) for one in json.loads(stored)]
