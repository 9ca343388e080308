"""Our ledger against the provider's: the last line of defence, and the first to look at in the morning.

The worker compares once a day, ``samekey ledger run examples.payments.app:idempotency`` at any time. It is
made for a small service: it compares everything that ever was. One with more behind it takes a day that both
sides have closed.
"""

from collections.abc import AsyncIterator

from samekey.core.ledger import Entry

from .service import database, idempotency, provider

CURRENCY = "EUR"

_OURS = """
select provider_id, 'charge', amount, reference from payments where status = 'succeeded'
union all select provider_id, 'refund', amount, reference from refunds where status = 'succeeded'
union all select provider_id, 'transfer', amount, reference from transfers where status = 'succeeded'
"""


async def ours() -> list[Entry]:
    """What our books say has happened."""
    return [
        Entry(provider_id, amount, CURRENCY, kind, reference=reference)
        for provider_id, kind, amount, reference in await database.run(_OURS)
    ]


async def theirs() -> AsyncIterator[Entry]:
    """What the provider says has happened."""
    async for entry in provider.entries():
        yield Entry(entry.id, entry.amount, CURRENCY, entry.kind, reference=entry.reference)


# The status of an entry is its kind: a refund that we took for a charge is a difference too.
idempotency.compare_ledgers(
    ours=ours, theirs=theirs, fields=("amount", "currency", "status", "reference"), name="provider"
)
