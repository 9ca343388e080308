"""What a run does: how much load, which faults, and when. All of it follows from the seed.

The same seed gives the same intents and the same schedule of faults. What the processes make of it differs
from run to run, as it does in life.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal, TypeAlias, cast, get_args

from examples.provider import Fault as ProviderFault

from .histories import Kind
from .mishaps import Mishap

ProcessFault: TypeAlias = Literal["kill_node", "kill_worker", "pause_node", "pause_worker", "kill_provider"]
DatabaseFault: TypeAlias = Literal[
    "restart_fast",
    "restart_immediate",
    "cut_database",
    "refuse_database",
    "stall_database",
    "commit_lost",  # it never reaches the server
    "statement_lost",  # the same, for any other statement that writes
    "commit_unacknowledged",  # it does, and its reply is lost
    "commit_late",  # it does when the client has long given up
    "reply_lost",  # the same as unacknowledged, for any other statement that writes
]
NetworkFault: TypeAlias = Literal["cut_provider", "refuse_provider", "stall_provider"]
UpkeepFault: TypeAlias = Literal[
    "rotate_keys",  # a new encryption key for everybody, by two starts of every process, one after the other
    "migrate",  # a new version of samekey's tables, with everybody at work
]
FaultKind: TypeAlias = ProcessFault | DatabaseFault | NetworkFault | UpkeepFault | ProviderFault | Mishap

PROCESS_FAULTS: Final[frozenset[str]] = frozenset(get_args(ProcessFault))
DATABASE_FAULTS: Final[frozenset[str]] = frozenset(get_args(DatabaseFault))
RESTARTS: Final[frozenset[str]] = frozenset({"restart_fast", "restart_immediate"})
NETWORK_FAULTS: Final[frozenset[str]] = frozenset(get_args(NetworkFault))

STORES: Final[Mapping[str, str]] = {
    "sqlite": "sqlite",
    "postgresql": "postgresql",
    "postgres": "postgresql",
    "mysql": "mysql",
    "mariadb": "mysql",
}
"""By the scheme of a URL."""

WEIGHTS: Final[Mapping[FaultKind, int]] = {
    "kill_node": 6,
    "kill_worker": 6,
    "pause_node": 4,
    "pause_worker": 4,
    "kill_provider": 1,
    "restart_fast": 1,
    "restart_immediate": 2,
    "cut_database": 4,
    "refuse_database": 2,
    "stall_database": 2,
    "commit_lost": 3,
    "statement_lost": 3,
    "commit_unacknowledged": 4,
    "commit_late": 3,
    "reply_lost": 4,
    "cut_provider": 3,
    "refuse_provider": 2,
    "stall_provider": 2,
    "decline": 3,
    "delay": 2,
    "charge_then_time_out": 3,
    "charge_then_drop": 4,
    "error_before": 2,
    "error_after": 3,
    "failure_told": 3,
    "limit": 2,
    "malformed": 3,
    "webhook_lost": 2,
    "webhook_doubled": 2,
    "webhook_again": 2,
    "webhook_strays": 4,
    "webhook_late": 2,
    "webhook_reordered": 2,
    "deadline_inside": 5,
    "deadline_outside": 3,
    "cancel_inside": 2,
    "cancel_outside": 2,
    "answer_broken": 4,
    "sdk_error_before": 2,
    "sdk_error_after": 4,
    "rotate_keys": 2,
    "migrate": 2,
}
"""How often each is chosen. Deaths and lost replies most of all: that is where systems break."""

LOAD: Final[Mapping[Kind, int]] = {"payment": 4, "refund": 2, "order": 4, "transfer": 3, "purchase": 3}

Style: TypeAlias = Literal["plain", "race", "rival_race", "rival_after", "abandon", "throw", "twin"]
STYLES: Final[Mapping[Style, int]] = {
    "plain": 36,
    "race": 16,
    "rival_race": 6,
    "rival_after": 8,
    "abandon": 12,
    "throw": 12,
    "twin": 10,
}
"""How clients behave, in parts of a hundred."""

BRIEF: Final[Mapping[Style, int]] = {"plain": 70, "race": 15, "throw": 15}
"""Where answers are kept for seconds only: nobody whose request could arrive in the key's next life."""

LATE: Final[frozenset[str]] = frozenset(
    {"pause_node", "pause_worker", "stall_database", "stall_provider", "commit_late"}
)
"""Faults after which a request may arrive when its key's life is over, and rightly be a new one."""

LEAD: Final = 1.0
"""Seconds of load before the first fault: there must be something to break."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One run."""

    url: str | None = None
    """None: a SQLite file of its own; ``postgresql:``, ``mysql:``: a server of its own; else a server that is
    there."""
    seconds: float = 60.0
    """Of load with faults; settling and judging come after."""
    seed: int = 0
    clients: int = 24
    """Operations under way at once."""
    nodes: int = 2
    workers: int = 2
    fault_every: float = 2.0
    """Seconds between faults, on average; 0 for none."""
    app: str = "examples.payments.app:app"
    lease: float = 2.0
    """Seconds. Users have minutes; everything here is as much shorter as a run is."""
    call_timeout: float = 1.5
    """Of one call to the provider. Shorter than the lease, as it should be."""
    cycle: float = 0.5
    """Seconds between looks of the sweeper, the completer and the reconciler."""
    margin: float = 60.0
    """Seconds that settling may take beyond a lease and a cycle: machines may be slow, and jobs that failed
    often wait the longer."""
    skew: float = 180.0
    """The clocks of processes are off by up to so many seconds, either way."""
    load: Mapping[Kind, int] = field(default_factory=lambda: dict(LOAD))
    faults: Mapping[FaultKind, int] = field(default_factory=lambda: dict(WEIGHTS))
    environment: Mapping[str, str] = field(default_factory=dict)
    """More for the service's processes."""
    compare: bool = True
    """Whether the service's own comparison of ledgers is asked at the end; it costs a process."""
    window: float = 24 * 3600.0
    """Seconds for which the provider recognises a key. 0 is for plans in which nobody may ask it twice."""
    webhooks: bool = True
    """Whether the provider tells what happened."""
    ttl: float | None = None
    """Seconds for which answers are kept, after which clients use their keys anew; None: for a day."""
    latency: float = 0.02
    """Seconds between the provider's entry and its answer: the time in which a death hurts most."""

    @property
    def store(self) -> str | None:
        """Which of the stores that can be tortured; None if it is none of them."""
        return STORES.get((self.url or "sqlite:").partition(":")[0])

    @property
    def calls(self) -> frozenset[str]:
        """The providers that this load needs; what befalls another shows nothing."""
        callers = {"provider": ("payment", "refund", "transfer"), "cards": ("purchase",)}
        return frozenset(name for name, kinds in callers.items() if any(map(self.load.get, kinds)))  # type: ignore[arg-type]

    @property
    def own_server(self) -> bool:
        """Whether the server is started for this run alone."""
        return self.url is not None and self.url.removesuffix(":") in STORES

    @property
    def settle_within(self) -> float:
        """Seconds after the last fault in which every key must be settled."""
        return self.lease + self.call_timeout + self.cycle + self.margin

    @property
    def client_timeout(self) -> float:
        """Longer than an honest answer takes, shorter than a pause."""
        return self.call_timeout + 1.0

    def possible(self) -> dict[FaultKind, int]:
        """What this store can be given: a file has no connections, somebody's server is not ours to stop."""
        excluded: frozenset[str] = frozenset()
        if self.store == "sqlite":
            excluded = DATABASE_FAULTS
        elif not self.own_server:
            excluded = RESTARTS
        return {kind: weight for kind, weight in self.faults.items() if weight and kind not in excluded}


@dataclass(frozen=True, slots=True)
class Planned:
    """One fault that will befall somebody."""

    at: float
    """Seconds after the load began."""
    kind: FaultKind
    victim: int
    """Of whatever the kind befalls: taken modulo their number."""
    seconds: float
    """How long it lasts, where it lasts."""
    times: int
    """How many requests it befalls, where it befalls requests."""


def with_second_lives(plan: Plan, ttl: float) -> Plan:
    """Keys expire, and are used again: with the same request, which moves no money again, or for something
    else. Nobody is so late that a request of one life arrives in the next."""
    faults = {kind: weight for kind, weight in plan.faults.items() if kind not in LATE}
    return replace(plan, ttl=ttl, faults=faults)


def schedule(plan: Plan) -> list[Planned]:
    """When what happens to whom. A shuffled deck, so that a short run sees many kinds."""
    possible = plan.possible()
    if not plan.fault_every or not possible:
        return []
    source = random.Random(f"faults {plan.seed}")
    found: list[Planned] = []
    deck: list[FaultKind] = []
    at = LEAD + plan.fault_every * source.random()
    while at < plan.seconds:
        if not deck:
            deck = [kind for kind, weight in possible.items() for _ in range(weight)]
            source.shuffle(deck)
        kind = deck.pop()
        found.append(
            Planned(at, kind, source.randrange(1 << 16), _lasting(plan, kind, source), source.randint(1, 6))
        )
        at += plan.fault_every * source.uniform(0.5, 1.5)
    return found


def _lasting(plan: Plan, kind: FaultKind, source: random.Random) -> float:
    """Seconds that a fault of this kind lasts."""
    match kind:
        case "pause_node" | "pause_worker":
            return plan.lease * source.uniform(1.2, 2.0)  # the lease must run out meanwhile
        case "stall_database" | "stall_provider":
            return plan.lease * source.uniform(0.3, 4.0)  # some outlast every time-out on the way
        case "refuse_database" | "refuse_provider":
            return plan.lease * source.uniform(0.2, 0.8)
        case "commit_late":
            return source.uniform(0.2, 1.5)
        case "delay":
            return plan.call_timeout * source.uniform(0.2, 0.6)  # late, and yet in time
        case "failure_told":
            return source.uniform(0.05, 4.0) * plan.lease  # now, or after the next attempt
        case "webhook_late" | "webhook_again":
            longest = 2.0 * plan.lease if plan.ttl is None else 1.5 * plan.ttl  # into the key's next life
            return source.uniform(0.5 * plan.lease, longest)
        case "charge_then_time_out":
            return plan.call_timeout * 3
        case "deadline_inside" | "deadline_outside" | "cancel_inside" | "cancel_outside":
            return source.choice((0.02, 0.1, 0.5))  # at most: each request has its own
        case _:
            return 0.0


def only(*kinds: FaultKind) -> dict[FaultKind, int]:
    """A choice of faults, all as likely."""
    return dict.fromkeys(kinds, 1)


def load_of(*kinds: str) -> dict[Kind, int]:
    """A choice of operations, all as likely."""
    return dict.fromkeys((cast("Kind", kind) for kind in kinds), 1)
