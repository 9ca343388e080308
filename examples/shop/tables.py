"""The shop's table as SQLAlchemy's model of it, for the shops that write through sessions."""

from sqlalchemy.orm import DeclarativeBase, Mapped, MappedAsDataclass, mapped_column

from .books import prepare

__all__ = ["Row", "async_url", "prepare", "sync_url"]


class Base(MappedAsDataclass, DeclarativeBase):
    pass


class Row(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True, init=False)
    account: Mapped[str]
    sku: Mapped[str]
    quantity: Mapped[int]


def sync_url(url: str) -> str:
    """With the driver that SQLAlchemy shall use."""
    return url.replace("postgresql://", "postgresql+psycopg://", 1)


def async_url(url: str) -> str:
    """The same for an AsyncEngine."""
    return url.replace("postgresql://", "postgresql+asyncpg://", 1).replace("sqlite:", "sqlite+aiosqlite:", 1)
