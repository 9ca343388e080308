"""Servers that go wrong where requests, tenants or failures meet: concurrency, isolation, loss, errors."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any

from tests.check.base import Asked, Record, Refusal, Reply, Server, digest, problem, said
from tests.check.planted import leads_to

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


@leads_to("concurrency.ran-twice")
class LockShorterThanTheWork(Server):
    """The lock is gone before the work is done, and who comes then is the first again."""

    def claim(self, scope: Any, fingerprint: str) -> Record | None:
        with self.lock:
            since = self.__dict__.setdefault("since", {})
            found = self.records.get(scope)
            if found is not None and found.reply is None and time.monotonic() - since[scope] > 0.2:
                return None
            since.setdefault(scope, time.monotonic())
        return super().claim(scope, fingerprint)

    def attempt(self, scope: Any, document: Any, tenant: str) -> Reply:
        time.sleep(0.6)
        return super().attempt(scope, document, tenant)


@leads_to("concurrency.strangers")
class OneLockForAllKeys(Server):
    """409 for whoever comes while anybody's request runs."""

    def claim(self, scope: Any, fingerprint: str) -> Record | None:
        with self.lock:
            if self.__dict__.get("busy") not in (None, scope):
                raise Refusal(problem(409, "A request is outstanding"))
            found = super().claim(scope, fingerprint)
            if found is None:
                self.__dict__["busy"] = scope
            return found

    def attempt(self, scope: Any, document: Any, tenant: str) -> Reply:
        time.sleep(0.05)
        return super().attempt(scope, document, tenant)

    def finish(self, scope: Any, reply: Reply) -> Reply:
        with self.lock:
            self.__dict__["busy"] = None
        return super().finish(scope, reply)


@leads_to("concurrency.strangers")
class KeyInAVariableOfTheProcess(Server):
    """Answers are kept under the key of whoever came last."""

    def claim(self, scope: Any, fingerprint: str) -> Record | None:
        found = super().claim(scope, fingerprint)
        if found is None:
            self.__dict__["current"] = scope
        return found

    def attempt(self, scope: Any, document: Any, tenant: str) -> Reply:
        time.sleep(0.03)
        return super().attempt(scope, document, tenant)

    def finish(self, scope: Any, reply: Reply) -> Reply:
        return super().finish(self.__dict__["current"], reply)


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


@leads_to("misuse.body")
class WaitsWithoutComparing(Server):
    """Whoever meets a running request waits for its answer, whatever its own body says."""

    def claim(self, scope: Any, fingerprint: str) -> Record | None:
        with self.lock:
            found = self.records.get(scope)
            if found is not None and found.reply is None:
                return found
        return super().claim(scope, fingerprint)

    def meet(self, record: Record, asked: Asked) -> Reply:
        for _ in range(1000):
            if record.reply is not None:
                break
            time.sleep(0.005)
        return super().meet(record, asked)

    def attempt(self, scope: Any, document: Any, tenant: str) -> Reply:
        time.sleep(0.1)
        return super().attempt(scope, document, tenant)


@leads_to("concurrency.failed")
class LetsTheConstraintThrough(Server):
    def meet(self, record: Record, asked: Asked) -> Reply:
        if record.reply is None:
            return said(500, {"detail": "duplicate key value violates unique constraint"})
        return super().meet(record, asked)

    def attempt(self, scope: Any, document: Any, tenant: str) -> Reply:
        end = time.monotonic() + 1
        while self.coming > 1 and time.monotonic() < end:  # whoever is on the way meets it in the middle
            time.sleep(0.005)
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


@leads_to("errors.stuck")
class ConflictAfterAFailure(Server):
    """An exception leaves the record as it is: in progress, for ever."""

    fails_every = 5

    def finish(self, scope: Any, reply: Reply) -> Reply:
        return reply if reply.status >= 500 else super().finish(scope, reply)


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
