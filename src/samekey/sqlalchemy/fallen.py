"""What a session holds once its operation has fallen: values that whoever answers may still read.

SQLAlchemy's rollback expires every object, and error pages read them: the user that a dependency has loaded,
the order that the error carries. So only the unit of work is forgotten. The objects keep their values until
the session is used again; then they are loaded anew, since what they show was perhaps never stored.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Final

from sqlalchemy import orm

from ..engine.within import SharedTransaction
from ..errors import CommitRefused

_CHANGED_AGAIN: Final = (
    "This session has an object of %s that was changed in an operation which was rolled back, and that was "
    "changed once more: its values were never stored, so nothing was sent. Call session.rollback() or "
    "session.refresh(object) before you change it."
)


class Fallen:
    """The objects of a session, from the fall of its operation until the session is used again."""

    def __init__(self, session: Any, transaction: SharedTransaction) -> None:
        self._transaction = transaction
        begun = session._transaction
        self._altered = weakref.WeakSet[Any](session.identity_map._modified)
        """States of objects that the operation has changed."""
        self._made = set(session._new)
        """Of those that it has made: they are nobody's now."""
        for one in () if begun is None else begun._iterate_self_and_parents():
            self._altered.update(one._dirty)
            self._made.update(one._new)

    def forget(self, session: Any) -> None:
        """What was given to it and was not sent is not the session's any more. Nothing is sent."""
        for deleted in list(session.deleted):
            orm.Session.add(session, deleted)
        session._expunge_states(list(session._new), to_transient=True)
        self._forget_changes(session)
        self._cut_off(session)

    def roll_back(self, session: Any, rollback: Callable[[], None]) -> None:
        """A rollback that is the session's own, but for the values of its objects."""
        self._forget_changes(session)
        held = session.identity_map
        held.all_states = list  # a rollback expires all of these
        try:
            rollback()
        finally:
            del held.all_states
        self._cut_off(session)

    def _forget_changes(self, session: Any) -> None:
        for state in list(session.identity_map._modified):
            state._commit_all(state.dict, session.identity_map)

    def _cut_off(self, session: Any) -> None:
        """What the operation has made hangs on no object that is still in the session: else whoever adds that
        one, or something to it, would add those too, by a cascade."""
        made, self._made = self._made, set()
        for state in session.identity_map.all_states() if made else ():
            for name in state.mapper.relationships.keys() & state.dict.keys():
                found = state.manager[name].impl.get_all_pending(state, state.dict)
                if any(one in made for one, _ in found):
                    state._expire_attributes(state.dict, [name])

    def is_over(self, transaction: SharedTransaction | None) -> bool:
        """Whether a session that is in this transaction now is used for something else."""
        return transaction is not self._transaction

    def expire(self, session: Any) -> None:
        """The session is used again. What was changed since then stays changed; where that was made of
        values that were never stored, it is refused."""
        states = session.identity_map.all_states()
        for state in states:
            again = state.committed_state.keys() & state.mapper.column_attrs.keys()
            if again and state in self._altered:
                raise CommitRefused(_CHANGED_AGAIN % state.class_.__qualname__)
        for state in states:
            if state.modified:
                kept = state.committed_state.keys() | state.__dict__.get("_pending_mutations", {}).keys()
                state._expire_attributes(state.dict, (state.manager.keys() & state.dict.keys()) - kept)
            else:
                state._expire(state.dict, session.identity_map._modified)
