"""One way to send a guarded request, whatever the application runs in: this process, or a real server."""

from __future__ import annotations

import asyncio
import http.client
import io
import json
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Self

from lab.processes import LOOPBACK, PATIENCE
from tests.fire.apps import Guarded, Settings, build

BODY = b'{"amount": 100}'
THREADS = 64


@dataclass(frozen=True, slots=True)
class Got:
    """An answer, and what the application raised beside it, if that can be seen."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    error: BaseException | None = field(default=None, compare=False)

    @property
    def code(self) -> str | None:
        """The machine-readable code of an error answer."""
        if self.headers.get("content-type") != "application/problem+json":
            return None
        code: str | None = json.loads(self.body).get("code")
        return code

    @property
    def replayed(self) -> bool:
        return self.headers.get("idempotent-replayed") == "true"

    @property
    def is_new(self) -> bool:
        """The answer of a run."""
        return self.status == 201 and not self.replayed

    def repeats(self, first: Got) -> bool:
        """Whether this is the replay of that answer: all of it, but for the mark."""
        return self.replayed and self._lasting == first._lasting

    @property
    def _lasting(self) -> tuple[int, Mapping[str, str], bytes]:
        fleeting = {"idempotent-replayed", "date", "server", "connection"}
        kept = {name: value for name, value in self.headers.items() if name not in fleeting}
        return self.status, kept, self.body


class Client(ABC):
    """Sends requests. ``start`` gives a future, so that many can be under way."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="client")

    @abstractmethod
    def send(self, path: str, key: str, body: bytes = BODY) -> Got: ...

    def start(self, path: str, key: str, body: bytes = BODY) -> Future[Got]:
        return self._threads.submit(self.send, path, key, body)

    def close(self) -> None:
        self._threads.shutdown(wait=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class HttpClient(Client):
    """Speaks to a server, each request on a connection of its own."""

    def __init__(self, port: int, timeout: float = PATIENCE) -> None:
        super().__init__()
        self._port = port
        self._timeout = timeout

    def send(self, path: str, key: str, body: bytes = BODY) -> Got:
        connection = http.client.HTTPConnection(LOOPBACK, self._port, timeout=self._timeout)
        try:
            headers = {"Idempotency-Key": key, "Content-Type": "application/json"}
            connection.request("POST", path, body, headers)
            response = connection.getresponse()
            content = response.read()
            return Got(response.status, {n.lower(): v for n, v in response.getheaders()}, content)
        finally:
            connection.close()


class WsgiClient(Client):
    """Calls a WSGI application in the thread of the request, as a server does."""

    def __init__(self, settings: Settings, handlers: Mapping[str, Guarded] | None = None) -> None:
        super().__init__()
        self._app, self.engine = build(settings, handlers)

    def send(self, path: str, key: str, body: bytes = BODY) -> Got:
        environ = {
            "REQUEST_METHOD": "POST",
            "SCRIPT_NAME": "",
            "PATH_INFO": path,
            "QUERY_STRING": "",
            "CONTENT_TYPE": "application/json",
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_IDEMPOTENCY_KEY": key,
            "SERVER_NAME": "fire",
            "SERVER_PORT": "80",
            "SERVER_PROTOCOL": "HTTP/1.1",
            "wsgi.version": (1, 0),
            "wsgi.url_scheme": "http",
            "wsgi.input": io.BytesIO(body),
            "wsgi.errors": sys.stderr,
            "wsgi.multithread": True,
            "wsgi.multiprocess": True,
            "wsgi.run_once": False,
        }
        started: list[Any] = []
        content, error = b"", None
        chunks: Any = ()
        try:
            chunks = self._app(environ, lambda *what: started.append(what))
            for chunk in chunks:
                content += chunk
        except Exception as raised:
            error = raised
        finally:
            if hasattr(chunks, "close"):
                chunks.close()
        if not started:
            return Got(500, {}, b"", error)
        status, headers = started[-1][:2]
        return Got(int(status.split()[0]), {n.lower(): v for n, v in headers}, content, error)

    def close(self) -> None:
        super().close()
        self.engine.close()


class AsgiClient(Client):
    """Calls an ASGI application on an event loop of its own, as a server does."""

    def __init__(self, settings: Settings, handlers: Mapping[str, Guarded] | None = None) -> None:
        super().__init__()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="asgi", daemon=True)
        self._thread.start()
        self._app, self.engine = build(settings, handlers)

    def send(self, path: str, key: str, body: bytes = BODY) -> Got:
        return self.start(path, key, body).result(2 * PATIENCE)

    def start(self, path: str, key: str, body: bytes = BODY) -> Future[Got]:
        return asyncio.run_coroutine_threadsafe(self._send(path, key, body), self._loop)

    async def _send(self, path: str, key: str, body: bytes) -> Got:
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
                (b"idempotency-key", key.encode()),
            ],
        }
        messages: list[Any] = []
        error = None

        async def receive() -> Any:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            messages.append(message)

        try:
            await self._app(scope, receive, send)
        except Exception as raised:
            error = raised
        if not messages:
            return Got(500, {}, b"", error)
        headers = {n.decode().lower(): v.decode() for n, v in messages[0]["headers"]}
        return Got(messages[0]["status"], headers, b"".join(m.get("body", b"") for m in messages[1:]), error)

    async def _end(self) -> None:
        """Requests that a failed test left behind must not outlive their loop."""
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        await self.engine.aclose()

    def run(self, work: Any) -> Any:
        """Runs a coroutine on the application's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(2 * PATIENCE)

    def close(self) -> None:
        self.run(self._end())
        super().close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def in_process(settings: Settings, handlers: Mapping[str, Guarded] | None = None) -> AsgiClient | WsgiClient:
    """The application in this process."""
    return (AsgiClient if settings.world == "asgi" else WsgiClient)(settings, handlers)
