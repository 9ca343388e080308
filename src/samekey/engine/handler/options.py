"""What each decorator takes, by name and type: its own options, and every setting that a handler can have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypedDict

from ...core.outcome import Classifier, OnError
from ...core.settings import CallSettings, HandlerSettings

Connections = Callable[[Any], Any]
"""Gives the connection for atomic work from the ASGI scope or WSGI environ; may be async."""


class _InTransaction(TypedDict, total=False):
    on_4xx: Literal["commit", "rollback"]
    strict: bool
    classify: Classifier
    connection: Connections


class TransactionOptions(_InTransaction, HandlerSettings, total=False):
    """Options of ``atomic`` and ``deferred``."""


class PhasedOptions(HandlerSettings, total=False):
    """Options of ``phased``, beside its own arguments."""

    on_error: OnError
    classify: Classifier


class LeasedOptions(PhasedOptions, total=False):
    """Options of ``leased``."""

    repeatable: bool


class OnceOptions(_InTransaction, CallSettings, total=False):
    """Options of ``once`` and ``once_per``: those of its mode."""

    on_error: OnError
