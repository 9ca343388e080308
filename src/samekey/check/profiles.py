"""What differs between the published rules that an endpoint may follow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Profile:
    """One published set of rules."""

    name: str
    quoted: bool
    """Whether a key is sent as a String of RFC 9651, in quotation marks."""
    misuse: frozenset[int]
    """The statuses for a used key with another request."""
    errors_5xx: Literal["rerun", "replay"]
    """Whether a 5xx leaves the key usable, or is the answer for good."""
    validation_kept: bool
    """Whether a refused request may be remembered, so that its correction needs a new key."""
    marker: bool
    """Whether replays are marked."""
    problems: bool
    """Whether refusals are problem details."""

    @property
    def silent(self) -> frozenset[str]:
        """Rules that these say nothing about."""
        out = {"errors.forgotten-5xx" if self.errors_5xx == "rerun" else "errors.remembered-5xx"}
        if not self.quoted:
            out |= {"header.syntax", "header.spellings", "header.malformed-taken"}
        if not self.marker:
            out.add("replay.unmarked")
        if not self.problems:
            out |= {"documentation.problem", "documentation.link"}
        return frozenset(out)


PROFILES = {
    profile.name: profile
    for profile in (
        Profile("ietf", True, frozenset({422}), "rerun", True, False, True),
        Profile("stripe", False, frozenset({400}), "replay", False, True, False),
        Profile("stripe_v2", False, frozenset({400}), "rerun", False, True, False),
    )
}


def profile_of(name: str) -> Profile:
    """By name; an unknown one is a :class:`~samekey.errors.ConfigurationError`."""
    if name not in PROFILES:
        raise ConfigurationError(f"There is no profile {name!r}: use {', '.join(PROFILES)}.")
    return PROFILES[name]
