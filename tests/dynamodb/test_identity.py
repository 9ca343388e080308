"""An identity secret on DynamoDB, where it is part of the place of every record."""

from __future__ import annotations

import pytest

from tests.chosen import whole
from tests.dynamodb.conftest import migrated
from tests.engine import identity
from tests.redis.test_identity import CHECKS

pytestmark = whole


@pytest.mark.parametrize("check", CHECKS)
def test_what_it_promises(dynamodb_url: str, check: identity.Check) -> None:
    check(migrated(dynamodb_url))
