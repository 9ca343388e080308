"""Whose is what a provider tells of? The table, for each of three questions: which life of the key, which
effect of the operation, which send of the effect.

Much of what a word may name is shared: all lives of a key have the same downstream keys, two effects may be
about one object of the provider's, and every send of an effect bears its key. So each row says what is known,
what follows from it, and why; the first row that fits decides. What cannot be told settles nothing and frees
nothing: it waits, and an operator sees it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias


class Whose(StrEnum):
    """What follows."""

    OURS = "ours"
    NOT_OURS = "not ours"
    UNTOLD = "cannot be told"


OURS, NOT_OURS, UNTOLD = Whose


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a table: what it fits (of a fact that is not named, anything), what follows, and why."""

    whose: Whose
    why: str
    fits: Mapping[str, Collection[object]]


def _row(whose: Whose, why: str, **fits: object) -> Row:
    given = {name: one if isinstance(one, tuple) else (one,) for name, one in fits.items()}
    return Row(whose, why, given)


# Which life of the key


class By(StrEnum):
    """How a word comes to this life of the key."""

    OPERATION = "by its own id"
    KEY = "by a key that all lives share"
    SEARCH = "found by that key, at whatever time"
    LOOK = "found since this life began"
    """By a lookup that has asked from when on to look, or by a person who was told."""


class Object(StrEnum):
    """The object of the provider's that it names."""

    NONE = "none"
    OWN = "one that this life has noted"
    """Perhaps a former one as well: a provider may give both the same."""
    PAST = "one that a former life has noted"
    NEW = "one that nobody has noted"


class Former(StrEnum):
    """What is known of the lives before."""

    NONE = "there was none"
    KNOWN = "all that they have made"
    FORGOTTEN = "not all that they have made"


class Stage(StrEnum):
    """What this life has come to."""

    UNSENT = "it was released before it sent anything"
    OPEN = "nobody knows how it ended"
    OTHER = "anything else"


@dataclass(frozen=True, slots=True)
class OfLife:
    """What is known of a word where it is asked which life it is about."""

    by: By
    yes: bool
    object: Object
    former: Former
    stage: Stage
    before: bool
    """It tells of a time before this life began."""


LIFE: Final = (
    _row(OURS, "a yes by this life's own id is true whatever a clock says", by=By.OPERATION, yes=True),
    _row(
        UNTOLD, "a no about a time before this life is by a clock that is off", by=By.OPERATION, before=True
    ),
    _row(OURS, "no other life has this id", by=By.OPERATION),
    _row(NOT_OURS, "what has sent nothing is not what a provider tells of", stage=Stage.UNSENT),
    _row(
        UNTOLD,
        "one object may serve two lives, and a yes that is passed over contradicts no later no",
        by=By.KEY,
        yes=True,
        object=Object.PAST,
        stage=Stage.OPEN,
        before=False,
    ),
    _row(NOT_OURS, "a former life has made it", object=Object.PAST),
    _row(
        UNTOLD,
        "this life has made it: the clock is off, or the object is older than its use",
        object=Object.OWN,
        before=True,
    ),
    _row(UNTOLD, "there was no life before: the clock is off", former=Former.NONE, before=True),
    _row(NOT_OURS, "a former life had the same keys at that time", before=True),
    _row(OURS, "there was no other life", former=Former.NONE),
    _row(OURS, "this life has made it", object=Object.OWN),
    _row(OURS, "what a former life made is older than what was looked at", by=By.LOOK),
    _row(UNTOLD, "a forgotten life may have made it, under the same key", former=Former.FORGOTTEN),
    _row(UNTOLD, "it names nothing that would tell the lives apart", object=Object.NONE),
    _row(
        UNTOLD,
        "a former life's object may end badly long after, and the provider may give it another id",
        by=By.KEY,
        yes=False,
    ),
    _row(OURS, "all that former lives have made is known, and this is none of it", object=Object.NEW),
)


# Which effect of the operation


class Named(StrEnum):
    """What a word names, as one of the operation's effects sees it."""

    ITS_KEY = "its downstream key"
    ANOTHER_KEY = "another downstream key"
    ITS_OBJECT = "an object that it has noted"
    ANOTHERS_OBJECT = "an object that only others have noted"
    NOTHING = "nothing that is known"


class End(StrEnum):
    """What became of the effect."""

    UNSENT = "not sent yet"
    OPEN = "not known"
    OVER = "not executed, or given up"
    DONE = "it has its result"


class Others(StrEnum):
    """Which other effects of the operation might be meant by the same object."""

    NONE = "none"
    MAY = "an open one that has noted nothing may have it too"
    DONE = "one that is done has it too"
    OPEN = "an open one has it too"


@dataclass(frozen=True, slots=True)
class OfEffect:
    """What is known of a word where it is asked whether it is about this effect."""

    named: Named
    end: End
    others: Others
    sent_after: bool
    """It was sent only after what the word tells of."""
    may_share: bool
    """It has noted nothing, and was sent to whom the word comes from, as far as the code says."""
    alone: bool
    """The operation has no other effect."""


EFFECT: Final = (
    _row(NOT_OURS, "nothing of it was sent", end=End.UNSENT),
    _row(OURS, "its key is its own", named=Named.ITS_KEY),
    _row(NOT_OURS, "another effect's key is that one's own", named=Named.ANOTHER_KEY),
    _row(
        NOT_OURS,
        "it was sent only after that",
        named=Named.ITS_OBJECT,
        end=(End.OPEN, End.OVER),
        sent_after=True,
    ),
    _row(
        NOT_OURS,
        "it was sent only after that, and another one has the object too",
        named=Named.ITS_OBJECT,
        others=(Others.DONE, Others.OPEN),
        sent_after=True,
    ),
    _row(
        UNTOLD,
        "two effects have this object: money that was set aside is not money that was taken",
        named=Named.ITS_OBJECT,
        others=(Others.DONE, Others.OPEN),
    ),
    _row(
        UNTOLD,
        "an open one may be about the same object, and have noted nothing yet",
        named=Named.ITS_OBJECT,
        end=End.DONE,
        others=Others.MAY,
    ),
    _row(OURS, "it alone has noted the object", named=Named.ITS_OBJECT),
    _row(
        NOT_OURS,
        "the object is that of one that is open itself",
        named=Named.ANOTHERS_OBJECT,
        others=Others.OPEN,
    ),
    _row(
        UNTOLD,
        "it may be about the same object, and have noted nothing yet",
        named=Named.ANOTHERS_OBJECT,
        end=End.OPEN,
        may_share=True,
        sent_after=False,
    ),
    _row(NOT_OURS, "the object is another one's", named=Named.ANOTHERS_OBJECT),
    _row(OURS, "there is no other that it could be about", named=Named.NOTHING, alone=True),
    _row(UNTOLD, "it does not say which", named=Named.NOTHING),
)


# Which send of the effect


class MadeBy(StrEnum):
    """The object that a "no" names, as the effect's sends have noted theirs."""

    NONE = "none"
    LAST = "the last one's"
    FORMER = "a former one's"
    OTHER = "one that none has noted"


class Moment(StrEnum):
    """When it happened."""

    BEFORE = "before the last send"
    AROUND = "within the clocks' tolerance of it"
    AFTER = "after it"


@dataclass(frozen=True, slots=True)
class OfSend:
    """What is known of a "no" where it is asked whether it is about the last send. (That something happened
    is true for good, whichever send did it.)"""

    object: MadeBy
    noted: bool
    """The last send has noted an object."""
    by_operation: bool
    several: bool
    """It was sent more than once."""
    moment: Moment


SEND: Final = (
    _row(NOT_OURS, "a former send has made it", object=MadeBy.FORMER),
    _row(
        UNTOLD,
        "something was made, and this may be about a try before it, under the same key",
        object=MadeBy.NONE,
        noted=True,
        by_operation=False,
    ),
    _row(OURS, "there was one send only, whichever of its objects is named", several=False),
    _row(NOT_OURS, "it tells nothing of what was sent after it", moment=Moment.BEFORE),
    _row(OURS, "the last send has made it", object=MadeBy.LAST, moment=Moment.AFTER),
    _row(UNTOLD, "each send may have made an object, and one of them may end after the next began"),
)

Facts: TypeAlias = OfLife | OfEffect | OfSend

TABLES: Final[Mapping[type[Facts], tuple[Row, ...]]] = {OfLife: LIFE, OfEffect: EFFECT, OfSend: SEND}


def row_for(facts: Facts) -> Row:
    """The row that decides."""
    return next(
        row
        for row in TABLES[type(facts)]
        if all(getattr(facts, name) in fitting for name, fitting in row.fits.items())
    )


def whose(facts: Facts) -> Whose:
    return row_for(facts).whose
