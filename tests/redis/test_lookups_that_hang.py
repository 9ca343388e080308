"""A worker is never held by one piece of work: lookups of one endpoint leave places to the others."""

from __future__ import annotations

import pytest

from samekey.stores.redis import finding
from tests.redis import lookups


def test_lookups_that_hang_hold_up_no_other_endpoint(redis_url: str) -> None:
    lookups.lookups_that_hang_hold_up_no_other_endpoint(redis_url)


def test_what_is_left_out_is_left_to_others(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finding, "PAGE", 1)
    lookups.what_is_left_out_is_left_to_others(redis_url)
