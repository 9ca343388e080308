"""An adapter and a session for requests that send each operation under one key until it has its answer."""

from __future__ import annotations

import io
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import requests
import requests.adapters
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError
from urllib3.response import HTTPResponse
from urllib3.util.retry import Retry

from ..errors import ConfigurationError
from .carry import Keyed, Way, run
from .course import Failed, Moment
from .deadline import Attempt, attempting
from .deadline_requests import bound
from .entry import Entry
from .pending import Pending, listed
from .scope import going_on_with, sending
from .wire import Answer, Request

__all__ = ["KeyedAdapter", "Session"]


class Adapter(requests.adapters.HTTPAdapter):
    """What sends requests in a way of ours. Retries are made here: those of urllib3 would hide an attempt."""

    def __init__(self, way: Way, **settings: Any) -> None:
        if settings.get("max_retries"):
            raise ConfigurationError("This adapter retries by itself: set patience, not max_retries.")
        super().__init__(**settings)
        self._way = way

    @property
    def max_retries(self) -> Any:
        """None. What an SDK changes on the adapters of the session that it was given changes nothing."""
        return Retry(0, read=False)

    @max_retries.setter
    def max_retries(self, _: Any) -> None: ...

    def _carried(self, request: Any, key: str) -> None:
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
        whole = bytes(seen) if isinstance(seen, bytes | bytearray | memoryview) else b""
        carrier = _carrier(request)
        if not self._way.takes(_ours(request, whole), carrier):
            return super().send(request, stream, timeout, verify, cert, proxies)
        acts = self._way.acts(_ours(request, self._body(request)), carrier)
        attempt = Attempt(0.0)

        def send(sent: Request, seconds: float) -> Answer:
            nonlocal attempt
            prepared = request.copy()
            prepared.method, prepared.url = sent.method, sent.url
            prepared.headers = requests.structures.CaseInsensitiveDict(dict(sent.headers))
            prepared.body = sent.body or None
            limits = _limits(timeout, seconds)
            with attempting(seconds) as attempt:
                # Not super(): what we give back has to be read whole, within the deadline.
                sends = requests.adapters.HTTPAdapter.send
                answer = sends(self, prepared, True, limits, verify, cert, proxies)
                try:
                    return Answer(answer.status_code, tuple(_texts(answer.headers)), answer.content, answer)
                finally:
                    answer.close()

        bound(self.poolmanager)  # a subclass may have made another one than ``init_poolmanager`` did
        finished = run(acts, send, lambda error, at: _thrown(error, at, attempt))
        self._carried(request, finished.told.key)
        given = finished.answer.native or _made(finished.answer)
        given.request, given.connection, given.samekey = request, self, finished.told
        given.url = request.url
        return given

    def init_poolmanager(self, *args: Any, **settings: Any) -> Any:
        super().init_poolmanager(*args, **settings)
        bound(self.poolmanager)

    def proxy_manager_for(self, proxy: str, **settings: Any) -> Any:
        return bound(super().proxy_manager_for(proxy, **settings))

    def _body(self, request: Any) -> bytes:
        """The body, whole: what is streamed is collected, so that it can be sent again."""
        body = request.body
        if body is None:
            return b""
        if isinstance(body, str):
            body = body.encode()
        if not isinstance(body, bytes | bytearray | memoryview):
            read = getattr(body, "read", None)
            parts = bytearray()
            pieces = body if read is None else iter(lambda: read(64 * 1024) or None, None)
            for part in pieces:
                parts += part.encode() if isinstance(part, str) else part
                self._way.check_size(parts)
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

    def _carried(self, request: Any, key: str) -> None:
        # An auth hook that sends a copy of the request does not begin another operation.
        request.headers[self._keyed.dialect.header] = self._keyed.dialect.spell(key)


class Session(requests.Session):
    """``requests.Session``, whose operations keep their keys."""

    def __init__(self, *, keyed: Keyed | None = None) -> None:
        super().__init__()
        self._keyed = keyed or Keyed()
        for scheme in ("https://", "http://"):
            self.mount(scheme, KeyedAdapter(self._keyed))

    def send(self, request: Any, **options: Any) -> Any:
        with sending(_carrier(request), tuple(_texts(self.headers)), request.url):
            return super().send(request, **options)

    def pending(self) -> list[Pending[Any]]:
        """What was begun, by this process or an earlier one, and has no final answer."""
        return listed(self._keyed, self._again, tuple(_texts(self.headers)))

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


def _thrown(error: Exception, at: Moment, attempt: Attempt) -> Failed | None:
    errors = requests.exceptions
    about_the_wire = isinstance(error, errors.ConnectionError | errors.Timeout)
    if not attempt.began and (attempt.watched or _is_before_sending(error)):
        return Failed(error, at, left=False, hopeless=not about_the_wire)
    cut = (errors.ChunkedEncodingError, errors.ContentDecodingError, HTTPError, OSError)
    return Failed(error, at) if about_the_wire or isinstance(error, cut) else None


def _is_before_sending(error: Exception) -> bool:
    """Whether it says by itself that no connection was there yet, or will be."""
    errors = requests.exceptions
    never = (errors.InvalidSchema, errors.MissingSchema, errors.InvalidURL, errors.InvalidHeader)
    if isinstance(error, (*never, errors.ConnectTimeout)):
        return True
    cause = error.args[0] if error.args else None
    return isinstance(getattr(cause, "reason", None), NewConnectionError | ConnectTimeoutError)


def _made(answer: Answer) -> Any:
    made = requests.Response()
    made.status_code = answer.status
    made.headers = requests.structures.CaseInsensitiveDict(dict(answer.headers))
    made.encoding = requests.utils.get_encoding_from_headers(made.headers)
    made._content, made._content_consumed = answer.body, True
    if "content-encoding" in made.headers:  # it is as it was stored
        decoded = HTTPResponse(io.BytesIO(answer.body), headers=made.headers, preload_content=False)
        with suppress(HTTPError):
            made._content = decoded.read(decode_content=True)
    return made
