"""Who is outside of the service: the providers, each in a process of its own."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from examples.provider import Provider
from lab.processes import LOOPBACK
from lab.proxy import FaultProxy

PROVIDERS: Final = ("provider", "cards")
"""As the service calls them: in its settings and in the paths of its webhooks."""


class Outside:
    """One provider: the process, and how often it has recognised a key."""

    def __init__(self, name: str, process: Provider, secret: str) -> None:
        self.name = name
        self.process = process
        self.secret = secret
        self._recognised = 0

    def proxy(self) -> FaultProxy:
        return FaultProxy(LOOPBACK, urlsplit(self.process.url).port or 80)

    def restart(self) -> None:
        """SIGKILL, and a new start with what its ledger says. Its figures begin anew, so they are kept."""
        self._recognised = self.recognised()
        self.process.kill9()
        self.process.start_again()

    def recognised(self) -> int:
        """How often it was asked for something again, and knew it by its key."""
        return self._recognised + self.process.figures()["replays"]
