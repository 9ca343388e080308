"""Our ledger against the providers': the last line of defence, and the first to look at in the morning.

The worker compares once a day, ``samekey ledger run examples.payments.app:idempotency`` at any time. It is
made for a small service: it compares everything that ever was. One with more behind it takes a day that both
sides have closed.
"""

from collections.abc import AsyncIterator

from samekey.core.ledger import Entry

from .service import cards, database, idempotency, provider

CURRENCY = "EUR"

_OURS = """
select 'provider', provider_id, 'charge', amount, reference from payments where status = 'succeeded'
union all
select 'provider', provider_id, 'refund', amount, reference from refunds where status = 'succeeded'
union all
select 'provider', provider_id, 'transfer', amount, reference from transfers where status = 'succeeded'
union all
select 'cards', authorisation, 'authorisation', amount, reference from purchases
where authorisation is not null
union all
select 'cards', provider_id, 'capture', amount, reference from purchases where status = 'succeeded'
"""


def entry_of(source: str, provider_id: str, kind: str, amount: int, reference: str) -> Entry:
    """Both providers may have an id in common, so each entry has its provider's name too. Its status is its
    kind: a refund that we took for a charge is a difference."""
    return Entry(f"{source} {provider_id}", amount, CURRENCY, kind, reference=reference)


async def ours() -> list[Entry]:
    """What our books say has happened."""
    return [entry_of(*row) for row in await database.run(_OURS)]


async def theirs() -> AsyncIterator[Entry]:
    """What the providers say has happened."""
    for one in (provider, cards):
        async for entry in one.entries():
            yield entry_of(one.name, entry.id, entry.kind, entry.amount, entry.reference)


idempotency.compare_ledgers(
    ours=ours, theirs=theirs, fields=("amount", "currency", "status", "reference"), name="providers"
)
