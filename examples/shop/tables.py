"""The shop's table and its service in SQLAlchemy, as applications have them: nothing in it is samekey's."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, MappedAsDataclass, Session, mapped_column

from .books import prepare

__all__ = ["Row", "async_url", "listed", "listed_async", "prepare", "sync_url", "write", "write_async"]


class Base(MappedAsDataclass, DeclarativeBase):
    pass


class Row(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True, init=False)
    account: Mapped[str]
    sku: Mapped[str]
    quantity: Mapped[int]


def write(session: Session, account: str, order: dict[str, Any]) -> Row:
    session.add(row := Row(account=account, **order))
    session.commit()
    session.refresh(row)
    return row


async def write_async(session: AsyncSession, account: str, order: dict[str, Any]) -> Row:
    session.add(row := Row(account=account, **order))
    await session.commit()
    await session.refresh(row)
    return row


def listed(session: Session, account: str) -> Sequence[Row]:
    return session.scalars(select(Row).where(Row.account == account).order_by(Row.id)).all()


async def listed_async(session: AsyncSession, account: str) -> Sequence[Row]:
    found = await session.scalars(select(Row).where(Row.account == account).order_by(Row.id))
    return found.all()


def sync_url(url: str) -> str:
    """With the driver that SQLAlchemy shall use."""
    return url.replace("postgresql://", "postgresql+psycopg://", 1)


def async_url(url: str) -> str:
    """The same for an AsyncEngine."""
    return url.replace("postgresql://", "postgresql+asyncpg://", 1).replace("sqlite:", "sqlite+aiosqlite:", 1)
