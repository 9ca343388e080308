"""SQLModel's sessions in samekey's transactions: ``Session`` and ``AsyncSession`` in the place of SQLModel's.

See ``samekey.sqlalchemy``, whose classes these are with ``exec``.
"""

from __future__ import annotations

import sqlmodel
from sqlmodel.ext.asyncio.session import AsyncSession as PlainAsyncSession

from .sqlalchemy import Joins

__all__ = ["AsyncSession", "Session"]


class Session(Joins, sqlmodel.Session):
    """``sqlmodel.Session`` that joins the operation it is used in."""


class AsyncSession(PlainAsyncSession):
    """SQLModel's ``AsyncSession`` that joins the operation it is used in."""

    sync_session_class = Session
