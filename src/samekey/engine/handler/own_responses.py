"""What a function that samekey calls has returned, as an answer: the framework's own, or any value."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

from ...core.record import Answer, Headers
from ...errors import NotSerialisable
from ...response import Response, answer_of

logger = logging.getLogger("samekey")


def answer_returned(result: Any) -> Answer:
    """A returned value as an answer: a response as it is, a framework's own one too, anything else as JSON
    with status 200."""
    return of_framework(result) or _spelled(result) or answer_of(result)


def _spelled(result: Any) -> Answer | None:
    """Content, status and headers in a tuple are an answer, as everywhere in Flask: the content may be a
    response already, the status a text, the headers pairs."""
    if type(result) is not tuple or len(result) not in (2, 3):
        return None
    content, *rest = result
    status = _status(rest[0])
    headers = rest[1] if len(rest) == 2 else rest[0] if status is None else ()
    if status is None and (len(rest) == 2 or "flask" not in sys.modules):
        return None  # two values, or three: elsewhere that is a list
    pairs = _pairs(headers)
    if pairs is None:
        return None
    made = of_framework(content) or answer_of(content)
    named = {name for name, _ in pairs}
    kept = [(name, value) for name, value in made.headers if name not in named]
    return Answer(made.status if status is None else status, (*kept, *pairs), made.body)


def _status(value: Any) -> int | None:
    first = value.partition(" ")[0] if isinstance(value, str) else ""
    number = int(first) if first.isdecimal() and len(first) == 3 else value
    if not isinstance(number, int) or isinstance(number, bool) or not 200 <= number <= 599:
        return None
    return int(number)


def _pairs(headers: Any) -> Headers | None:
    if isinstance(headers, Mapping):
        headers = [*headers.items()]
    if not isinstance(headers, list | tuple) or not all(
        isinstance(pair, list | tuple) and len(pair) == 2 for pair in headers
    ):
        return None
    checked = Response(200, None, {str(name): str(value) for name, value in headers})
    checked.answer()  # a line break is refused
    return tuple((str(n).lower().encode("latin-1"), str(v).encode("latin-1")) for n, v in headers)


def of_framework(result: Any, status: int | None = None) -> Answer | None:
    """What Starlette, Flask, Litestar, Django or its REST framework would send of this response; None if it
    is none, or a stream. ``NotSerialisable`` for an answer that a client library was given by somebody else.

    ``status``: the route's own, for a response that has none.
    """
    package = type(result).__module__.partition(".")[0]
    if package in _CLIENTS and hasattr(result, "status_code"):
        raise NotSerialisable(
            f"What {package} was answered by somebody else is no answer to your client: return "
            "samekey.Response(status, content), or a response of your framework's."
        )
    for module, name, made_of in _KINDS:
        kind = getattr(sys.modules.get(module), name, None)
        if kind is not None and isinstance(result, kind):
            made: Answer | None = made_of(result, status)
            return made
    return None


def _of_starlette(result: Any, _status: int | None) -> Answer | None:
    if getattr(result, "background", None) is not None:
        logger.error(
            "The background task of a response is not run: the answer of phased work or of a job is stored, "
            "and given by whoever is asked. Make it an effect or a job."
        )
    body = getattr(result, "body", None)
    return _answer(result, body) if isinstance(body, bytes) else None


def _of_werkzeug(result: Any, _status: int | None) -> Answer | None:
    return None if result.is_streamed else _answer(result, result.get_data())


def _of_django(result: Any, _status: int | None) -> Answer | None:
    if result.streaming:
        return None
    if hasattr(result, "data") and not hasattr(result, "accepted_renderer"):  # REST framework's own
        renderer = import_module("rest_framework.renderers").JSONRenderer()
        result.accepted_renderer, result.accepted_media_type = renderer, renderer.media_type
        result.renderer_context = {}
    if not getattr(result, "is_rendered", True):
        result.render()
    return _answer(result, result.content)


def _of_litestar(result: Any, status: int | None) -> Answer | None:
    if not hasattr(result, "content"):
        return None
    sent = result.to_asgi_response(None, None, status_code=status or 200)
    headers = ((name.lower(), value) for name, value in sent.encode_headers())
    kept = tuple((name, value) for name, value in headers if name != b"content-length")
    return Answer(sent.status_code, kept, bytes(sent.body))


def _answer(result: Any, body: bytes) -> Answer:
    named = ((str(name).lower().encode("latin-1"), str(value)) for name, value in result.headers.items())
    kept = ((name, value.encode("latin-1")) for name, value in named if name != b"content-length")
    return Answer(result.status_code, tuple(kept), body)


_KINDS: Final = (
    ("starlette.responses", "Response", _of_starlette),
    ("werkzeug.wrappers", "Response", _of_werkzeug),
    ("django.http", "HttpResponseBase", _of_django),
    ("litestar.response", "Response", _of_litestar),
)
"""Frameworks are known by the modules that are loaded: none is imported for this."""
_CLIENTS: Final = frozenset({"httpx", "httpx2", "requests", "aiohttp", "urllib3"})
