"""The clients: many at once, each with its own seed, patient with their keys and rude in every other way.

Each intended operation has one key and is retried until its last word. On the way clients race themselves,
hang up, lose answers, reuse keys for something else, and use keys that another tenant uses too. Everything
that they send and see goes into the histories; they judge nothing themselves.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final
from urllib.parse import urlsplit

import httpx2

from lab.processes import LOOPBACK

from .evidence import Probe, View
from .histories import Body, Exchange, Histories, Intent, Kind, Reason
from .plan import BRIEF, STYLES, Plan

ITEMS: Final = ("coffee", "tea", "cake")
"""What the reference service sells. There is little cake: most orders of it are refused."""
LATE: Final = 0.15
"""How often a client, before its next operation, repeats one that was answered long ago."""
PROBES: Final = 0.05
"""How often it looks at something that belongs to another tenant."""
LATE_AT_THE_END: Final = 300
"""Finished keys that are tried once more when all is over: a sample, because each costs a round trip."""
PACE: Final = 0.05
"""Seconds that a client rests between two operations, on average."""
WHOLE: Final = 0.8
"""How often a client that hangs up has sent its request whole; else it leaves anywhere in head or body."""
HANG_UP_AFTER: Final = (0.0, 0.0, 0.005, 0.02, 0.05, 0.2)
"""Seconds: before anybody has looked, during the claim, the call, the commit, the answer."""
COME_BACK: Final = 0.5
"""How often a client, when its key's life is over, sends the same request again; else it uses the key for
something else."""
SURELY_OVER: Final = 1.0
"""Seconds after the end of a key's life by which it is used anew."""
GET_PATIENCE: Final = 30
"""How often a list is asked for when all is over."""
PAGE: Final = 5000


class Clients:
    """All clients of a run. ``nodes`` are the addresses of the service, by their number."""

    def __init__(
        self, plan: Plan, nodes: list[str], accounts: Mapping[str, str], clock: Callable[[], float]
    ) -> None:
        self._plan = plan
        self._nodes = nodes
        self._tokens = {account: token for token, account in accounts.items()}
        self._clock = clock
        self._finished: list[Intent] = []
        self._payments: dict[str, list[tuple[str, int]]] = {account: [] for account in self._tokens}
        self._over: list[tuple[float, Intent, bool]] = []
        """Answered keys, by the time from which on their life is over, the earliest first; and whether their
        operation is in the service's books for good."""
        self._loading = True
        self._patient = True
        self._http = httpx2.AsyncClient(
            timeout=plan.client_timeout,
            limits=httpx2.Limits(
                max_connections=plan.clients * 8, max_keepalive_connections=plan.clients * 2
            ),
        )
        self.histories = Histories()
        self.probes: list[Probe] = []
        self.settled = 0

    async def aclose(self) -> None:
        await self._http.aclose()

    def stop_loading(self) -> None:
        """Nothing new from here on; what is open is pursued."""
        self._loading = False

    def give_up(self) -> None:
        """What is not settled by now has taken too long."""
        self._patient = False

    async def be_clients(self) -> None:
        """Until there is nothing new and nothing open."""
        async with asyncio.TaskGroup() as group:
            for index in range(self._plan.clients):
                group.create_task(self._be_a_client(index))

    async def _be_a_client(self, index: int) -> None:
        source = random.Random(f"client {self._plan.seed} {index}")
        number = index
        while self._loading:
            await self._operate(number, source)
            number += self._plan.clients
            if self._finished and self._plan.ttl is None and source.random() < LATE:
                await self._send(source.choice(self._finished), "late", source)
            await asyncio.sleep(source.uniform(0, 2 * PACE))

    # ------------------------------------------------------------------ one operation

    async def _operate(self, number: int, source: random.Random) -> None:
        styles = STYLES if self._plan.ttl is None else BRIEF
        style = source.choices(list(styles), list(styles.values()))[0]
        intent = self._imagine(number, source, rival=style in ("rival_race", "rival_after"))
        if self._over and self._over[0][0] <= self._clock():
            _, former, closed = self._over.pop(0)
            if closed and source.random() < COME_BACK:
                await self._come_back(former, source)
                return
            intent = self._again(intent, former, source, closed=closed)
        if style == "twin":
            intent = replace(intent, twin=-1 - intent.number)
        self.histories.add(intent)
        match style:
            case "race":
                await self._all(self._send(intent, "race", source) for _ in range(source.randint(2, 4)))
            case "rival_race":
                await self._all(
                    [self._send(intent, "race", source), self._send(intent, "rival", source, rival=True)]
                )
            case "abandon":
                await self._abandon(intent, source)
            case "throw":
                await self._send(intent, "thrown", source)
            case "twin":
                twin = self._twin(intent, source)
                self.histories.add(twin)
                await self._all([self._pursue(intent, source), self._pursue(twin, source)])
                return
        await self._pursue(intent, source)
        if style == "rival_after":
            await self._send(intent, "rival", source, rival=True)

    @staticmethod
    async def _all(work: Any) -> None:
        async with asyncio.TaskGroup() as group:
            for one in work:
                group.create_task(one)

    async def _pursue(self, intent: Intent, source: random.Random) -> None:
        """With the same key, until the last word."""
        reason: Reason = "first"
        rival, turn = False, 0
        while self._patient:
            exchange = await self._send(intent, reason, source, rival=rival)
            reason, turn = "retry", turn + 1
            if exchange.definitive:
                if exchange.reused and intent.rival is not None and not rival:
                    rival = True  # the other body was faster: then that one is what is pursued
                    continue
                if intent.settled_by(exchange):
                    self._settle(intent, exchange)
                    return
            await asyncio.sleep(min(0.05 * 2 ** min(turn, 4), 0.6) * source.uniform(0.5, 1.5))

    def _settle(self, intent: Intent, exchange: Exchange) -> None:
        self.settled += 1
        if exchange.rival:
            return  # a late retry is sent with the first body, which is refused here
        self._finished.append(intent)
        if not exchange.reused:
            self._expect_the_end(intent, exchange)
        if intent.kind == "payment" and exchange.succeeded:
            answer = exchange.json()
            if isinstance(answer, dict) and "id" in answer:
                self._payments[intent.tenant].append((str(answer["id"]), intent.body.amount))

    def _expect_the_end(self, intent: Intent, exchange: Exchange) -> None:
        if self._plan.ttl is not None:
            closed = intent.kind != "order" and (exchange.succeeded or exchange.status == 402)
            self._over.append((exchange.ended + self._plan.ttl + SURELY_OVER, intent, closed))

    def _again(self, intent: Intent, former: Intent, source: random.Random, *, closed: bool) -> Intent:
        """Under a key whose life is over. Another tenant's payment cannot be refunded with it."""
        if intent.kind == "refund" and intent.tenant != former.tenant:
            path, body = self._request("order", f"order-{intent.number}", None, source)
            intent = Intent(intent.number, "order", intent.tenant, intent.key, path, body)
        return replace(intent, tenant=former.tenant, key=former.key, former=former.number, closed=closed)

    async def _come_back(self, intent: Intent, source: random.Random) -> None:
        """With the very request that was answered, when its key's life is over: what moved money moves none
        again, and the answer is what it was."""
        while self._patient:
            exchange = await self._send(intent, "expired", source)
            if exchange.definitive:
                self._expect_the_end(intent, exchange)
                return
            await asyncio.sleep(source.uniform(0.1, 0.6))

    def _imagine(self, number: int, source: random.Random, *, rival: bool) -> Intent:
        """What a client wants next."""
        kinds = self._plan.load
        kind: Kind = source.choices(list(kinds), list(kinds.values()))[0]
        tenant = source.choice(list(self._tokens))
        payment: tuple[str, int] | None = None
        if kind == "refund":
            if self._payments[tenant]:
                payment = source.choice(self._payments[tenant])
            else:
                kind = "payment"  # there is nothing to give back yet
        key = f"{source.getrandbits(96):024x}"
        reference = f"{kind}-{number}"
        path, body = self._request(kind, reference, payment, source)
        other = self._request(kind, f"{reference}-rival", payment, source)[1] if rival else None
        return Intent(number, kind, tenant, key, path, body, other, None if payment is None else payment[0])

    def _request(
        self, kind: Kind, reference: str, payment: tuple[str, int] | None, source: random.Random
    ) -> tuple[str, Body]:
        amount = source.randint(1, 50_000)
        match kind:
            case "payment":
                return "/payments", Body.of(reference, amount, amount=amount, currency="EUR")
            case "transfer":
                account = f"account-{source.randrange(100)}"
                return "/transfers", Body.of(reference, amount, amount=amount, account=account)
            case "purchase":
                card = f"card-{source.randrange(100)}"
                return "/purchases", Body.of(reference, amount, amount=amount, card=card)
            case "order":
                quantity = source.randint(1, 3)
                fields = {"item": source.choice(ITEMS), "quantity": quantity}
                return "/orders", Body.of(reference, quantity, **fields)
            case "refund":
                assert payment is not None
                part = source.randint(1, max(1, payment[1] // 2))  # a third one may well be too much
                return f"/payments/{payment[0]}/refunds", Body.of(reference, part, amount=part)

    def _twin(self, intent: Intent, source: random.Random) -> Intent:
        """Another tenant's operation under the same key: the two have nothing to do with each other."""
        tenant = source.choice([one for one in self._tokens if one != intent.tenant])
        number = -1 - intent.number
        kind: Kind = "payment" if intent.kind == "refund" else intent.kind
        if kind == "order":
            body, path = intent.body, intent.path  # to the byte: rows have tenants
        else:
            path, body = self._request(kind, f"{kind}-twin-{intent.number}", None, source)
        return Intent(number, kind, tenant, intent.key, path, body, twin=intent.number)

    # ------------------------------------------------------------------ one request

    async def _send(
        self, intent: Intent, reason: Reason, source: random.Random, *, rival: bool = False
    ) -> Exchange:
        body = intent.rival if rival else intent.body
        assert body is not None
        node = source.randrange(len(self._nodes))
        began = self._clock()
        status, content, replayed, error, location = None, b"", False, None, None
        try:
            response = await self._http.post(
                self._nodes[node] + intent.path, content=body.content, headers=self._headers(intent)
            )
            status, content = response.status_code, response.content
            replayed = response.headers.get("idempotent-replayed") == "true"
            location = response.headers.get("location")
        except httpx2.HTTPError as failure:
            error = type(failure).__name__
        exchange = Exchange(
            intent.number, reason, began, self._clock(), node, rival, status, content, replayed, error
        )
        self.histories.exchanges.append(exchange)
        if source.random() < PROBES:
            await self._pry(intent, exchange, location, source)
        return exchange

    def _headers(self, intent: Intent) -> dict[str, str]:
        return {
            "Authorization": f"Bearer {self._tokens[intent.tenant]}",
            "Idempotency-Key": intent.key,
            "Content-Type": "application/json",
        }

    async def _abandon(self, intent: Intent, source: random.Random) -> None:
        """Sends a request, or a part of one, and hangs up without waiting for its answer."""
        node = source.randrange(len(self._nodes))
        began, error = self._clock(), "hung up"
        headers = {
            "Host": "torture",
            **self._headers(intent),
            "Content-Length": str(len(intent.body.content)),
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        try:
            async with asyncio.timeout(self._plan.client_timeout):
                _, writer = await asyncio.open_connection(LOOPBACK, urlsplit(self._nodes[node]).port)
                request = f"POST {intent.path} HTTP/1.1\r\n{head}\r\n".encode() + intent.body.content
                whole = source.random() < WHOLE
                writer.write(request if whole else request[: source.randrange(len(request))])
                await writer.drain()
                await asyncio.sleep(source.choice(HANG_UP_AFTER))
                writer.transport.abort()
        except (OSError, TimeoutError) as failure:
            error = type(failure).__name__
        self.histories.exchanges.append(
            Exchange(intent.number, "abandoned", began, self._clock(), node, error=error)
        )

    async def _pry(
        self, intent: Intent, exchange: Exchange, location: str | None, source: random.Random
    ) -> None:
        """Looks at the operation, or at what it made, as another tenant."""
        answer = exchange.json()
        paths = [urlsplit(location).path] if location else []
        if exchange.succeeded and intent.kind != "refund" and isinstance(answer, dict) and "id" in answer:
            paths.append(f"{intent.path}/{answer['id']}")
        if not paths:
            return
        path = source.choice(paths)
        stranger = source.choice([one for one in self._tokens if one != intent.tenant])
        try:
            found = await self._get(source.randrange(len(self._nodes)), path, stranger)
        except httpx2.HTTPError:
            return
        if found.status_code not in (429, 500, 503):
            self.probes.append(Probe(stranger, path, found.status_code))

    async def _get(self, node: int, path: str, tenant: str) -> httpx2.Response:
        token = self._tokens[tenant]
        return await self._http.get(self._nodes[node] + path, headers={"Authorization": f"Bearer {token}"})

    # ------------------------------------------------------------------ when all is over

    async def try_again(self) -> None:
        """Long-after retries of finished keys, byte for byte; where they are kept for so long."""
        if self._plan.ttl is not None:
            return
        source = random.Random(f"late {self._plan.seed}")
        chosen = source.sample(self._finished, min(LATE_AT_THE_END, len(self._finished)))
        room = asyncio.Semaphore(8)

        async def again(intent: Intent) -> None:
            async with room:
                for _ in range(3):
                    if (await self._send(intent, "late", source)).definitive:
                        return

        await self._all(again(intent) for intent in chosen)

    async def views(self) -> dict[str, View]:
        """What each tenant can see."""
        return {tenant: await self._view(tenant) for tenant in self._tokens}

    async def _view(self, tenant: str) -> View:
        names = ("payments", "orders", "transfers", "purchases")
        lists = {name: await self._list(f"/{name}", name, tenant) for name in names}
        refunded = {x.payment for x in self.histories.intents if x.payment is not None and x.tenant == tenant}
        refunds = {
            one: await self._list(f"/payments/{one}/refunds", "refunds", tenant) for one in sorted(refunded)
        }
        return View(lists["payments"], refunds, lists["orders"], lists["transfers"], lists["purchases"])

    async def stock(self) -> dict[str, int]:
        """What is left of everything."""
        found: dict[str, int] = (await self._shown("/stock", next(iter(self._tokens))))["stock"]
        return found

    async def _list(self, path: str, name: str, tenant: str) -> list[dict[str, Any]]:
        """All pages of a list."""
        found: list[dict[str, Any]] = []
        while True:
            after = f"&after={found[-1]['id']}" if found else ""
            page = (await self._shown(f"{path}?limit={PAGE}{after}", tenant))[name]
            found += page
            if len(page) < PAGE:
                return found

    async def _shown(self, path: str, tenant: str) -> Any:
        """What a GET gives, from whichever node gives it."""
        for attempt in range(GET_PATIENCE):
            try:
                response = await self._http.get(
                    self._nodes[attempt % len(self._nodes)] + path,
                    headers={"Authorization": f"Bearer {self._tokens[tenant]}"},
                    timeout=30,
                )
                if response.status_code == 200:
                    return json.loads(response.content)
            except httpx2.HTTPError:
                pass
            await asyncio.sleep(0.2)
        raise NoView(f"GET {path} showed nothing to {tenant}, in {GET_PATIENCE} tries.")


class NoView(Exception):
    """The service does not show what it has."""
