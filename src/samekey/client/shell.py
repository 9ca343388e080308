"""The shell around httpx and httpx2, which differ in their name only: ``_library`` is one of them.

It turns their requests and answers into ours, and has ``carry`` do the rest. No decision is made here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, Self

from .carry import Finished, Keyed, Way, run, run_async
from .course import Failed, Moment
from .deadline import LATE, attempting
from .deadline_httpx import bound
from .entry import Entry
from .pending import Pending, listed
from .scope import going_on_with
from .wire import Answer, Pairs, Request

GRACE = 0.5
"""Seconds after which a whole attempt is cut off. The library's own time-outs come first: they tell whether
anything was sent."""
TOLD = "samekey"
"""Where an answer carries what we know of it: in its ``extensions``."""


class Shell:
    """What both transports share."""

    _library: ClassVar[Any]

    def __init__(self, inner: Any, way: Way) -> None:
        self._inner = inner
        self._way = way

    def _ours(self, native: Any, body: bytes | None) -> Request:
        """The request as we have it; None: its body is not read yet."""
        headers = header_pairs(native.headers)
        if body is not None and any(name.lower() == "transfer-encoding" for name, _ in headers):
            rest = ((name, value) for name, value in headers if name.lower() != "transfer-encoding")
            headers = (*rest, ("Content-Length", str(len(body))))  # it was streamed, and is whole now
        return Request(native.method.upper(), str(native.url), headers, body or b"")

    def _seen(self, native: Any) -> bytes | None:
        """The body, if it is there already."""
        try:
            content: bytes = native.content
        except self._library.RequestNotRead:
            return None
        return content

    def _native(self, request: Request, seconds: float, extensions: dict[str, Any]) -> Any:
        limits = dict(extensions.get("timeout") or {})
        for part in ("connect", "read", "write", "pool"):
            limit = limits.get(part)
            limits[part] = seconds if limit is None else min(limit, seconds)
        return self._library.Request(
            request.method,
            request.url,
            headers=[(name.encode("latin-1"), value.encode("latin-1")) for name, value in request.headers],
            stream=self._library.ByteStream(request.body),
            extensions={**extensions, "timeout": limits},
        )

    def _answer(self, native: Any, raw: bytes) -> Answer:
        kept = {name: native.extensions[name] for name in _KEPT if name in native.extensions}

        def made() -> Any:
            return self._library.Response(
                native.status_code,
                headers=native.headers.raw,
                stream=self._library.ByteStream(raw),
                extensions=dict(kept),
            )

        try:
            body = made().read()
        except self._library.DecodingError:
            body = raw
        return Answer(native.status_code, header_pairs(native.headers), body, made())

    def _given(self, finished: Finished) -> Any:
        answer = finished.answer
        native = answer.native or self._library.Response(
            answer.status,
            headers=[(name.encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers],
            stream=self._library.ByteStream(answer.body),
        )
        native.extensions[TOLD] = finished.told
        return native

    def _thrown(self, error: Exception, at: Moment) -> Failed | None:
        library = self._library
        if isinstance(error, library.UnsupportedProtocol):
            return Failed(error, at, left=False, hopeless=True)
        before = (library.ConnectError, library.ConnectTimeout, library.PoolTimeout, library.ProxyError)
        if isinstance(error, before):
            return Failed(error, at, left=False)
        if isinstance(error, library.TransportError) and not isinstance(error, library.LocalProtocolError):
            return Failed(error, at)
        return None

    def _late(self) -> Exception:
        late: Exception = self._library.ReadTimeout(LATE)
        return late


_KEPT = ("http_version", "reason_phrase")


def header_pairs(headers: Any) -> Pairs:
    return tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in headers.raw)


class SyncShell(Shell):
    """``handle_request`` with keys."""

    def __init__(self, inner: Any, way: Way) -> None:
        super().__init__(inner, way)
        bound(inner, self._library)

    def handle_request(self, request: Any) -> Any:
        if not self._way.takes(self._ours(request, self._seen(request)), request.extensions):
            return self._inner.handle_request(request)
        ours = self._ours(request, self._read(request))

        def send(sent: Request, seconds: float) -> Answer:
            with attempting(seconds) as attempt:
                answer = self._inner.handle_request(self._native(sent, seconds, request.extensions))
                try:
                    parts = []
                    for part in answer.stream:
                        parts.append(part)
                        if attempt.is_over():
                            raise self._late()
                    return self._answer(answer, b"".join(parts))
                finally:
                    answer.close()

        return self._given(run(self._way.acts(ours, request.extensions), send, self._thrown))

    def __enter__(self) -> Self:
        self._inner.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._inner.__exit__(*error)

    def close(self) -> None:
        self._inner.close()

    def _read(self, request: Any) -> bytes:
        """The body, whole: what is streamed is collected, so that it can be sent again."""
        body = bytearray()
        for part in request.stream:
            body += part
            self._way.check_size(body)
        request.stream = self._library.ByteStream(bytes(body))
        return bytes(body)


class AsyncShell(Shell):
    """``handle_async_request`` with keys; on asyncio and on trio, as the library itself."""

    async def handle_async_request(self, request: Any) -> Any:
        import anyio
        import anyio.to_thread

        if not self._way.takes(self._ours(request, self._seen(request)), request.extensions):
            return await self._inner.handle_async_request(request)
        ours = self._ours(request, await self._read(request))

        async def exchange(sent: Request, seconds: float) -> Answer:
            answer = await self._inner.handle_async_request(self._native(sent, seconds, request.extensions))
            try:
                return self._answer(answer, b"".join([part async for part in answer.stream]))
            finally:
                await answer.aclose()

        async def send(sent: Request, seconds: float) -> Answer:
            with anyio.move_on_after(seconds + GRACE):
                return await exchange(sent, seconds)
            raise self._late()

        async def here(call: Callable[[], Any]) -> Any:
            return call()

        block: Callable[[Callable[[], Any]], Awaitable[Any]]
        block = anyio.to_thread.run_sync if self._way.in_threads else here
        acts = self._way.acts(ours, request.extensions)
        return self._given(await run_async(acts, send, self._thrown, pause=anyio.sleep, block=block))

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._inner.__aexit__(*error)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def _read(self, request: Any) -> bytes:
        body = bytearray()
        async for part in request.stream:
            body += part
            self._way.check_size(body)
        request.stream = self._library.ByteStream(bytes(body))
        return bytes(body)


def wrap(client: Any, transport: Callable[[Any], Any]) -> None:
    """Puts a shell around every transport of a client: those that its own settings made, and its mounts."""
    client._transport = transport(client._transport)
    client._mounts = {
        pattern: None if inner is None else transport(inner) for pattern, inner in client._mounts.items()
    }


def again(library: Any, client: Any, entry: Entry) -> Any:
    """The request of an operation that was begun, with the client's own headers and cookies."""
    headers = library.Headers(client.headers)
    headers.update(dict(entry.headers))
    return library.Request(
        entry.method, entry.url, headers=headers, cookies=client.cookies, content=entry.body
    )


def pending_of(library: Any, client: Any, keyed: Keyed) -> list[Pending[Any]]:
    def send(entry: Entry, **options: Any) -> Any:
        with going_on_with(entry):
            return client.send(again(library, client, entry), **options)

    return listed(keyed, send, header_pairs(client.headers), str(client.base_url))


def async_pending_of(library: Any, client: Any, keyed: Keyed) -> list[Pending[Any]]:
    async def send(entry: Entry, **options: Any) -> Any:
        with going_on_with(entry):
            return await client.send(again(library, client, entry), **options)

    return listed(keyed, send, header_pairs(client.headers), str(client.base_url))
