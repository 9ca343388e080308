"""Clients of APIs that honour idempotency keys: one key for each operation, until it has its answer.

Each HTTP library has a module of its own, which imports it: ``samekey.client.httpx2``,
``samekey.client.httpx``, ``samekey.client.requests``. Nothing here needs a store or a server of samekey's.
"""

from typing import Any

from .carry import Finished, Keyed, Told
from .course import Patience
from .dialect import IETF, STRIPE, Dialect
from .errors import (
    BodyRefused,
    ClientError,
    JournalFailed,
    KeyExpired,
    OperationChanged,
    OperationGone,
    RedirectRefused,
    Unsettled,
)
from .files import FileJournal
from .journal import Journal, MemoryJournal
from .pending import Pending
from .plain import pending, pending_async, with_key, with_key_async
from .scope import operation
from .table import TableJournal
from .wire import Answer, Request

__all__ = [
    "IETF",
    "STRIPE",
    "Answer",
    "BodyRefused",
    "ClientError",
    "Dialect",
    "FileJournal",
    "Finished",
    "Journal",
    "JournalFailed",
    "KeyExpired",
    "Keyed",
    "MemoryJournal",
    "OperationChanged",
    "OperationGone",
    "Patience",
    "Pending",
    "RedirectRefused",
    "Request",
    "TableJournal",
    "Told",
    "Unsettled",
    "operation",
    "pending",
    "pending_async",
    "told",
    "with_key",
    "with_key_async",
]


def told(response: Any) -> Told:
    """What is known of an answer of httpx, httpx2 or requests, beyond what it says: was it a replay?"""
    extensions = getattr(response, "extensions", None)
    found = extensions.get("samekey") if isinstance(extensions, dict) else getattr(response, "samekey", None)
    if not isinstance(found, Told):
        raise ValueError("This is not the answer of an operation that was sent under a key.")  # noqa: TRY004
    return found
