"""REST framework: the status of an operation behind the authentication and permissions of its views.

    urlpatterns = [..., path("idempotency/<operation>", OperationStatus.as_view())]

samekey's middleware answers for the status by itself, and knows whom other middleware has authenticated. REST
framework authenticates in its views: so this is one, and the middleware leaves the answer to it.
"""

from __future__ import annotations

from typing import Any

from rest_framework.views import APIView

from ..errors import ConfigurationError
from .framework import response_of
from .status import MISPLACED, SHOWN


class OperationStatus(APIView):  # type: ignore[misc]
    """Shows an operation to its tenant, and to nobody else. ``authentication_classes``,
    ``permission_classes`` and ``throttle_classes`` are the project's own, unless a subclass sets them."""

    schema = None  # the page says it anyway: samekey.openapi.spectacular
    shows_operations = True

    def get(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        shown = request._request.META.get(SHOWN)
        if shown is None:
            raise ConfigurationError(MISPLACED.format(path=request.path))
        return response_of(shown())
