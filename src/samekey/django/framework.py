"""What the engine must know of Django and of REST framework: their requests, answers and HTTP exceptions."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from django.core.exceptions import BadRequest, PermissionDenied, SuspiciousOperation
from django.http import Http404, HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.multipartparser import MultiPartParserError
from django.http.response import HttpResponseBase

from ..core.record import Answer
from ..engine.exchange import Asked, Exchange, Framework
from ..engine.handler.streams import WatchedPieces, WatchedPiecesAsync
from ..engine.operation import Running

_REFUSALS: tuple[tuple[Any, int], ...] = (
    (Http404, 404),
    (PermissionDenied, 403),
    (MultiPartParserError, 400),
    (BadRequest, 400),
    (SuspiciousOperation, 400),
)
"""As ``django.core.handlers.exception`` answers them. A ``ValidationError`` of a model's is none: Django
makes a 500 of it."""


class DjangoFramework(Framework):
    """Django."""

    def respond(self, answer: Answer) -> Any:
        return response_of(answer)

    def own_status(self, value: Any, noted: Any) -> int | None:
        return value.status_code if isinstance(value, HttpResponseBase) else None

    def watch(self, value: Any, running: Running) -> Any:
        if isinstance(value, StreamingHttpResponse):
            pieces = value.streaming_content
            value.streaming_content = (
                WatchedPiecesAsync(pieces, running)
                if value.is_async
                else WatchedPieces(iter(pieces), running)
            )
        return value

    def asked(self, arguments: Sequence[Any]) -> Asked | None:
        return asked(arguments)

    def refusal(self, error: BaseException) -> int | None:
        return next((status for kind, status in _REFUSALS if isinstance(error, kind)), None)


class RestFramework(DjangoFramework):
    """Django REST framework: its views make answers of its own exceptions, too."""

    def refusal(self, error: BaseException) -> int | None:
        exceptions = sys.modules.get("rest_framework.exceptions")
        if exceptions is not None and isinstance(error, exceptions.APIException):
            return int(error.status_code)
        return super().refusal(error)


DJANGO = DjangoFramework()
REST = RestFramework()


def asked(arguments: Sequence[Any]) -> Asked | None:
    """The request that a view is called for."""
    for one in arguments:
        if isinstance(one, HttpRequest):
            return Asked(one.META, DJANGO)
        inner = getattr(one, "_request", None)
        if isinstance(inner, HttpRequest):
            return Asked(inner.META, REST)
    return None


def in_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Asked | None:
    return asked((*args, *kwargs.values()))


def answer_of(response: Any) -> Answer:
    """A response as it would be stored; without a body where that comes piece by piece."""
    headers = [(name.encode("ascii"), _encoded(value)) for name, value in response.items()]
    headers += [
        (b"Set-Cookie", cookie.output(header="").strip().encode("latin-1", "replace"))
        for cookie in response.cookies.values()
    ]
    return Answer(
        response.status_code, tuple(headers), b"" if response.streaming else bytes(response.content)
    )


def response_of(answer: Answer) -> HttpResponse:
    """An answer that samekey gives. To Django it is no error to be logged, whatever its status is."""
    response = HttpResponse(answer.body, status=answer.status)
    del response["Content-Type"]
    for name, value in answer.headers:
        text = name.decode("latin-1")
        if text.lower() == "content-length":
            continue  # Django says it
        said = value.decode("latin-1")
        response[text] = f"{response[text]}, {said}" if text in response else said
    response._has_been_logged = True
    return response


def _encoded(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode("latin-1", "replace")


def in_place_of(response: Any, ours: Any) -> Any:
    """Our answer; what the view's response had open is closed with it."""
    ours._resource_closers += response._resource_closers
    return ours


def noticing(exchange: Exchange, response: Any) -> Any:
    """What a client without a key is to be told goes with whatever it is answered."""
    if exchange.notice is not None:
        name, value = (part.decode("latin-1") for part in exchange.notice)
        response[name] = value
    return response


def take_headers(response: Any, answer: Answer) -> None:
    for name, value in answer.headers:
        if name.lower() != b"set-cookie":
            response[name.decode("latin-1")] = value.decode("latin-1")
