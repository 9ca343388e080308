"""``settings.SAMEKEY``, read once: the ``Idempotency`` of views and middleware."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from django.conf import settings
from django.utils.module_loading import import_string

from ..core.policy import Policy, ietf, stripe, stripe_v2
from ..errors import ConfigurationError
from ..idempotency import Idempotency

_KNOWN: Final = (
    *("DATABASE", "URL", "TENANT", "BINDING", "PROFILE", "POLICY", "SCHEMA", "OPTIONS"),
    *("ROUTES", "UNDECORATED", "DECORATORS", "ON_ERROR", "OTHER_DATABASES"),
)
_PROFILES: Final[dict[str, Callable[..., Policy]]] = {
    "ietf": ietf,
    "stripe": stripe,
    "stripe_v2": stripe_v2,
}


@dataclass(frozen=True, slots=True)
class Settings:
    """``SAMEKEY`` as it was written."""

    given: Mapping[str, Any]

    @property
    def alias(self) -> str | None:
        """The ``DATABASES`` alias that carries the store; None where only a URL was given."""
        if "DATABASE" in self.given:
            return str(self.given["DATABASE"])
        return None if "URL" in self.given else "default"

    @property
    def url(self) -> str | None:
        return self.given.get("URL")

    @property
    def other_databases(self) -> frozenset[str]:
        """The aliases to which an operation may write although that stands whatever becomes of it."""
        return frozenset(self.given.get("OTHER_DATABASES", ()))

    def function(self, name: str) -> Callable[..., Any] | None:
        """A function that is given by itself or by its dotted path."""
        found = self.given.get(name)
        if isinstance(found, str):
            try:
                found = import_string(found)
            except ImportError as error:
                raise ConfigurationError(f"SAMEKEY[{name!r}] cannot be imported: {error}") from error
        if found is not None and not callable(found):
            raise ConfigurationError(f"SAMEKEY[{name!r}] must be a function of the request, not {found!r}.")
        return found

    def policy(self) -> Policy:
        profile = self.given.get("PROFILE", "ietf")
        if profile not in _PROFILES:
            raise ConfigurationError(
                f"SAMEKEY['PROFILE'] must be one of {', '.join(_PROFILES)}, not {profile!r}."
            )
        return _PROFILES[profile](**self.given.get("POLICY", {}))


def read() -> Settings:
    """``ConfigurationError`` for what would have no effect."""
    given = getattr(settings, "SAMEKEY", None)
    if given is None:
        raise ConfigurationError(
            "settings.SAMEKEY is missing. Write at least: SAMEKEY = {'DATABASE': 'default', "
            "'TENANT': 'samekey.django.by_user'}."
        )
    unknown = sorted(set(given).difference(_KNOWN))
    if unknown:
        raise ConfigurationError(
            f"SAMEKEY has {', '.join(unknown)}, which mean nothing. It may have: {', '.join(_KNOWN)}."
        )
    return Settings(given)


_making = threading.Lock()
made: list[Idempotency] = []
"""The one of this process, once somebody has asked for it."""


def the_idempotency() -> Idempotency:
    """The one of this process: decorators and middleware must share it."""
    with _making:
        if not made:
            made.append(_make(read()))
        return made[0]


def _make(said: Settings) -> Idempotency:
    options: dict[str, Any] = {"schema": said.given.get("SCHEMA", "samekey"), **said.given.get("OPTIONS", {})}
    if said.alias is None:
        assert said.url is not None
        return Idempotency(said.url, policy=said.policy(), **options)
    from .driver import drivers_on

    drivers = drivers_on(
        said.alias,
        said.url,
        pool_size=options.pop("pool_size", 10),
        timeout=options.pop("timeout", 5.0),
        prepared_statements=options.pop("prepared_statements", True),
    )
    return Idempotency(drivers, policy=said.policy(), **options)
