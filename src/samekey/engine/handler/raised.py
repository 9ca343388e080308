"""A framework's own HTTP exception as the answer that it stands for.

A phased operation stores its answer itself, perhaps in a completer with no request at all, so no exception
handler of an application is asked. Nothing is imported here: who raises such an error has imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

from ...core.record import Answer
from ...response import Response

_WITHOUT_BODY: Final = (204, 205, 304)


def status_of(error: BaseException) -> int | None:
    """The status of a framework's own HTTP exception; None for every other error."""
    found = _kind_of(error)
    if found is None:
        return None
    response = getattr(error, "response", None)  # of Flask's abort(response)
    status = getattr(error, "status_code", None) or getattr(error, "code", None)
    status = getattr(response, "status_code", None) or status
    return status if isinstance(status, int) else None


def answer_in(error: BaseException) -> Answer:
    """The answer in an HTTP exception, as its framework words it by itself."""
    found = _kind_of(error)
    assert found is not None
    return found(error)


def _kind_of(error: BaseException) -> Callable[[Any], Answer] | None:
    for module, name, made in _KINDS:
        kind = getattr(sys.modules.get(module), name, None)
        if kind is not None and isinstance(error, kind):
            return made
    return None


def _of_fastapi(error: Any) -> Answer:
    return _plain(error, {"detail": error.detail})


def _of_starlette(error: Any) -> Answer:
    return _plain(error, error.detail)


def _of_litestar(error: Any) -> Answer:
    extra = {} if error.extra is None else {"extra": error.extra}
    return _plain(error, {"status_code": error.status_code, "detail": error.detail, **extra})


def _of_werkzeug(error: Any) -> Answer:
    response = error.get_response()
    headers = tuple((n.lower().encode("latin-1"), v.encode("latin-1")) for n, v in response.headers)
    kept = tuple(pair for pair in headers if pair[0] != b"content-length")
    return Answer(response.status_code, kept, response.get_data())


def _of_rest_framework(error: Any) -> Answer:
    detail = error.detail if isinstance(error.detail, dict | list) else {"detail": error.detail}
    return Response(error.status_code, detail).answer()


def _plain(error: Any, content: Any) -> Answer:
    without = error.status_code in _WITHOUT_BODY
    return Response(error.status_code, None if without else content, dict(error.headers or {})).answer()


_KINDS: Final = (
    ("fastapi.exceptions", "HTTPException", _of_fastapi),  # before the one that it is made of
    ("starlette.exceptions", "HTTPException", _of_starlette),
    ("litestar.exceptions", "HTTPException", _of_litestar),
    ("werkzeug.exceptions", "HTTPException", _of_werkzeug),
    ("rest_framework.exceptions", "APIException", _of_rest_framework),
)
