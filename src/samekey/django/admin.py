"""Pages of Django's admin: keys, dead letters and the audit. Read-only, but for acts that the audit keeps.

An act needs a reason, and whoever does it needs the permission to change. Everything else that an operator
may do (an answer written by hand, a retention extended) has its command: ``samekey keys``, ``samekey dead``.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ActionForm

from ..core.program import Program
from ..core.states import Mode, State
from ..drivers.run import run
from ..engine.engine import Engine
from ..errors import NotExecuted, SamekeyError
from ..stores.protocols import Actor
from .conf import read, the_idempotency
from .models import AuditLine, DeadLetter, Key

_Act = Callable[[Engine, str, Actor], Callable[[], Program[bool]] | None]
"""Gives the program of an act on an operation or a job; None where its state does not allow it."""


class ReasonForm(ActionForm):  # type: ignore[misc]
    """The bar above a list, with room for a reason."""

    reason = forms.CharField(required=False, max_length=500, label="Reason, for the audit")


class _ReadOnly(admin.ModelAdmin):  # type: ignore[misc]
    """Whatever is there was written by samekey."""

    list_per_page = 50
    show_full_result_count = False
    action_form = ReasonForm

    def has_add_permission(self, request: Any) -> bool:
        return False

    def has_delete_permission(self, request: Any, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:
        """Of a single row there is nothing to change; the acts are on the list."""
        return obj is None and bool(super().has_change_permission(request, obj))

    def get_queryset(self, request: Any) -> Any:
        shown = self.model.objects.using(read().alias)
        return shown.order_by(*self.get_ordering(request))

    @admin.display(description="created", ordering="created_at")  # type: ignore[untyped-decorator]
    def created(self, row: Any) -> datetime:
        return _moment(row.created_at)

    def _act(self, request: Any, rows: Any, act: _Act) -> None:
        """Does something to each row, as whoever is logged in, and says what came of it."""
        reason = str(request.POST.get("reason", "")).strip()
        if not reason:
            self.message_user(request, _SAY_WHY, messages.ERROR)
            return
        engine, actor = the_idempotency().engine, Actor(str(request.user), reason)
        for row in rows:
            try:
                program = act(engine, row.pk, actor)
                done = program is not None and run(engine.drivers.sync, program)
            except SamekeyError as error:
                self.message_user(request, f"{row}: {error}", messages.ERROR)
                continue
            said = "done." if done else _NOT_NOW
            self.message_user(request, f"{row}: {said}", messages.SUCCESS if done else messages.WARNING)


_SAY_WHY = "Say why: it is kept in the audit. Nothing was changed."
_NOT_NOW = "it is not in a state for that, or has just moved. Nothing was changed."


def _moment(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


@admin.register(Key)
class KeyAdmin(_ReadOnly):
    """Operations."""

    list_display = ("id", "tenant", "endpoint", "state", "mode", "attempts", "answer_status", "created")
    list_filter = ("state", "mode")
    search_fields = ("=id", "=tenant", "=provider_id")
    ordering = ("-created_at",)
    actions = ("evict", "not_executed", "retry")

    @admin.action(permissions=["change"], description="Drop the stored answer")  # type: ignore[untyped-decorator]
    def evict(self, request: Any, rows: Any) -> None:
        """A retry is told that it was done, and is not run."""
        self._act(request, rows, lambda engine, pk, who: lambda: engine.store.finding.evict(pk, who))

    @admin.action(permissions=["change"], description="It never happened: free it")  # type: ignore[untyped-decorator]
    def not_executed(self, request: Any, rows: Any) -> None:
        """Of an unknown outcome: a retry may run."""
        self._act(request, rows, _never_happened)

    @admin.action(permissions=["change"], description="Have it tried again")  # type: ignore[untyped-decorator]
    def retry(self, request: Any, rows: Any) -> None:
        """A phased operation that is a dead letter."""
        self._act(
            request,
            rows,
            lambda engine, pk, who: lambda: engine.store.tables.operator.retry_dead_operation(pk, who),
        )


def _never_happened(engine: Engine, operation_id: str, who: Actor) -> Callable[[], Program[bool]] | None:
    record = run(engine.drivers.sync, lambda: engine.store.finding.by_id(operation_id))
    if record is None or record.state not in (State.UNKNOWN, State.DEAD_LETTER):
        return None
    if record.state is State.DEAD_LETTER and record.mode is Mode.DEFERRED:
        return None  # its handler has committed: only its job may be tried again
    return lambda: engine.resolver.apply(record, NotExecuted, who)


@admin.register(DeadLetter)
class DeadLetterAdmin(_ReadOnly):
    """Jobs that were given up."""

    list_display = ("id", "name", "operation_id", "tenant", "attempts", "error", "created")
    list_filter = ("name",)
    search_fields = ("=id", "=operation_id", "=tenant")
    ordering = ("-created_at",)
    actions = ("retry",)

    def get_queryset(self, request: Any) -> Any:
        return super().get_queryset(request).filter(state="dead")

    @admin.action(permissions=["change"], description="Have them tried again")  # type: ignore[untyped-decorator]
    def retry(self, request: Any, rows: Any) -> None:
        self._act(
            request,
            rows,
            lambda engine, pk, who: lambda: engine.store.tables.operator.retry_dead_job(pk, who),
        )


@admin.register(AuditLine)
class AuditAdmin(_ReadOnly):
    """The audit: nobody changes it."""

    list_display = ("when", "operation_id", "tenant", "from_state", "to_state", "actor", "reason")
    list_filter = ("to_state", "actor")
    search_fields = ("=operation_id", "=tenant")
    ordering = ("-id",)

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:
        return False

    @admin.display(description="when", ordering="at")  # type: ignore[untyped-decorator]
    def when(self, row: Any) -> datetime:
        return _moment(row.at)
