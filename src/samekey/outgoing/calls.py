"""What one run of an operation, effect or job has sent to a provider so far."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from ..client.entry import Entry
from ..client.journal import MemoryJournal
from ..engine.operation import MOMENTS, Operation
from ..engine.sending import Sender
from ..errors import ConfigurationError, NotExecuted


class Calls(MemoryJournal):
    """What this run of an operation, effect or job has sent: a call that is made again, and may have
    arrived, is no longer proof of anything; and another call under the same key is noticed."""

    def __init__(self, who: Sender) -> None:
        super().__init__()
        self.tried_before = who.tried_before
        """An earlier run may have sent anything of this, and nobody knows what."""
        self._may_repeat = isinstance(who, Operation)

    @property
    def may_have_arrived(self) -> bool:
        """Whether what is not sent now says nothing of an attempt before it."""
        return self.tried_before and not self._may_repeat

    def knows(self, key: str) -> bool:
        """Whether this run has sent something under it."""
        with self._lock:
            return any(one.key == key for one in self._kept.values())

    def begin(self, entry: Entry) -> Entry | None:
        found = super().begin(entry)
        if found is not None and found.finished_at is not None and not found.refused:
            raise ConfigurationError(
                "This operation has made this very call before, and it was answered: under the same key it "
                "would be done once, and you would be given that answer twice. The second was not sent. Name "
                'each: with step("line 2"): …; in phased work and jobs, give each an effect or a job.'
            )
        # What never left may be tried again where its operation was declared to be repeatable.
        return entry if found is None and self.may_have_arrived else found

    def not_executed(self, sentence: str, sdks: frozenset[str]) -> NotExecuted:
        """A call was not carried out, by proof."""
        error = NotExecuted(sentence)
        error.sdks = sdks
        self.is_no_word_of_others(error)
        return error

    def is_no_word_of_others(self, error: NotExecuted, *, certainly: bool = False) -> None:
        """If other calls were sent, this proof about one of them frees no key."""
        with self._lock:
            if self._kept or certainly:
                error.is_word_of("one of several calls", 0, next(MOMENTS))


_senders: WeakKeyDictionary[Any, Calls] = WeakKeyDictionary()


def calls_of(who: Sender) -> Calls:
    return _senders.setdefault(who, Calls(who))
