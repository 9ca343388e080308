"""A worker is never held by one piece of work: lookups of one endpoint leave places to the others."""

from __future__ import annotations

from tests.redis import lookups


def test_lookups_that_hang_hold_up_no_other_endpoint(dynamodb_url: str) -> None:
    lookups.lookups_that_hang_hold_up_no_other_endpoint(dynamodb_url)


def test_what_is_left_out_is_put_off_and_not_counted(dynamodb_url: str) -> None:
    lookups.what_is_left_out_is_put_off_and_not_counted(dynamodb_url)
