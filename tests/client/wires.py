"""The five ways in which the client goes over a wire, behind one face, so that one test runs on each."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx
import httpx2

import samekey.client.httpx
import samekey.client.httpx2
import samekey.client.requests
from samekey.client import Answer, Finished, Keyed, Request, Told, operation, pending, told, with_key

T = TypeVar("T")


@dataclass(frozen=True)
class Result:
    """An answer, whichever library gave it."""

    status: int
    body: bytes
    headers: dict[str, str]
    told: Told


def _of(answer: Any) -> Result:
    headers = {name.lower(): value for name, value in answer.headers.items()}
    return Result(answer.status_code, answer.content, headers, told(answer))


class Wire:
    """One library, sync or async."""

    name: str
    connect_error: type[Exception]

    def post(self, url: str, body: Any, keyed: Keyed, *, name: str | None = None, **options: Any) -> Result:
        """One operation, by a client of its own."""
        raise NotImplementedError

    def finish_pending(self, keyed: Keyed, **settings: Any) -> list[Result]:
        """What was begun, finished by a client of its own."""
        raise NotImplementedError


class _SyncHttpx(Wire):
    def __init__(self, name: str, library: Any, client: Callable[..., Any]) -> None:
        self.name, self._client, self.connect_error = name, client, library.ConnectError

    def post(self, url: str, body: Any, keyed: Keyed, *, name: str | None = None, **options: Any) -> Result:
        settings = options.pop("settings", {})
        with self._client(keyed=keyed, trust_env=False, verify=False, **settings) as client:
            if name is None:
                return _of(client.post(url, **_content(body), **options))
            with operation(name):
                return _of(client.post(url, **_content(body), **options))

    def finish_pending(self, keyed: Keyed, **settings: Any) -> list[Result]:
        with self._client(keyed=keyed, trust_env=False, verify=False, **settings) as client:
            return [_of(one.finish()) for one in client.pending()]


class _AsyncHttpx(Wire):
    def __init__(self, name: str, library: Any, client: Callable[..., Any]) -> None:
        self.name, self._client, self.connect_error = name, client, library.ConnectError

    def post(self, url: str, body: Any, keyed: Keyed, *, name: str | None = None, **options: Any) -> Result:
        settings = options.pop("settings", {})

        async def once() -> Result:
            async with self._client(keyed=keyed, trust_env=False, verify=False, **settings) as client:
                if name is None:
                    return _of(await client.post(url, **_content(body), **options))
                with operation(name):
                    return _of(await client.post(url, **_content(body), **options))

        return _run(once())

    def finish_pending(self, keyed: Keyed, **settings: Any) -> list[Result]:
        async def once() -> list[Result]:
            async with self._client(keyed=keyed, trust_env=False, verify=False, **settings) as client:
                return [_of(await one.finish()) for one in client.pending()]

        return _run(once())


class _Requests(Wire):
    name = "requests"

    def __init__(self) -> None:
        import requests

        self.connect_error = requests.exceptions.ConnectionError

    def post(self, url: str, body: Any, keyed: Keyed, *, name: str | None = None, **options: Any) -> Result:
        settings = options.pop("settings", {})
        if options.pop("follow_redirects", None) is None:
            options.setdefault("allow_redirects", False)
        with self._session(keyed, settings) as session:
            content = body if isinstance(body, bytes) or callable(getattr(body, "__next__", None)) else None
            sent = {"data": content} if content is not None else {"json": body}
            if name is None:
                return _of(session.post(url, **sent, **options))
            with operation(name):
                return _of(session.post(url, **sent, **options))

    def finish_pending(self, keyed: Keyed, **settings: Any) -> list[Result]:
        with self._session(keyed, settings) as session:
            return [_of(one.finish()) for one in session.pending()]

    def _session(self, keyed: Keyed, settings: dict[str, Any]) -> Any:
        session = samekey.client.requests.Session(keyed=keyed)
        session.trust_env = False
        session.headers.update(settings.get("headers", {}))
        session.auth = settings.get("auth")
        return session


class Plain(Wire):
    """``with_key``, by the standard library."""

    name = "with_key"
    connect_error = urllib.error.URLError

    def post(self, url: str, body: Any, keyed: Keyed, *, name: str | None = None, **options: Any) -> Result:
        content = (("Content-Type", "application/json"),)
        request = Request("POST", url, content, json.dumps(body).encode())
        return self._of(with_key(self._send, request, keyed=keyed, name=name))

    def finish_pending(self, keyed: Keyed, **settings: Any) -> list[Result]:
        headers = tuple(settings.get("headers", {}).items())
        return [self._of(one.finish(headers=headers)) for one in pending(self._send, keyed=keyed)]

    @staticmethod
    def _of(finished: Finished) -> Result:
        answer = finished.answer
        headers = {name.lower(): value for name, value in answer.headers}
        return Result(answer.status, answer.body, headers, finished.told)

    @staticmethod
    def _send(request: Request, seconds: float) -> Answer:
        sent = urllib.request.Request(request.url, request.body, dict(request.headers), method=request.method)
        try:
            with urllib.request.urlopen(sent, timeout=min(seconds, 5.0)) as answer:
                return Answer(answer.status, tuple(answer.headers.items()), answer.read())
        except urllib.error.HTTPError as answer:
            with answer:
                return Answer(answer.code, tuple(answer.headers.items()), answer.read())


def _content(body: Any) -> dict[str, Any]:
    streamed = hasattr(body, "__next__") or hasattr(body, "__anext__")
    return {"content": body} if isinstance(body, bytes) or streamed else {"json": body}


def _run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


WIRES: list[Wire] = [
    _SyncHttpx("httpx2", httpx2, samekey.client.httpx2.Client),
    _AsyncHttpx("httpx2-async", httpx2, samekey.client.httpx2.AsyncClient),
    _SyncHttpx("httpx", httpx, samekey.client.httpx.Client),
    _AsyncHttpx("httpx-async", httpx, samekey.client.httpx.AsyncClient),
    _Requests(),
]


EVERY: list[Wire] = [*WIRES, Plain()]
"""And the function for anything else."""


def wire_named(name: str) -> Wire:
    return next(wire for wire in EVERY if wire.name == name)
