"""What all parts of the service share: settings, database, providers, and the ``Idempotency``.

Importing this module makes the tables; the application and the worker both do.
"""

from datetime import timedelta

from samekey import Backoff, Idempotency, ietf
from samekey.encryption import fernet

from .database import Database
from .provider import CARDS, PROVIDER, Provider
from .schema import prepare
from .settings import Settings

settings = Settings.from_environment()
database = Database(settings.database_url)
provider = Provider(PROVIDER, settings.provider_url, settings.call_timeout)
cards = Provider(CARDS, settings.cards_url, settings.call_timeout)

# One lease for every mode.
idempotency = Idempotency(
    settings.database_url,
    policy=ietf(lease=timedelta(seconds=settings.lease), ttl=timedelta(seconds=settings.ttl)),
    encryption=fernet(*settings.encryption_keys) if settings.encryption_keys else None,
)

# A customer waits for the money, so a provider that is back after a minute should not wait for us.
BACKOFF = Backoff(first=timedelta(seconds=0.5), longest=timedelta(seconds=10))
MAX_ATTEMPTS = 60
"""Some five minutes of trouble with these pauses; then an operator looks."""

prepare(database, idempotency)
