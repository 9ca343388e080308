"""Providers' API, as far as the service needs it. There are two of them, and both speak it: one moves money
between accounts, the other charges cards, in two steps.

A refusal is a result. The transport does the rest: it sends each call under the key of its operation, effect
or job, notes the provider's id there, and raises ``NotExecuted`` where it is certain that no money moved, and
``OutcomeUnknown`` where nobody can tell.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, Protocol

import httpx2

from samekey import Effect, OutcomeUnknown
from samekey.outgoing import Dialect, Outgoing, Patience, Profile
from samekey.outgoing.httpx2 import AsyncProviderTransport

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
    """There is no answer that says whether money has moved. samekey takes it for what it is."""


class Wanted(Protocol):
    """What was asked for, as it stands in our books."""

    @property
    def amount(self) -> int: ...
    @property
    def reference(self) -> str: ...


def is_of(entry: Entry, wanted: Wanted, since: datetime) -> bool:
    """Whether it is what this operation has asked for. The downstream key alone does not tell: a client may
    use an idempotency key anew once it has expired, and the provider still lists what was done before."""
    asked_for = (entry.amount, entry.reference) == (wanted.amount, wanted.reference)
    return asked_for and entry.at >= since.timestamp() - CLOCKS_DIFFER


def is_of_effect(entry: Entry, wanted: Wanted, effect: Effect) -> bool:
    """The same for an effect of phased work, asked by its lookup."""
    since = effect.since
    asked_for = (entry.amount, entry.reference) == (wanted.amount, wanted.reference)
    return asked_for and (since is None or entry.at >= since.timestamp() - CLOCKS_DIFFER)


class Provider:
    """One provider. ``timeout`` is for a whole call, not for each part of it."""

    def __init__(self, name: str, url: str, timeout: float) -> None:
        self.name = name
        profile = Profile(name, Dialect(quoted=False), WINDOW)
        one_attempt = Patience(deadline=timedelta(seconds=timeout), attempts=1)
        self._outgoing = Outgoing(profile, strict=True, patience=one_attempt)
        self._url = url
        self._timeout = timeout
        self._opened: httpx2.AsyncClient | None = None

    async def move(
        self, kind: Kind, *, amount: int, reference: str, customer: str, **more: str
    ) -> Entry | Refused:
        """Moves money, once for each operation, effect or job that it is called from."""
        wanted = {"amount": amount, "reference": reference, "customer": customer, **more}
        answer = await self._client.post(f"/{kind}s", json=wanted)
        return Refused() if answer.status_code == 402 else entry_of(_content(answer))

    async def find(self, kind: Kind, key: str) -> list[Entry]:
        """What was moved under a key, also long after the provider's window for it has closed."""
        answer = await self._get(f"/{kind}s", {"key": key})
        return [entry_of(found) for found in answer[f"{kind}s"]]

    async def entries(self) -> AsyncIterator[Entry]:
        """The provider's whole ledger, oldest first."""
        params: dict[str, str] = {"limit": str(PAGE)}
        while True:
            page = await self._get("/entries", params)
            for found in page["entries"]:
                yield entry_of(found)
            if not page["more"]:
                return
            params["after"] = page["entries"][-1]["id"]

    async def close(self) -> None:
        client, self._opened = self._opened, None
        if client is not None:
            await client.aclose()

    @property
    def _client(self) -> httpx2.AsyncClient:
        if self._opened is None:
            transport = AsyncProviderTransport(self._outgoing)
            self._opened = httpx2.AsyncClient(base_url=self._url, transport=transport, timeout=self._timeout)
        return self._opened

    async def _get(self, path: str, params: dict[str, str]) -> Any:
        try:
            return _content(await self._client.get(path, params=params))
        except httpx2.RequestError as error:
            raise ProviderTrouble("The provider could not be asked.") from error


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
