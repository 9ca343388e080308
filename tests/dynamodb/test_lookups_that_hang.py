"""A worker is never held by one piece of work: lookups of one endpoint leave places to the others."""

from __future__ import annotations

import pytest

from samekey.stores.dynamodb import queues
from tests.redis import lookups


def test_lookups_that_hang_hold_up_no_other_endpoint(dynamodb_url: str) -> None:
    lookups.lookups_that_hang_hold_up_no_other_endpoint(dynamodb_url)


def test_what_is_left_out_is_left_to_others(dynamodb_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "READ_AT_ONCE", 1)
    lookups.what_is_left_out_is_left_to_others(dynamodb_url)
