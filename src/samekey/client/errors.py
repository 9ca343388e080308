"""The errors of the client.

    ClientError
    ├── Unsettled           there is no final answer yet; the operation is kept, under its key
    ├── KeyExpired          its key is too old to be sent again: the server may have forgotten it
    ├── OperationGone       it was finished or discarded by somebody else since it was listed
    ├── OperationChanged    another request under the name of an operation that was begun
    ├── RedirectRefused     the server points to another origin, which does not know the key
    ├── BodyRefused         a body that is too large to be saved
    └── JournalFailed       what was begun cannot be saved or read

After each but the first nothing was sent by this call, or nothing more.
"""

from __future__ import annotations

from ..errors import SamekeyError
from .wire import Answer


class ClientError(SamekeyError):
    """Everything that the client raises on purpose."""


class Unsettled(ClientError):
    """Whether the operation was carried out is not known yet. It is kept: begin it again under its name, or
    have ``pending()`` finish it. Do not begin it as a new one."""

    def __init__(self, why: str, *, attempts: int, answer: Answer | None, unknown: bool) -> None:
        super().__init__(
            f"{why} The operation is kept: begin it again under its name, or finish it from pending(). As a "
            "new operation it might be carried out twice."
        )
        self.why = why
        """What is known of it, in a sentence."""
        self.attempts = attempts
        self.answer = answer
        """The last answer, if there was one."""
        self.outcome_unknown = unknown
        """The server itself does not know what became of it (409 ``outcome_unknown``), and is finding out."""


class KeyExpired(ClientError):
    """The server may not know this key any more: sent again, it could be carried out a second time."""


class OperationGone(ClientError):
    """Somebody else has finished or discarded the operation since ``pending()`` listed it. Nothing was
    sent."""


class OperationChanged(ClientError):
    """An operation of this name was begun with another request. Nothing was sent."""


class RedirectRefused(ClientError):
    """The server redirects to another origin. A key is worth nothing there, so nothing was sent to it."""


class BodyRefused(ClientError):
    """A body that is too large to be saved, so that it could not be sent again. Nothing was sent."""


class JournalFailed(ClientError):
    """What was begun cannot be saved or read. Nothing was sent: a key that is not kept protects nobody."""
