"""Servers that go wrong one request at a time: replay, misuse, the header."""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import replace
from typing import Any

from tests.check.base import Asked, Record, Refusal, Reply, Server, digest, said
from tests.check.planted import leads_to

# ------------------------------------------------------------------ replay


@leads_to("replay.ran-again")
class IgnoresKeys(Server):
    def guarded(self, asked: Asked, tenant: str, key: str) -> Reply:
        return self.run(self.validate(asked), tenant)


@leads_to("replay.ran-again")
class ReplaysAndRuns(Server):
    """The answer is the old one, and the effect is a new one."""

    def meet(self, record: Record, asked: Asked) -> Reply:
        self.run(self.validate(asked), "ann")
        return super().meet(record, asked)


@leads_to("replay.ran-again")
class RunsAgainAndEchoesTheKey(IgnoresKeys):
    """The key in the answer is the same each time; the operation is not."""

    def guarded(self, asked: Asked, tenant: str, key: str) -> Reply:
        reply = super().guarded(asked, tenant, key)
        return replace(reply, body=json.dumps({"key": key, **reply.document}).encode())


@leads_to("replay.conflict")
class ConflictForEver(Server):
    def finish(self, scope: Any, reply: Reply) -> Reply:
        return reply


@leads_to("replay.failed")
class CannotReadItsRecords(Server):
    def replayed(self, reply: Reply) -> Reply:
        return said(500, {"detail": "the record is bytes, not text"})


@leads_to("replay.refused")
class NeverTheSame(Server):
    def fingerprint(self, asked: Asked) -> str:
        return digest(super().fingerprint(asked), uuid.uuid4().hex)


@leads_to("replay.body")
class NewAnswerBytes(Server):
    def replayed(self, reply: Reply) -> Reply:
        body = json.dumps({**reply.document, "served_at": time.time_ns()}).encode()
        return super().replayed(replace(reply, body=body))


@leads_to("replay.status")
class DifferentStatus(Server):
    def replayed(self, reply: Reply) -> Reply:
        return super().replayed(replace(reply, status=200))


@leads_to("replay.headers")
class LosesTheLocation(Server):
    def replayed(self, reply: Reply) -> Reply:
        return super().replayed(replace(reply, headers=reply.headers[:1]))


@leads_to("header.collision")
class ComparesTheEndOfKeys(Server):
    def scope(self, asked: Asked, tenant: str, key: str) -> Any:
        return tenant, key[-12:]


@leads_to("replay.cookies")
class ReplaysCookies(Server):
    def replayed(self, reply: Reply) -> Reply:
        return replace(reply, headers=(*reply.headers, ("Idempotent-Replayed", "true")))


@leads_to("replay.cookies")
class ReplaysTheSameCookie(ReplaysCookies):
    def run(self, document: Any, tenant: str) -> Reply:
        reply = super().run(document, tenant)
        return replace(
            reply, headers=(*(p for p in reply.headers if p[0] != "Set-Cookie"), ("Set-Cookie", "a=b"))
        )


@leads_to("replay.reordered")
class RunsWhatIsReordered(Server):
    """The order of the members is a part of the key, and only what they mean is compared."""

    def scope(self, asked: Asked, tenant: str, key: str) -> Any:
        return tenant, key, *json.loads(asked.body)


# ------------------------------------------------------------------ misuse


@leads_to("misuse.body")
class NoFingerprint(Server):
    def content(self, body: bytes) -> str:
        return ""


@leads_to("misuse.body")
class ComparesNothing(Server):
    """Answers by the key alone, before anything else is looked at."""

    def guarded(self, asked: Asked, tenant: str, key: str) -> Reply:
        found = self.records.get((tenant, key))
        return self.meet(found, asked) if found is not None else super().guarded(asked, tenant, key)

    def route(self, asked: Asked) -> None:
        if asked.method == "GET":
            super().route(asked)


@leads_to("misuse.body")
class ComparesNothingAndClaimsFirst(ComparesNothing):
    def guarded(self, asked: Asked, tenant: str, key: str) -> Reply:
        found = self.claim((tenant, key), "")
        if found is not None:
            return self.meet(found, asked)
        try:
            return self.finish((tenant, key), self.attempt((tenant, key), self.validate(asked), tenant))
        except Refusal as refusal:
            return self.finish((tenant, key), refusal.reply)


@leads_to("misuse.ran")
class RunsOnMismatch(Server):
    def scope(self, asked: Asked, tenant: str, key: str) -> Any:
        return tenant, key, self.content(asked.body)


@leads_to("misuse.ran")
class RunsOtherBytes(Server):
    """The bytes are a part of the identity, whatever they mean."""

    def scope(self, asked: Asked, tenant: str, key: str) -> Any:
        return tenant, key, asked.body


@leads_to("misuse.failed")
class FailsOnMismatch(Server):
    def mismatch(self) -> Reply:
        return said(500, {"detail": "constraint violated"})


@leads_to("misuse.forgets")
class ForgetsOnMismatch(Server):
    def claim(self, scope: Any, fingerprint: str) -> Record | None:
        try:
            return super().claim(scope, fingerprint)
        except Refusal:
            self.records.pop(scope, None)
            raise


@leads_to("misuse.prefix")
class PrefixHash(Server):
    def content(self, body: bytes) -> str:
        return body[:64].decode()


@leads_to("misuse.prefix")
class PrefixHashOfCanonical(Server):
    def content(self, body: bytes) -> str:
        return super().content(body)[:200]


@leads_to("misuse.path")
class IgnoresThePath(Server):
    def fingerprint(self, asked: Asked) -> str:
        return digest(asked.method, asked.query, self.content(asked.body))

    def route(self, asked: Asked) -> None:
        super().route(replace(asked, path="/orders"))


@leads_to("misuse.method")
class IgnoresTheMethod(Server):
    def fingerprint(self, asked: Asked) -> str:
        return digest(asked.path, asked.query, self.content(asked.body))

    def route(self, asked: Asked) -> None:
        super().route(replace(asked, method="POST"))


@leads_to("misuse.query")
class IgnoresTheQuery(Server):
    def fingerprint(self, asked: Asked) -> str:
        return digest(asked.method, asked.path, self.content(asked.body))


@leads_to("misuse.numbers")
class NumbersAreDoubles(Server):
    def content(self, body: bytes) -> str:
        super().content(body)
        pairs = json.loads(body, object_pairs_hook=list)
        if len({name for name, _ in pairs}) < len(pairs):
            return body.decode()
        return json.dumps(json.loads(body, parse_int=float), sort_keys=True)


@leads_to("misuse.duplicates")
class TakesTheSmallestOfTwo(Server):
    """Whichever of two members the handler takes, the fingerprint takes the smaller."""

    def content(self, body: bytes) -> str:
        return json.dumps(dict(sorted(json.loads(body, object_pairs_hook=list), reverse=True)))


# ------------------------------------------------------------------ the header


@leads_to("header.missing")
class FailsWithoutAKey(Server):
    def key(self, keys: list[str]) -> str:
        if not keys:
            raise Refusal(said(500, {"detail": "KeyError: Idempotency-Key"}))
        return super().key(keys)


@leads_to("header.missing")
class HangsUpWithoutAKey(Server):
    def key(self, keys: list[str]) -> str:
        keys[0]
        return super().key(keys)


@leads_to("header.empty")
class EmptyIsAKey(Server):
    def key(self, keys: list[str]) -> str:
        return "" if keys == [""] else super().key(keys)


@leads_to("header.too-long")
class FailsOnLongKeys(Server):
    def key(self, keys: list[str]) -> str:
        if keys and len(keys[0]) > 1000:
            raise Refusal(said(500, {"detail": "value too long for type character varying(255)"}))
        return super().key(keys)


@leads_to("header.collision")
class TruncatesLongKeys(Server):
    def scope(self, asked: Asked, tenant: str, key: str) -> Any:
        return tenant, key[:40]


@leads_to("header.case")
class FoldsCase(Server):
    def scope(self, asked: Asked, tenant: str, key: str) -> Any:
        return tenant, key.lower()


@leads_to("header.non-ascii")
class FailsBeyondAscii(Server):
    def key(self, keys: list[str]) -> str:
        if keys and not keys[0].isascii():
            raise Refusal(said(500, {"detail": "codec can't encode character"}))
        return super().key(keys)


@leads_to("header.malformed")
class FailsOnMalformedKeys(Server):
    def key(self, keys: list[str]) -> str:
        if keys and keys[0].startswith('"') and not keys[0].endswith('"') and keys[0].isascii():
            raise Refusal(said(500, {"detail": "parse error"}))
        return super().key(keys)


@leads_to("header.repeated")
class FailsOnTwoKeys(Server):
    def key(self, keys: list[str]) -> str:
        if len(keys) > 1:
            raise Refusal(said(500, {"detail": "expected str, got list"}))
        return super().key(keys)
