"""Servers with one fault each, by the finding that each must lead to."""

from __future__ import annotations

from typing import Any

from tests.check.base import Server

BROKEN: dict[str, list[type[Server]]] = {}
"""By the id of the finding."""


def leads_to(rule: str) -> Any:
    def listed(server: type[Server]) -> type[Server]:
        BROKEN.setdefault(rule, []).append(server)
        return server

    return listed
