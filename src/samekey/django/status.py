"""Who answers for the status of an operation: the middleware, or a view of the project's that it leads to."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from typing import Any, Final

from django.http import Http404, HttpRequest
from django.urls import get_resolver, resolve

from ..core.record import Answer
from .routes import patterns

logger = logging.getLogger("samekey")

SHOWN: Final = "samekey.shown"
"""In ``request.META``: a function that gives the answer, for a view that is about to show it."""

MISPLACED: Final = (
    "{path} leads to OperationStatus, and is not where samekey's answers point to. Route it as the setting "
    "status_path says, with the operation as its last part: path('idempotency/<operation>', …)."
)
_NOBODY: Final = (
    "The status of an operation was refused, because nothing says who asks. If REST framework authenticates "
    "your callers, let it do so here: path('idempotency/<operation>', "
    "samekey.django.rest.OperationStatus.as_view())."
)


def is_shown_by_a_view(request: HttpRequest) -> bool:
    """Whether the project has routed ``samekey.django.rest.OperationStatus`` here."""
    try:
        match = resolve(request.path_info, getattr(request, "urlconf", None))
    except Http404:
        return False
    return _shows(match.func)


def misplaced(prefix: str | None) -> Iterator[str]:
    """Routes of ``OperationStatus`` at which nobody will look, as sentences."""
    for template, pattern in patterns(get_resolver()):
        below = None if prefix is None else template.removeprefix(prefix.rstrip("/") + "/")
        if _shows(pattern.callback) and (below in (None, template) or "/" in str(below)):
            yield MISPLACED.format(path=template)


def _shows(view: Any) -> bool:
    return bool(getattr(getattr(view, "cls", None), "shows_operations", False))


def tell_who_could_know(answer: Answer, told: list[bool]) -> Answer:
    """Once, where it was refused and REST framework may know better."""
    if answer.status == 401 and not told and "rest_framework.views" in sys.modules:
        told.append(True)
        logger.warning("%s", _NOBODY)
    return answer
