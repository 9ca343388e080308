"""One request to an application in this process: no server, no socket, ASGI and WSGI alike."""

from __future__ import annotations

import asyncio
import inspect
import io
import json
import sys
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from urllib.parse import unquote, urlsplit

Headers: TypeAlias = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class SentRequest:
    """A request as it goes over the wire, so that it can be sent again byte for byte."""

    method: str
    url: str
    headers: Headers
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class GivenAnswer:
    """What the application answered."""

    request: SentRequest
    status: int
    headers: Headers
    body: bytes = field(repr=False)

    def header(self, name: str) -> str | None:
        """The first header of that name, whatever its case."""
        return next((value for one, value in self.headers if one.lower() == name.lower()), None)

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def replayed(self) -> bool:
        """Whether the answer is that of an earlier request with the same key."""
        return any(self.header(name) == "true" for name in ("Idempotency-Replayed", "Idempotent-Replayed"))


def is_asgi(app: Any) -> bool:
    """Whether the application is called as ASGI asks, with ``scope``, ``receive`` and ``send``."""
    if inspect.iscoroutinefunction(app) or inspect.iscoroutinefunction(getattr(app, "__call__", None)):  # noqa: B004
        return True
    try:
        asked = list(inspect.signature(app).parameters.values())
    except (TypeError, ValueError):
        return False
    return sum(one.default is one.empty and one.kind is not one.VAR_KEYWORD for one in asked) == 3


async def call(app: Any, request: SentRequest) -> GivenAnswer:
    """Sends one request, and gives its answer when the last byte of it is there."""
    if is_asgi(app):
        return await _call_asgi(app, request)
    return await asyncio.to_thread(_call_wsgi, app, request)


async def _call_asgi(app: Any, request: SentRequest) -> GivenAnswer:
    url = urlsplit(request.url)
    scope: MutableMapping[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": url.scheme or "http",
        "path": unquote(url.path),
        "raw_path": url.path.encode("ascii"),
        "query_string": url.query.encode("ascii"),
        "root_path": "",
        "headers": [
            (name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in request.headers
        ],
        "client": ("127.0.0.1", 1),
        "server": ("testserver", 80),
        "state": {},
    }
    asked = False
    ended = asyncio.Event()
    status, headers, pieces = 500, Headers(), list[bytes]()

    async def receive() -> Mapping[str, Any]:
        nonlocal asked
        if not asked:
            asked = True
            return {"type": "http.request", "body": request.body, "more_body": False}
        await ended.wait()
        return {"type": "http.disconnect"}

    async def send(message: Mapping[str, Any]) -> None:
        nonlocal status, headers
        if message["type"] == "http.response.start":
            status = message["status"]
            headers = tuple(
                (name.decode("latin-1"), value.decode("latin-1")) for name, value in message["headers"]
            )
        elif message["type"] == "http.response.body":
            pieces.append(message.get("body", b""))
            if not message.get("more_body", False):
                ended.set()

    await app(scope, receive, send)
    return GivenAnswer(request, status, headers, b"".join(pieces))


def _call_wsgi(app: Any, request: SentRequest) -> GivenAnswer:
    url = urlsplit(request.url)
    environ: dict[str, Any] = {
        "REQUEST_METHOD": request.method,
        "SCRIPT_NAME": "",
        "PATH_INFO": unquote(url.path, "latin-1"),
        "QUERY_STRING": url.query,
        "SERVER_NAME": "testserver",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "REMOTE_ADDR": "127.0.0.1",
        "CONTENT_LENGTH": str(len(request.body)),
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": url.scheme or "http",
        "wsgi.input": io.BytesIO(request.body),
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": True,
        "wsgi.run_once": False,
    }
    for name, value in request.headers:
        as_variable = name.upper().replace("-", "_")
        environ[as_variable if as_variable == "CONTENT_TYPE" else f"HTTP_{as_variable}"] = value
    begun: list[tuple[int, Headers]] = []
    pieces: list[bytes] = []

    def start_response(
        status: str, headers: list[tuple[str, str]], _error: Any = None
    ) -> Callable[[bytes], None]:
        begun[:] = [(int(status.split(" ", 1)[0]), tuple(headers))]
        return pieces.append

    answer = app(environ, start_response)
    try:
        pieces.extend(answer)
    finally:
        if hasattr(answer, "close"):
            answer.close()
    status, headers = begun[0]
    return GivenAnswer(request, status, headers, b"".join(pieces))


@asynccontextmanager
async def lifespan(app: Any) -> Any:
    """The application's own start and stop, as a server runs them; nothing where there are none."""
    if not is_asgi(app):
        yield
        return
    to_app: asyncio.Queue[Mapping[str, Any]] = asyncio.Queue()
    from_app: asyncio.Queue[Mapping[str, Any]] = asyncio.Queue()

    async def live() -> None:
        try:
            await app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, to_app.get, from_app.put)
        except Exception as error:  # an application that knows no lifespan says so by raising
            await from_app.put({"type": "lifespan.none", "message": repr(error)})
        else:
            await from_app.put({"type": "lifespan.none", "message": ""})

    living = asyncio.create_task(live(), name="lifespan of the application under test")
    await to_app.put({"type": "lifespan.startup"})
    _must_not_have_failed(await from_app.get())
    try:
        yield
    finally:
        if not living.done():
            await to_app.put({"type": "lifespan.shutdown"})
            await _first(from_app.get(), living)
        await living


def _must_not_have_failed(said: Mapping[str, Any]) -> None:
    if said["type"].endswith(".failed"):
        raise RuntimeError(f"The application did not start: {said.get('message', '')}")


async def _first(said: Awaitable[Mapping[str, Any]], living: asyncio.Task[None]) -> None:
    hearing = asyncio.ensure_future(said)
    await asyncio.wait({hearing, living}, return_when=asyncio.FIRST_COMPLETED)
    hearing.cancel()
