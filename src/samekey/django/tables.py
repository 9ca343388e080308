"""The names of samekey's tables as Django writes them."""

from __future__ import annotations

from django.db import connections

from ..errors import SamekeyError
from .conf import read


def table(name: str) -> str:
    """On PostgreSQL in a schema of their own, elsewhere with a prefix."""
    try:
        said = read()
    except SamekeyError:
        return f"samekey_{name}"  # a check says what is wrong
    if said.alias in connections.settings and _is_postgres(str(said.alias)):
        return f'"{said.given.get("SCHEMA", "samekey")}"."{name}"'
    return f"samekey_{name}"


def _is_postgres(alias: str) -> bool:
    return "postg" in str(connections.settings[alias]["ENGINE"])
