"""SQLAlchemy's sessions in samekey's transactions: the names that users import.

``sessionmaker(engine, class_=Session)`` or ``async_sessionmaker(engine, class_=AsyncSession)``, and
``Idempotency(engine)``. A session class of another library joins with ``class Mine(Joins, Theirs)``.
"""

from __future__ import annotations

from .session import AsyncSession, Joins, Session

__all__ = ["AsyncSession", "Joins", "Session"]
