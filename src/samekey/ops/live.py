"""Who sends keys and who does not, from the metrics of an application that runs.

    read_live(["http://127.0.0.1:9464/metrics"])

A source is whatever shows the metrics as text: the endpoint of each process (``samekey.ops.prometheus``), a
Prometheus server that has them all (its ``/federate``), or a file. What several sources say is added up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.error import URLError
from urllib.request import urlopen

from ..engine.keyuse import ABSENT, KEY_USE, MISSING, SENT, WARNED
from ..errors import ConfigurationError
from .metrics import COUNTERS, REQUEST

PATIENCE: Final = 10.0
"""Seconds in which a source must answer: a scrape of ours waits for the store for one."""
LARGEST: Final = 64 * 1024 * 1024
"""Bytes that are read of a source; a Prometheus server may have much else to tell."""


@dataclass(slots=True)
class LiveUse:
    """What came to one endpoint since its processes have started, by what came as a key."""

    by_key: Counter[str] = field(default_factory=Counter)
    """``sent``, ``malformed``, ``absent``, ``warned``, ``missing``: see ``samekey.engine.keyuse``."""
    keyless: Counter[str] = field(default_factory=Counter)
    """Requests without a key by tenant, where the metrics tell tenants apart."""

    @property
    def sent(self) -> int:
        return self.by_key[SENT]

    @property
    def without(self) -> int:
        return sum(self.by_key[key] for key in (ABSENT, WARNED, MISSING))


def read_live(sources: Iterable[str]) -> dict[str, LiveUse]:
    """By endpoint (``POST /payments``). ``ConfigurationError`` where a source cannot be read, or is of an
    application that counts nothing."""
    found: dict[str, LiveUse] = {}
    for source in sources:
        _add(found, source, _text(source))
    return found


def _add(found: dict[str, LiveUse], source: str, text: str) -> None:
    try:
        from prometheus_client.parser import text_string_to_metric_families
    except ModuleNotFoundError:
        raise ConfigurationError(
            "Metrics are read with prometheus-client: pip install 'samekey[prometheus]'."
        ) from None
    name, is_there = COUNTERS[REQUEST].prometheus, False
    try:
        samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
    except (ValueError, KeyError, IndexError) as error:
        raise ConfigurationError(f"{source} does not show metrics in Prometheus' text format.") from error
    for sample in samples:
        if sample.name != name:
            continue
        is_there = True
        endpoint, key = sample.labels.get("endpoint"), sample.labels.get("key")
        if endpoint is None or key not in KEY_USE:
            continue  # the zero that a process begins with
        use, count = found.setdefault(endpoint, LiveUse()), int(sample.value)
        use.by_key[key] += count
        if key not in (ABSENT, WARNED, MISSING):
            continue
        tenant = sample.labels.get("tenant")
        if tenant is not None:
            use.keyless[tenant] += count
    if not is_there:
        raise ConfigurationError(
            f"{source} has no {name}: it does not show the metrics of an application that samekey guards. "
            "Give the address of samekey.ops.prometheus, or a Prometheus server's /federate with that name."
        )


def _text(source: str) -> str:
    try:
        if not source.startswith(("http://", "https://")):
            return Path(source).read_text()
        with urlopen(source, timeout=PATIENCE) as answer:  # noqa: S310 - only http and https come here
            body: bytes = answer.read(LARGEST + 1)
    except (OSError, URLError, ValueError) as error:
        raise ConfigurationError(f"{source} cannot be read: {error}.") from error
    if len(body) > LARGEST:
        raise ConfigurationError(f"{source} shows more than {LARGEST} bytes. Ask for one metric only.")
    return body.decode("utf-8", "replace")
