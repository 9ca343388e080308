"""A small server that is right, made so that one step of it can be broken at a time.

It is not samekey: a dictionary under a lock, in one process, over plain HTTP.
"""

from __future__ import annotations

import hashlib
import json
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import urlsplit

TOKENS = {"Bearer ann": "ann", "Bearer bob": "bob"}
BODY = '{"item": "book", "amount": 100}'


@dataclass(frozen=True)
class Asked:
    method: str
    path: str
    query: str
    headers: dict[str, list[str]]
    body: bytes

    def header(self, name: str) -> str:
        return (self.headers.get(name) or [""])[0]


@dataclass(frozen=True)
class Reply:
    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = (("Content-Type", "application/json"),)

    @property
    def document(self) -> Any:
        return json.loads(self.body)


def said(status: int, document: Any, *headers: tuple[str, str]) -> Reply:
    return Reply(status, json.dumps(document).encode(), (("Content-Type", "application/json"), *headers))


def problem(status: int, title: str) -> Reply:
    body = json.dumps({"type": "https://shop.example/idempotency", "title": title}).encode()
    return Reply(status, body, (("Content-Type", "application/problem+json"), ("Content-Language", "en")))


@dataclass
class Record:
    fingerprint: str
    reply: Reply | None = None


class Refusal(Exception):
    def __init__(self, reply: Reply) -> None:
        self.reply = reply


@dataclass
class Server:
    """Each method is one step; a broken server overrides one."""

    profile: str = "ietf"
    records: dict[Any, Record] = field(default_factory=dict)
    effects: list[str] = field(default_factory=list)
    lock: Any = field(default_factory=threading.RLock)
    attempts: int = 0
    coming: int = 0
    """Requests whose head is here and whose answer is not sent."""
    fails_every: ClassVar[int] = 0
    """Every so many runs fail, before their effect."""

    # --- the way of a request

    def answer(self, asked: Asked) -> Reply:
        try:
            if asked.method == "GET" and asked.path == "/count":
                return said(200, {"count": len(self.effects)})
            if asked.path == "/orders/":
                return self.redirect(asked)
            self.route(asked)
            tenant = self.authenticate(asked)
            keys = asked.headers.get("idempotency-key") or []
            if not keys and self.profile == "stripe":
                return self.run(self.validate(asked), tenant)
            return self.guarded(asked, tenant, self.key(keys))
        except Refusal as refusal:
            return refusal.reply

    def guarded(self, asked: Asked, tenant: str, key: str) -> Reply:
        document = self.validate(asked)
        scope = self.scope(asked, tenant, key)
        found = self.claim(scope, self.fingerprint(asked))
        if found is not None:
            return self.meet(found, asked)
        return self.finish(scope, self.attempt(scope, document, tenant))

    def redirect(self, asked: Asked) -> Reply:
        return Reply(308, b"", (("Location", "/orders"),))

    def route(self, asked: Asked) -> None:
        if asked.path != "/orders":
            raise Refusal(said(404, {"detail": "not found"}))
        if asked.method != "POST":
            raise Refusal(said(405, {"detail": "method not allowed"}))

    def authenticate(self, asked: Asked) -> str:
        if asked.header("authorization") not in TOKENS:
            raise Refusal(said(401, {"detail": "who are you?"}))
        return TOKENS[asked.header("authorization")]

    def key(self, keys: list[str]) -> str:
        if not keys:
            raise Refusal(problem(400, "Idempotency-Key is missing"))
        key = keys[0][1:-1] if keys[0][:1] == '"' == keys[0][-1:] and len(keys[0]) > 1 else keys[0]
        plain = key.isascii() and key.isprintable() and not any(char in key for char in ' "\\,;')
        if len(keys) > 1 or not 1 <= len(key) <= 255 or not plain:
            raise Refusal(problem(400, "Idempotency-Key is malformed"))
        return key

    def validate(self, asked: Asked) -> Any:
        try:
            document = json.loads(asked.body)
            assert isinstance(document["amount"], int) and isinstance(document["item"], str)
        except (ValueError, KeyError, TypeError, AssertionError):
            raise Refusal(said(400, {"detail": "an item and an amount, please"})) from None
        return document

    def scope(self, asked: Asked, tenant: str, key: str) -> Any:
        return tenant, key

    def fingerprint(self, asked: Asked) -> str:
        return digest(asked.method, asked.path, asked.query, self.content(asked.body))

    def content(self, body: bytes) -> str:
        pairs = json.loads(body, object_pairs_hook=list)
        if len({name for name, _ in pairs}) < len(pairs):
            return body.decode()
        return json.dumps(json.loads(body), sort_keys=True)

    def claim(self, scope: Any, fingerprint: str) -> Record | None:
        """None if the key is ours now."""
        with self.lock:
            if scope in self.records:
                found = self.records[scope]
                if found.fingerprint != fingerprint:
                    raise Refusal(self.mismatch())
                return found
            self.records[scope] = Record(fingerprint)
            return None

    def mismatch(self) -> Reply:
        return problem(422 if self.profile == "ietf" else 400, "Idempotency-Key is already used")

    def meet(self, record: Record, asked: Asked) -> Reply:
        if record.reply is None:
            return problem(409, "A request is outstanding for this Idempotency-Key")
        return self.replayed(record.reply)

    def replayed(self, reply: Reply) -> Reply:
        kept = tuple(pair for pair in reply.headers if pair[0] != "Set-Cookie")
        return replace(reply, headers=(*kept, ("Idempotent-Replayed", "true")))

    def attempt(self, scope: Any, document: Any, tenant: str) -> Reply:
        with self.lock:
            self.attempts += 1
            fails = self.fails_every and self.attempts % self.fails_every == 0
        return self.fail(document, tenant) if fails else self.run(document, tenant)

    def fail(self, document: Any, tenant: str) -> Reply:
        return said(500, {"detail": "out of luck"})

    def run(self, document: Any, tenant: str) -> Reply:
        name = uuid.uuid4().hex
        with self.lock:
            self.effects.append(tenant)
        cookie = ("Set-Cookie", f"session={uuid.uuid4().hex}; HttpOnly")
        return said(201, {"id": name, "amount": document["amount"]}, cookie, ("Location", f"/orders/{name}"))

    def finish(self, scope: Any, reply: Reply) -> Reply:
        with self.lock:
            if reply.status >= 500 and self.profile != "stripe":
                del self.records[scope]
            else:
                self.records[scope].reply = reply
        return reply

    def left(self, asked: Asked) -> None:
        """The client was gone when its answer came."""


def digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@contextmanager
def serving(server: Server, *, version: str = "HTTP/1.0", threads: bool = True) -> Iterator[str]:
    """The address of the server, for as long as it runs; without threads it serves one at a time."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = version

        def handle_one(self) -> None:
            with server.lock:
                server.coming += 1
            try:
                self.answer_one()
            finally:
                with server.lock:
                    server.coming -= 1

        def answer_one(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length)
            if len(body) < length:
                return  # half a request is none
            headers: dict[str, list[str]] = {}
            for name, value in self.headers.items():
                headers.setdefault(name.lower(), []).append(value)
            parts = urlsplit(self.path)
            asked = Asked(self.command, parts.path, parts.query, headers, body)
            reply = server.answer(asked)
            try:
                self.send_response(reply.status)
                for name, value in reply.headers:
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(reply.body)))
                self.end_headers()
                self.wfile.write(reply.body)
            except OSError:
                server.left(asked)
                self.close_connection = True

        def do_GET(self) -> None:
            self.handle_one()

        do_POST = do_PUT = do_PATCH = do_GET  # noqa: N815

        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Quiet(ThreadingHTTPServer if threads else HTTPServer):  # type: ignore[misc]
        daemon_threads = True
        request_queue_size = 64

        def handle_error(self, request: Any, client_address: Any) -> None:
            pass

    with Quiet(("127.0.0.1", 0), Handler) as listening:
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.server_address[1]}"
        finally:
            listening.shutdown()
            thread.join()
