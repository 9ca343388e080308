"""What a lookup or an operator finds out is about one effect: the one that is open."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.effects import Effect, another_step
from ..core.record import Record
from ..errors import ConfigurationError
from ..evidence import Declined, Evidence, Executed


def check_step(finding: Evidence, record: Record, effects: Sequence[Effect]) -> None:
    """``ConfigurationError`` if it names what another step of the same operation has made: money that was set
    aside is not money that was taken."""
    given = finding.provider_id if isinstance(finding, Executed | Declined) else None
    step = another_step(given, record, effects)
    if step is None:
        return
    raise ConfigurationError(
        f"The provider's id {given!r} is that of the step {step!r}, and that is not the one asked about: "
        "nothing was settled. A lookup finds that one in record.open_effect, with its downstream key. Where "
        "one object of the provider's stands for both steps, leave out its id."
    )
