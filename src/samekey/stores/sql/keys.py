"""The key table of a SQL store: the programs of every store, on the statements of one dialect."""

from __future__ import annotations

from ..keys import Keys as AnyKeys
from .queries import Queries


class SqlKeys(AnyKeys):
    """Programs on the key table of one dialect."""

    def __init__(self, queries: Queries) -> None:
        super().__init__(queries)
        self.queries = queries
