"""A client of the provider on the standard library, for code under test that has none of its own."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, urlsplit

from lab.processes import LOOPBACK

from .ledger import Entry, Kind


class ProviderError(Exception):
    """The provider answered, and not with an entry. What a 500 means for the money nobody can tell."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(f"the provider answered {status}: {detail}")
        self.status = status


class Declined(ProviderError):
    """The card was declined; nothing was charged."""


class ProviderClient:
    """Safe in threads: each call has a connection of its own.

    Raises ``Declined`` or ``ProviderError`` for what the provider answered, ``TimeoutError`` and other
    ``OSError`` where nobody can tell what it did.
    """

    def __init__(self, url: str, *, timeout: float = 5.0) -> None:
        address = urlsplit(url)
        self._host, self._port = address.hostname or LOOPBACK, address.port or 80
        self._timeout = timeout

    def charge(self, amount: int, *, key: str | None, reference: str = "") -> Entry:
        """Charges; with the same key again it gives the first charge and moves no money."""
        return self.move("charge", amount, key=key, reference=reference)

    def refund(self, amount: int, *, key: str | None, reference: str = "") -> Entry:
        return self.move("refund", amount, key=key, reference=reference)

    def transfer(self, amount: int, *, key: str | None, reference: str = "") -> Entry:
        return self.move("transfer", amount, key=key, reference=reference)

    def move(self, kind: Kind, amount: int, *, key: str | None, reference: str = "", **more: Any) -> Entry:
        """Any of them. ``more`` goes with the request, and must be the same with the same key."""
        headers = {} if key is None else {"Idempotency-Key": key}
        body = {"amount": amount, "reference": reference, **more}
        return Entry.of(self.call("POST", f"/{kind}s", body, headers))

    def find(self, key: str, kind: Kind = "charge") -> Entry | None:
        """What was made under this key, if anything; also when the provider has forgotten the key."""
        found = self.call("GET", f"/{kind}s?key={quote(key, safe='')}")[f"{kind}s"]
        return Entry.of(found[0]) if found else None

    def entries(self, *, limit: int = 100) -> Iterator[Entry]:
        """The whole ledger as the provider lists it, page by page."""
        after, more = "", True
        while more:
            page = self.call("GET", f"/entries?limit={limit}&after={after}")
            for content in page["entries"]:
                after = content["id"]
                yield Entry.of(content)
            more = page["more"]

    def call(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Any:
        """One request of any kind; the answer's JSON."""
        connection = http.client.HTTPConnection(self._host, self._port, timeout=self._timeout)
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"Connection": "close", **(headers or {})})
            response = connection.getresponse()
            content = json.loads(response.read())
        except (http.client.HTTPException, ValueError) as error:
            # Half an answer says nothing about what was done.
            raise ConnectionError(f"the provider's answer broke off: {error!r}") from error
        finally:
            connection.close()
        if response.status >= 400:
            kind = Declined if response.status == 402 else ProviderError
            raise kind(response.status, content["error"])
        return content
