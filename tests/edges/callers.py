"""In-process servers for tests: they call an ASGI or WSGI application as a real one would.

Raw on purpose: odd bytes get through as they are, several requests can be under way at once, and what an
application raises is kept beside the 500 that a server would send.
"""

from __future__ import annotations

import asyncio
import io
import json
import threading
from collections.abc import Callable, Coroutine, Iterable, MutableMapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

Pairs = tuple[tuple[bytes, bytes], ...]
Message = MutableMapping[str, Any]
AsgiApp = Callable[..., Coroutine[Any, Any, None]]
WsgiApp = Callable[..., Iterable[bytes]]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request, in the bytes that a server would hand over."""

    method: str = "POST"
    path: str = "/"
    headers: Pairs = ()
    body: bytes = b""
    query: bytes = b""
    client_leaves: bool = False
    """The body never ends: the client is gone half-way."""

    def with_header(self, name: str, *values: bytes) -> Request:
        return replace(self, headers=(*self.headers, *((name.encode(), value) for value in values)))


@dataclass(slots=True)
class Got:
    """One HTTP answer, and what the application raised, if anything."""

    status: int = 0
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""
    error: BaseException | None = None

    def all(self, name: str) -> list[str]:
        wanted = name.lower().encode()
        return [value.decode("latin-1") for key, value in self.headers if key.lower() == wanted]

    def header(self, name: str) -> str | None:
        return next(iter(self.all(name)), None)

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str | None:
        """The machine-readable code of a refusal, in either shape."""
        if self.header("content-type") not in ("application/problem+json", "application/json"):
            return None
        content = self.json()
        found = content.get("error", content) if isinstance(content, dict) else {}
        return found.get("code") if isinstance(found, dict) else None

    @property
    def replayed(self) -> bool:
        return self.header("idempotent-replayed") == "true"

    @property
    def content(self) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        """All of it but our own marks: what must be equal byte for byte in a replay."""
        marks = (b"idempotent-replayed", b"idempotency-key-expires")
        kept = [(name, value) for name, value in self.headers if name.lower() not in marks]
        return self.status, kept, self.body


class Client(Protocol):
    """Sends requests to one application."""

    def send(self, request: Request) -> Got: ...

    def start(self, request: Request) -> Future[Got]:
        """Sends without waiting for the answer."""


class LoopThread:
    """An event loop in a thread: sync tests talk to async applications, several requests at a time."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="test-loop", daemon=True)
        self._thread.start()

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.start(work).result(30)

    def close(self) -> None:
        """With whatever tests have left in it, as a server's loop ends."""
        self.start(_cancel_the_others()).result(60)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


async def _cancel_the_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=10)


class AsgiClient:
    """Calls an ASGI application on a loop of its own thread."""

    def __init__(self, app: AsgiApp, loop: LoopThread) -> None:
        self.app = app
        self.loop = loop

    def send(self, request: Request) -> Got:
        return self.start(request).result(30)

    def start(self, request: Request) -> Future[Got]:
        return self.loop.start(call_asgi(self.app, request))


def http_scope(request: Request) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": "http",
        "path": request.path,
        "raw_path": request.path.encode("utf-8", "surrogateescape"),
        "query_string": request.query,
        "root_path": "",
        "headers": [(name.lower(), value) for name, value in _with_length(request)],
        "client": ("127.0.0.1", 40000),
        "server": ("127.0.0.1", 80),
        "extensions": {},
        "state": {},
    }


def _with_length(request: Request) -> Pairs:
    if not request.body or any(name.lower() == b"content-length" for name, _ in request.headers):
        return request.headers
    return (*request.headers, (b"content-length", str(len(request.body)).encode()))


async def call_asgi(
    app: AsgiApp, request: Request, *, on_send: Callable[[Message], object] | None = None
) -> Got:
    """One request. An application that raises before it answers gets the server's 500."""
    got = Got()
    # In two pieces, as the network might have it.
    half = len(request.body) // 2
    messages: list[Message] = [
        {"type": "http.request", "body": request.body[:half], "more_body": True},
        {"type": "http.request", "body": request.body[half:], "more_body": False},
    ]
    if request.client_leaves:
        messages[1] = {"type": "http.disconnect"}

    answered = asyncio.Event()

    async def receive() -> Message:
        if messages:
            return messages.pop(0)
        await answered.wait()  # as servers do: once the answer is out, there is nobody to listen to
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if on_send is not None:
            on_send(message)
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            answered.set()
        if message["type"] == "http.response.start":
            assert not got.status, "an answer was started twice"
            got.status = message["status"]
            got.headers = [(bytes(name), bytes(value)) for name, value in message.get("headers", ())]
        elif message["type"] == "http.response.body":
            assert got.status, "a body came before its status"
            got.body += message.get("body", b"")

    try:
        await app(http_scope(request), receive, send)
    except Exception as error:
        got.error = error
        got.status = got.status or 500
    return got


class WsgiClient:
    """Calls a WSGI application in threads."""

    def __init__(self, app: WsgiApp, threads: ThreadPoolExecutor) -> None:
        self.app = app
        self._threads = threads

    def send(self, request: Request) -> Got:
        return call_wsgi(self.app, request)

    def start(self, request: Request) -> Future[Got]:
        return self._threads.submit(call_wsgi, self.app, request)


def environ_of(request: Request) -> dict[str, Any]:
    environ: dict[str, Any] = {
        "REQUEST_METHOD": request.method,
        "SCRIPT_NAME": "",
        "PATH_INFO": request.path.encode("utf-8", "surrogateescape").decode("latin-1"),
        "QUERY_STRING": request.query.decode("latin-1"),
        "SERVER_NAME": "127.0.0.1",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "HTTP_HOST": "127.0.0.1",
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "http",
        "wsgi.input": io.BytesIO(request.body),
        "wsgi.errors": io.StringIO(),
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
    }
    for name, value in _with_length(request):
        upper = name.decode("latin-1").upper().replace("-", "_")
        key = upper if upper in ("CONTENT_TYPE", "CONTENT_LENGTH") else f"HTTP_{upper}"
        text = value.decode("latin-1")
        environ[key] = f"{environ[key]},{text}" if key in environ and key != "HTTP_HOST" else text
    if request.client_leaves:
        environ["CONTENT_LENGTH"] = str(len(request.body) + 10)
    return environ


def call_wsgi(app: WsgiApp, request: Request, *, on_send: Callable[[str], object] | None = None) -> Got:
    """One request, as PEP 3333 has it: start, iterate, close."""
    got = Got()

    def write(data: bytes) -> None:
        if on_send is not None:
            on_send("body")
        got.body += data

    def start_response(
        status: str, headers: list[tuple[str, str]], exc_info: Any = None
    ) -> Callable[[bytes], None]:
        assert exc_info is not None or not got.status, "an answer was started twice"
        if on_send is not None:
            on_send("start")
        got.status = int(status.split(" ", 1)[0])
        got.headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        return write

    chunks: Iterable[bytes] = ()
    try:
        chunks = app(environ_of(request), start_response)
        for chunk in chunks:
            write(chunk)
    except Exception as error:
        got.error = error
        got.status = got.status or 500
    finally:
        close = getattr(chunks, "close", None)
        if close is not None:
            close()
    return got
