"""Who asks, for shops on Django: it comes before samekey's middleware, and refuses by itself."""

from typing import Any

from asgiref.sync import iscoroutinefunction
from django.http import JsonResponse
from django.utils.decorators import sync_and_async_middleware

from . import tenant


def _is_known(request: Any) -> bool:
    request.account = tenant(request)
    return request.account is not None


def _refused() -> JsonResponse:
    return JsonResponse({"detail": "Say who you are."}, status=401, headers={"WWW-Authenticate": "Bearer"})


@sync_and_async_middleware  # type: ignore[untyped-decorator]
def Known(get_response: Any) -> Any:  # noqa: N802 (Django's settings name it as they would a class)
    async def known_async(request: Any) -> Any:
        return await get_response(request) if _is_known(request) else _refused()

    def known(request: Any) -> Any:
        return get_response(request) if _is_known(request) else _refused()

    return known_async if iscoroutinefunction(get_response) else known
