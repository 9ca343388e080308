"""Providers' API, as far as the service needs it. There are two of them, and both speak it: one moves money
between accounts, the other charges cards, in two steps.

A refusal is a result. Trouble is raised: ``NotExecuted`` where it is certain that no money moved, and
``ProviderTrouble`` where nobody can tell. samekey knows what each of them means in each mode.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, Protocol

import httpx2

from samekey import NotExecuted, OutcomeUnknown
from samekey.core.record import Record

Kind = Literal["charge", "refund", "transfer", "authorisation", "capture"]

WINDOW = timedelta(hours=24)
"""For so long a provider recognises an idempotency key."""
PAGE = 500
PROVIDER, CARDS = "provider", "cards"
"""As samekey is told them: each one's ids and events are looked for under its name. Both count from 1."""
CLOCKS_DIFFER = 300.0
"""Seconds that a provider's clock and the database's may disagree."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Money that has moved, as the provider tells it."""

    id: str
    kind: Kind
    reference: str
    amount: int
    at: float
    """Seconds since 1970, by the provider's clock."""
    customer: str
    """The account that it was asked for, as we said."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A definite no: no money has moved, and the same key will get the same answer."""


class ProviderTrouble(OutcomeUnknown):
    """There is no answer, or none that says whether money has moved. samekey takes it for what it is."""


class Wanted(Protocol):
    """What was asked for, as it stands in our books."""

    @property
    def amount(self) -> int: ...
    @property
    def reference(self) -> str: ...


def is_of(entry: Entry, wanted: Wanted, record: Record) -> bool:
    """Whether it is what this operation has asked for. The downstream key alone does not tell: a client may
    use an idempotency key anew once it has expired, and the provider still lists what was done before."""
    asked_for = (entry.amount, entry.reference) == (wanted.amount, wanted.reference)
    return asked_for and entry.at >= record.created_at / 1000 - CLOCKS_DIFFER


class Provider:
    """One provider. ``timeout`` is for a whole call, not for each part of it."""

    def __init__(self, name: str, url: str, timeout: float) -> None:
        self.name = name
        self._url = url
        self._timeout = timeout
        self._client: httpx2.AsyncClient | None = None

    async def move(
        self,
        kind: Kind,
        *,
        key: str,
        amount: int,
        reference: str,
        customer: str,
        seconds: float | None = None,
        **more: str,
    ) -> Entry | Refused:
        """Moves money, once for each key."""
        answer = await self._call(
            "POST",
            f"/{kind}s",
            seconds or self._timeout,
            json={"amount": amount, "reference": reference, "customer": customer, **more},
            headers={"Idempotency-Key": key},
        )
        if answer.status_code == 402:
            return Refused()
        if answer.status_code == 429:
            raise NotExecuted("The provider is busy and has not looked at it.")
        return entry_of(_content(answer))

    async def find(self, kind: Kind, key: str) -> list[Entry]:
        """What was moved under a key, also long after the provider's window for it has closed."""
        answer = await self._call("GET", f"/{kind}s", self._timeout, params={"key": key})
        return [entry_of(found) for found in _content(answer)[f"{kind}s"]]

    async def entries(self) -> AsyncIterator[Entry]:
        """The provider's whole ledger, oldest first."""
        params: dict[str, str] = {"limit": str(PAGE)}
        while True:
            page = _content(await self._call("GET", "/entries", self._timeout, params=params))
            for found in page["entries"]:
                yield entry_of(found)
            if not page["more"]:
                return
            params["after"] = page["entries"][-1]["id"]

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def _call(self, method: str, path: str, seconds: float, **options: Any) -> httpx2.Response:
        if self._client is None:
            self._client = httpx2.AsyncClient(base_url=self._url)
        try:
            async with asyncio.timeout(seconds):
                return await self._client.request(method, path, timeout=seconds, **options)
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            raise NotExecuted("The provider could not be reached.") from error
        except (httpx2.RequestError, TimeoutError) as error:
            raise ProviderTrouble("The provider's answer was lost.") from error


def _content(answer: httpx2.Response) -> Any:
    if answer.status_code not in (200, 201):
        raise ProviderTrouble(f"The provider answered {answer.status_code}.")
    try:
        return answer.json()
    except ValueError as error:
        raise ProviderTrouble("The provider's answer is not JSON.") from error


def entry_of(content: Any) -> Entry:
    """As it stands in an answer or in a webhook; ``ProviderTrouble`` if it does not."""
    try:
        return Entry(
            content["id"],
            content["kind"],
            content["reference"],
            content["amount"],
            float(content["at"]),
            content["customer"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ProviderTrouble("The provider's answer is not what its documentation says.") from error
