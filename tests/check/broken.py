"""Servers with one fault each, and the finding that each must lead to."""

from __future__ import annotations

import json
import threading
import time
import uuid
from dataclasses import replace
from typing import Any

from tests.check.base import Asked, Record, Refusal, Reply, Server, digest, problem, said

BROKEN: dict[str, list[type[Server]]] = {}
"""By the id of the finding."""


def leads_to(rule: str) -> Any:
    def listed(server: type[Server]) -> type[Server]:
        BROKEN.setdefault(rule, []).append(server)
        return server

    return listed


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


# ------------------------------------------------------------------ concurrency


@leads_to("concurrency.ran-twice")
class CheckThenInsert(Server):
    """Between the look and the insert there is room: until another request comes, or for a moment."""

    def claim(self, scope: Any, fingerprint: str) -> Record | None:
        with self.lock:
            found = self.records.get(scope)
            together = self.__dict__.setdefault("together", {}).setdefault(scope, threading.Event())
            waiting = self.__dict__.setdefault("waiting", {})
            waiting[scope] = waiting.get(scope, 0) + 1
            if waiting[scope] > 1:
                together.set()
        if found is not None:
            if found.fingerprint != fingerprint:
                raise Refusal(self.mismatch())
            return found
        together.wait(0.05)
        self.records[scope] = Record(fingerprint)
        return None


@leads_to("concurrency.mixed")
class LocksTheBodyToo(Server):
    """Each body has a lock of its own; only what is done is compared."""

    def claim(self, scope: Any, fingerprint: str) -> Record | None:
        with self.lock:
            done = self.records.get(scope)
            if done is not None and done.reply is not None and done.fingerprint != fingerprint:
                raise Refusal(self.mismatch())
            found = self.records.get((scope, fingerprint))
            if found is None:
                self.records[(scope, fingerprint)] = Record(fingerprint)
            return found

    def attempt(self, scope: Any, document: Any, tenant: str) -> Reply:
        time.sleep(0.05)
        return super().attempt(scope, document, tenant)

    def finish(self, scope: Any, reply: Reply) -> Reply:
        with self.lock:
            for name in [n for n in self.records if isinstance(n, tuple) and n[0] == scope]:
                if self.records[name].reply is None:
                    self.records[name].reply = reply
                    self.records.setdefault(scope, Record(name[1], reply))
        return reply


@leads_to("concurrency.failed")
class LetsTheConstraintThrough(Server):
    def meet(self, record: Record, asked: Asked) -> Reply:
        if record.reply is None:
            return said(500, {"detail": "duplicate key value violates unique constraint"})
        return super().meet(record, asked)

    def attempt(self, scope: Any, document: Any, tenant: str) -> Reply:
        time.sleep(0.05)
        return super().attempt(scope, document, tenant)


@leads_to("concurrency.stuck")
class LosersReopenTheRecord(Server):
    """A loser writes the record back as it had read it: outstanding."""

    def meet(self, record: Record, asked: Asked) -> Reply:
        if record.reply is None:
            time.sleep(0.1)
            record.reply = None
            return problem(409, "outstanding")
        return super().meet(record, asked)

    def attempt(self, scope: Any, document: Any, tenant: str) -> Reply:
        time.sleep(0.05)
        return super().attempt(scope, document, tenant)


@leads_to("concurrency.answer")
class SendsWhatIsNotThereYet(LosersReopenTheRecord):
    """Whoever meets a running request gets its record, which is empty."""

    def meet(self, record: Record, asked: Asked) -> Reply:
        return said(201, {"status": "processing"}) if record.reply is None else self.replayed(record.reply)


# ------------------------------------------------------------------ isolation


@leads_to("isolation.tenant")
class GlobalKeys(Server):
    def scope(self, asked: Asked, tenant: str, key: str) -> Any:
        return key


@leads_to("isolation.tenant")
class TenantInTheFingerprint(GlobalKeys):
    """The other tenant is refused, and so learns that the key is used."""

    def fingerprint(self, asked: Asked) -> str:
        return digest(super().fingerprint(asked), asked.header("authorization"))


@leads_to("isolation.credentials")
class ReplaysBeforeAuthentication(GlobalKeys):
    def authenticate(self, asked: Asked) -> str:
        keys = asked.headers.get("idempotency-key") or [""]
        record = self.records.get(keys[0].strip('"'))
        if record is not None and record.reply is not None and record.fingerprint == self.fingerprint(asked):
            raise Refusal(self.replayed(record.reply))
        return super().authenticate(asked)


@leads_to("isolation.credentials")
class ReplaysToRevokedCredentials(Server):
    """Whoever sends some token is taken for ann when a record is looked up."""

    def authenticate(self, asked: Asked) -> str:
        key = (asked.headers.get("idempotency-key") or [""])[0].strip('"')
        token = asked.header("authorization")
        if token and token != "Bearer bob" and ("ann", key) in self.records:
            return "ann"
        return super().authenticate(asked)


# ------------------------------------------------------------------ loss


@leads_to("loss.ran-again")
class LosesTheRecordOnDisconnect(Server):
    def attempt(self, scope: Any, document: Any, tenant: str) -> Reply:
        time.sleep(0.05)
        return super().attempt(scope, document, tenant)

    def left(self, asked: Asked) -> None:
        key = self.key(asked.headers["idempotency-key"])
        self.records.pop((self.authenticate(asked), key), None)


@leads_to("loss.stuck")
class LeavesTheKeyClaimedOnDisconnect(LosesTheRecordOnDisconnect):
    def left(self, asked: Asked) -> None:
        key = self.key(asked.headers["idempotency-key"])
        self.records[(self.authenticate(asked), key)].reply = None


# ------------------------------------------------------------------ errors


@leads_to("errors.remembered-5xx")
class Caches500(Server):
    fails_every = 5

    def finish(self, scope: Any, reply: Reply) -> Reply:
        self.records[scope].reply = reply
        return reply


@leads_to("errors.ran-twice")
class FreesOnError(Server):
    fails_every = 5

    def fail(self, document: Any, tenant: str) -> Reply:
        self.run(document, tenant)
        return super().fail(document, tenant)


@leads_to("errors.ran-twice")
class FreesOnEveryFirstError(FreesOnError):
    """Each first attempt fails after its effect."""

    def attempt(self, scope: Any, document: Any, tenant: str) -> Reply:
        tried = self.__dict__.setdefault("tried", set())
        if scope in tried:
            return self.run(document, tenant)
        tried.add(scope)
        return self.fail(document, tenant)


@leads_to("errors.stuck")
class ConflictAfterARefusal(Server):
    def guarded(self, asked: Asked, tenant: str, key: str) -> Reply:
        try:
            self.validate(asked)
        except Refusal:
            self.claim(self.scope(asked, tenant, key), digest(asked.body.decode()))
            raise
        scope = self.scope(asked, tenant, key)
        if scope in self.records and self.records[scope].reply is None:
            return problem(409, "outstanding")
        return super().guarded(asked, tenant, key)


@leads_to("errors.validation")
class BurnsTheValidationError(Server):
    def guarded(self, asked: Asked, tenant: str, key: str) -> Reply:
        burnt = self.__dict__.setdefault("burnt", {})
        if (tenant, key) in burnt:
            return self.replayed(burnt[(tenant, key)])
        try:
            return super().guarded(asked, tenant, key)
        except Refusal as refusal:
            if refusal.reply.status == 400:
                burnt[(tenant, key)] = refusal.reply
            raise


@leads_to("errors.redirect")
class RemembersARedirect(Server):
    def redirect(self, asked: Asked) -> Reply:
        scope = self.scope(asked, self.authenticate(asked), self.key(asked.headers["idempotency-key"]))
        print_of = self.fingerprint(replace(asked, path="/orders"))
        self.records[scope] = Record(print_of, super().redirect(asked))
        return super().redirect(asked)
