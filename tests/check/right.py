"""Servers that are right, each in a way of its own: where the draft leaves freedom, nobody is flagged."""

from __future__ import annotations

import time
import uuid
from typing import Any

from tests.check.base import Asked, Record, Refusal, Reply, Server, digest, problem, said


class WaitsForTheFirst(Server):
    """A concurrent request gets the first one's answer, a little later."""

    def meet(self, record: Record, asked: Asked) -> Reply:
        for _ in range(1000):
            if record.reply is not None:
                break
            time.sleep(0.01)
        return super().meet(record, asked)

    def attempt(self, scope: Any, document: Any, tenant: str) -> Reply:
        time.sleep(0.05)
        return super().attempt(scope, document, tenant)


class SaysTheSameToEverybody(Server):
    """Neither an id nor a mark: only the count tells."""

    def run(self, document: Any, tenant: str) -> Reply:
        with self.lock:
            self.effects.append(tenant)
        return said(200, {"ok": True})

    def replayed(self, reply: Reply) -> Reply:
        return reply


class NoContent(SaysTheSameToEverybody):
    def run(self, document: Any, tenant: str) -> Reply:
        super().run(document, tenant)
        return Reply(204, b"", ())


class OnlyTheSecond(SaysTheSameToEverybody):
    """Answers differ by a time in whole seconds."""

    def run(self, document: Any, tenant: str) -> Reply:
        super().run(document, tenant)
        return said(200, {"created_at": int(time.time())})


class OpaqueKeys(Server):
    """The header as it is, optional; bodies by their bytes; 409 for a mismatch; plain JSON errors."""

    def answer(self, asked: Asked) -> Reply:
        try:
            if asked.path == "/orders" and asked.method == "POST" and not asked.header("idempotency-key"):
                return self.run(self.validate(asked), self.authenticate(asked))
        except Refusal as refusal:
            return refusal.reply
        return super().answer(asked)

    def key(self, keys: list[str]) -> str:
        return keys[0]

    def content(self, body: bytes) -> str:
        return body.decode()

    def mismatch(self) -> Reply:
        return said(409, {"error": "mismatch"})


class OnlyUuids(Server):
    def key(self, keys: list[str]) -> str:
        try:
            return str(uuid.UUID(super().key(keys)))
        except ValueError:
            raise Refusal(problem(400, "a UUID, please")) from None


class RemembersRefusals(Server):
    """A 400 is a result: its correction needs a new key."""

    def guarded(self, asked: Asked, tenant: str, key: str) -> Reply:
        scope = self.scope(asked, tenant, key)
        found = self.claim(scope, digest(asked.method, asked.path, asked.query, asked.body.decode()))
        if found is not None:
            return self.meet(found, asked)
        try:
            return self.finish(scope, self.attempt(scope, self.validate(asked), tenant))
        except Refusal as refusal:
            return self.finish(scope, refusal.reply)


class FailsNowAndThen(Server):
    """Every fifth run fails before its effect, and may be tried again."""

    fails_every = 5


class KeepsWhatItCannotTell(Server):
    """Every seventh run fails after its effect: nobody can tell, so its key is not run again."""

    fails_every = 7

    def fail(self, document: Any, tenant: str) -> Reply:
        self.run(document, tenant)
        return super().fail(document, tenant)

    def finish(self, scope: Any, reply: Reply) -> Reply:
        if reply.status >= 500:
            self.__dict__.setdefault("unknown", set()).add(id(self.records[scope]))
            return reply
        return super().finish(scope, reply)

    def meet(self, record: Record, asked: Asked) -> Reply:
        if id(record) in self.__dict__.get("unknown", ()):
            return problem(409, "The outcome is unknown")
        return super().meet(record, asked)


class FailsOnNonsense(Server):
    """A body that is no order is too much for it, with or without a key."""

    def validate(self, asked: Asked) -> Any:
        try:
            return super().validate(asked)
        except Refusal:
            raise Refusal(said(500, {"detail": "KeyError: amount"})) from None


class ScopedByEndpoint(Server):
    """One key at two paths is two operations."""

    def scope(self, asked: Asked, tenant: str, key: str) -> Any:
        return tenant, key, asked.method, asked.path

    def route(self, asked: Asked) -> None:
        if not asked.path.startswith("/orders"):
            super().route(asked)


class ComparesTheItemOnly(Server):
    """The draft allows a fingerprint of chosen members."""

    def content(self, body: bytes) -> str:
        import json

        return str(json.loads(body)["item"])


class SetsTheSameCookieAlways(Server):
    """A cookie of a middleware's, on every answer: no replay."""

    def answer(self, asked: Asked) -> Reply:
        reply = super().answer(asked)
        return Reply(reply.status, reply.body, (*reply.headers, ("Set-Cookie", "lang=en")))


class BehindABalancer(Server):
    """Two backends in turn, and each answer names its own in a cookie."""

    def answer(self, asked: Asked) -> Reply:
        reply = super().answer(asked)
        with self.lock:
            turn = self.__dict__["turn"] = self.__dict__.get("turn", 0) + 1
        named = ("Set-Cookie", f"SERVERID=web{turn % 2}; path=/")
        return Reply(reply.status, reply.body, (*reply.headers, named))


class Compresses(Server):
    """Each answer anew, with the time in it, and whoever asked for what."""

    def answer(self, asked: Asked) -> Reply:
        import gzip

        reply = super().answer(asked)
        with self.lock:
            turn = self.__dict__["turn"] = self.__dict__.get("turn", 0) + 1
        return Reply(
            reply.status,
            gzip.compress(reply.body, mtime=turn),
            (*reply.headers, ("Content-Encoding", "gzip")),
        )


RIGHT = [
    BehindABalancer,
    Compresses,
    WaitsForTheFirst,
    SaysTheSameToEverybody,
    NoContent,
    OnlyTheSecond,
    OpaqueKeys,
    OnlyUuids,
    RemembersRefusals,
    FailsNowAndThen,
    KeepsWhatItCannotTell,
    FailsOnNonsense,
    ScopedByEndpoint,
    ComparesTheItemOnly,
    SetsTheSameCookieAlways,
]
