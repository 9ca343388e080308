"""The pytest plugin. It is loaded by itself, and brings nothing along until a fixture is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from ..idempotency import Idempotency
    from .kit import Kit


@pytest.fixture
def samekey_url(tmp_path: Path) -> str:
    """A store of this test's own: a new file of SQLite. Override it to test on your own database."""
    return f"sqlite:///{tmp_path / 'samekey.db'}"


@pytest.fixture
def samekey_kit() -> Iterator[Callable[..., Kit]]:
    """``samekey_kit(app, idempotency, headers=…)``: your application, stopped when the test ends."""
    from .kit import Kit

    with ExitStack() as kits:

        def open_kit(app: Any, idempotency: Idempotency, **options: Any) -> Kit:
            return kits.enter_context(Kit(app, idempotency, **options))

        yield open_kit
