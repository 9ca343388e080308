"""Whose keys a store holds: those of one identity secret, or of none.

The secret is part of every key's name. With another one, no key would be found again, and every retry would
run: so the first process that uses a store writes down a mark of its secret, and whoever has another is
refused.
"""

from __future__ import annotations

from ..errors import SchemaMismatch

NOBODYS = "none"
"""Stands for the mark where there is no secret."""


def must_agree(there: str, ours: str | None) -> None:
    """``SchemaMismatch`` if the keys in the store were made with another secret."""
    if there == (ours or NOBODYS):
        return
    made = "without an identity_secret" if there == NOBODYS else "with another identity_secret"
    have = "has none" if ours is None else "has one"
    raise SchemaMismatch(
        f"The keys in this store were made {made}, and this process {have}: none of them would be found "
        "again, and every retry would run a second time. Give the secret that they were made with. It is "
        "never changed; to begin with another, use another schema, prefix or table."
    )
