"""An adapter and a session for requests that send each operation under one key until it has its answer."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import requests
import requests.adapters
from urllib3.exceptions import (
    ConnectTimeoutError,
    DecodeError,
    NewConnectionError,
    ProtocolError,
    ReadTimeoutError,
    SSLError,
)

from ..errors import ConfigurationError
from .carry import ENTRY, Keyed, Way, check_size, run
from .course import Failed, Moment
from .entry import Entry
from .pending import Pending, listed
from .scope import going_on_with, sending
from .wire import Answer, Request

__all__ = ["KeyedAdapter", "Session"]


class Adapter(requests.adapters.HTTPAdapter):
    """What sends requests in a way of ours. ``max_retries`` is left at none: retries are made here."""

    def __init__(self, way: Way, **settings: Any) -> None:
        if settings.get("max_retries"):
            raise ConfigurationError("This adapter retries by itself: set patience, not max_retries.")
        super().__init__(**settings)
        self._way = way

    def _carried(self, request: Any, carrier: dict[str, Any]) -> None:
        """Has the request carry its operation along."""

    def send(
        self,
        request: Any,
        stream: bool = False,
        timeout: Any = None,
        verify: Any = True,
        cert: Any = None,
        proxies: Any = None,
    ) -> Any:
        seen = request.body.encode() if isinstance(request.body, str) else request.body
        carrier = _carrier(request)
        if not self._way.takes(_ours(request, seen if isinstance(seen, bytes) else b""), carrier):
            return super().send(request, stream, timeout, verify, cert, proxies)
        acts = self._way.acts(_ours(request, self._body(request)), carrier)
        self._carried(request, carrier)

        def send(sent: Request, seconds: float) -> Answer:
            until = time.monotonic() + seconds
            prepared = request.copy()
            prepared.method, prepared.url = sent.method, sent.url
            prepared.headers = requests.structures.CaseInsensitiveDict(dict(sent.headers))
            prepared.body = sent.body or None
            limits = _limits(timeout, seconds)
            # Not super(): what we give back has to be read whole, within the deadline.
            answer = requests.adapters.HTTPAdapter.send(self, prepared, True, limits, verify, cert, proxies)
            try:
                parts = []
                for part in _parts(answer):
                    parts.append(part)
                    if time.monotonic() > until:
                        raise requests.exceptions.ReadTimeout("The answer did not end within the deadline.")
            finally:
                answer.close()
            return _answer(answer, b"".join(parts))

        finished = run(acts, send, _thrown)
        given = finished.answer.native or _made(finished.answer)
        given.request, given.connection, given.samekey = request, self, finished.told
        given.url = request.url
        return given

    def _body(self, request: Any) -> bytes:
        """The body, whole: what is streamed is collected, so that it can be sent again."""
        body = request.body
        if body is None:
            return b""
        if isinstance(body, str):
            body = body.encode()
        if not isinstance(body, bytes | bytearray):
            read = getattr(body, "read", None)
            parts = bytearray()
            for part in iter(lambda: read(64 * 1024), b"") if read is not None else body:
                parts += part.encode() if isinstance(part, str) else part
                check_size(self._way, parts)
            body = bytes(parts)
            request.body = body
            request.headers.pop("Transfer-Encoding", None)
            request.headers["Content-Length"] = str(len(body))
        return bytes(body)


class KeyedAdapter(Adapter):
    """For ``session.mount(url, …)``."""

    def __init__(self, keyed: Keyed | None = None, **settings: Any) -> None:
        self._keyed = keyed or Keyed()
        super().__init__(self._keyed, **settings)

    def send(self, request: Any, *args: Any, **options: Any) -> Any:
        if request.method.upper() not in self._keyed.methods:
            # A redirect that became a GET carries what the POST carried.
            request.headers.pop(self._keyed.dialect.header, None)
        return super().send(request, *args, **options)

    def _carried(self, request: Any, carrier: dict[str, Any]) -> None:
        # An auth hook that sends a copy of the request does not begin another operation.
        request.headers[self._keyed.dialect.header] = self._keyed.dialect.spell(carrier[ENTRY].entry.key)


class Session(requests.Session):
    """``requests.Session``, whose operations keep their keys."""

    def __init__(self, *, keyed: Keyed | None = None) -> None:
        super().__init__()
        self._keyed = keyed or Keyed()
        for scheme in ("https://", "http://"):
            self.mount(scheme, KeyedAdapter(self._keyed))

    def send(self, request: Any, **options: Any) -> Any:
        with sending(_carrier(request), tuple(_texts(self.headers))):
            return super().send(request, **options)

    def pending(self) -> list[Pending[Any]]:
        """What was begun, by this process or an earlier one, and has no final answer."""
        return listed(self._keyed.journal, self._again)

    def _again(self, entry: Entry, auth: Any = None, **options: Any) -> Any:
        headers = requests.structures.CaseInsensitiveDict({**self.headers, **dict(entry.headers)})
        prepared = requests.PreparedRequest()
        # Not prepare_request(): that would add the session's parameters to a URL that has them already.
        prepared.prepare(
            entry.method,
            entry.url,
            headers=headers,
            data=entry.body or None,
            cookies=self.cookies,
            auth=auth or self.auth,
        )
        settings = self.merge_environment_settings(entry.url, {}, None, None, None)
        with going_on_with(entry):
            return self.send(prepared, **{**settings, **options})


def _parts(answer: Any) -> Iterator[bytes]:
    """The body as it comes in: requests' own way waits until a part is full, however slowly it fills."""
    if not hasattr(answer.raw, "read1"):  # urllib3 before 2
        yield from answer.iter_content(64)
        return
    errors = requests.exceptions
    try:
        while part := answer.raw.read1(64 * 1024, decode_content=True):
            yield part
    except ProtocolError as error:
        raise errors.ChunkedEncodingError(error) from error
    except DecodeError as error:
        raise errors.ContentDecodingError(error) from error
    except ReadTimeoutError as error:
        raise errors.ReadTimeout(error) from error
    except SSLError as error:
        raise errors.SSLError(error) from error


def _carrier(request: Any) -> dict[str, Any]:
    """What stays with the request object, and not with copies of it."""
    carrier: dict[str, Any] = request.__dict__.setdefault("samekey", {})
    return carrier


def _ours(request: Any, body: bytes) -> Request:
    return Request(request.method.upper(), request.url, tuple(_texts(request.headers)), body)


def _texts(headers: Mapping[Any, Any]) -> list[tuple[str, str]]:
    def text(value: Any) -> str:
        return value.decode("latin-1") if isinstance(value, bytes) else str(value)

    return [(text(name), text(value)) for name, value in headers.items()]


def _limits(timeout: Any, seconds: float) -> Any:
    """The caller's own time-out, and no more than is left."""
    if timeout is not None and not isinstance(timeout, tuple | int | float):
        return timeout  # urllib3's own kind
    connect, read = timeout if isinstance(timeout, tuple) else (timeout, timeout)
    return tuple(seconds if part is None else min(part, seconds) for part in (connect, read))


def _thrown(error: Exception, at: Moment) -> Failed | None:
    errors = requests.exceptions
    if isinstance(error, errors.ConnectTimeout):
        return Failed(error, at, left=False)
    if isinstance(error, errors.ConnectionError):
        reason = getattr(error.args[0] if error.args else None, "reason", None)
        return Failed(error, at, left=not isinstance(reason, NewConnectionError | ConnectTimeoutError))
    if isinstance(error, errors.Timeout | errors.ChunkedEncodingError | errors.ContentDecodingError):
        return Failed(error, at)
    return None


def _answer(answer: Any, body: bytes) -> Answer:
    answer._content, answer._content_consumed = body, True
    return Answer(answer.status_code, tuple(_texts(answer.headers)), body, answer)


def _made(answer: Answer) -> Any:
    made = requests.Response()
    made.status_code = answer.status
    made.headers = requests.structures.CaseInsensitiveDict(dict(answer.headers))
    made.encoding = requests.utils.get_encoding_from_headers(made.headers)
    made._content, made._content_consumed = answer.body, True
    return made
