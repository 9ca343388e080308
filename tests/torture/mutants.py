"""The reference service with one promise of samekey switched off, chosen by ``SAMEKEY_MUTANT``.

The torture runs it as ``tests.torture.mutants:app``. Each mutant breaks one mechanism in the service's own
processes, from outside, before the service is imported; where the break opens only for an instant, it is held
open a little longer. Without a choice nothing is changed: the control.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import samekey.engine.admission as admission_module
import samekey.engine.evidence.reconcile as reconcile_module
import samekey.engine.handler.rules as rules_module
import samekey.engine.jobs as jobs_module
import samekey.engine.modes.mode as way_module
import samekey.engine.operation as operation_module
import samekey.engine.phased.attempt as attempt_module
from samekey.core.claim import downstream_base
from samekey.core.fingerprint import Intent
from samekey.core.outcome import Ending, Outcome
from samekey.edges import held
from samekey.engine.engine import Engine
from samekey.engine.exchange import Exchange
from samekey.engine.flow import Commit, Pause, ask
from samekey.engine.keeper import Keeper
from samekey.engine.modes.atomic import LockedAtomic
from samekey.engine.modes.mode import Finished, Handled, keep
from samekey.errors import NotExecuted
from samekey.stores.keys import Keys
from samekey.stores.sql.queries import Queries

VARIABLE = "SAMEKEY_MUTANT"
INSTANT = 0.15
"""Seconds for which a gap is held open."""


def without_fencing() -> None:
    """Whoever once held a key may still complete, fail, free or renew it: no attempt is compared."""
    build = Queries.build

    def unfenced(self: Queries, name: str, sql: str) -> Any:
        return build(self, name, re.sub(r"\band (k\.)?attempt = :attempt(::text)?(?!\w)", "", sql))

    vars_of(Queries, build=unfenced)
    vars_of(Keys, give_back=lambda self, lease, claim_id, *, now=None: self.release(lease, now=now))
    # A claim that cannot have landed is taken back too, which changes nothing where attempts are compared.
    vars_of(way_module, _may_have_landed=lambda error: True)


def without_heartbeat() -> None:
    """A lease is never renewed, however well its holder is."""
    vars_of(Keeper, _renew_together=lambda self, watches: None)


def without_fingerprint() -> None:
    """The body does not count: any request with the key is the same request."""
    whole = Intent.__init__

    def blind(self: Intent, parts: Any, rules: Any) -> None:
        whole(self, replace(parts, body=None), rules)

    vars_of(Intent, __init__=blind)


def without_atomic_commit() -> None:
    """The handler's writes are committed first, and their record after them."""
    together = LockedAtomic._commit

    def apart(self: LockedAtomic, running: Any, handled: Handled, answer: Any) -> Any:
        if type(self) is not LockedAtomic:
            return (yield from together(self, running, handled, answer))
        yield Commit(running.session)
        yield Pause(INSTANT)
        kept, seen = keep(answer, handled, running.rules.policy), running.opened.seen
        expires_at = yield from ask(lambda: self._atomic.remember(running.claim, seen, kept))
        return Finished(self._sent(running, answer, expires_at or running.expires_at))

    vars_of(LockedAtomic, _commit=apart)


def without_persisting_first() -> None:
    """The answer is sent, and only then made durable."""
    persist = held.Held._finish

    async def send_first(self: Any, page: Any, *, streamed: bool = False) -> Any:
        if page is not None:
            await self._deliver(page)
            await asyncio.sleep(INSTANT)
            self._deliver = _nothing
        return await persist(self, page, streamed=streamed)

    vars_of(held.Held, _finish=send_first)


async def _nothing(_answer: Any) -> None:
    """The client has its answer already."""


def without_downstream_key() -> None:
    """The provider gets a new key with every call, and so cannot recognise a second one."""

    def ever_new(scope: str, key: str, _step: str) -> str:
        return f"{downstream_base(scope, key)}-{secrets.token_hex(16)}"

    for module in (attempt_module, jobs_module, operation_module):
        vars_of(module, downstream_key=ever_new)


def without_tenant() -> None:
    """All callers share one scope."""
    resolve = vars(admission_module)["tenant_of"]

    def everybody(exchange: Any, policy: Any) -> Any:
        found = resolve(exchange, policy)
        return "everybody" if isinstance(found, str) else found

    vars_of(admission_module, tenant_of=everybody)


def finish_twice() -> None:
    """Whoever is cut off while finishing finishes again, and takes what cut it off for the handler's end."""
    finish = Engine.finish_async
    cut_off: dict[int, Any] = {}

    async def again(self: Engine, running: Any, handled: Handled) -> Finished:
        if id(running) in cut_off:
            return await finish(self, running, Handled(None, NotExecuted("It was cut off.")))
        try:
            await asyncio.sleep(INSTANT)
        except asyncio.CancelledError:
            cut_off[id(running)] = running
            raise
        return await finish(self, running, handled)

    vars_of(Engine, finish_async=again)
    forget_what_was_noted()


def judge_by_the_page() -> None:
    """What the client is shown decides, whoever made it, and not how the handler ended."""
    whole = Exchange.handled

    def shown(self: Exchange, page: Any, *, streamed: bool = False) -> Handled:
        handled = whole(self, page, streamed=streamed)
        return handled if page is None else replace(handled, error=None, own=True, refusal=None)

    vars_of(Exchange, handled=shown)
    forget_what_was_noted()


def free_on_time_out() -> None:
    """A call that took too long counts as one that was not made."""
    judge = vars(rules_module)["judge"]

    def hopeful(ending: Ending, **options: Any) -> Outcome:
        error = ending.error
        while error is not None:
            if "Timeout" in type(error).__name__:
                return Outcome.FAIL
            error = error.__cause__
        found: Outcome = judge(ending, **options)
        return found

    vars_of(rules_module, judge=hopeful)


def keep_the_old_id() -> None:
    """A key's second life has the id of its first."""
    build = Queries.build

    def kept(self: Queries, name: str, sql: str) -> Any:
        if name == "reuse":
            assert ":id, :tenant" in sql, "reuse is written otherwise now"
            sql = sql.replace(":id, :tenant", "id, :tenant")
        return build(self, name, sql)

    vars_of(Queries, build=kept)


def drop_the_step() -> None:
    """Whatever step a provider's word is about, it counts for the one that has no result yet."""
    judge, choose = vars(reconcile_module)["judge"], vars(reconcile_module)["choose"]

    def stepless(word: Any, record: Any, effects: Any, others: Any = (), past: Any = ()) -> Any:
        unsettled = next((effect for effect in effects if effect.outcome is None), None)
        about = word.about if unsettled is None else unsettled.downstream_key
        return judge(replace(word, about=about), record, effects, others, past)

    def any_of(words: Any, record: Any, effect: Any, past: Any = ()) -> Any:
        found = choose([replace(word, about=effect.downstream_key) for word in words], record, effect, past)
        return None if found is None else next(one for one in words if one.event_id == found.event_id)

    vars_of(reconcile_module, judge=stepless, choose=any_of)


def forget_what_was_noted() -> None:
    """Without the second line of defence: a provider's id that was noted keeps a key from being freed, so
    that these mistakes would come to nothing."""
    judge = vars(rules_module)["judge"]
    vars_of(rules_module, judge=lambda ending, **options: judge(replace(ending, acted=False), **options))


def vars_of(owner: Any, **changed: Any) -> None:
    """Sets attributes, and fails if one was not there: then the mutant would change nothing."""
    for name, value in changed.items():
        assert hasattr(owner, name), f"{owner} has no {name} any more"
        setattr(owner, name, value)


MUTANTS: dict[str, Callable[[], None]] = {
    "fencing": without_fencing,
    "heartbeat": without_heartbeat,
    "fingerprint": without_fingerprint,
    "atomic_commit": without_atomic_commit,
    "persist_before_send": without_persisting_first,
    "downstream_key": without_downstream_key,
    "tenant": without_tenant,
    "finish_twice": finish_twice,
    "judge_by_the_page": judge_by_the_page,
    "free_on_time_out": free_on_time_out,
    "lives": keep_the_old_id,
    "step": drop_the_step,
}

chosen = os.environ.get(VARIABLE)
if chosen:
    MUTANTS[chosen]()


def __getattr__(name: str) -> Any:
    # Imported when a server or a worker asks for it: by then the mutant is in place.
    if name in ("app", "idempotency"):
        import examples.payments.app as service

        return getattr(service, name)
    raise AttributeError(name)
