"""What the service is told by its environment. Read once, when the process starts."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

DEMO_ACCOUNTS = {"token-of-ann": "acct_ann", "token-of-bob": "acct_bob"}
"""For trying it out. A real service asks its identity provider, and has no list of tokens."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Every setting, with its default."""

    database_url: str = "sqlite:///payments.db"
    provider_url: str = "http://127.0.0.1:9000"
    provider_secret: str = field(default="", repr=False)
    """What the provider signs its webhooks with. Without one, every webhook is refused."""
    cards_url: str = "http://127.0.0.1:9001"
    cards_secret: str = field(default="", repr=False)
    """The same for the other provider, which takes money from cards."""
    accounts: Mapping[str, str] = field(default_factory=lambda: DEMO_ACCOUNTS, repr=False)
    """Account by token."""
    lease: float = 60.0
    """Seconds after which an operation whose process is silent is taken for abandoned."""
    call_timeout: float = 5.0
    """Seconds for one call to the provider: longer than its slowest answer."""
    ttl: float = 24 * 3600.0
    """Seconds for which an answer is kept. After that its key is as good as new."""
    encryption_keys: tuple[str, ...] = field(default=(), repr=False)
    """Fernet keys for what is stored of requests and answers: the first encrypts, all of them decrypt.
    Without one it is stored as it is."""

    def __post_init__(self) -> None:
        if min(self.lease, self.call_timeout, self.ttl) <= 0:
            raise ValueError(
                "PAYMENTS_LEASE, PAYMENTS_CALL_TIMEOUT and PAYMENTS_TTL must be seconds, more than none."
            )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "Settings":
        """``ValueError`` for what makes no sense, with a sentence that says which."""
        default = cls()
        accounts = json.loads(environment.get("PAYMENTS_ACCOUNTS", json.dumps(DEMO_ACCOUNTS)))
        if not isinstance(accounts, dict) or not all(isinstance(name, str) for name in accounts.values()):
            raise ValueError('PAYMENTS_ACCOUNTS must be a JSON object: {"token": "account", …}.')
        return cls(
            database_url=environment.get("DATABASE_URL", default.database_url),
            provider_url=environment.get("PROVIDER_URL", default.provider_url),
            provider_secret=environment.get("PROVIDER_SECRET", ""),
            cards_url=environment.get("CARDS_URL", default.cards_url),
            cards_secret=environment.get("CARDS_SECRET", ""),
            accounts=accounts,
            lease=float(environment.get("PAYMENTS_LEASE", default.lease)),
            call_timeout=float(environment.get("PAYMENTS_CALL_TIMEOUT", default.call_timeout)),
            ttl=float(environment.get("PAYMENTS_TTL", default.ttl)),
            encryption_keys=tuple(environment.get("PAYMENTS_ENCRYPTION_KEYS", "").split()),
        )
