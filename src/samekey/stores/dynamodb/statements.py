"""The statements of this store, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from ...core.claim import locating_id
from ...core.program import Statement, Value
from . import plans, queues, resolving, table
from .requests import Plan, PlannedQuery, Values

_PLANS: Final[tuple[Callable[[Values, int], Plan], ...]] = (
    plans.find,
    plans.find_by_id,
    plans.find_former,
    plans.find_by_downstream,
    plans.find_by_provider_id,
    plans.effects_of,
    plans.past_ids,
    plans.reserve,
    plans.retry,
    plans.resume,
    plans.reuse,
    plans.end_lease,
    plans.renew,
    plans.complete,
    plans.fail,
    plans.hold,
    plans.lose,
    plans.note_former,
    plans.release,
    plans.expire,
    resolving.ask_again,
    resolving.found_executed,
    resolving.recall,
    resolving.found_not_executed,
    resolving.freed_by,
    resolving.dispute,
    resolving.disputed_by,
    resolving.give_up_finding,
    resolving.evict_answer,
    resolving.extend,
    resolving.reopen,
    queues.sweep,
    queues.count_sweep,
    queues.reap,
    queues.count_reap,
    queues.take_unknown,
    queues.list_keys,
    queues.overview,
    table.create_table,
    table.note_identity,
    table.describe_table,
    table.forget_old,
)
_QUERIES: Final[Mapping[str, PlannedQuery]] = {
    plan.__name__: PlannedQuery(plan.__name__, "", {}, plan=plan) for plan in _PLANS
}


class DynamoStatements:
    """``samekey.stores.statements.Statements`` for DynamoDB."""

    looks_first = False
    notes_along = True
    has_parts = False
    """One request tells a new key from one that is taken, and shows what is there."""

    def operation_id(self, token: str, scope: str, key: str) -> str:
        return locating_id(token, scope, key)

    def statement(self, query: str, now: int | None, /, **values: Value) -> Statement:
        return Statement(_QUERIES[query], {"now": now, **values})
