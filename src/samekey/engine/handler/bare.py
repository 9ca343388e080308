"""Bare applications: functions that speak ASGI or WSGI themselves, with no framework around them.

A decorated one is handed its own way to answer, so that the status that it starts with is its own word; and
where the key has decided, the answer is sent in its place, and the caller sees a call that went well.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from ...core.record import Answer
from ..exchange import SEEN, Exchange
from .boundary import Boundary

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def _is_of(context: Any, exchange: Exchange) -> bool:
    """Whether an argument is the scope or environ of this request, and not what a client sent."""
    return isinstance(context, Mapping) and context.get(SEEN) is exchange


def _is_asgi(exchange: Exchange, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool | None:
    """Called as ASGI: True by name, False by place; None if not."""
    if "send" in kwargs and _is_of(kwargs.get("scope"), exchange):
        return True
    return False if len(args) >= 3 and _is_of(args[-3], exchange) else None


def _is_wsgi(exchange: Exchange, args: tuple[Any, ...]) -> bool:
    return len(args) >= 2 and _is_of(args[-2], exchange)


def as_wsgi(exchange: Exchange, boundary: Boundary, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of a call, with a ``start_response`` that notes what the application says."""
    if not _is_wsgi(exchange, args):
        return args
    start_response = args[-1]

    def start(status: str, *more: Any) -> Any:
        code = status.split(" ", 1)[0]
        boundary.said = int(code) if code.isdigit() else None
        return start_response(status, *more)

    return (*args[:-1], start)


def as_asgi(
    exchange: Exchange, boundary: Boundary, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Arguments:
    """The same for ASGI, where the application also sends its answer while it still runs."""
    by_name = _is_asgi(exchange, args, kwargs)
    if by_name is None:
        return args, kwargs
    send = kwargs["send"] if by_name else args[-1]

    async def send_own(message: Any) -> None:
        if message["type"] == "http.response.start":
            boundary.said = message["status"]
        elif message["type"] == "http.response.body":
            boundary.sent_all = not message.get("more_body", False)
        await send(message)

    return (args, {**kwargs, "send": send_own}) if by_name else ((*args[:-1], send_own), kwargs)


def answer_instead(exchange: Exchange, answer: Answer, args: tuple[Any, ...]) -> Any:
    """Gives the answer that the key decides, in the place of a function that is not run. Sync."""
    exchange.answer = answer
    if not _is_wsgi(exchange, args):
        return exchange.decided(answer)
    try:
        phrase = HTTPStatus(answer.status).phrase
    except ValueError:
        phrase = "Unknown"
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in answer.headers]
    args[-1](f"{answer.status} {phrase}", headers)
    return [answer.body]


async def answer_instead_async(
    exchange: Exchange, answer: Answer, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """``answer_instead`` for async functions."""
    exchange.answer = answer
    by_name = _is_asgi(exchange, args, kwargs)
    if by_name is None:
        return exchange.decided(answer)
    send = kwargs["send"] if by_name else args[-1]
    headers = [(name.lower(), value) for name, value in answer.headers]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body, "more_body": False})
    return None
