"""What start-up finds wrong with an application."""

from __future__ import annotations

from typing import Any

from samekey.edges.startup import look


def problems(*arguments: Any, **options: Any) -> list[str]:
    """As sentences."""
    return list(look(*arguments, **options))
