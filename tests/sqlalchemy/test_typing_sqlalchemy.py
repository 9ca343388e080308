"""Type checkers see through the session classes: what they give is what SQLAlchemy's and SQLModel's give."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chosen import whole
from tests.test_typing import _errors

RIGHT = """\
from sqlalchemy import create_engine, select
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

import samekey.sqlmodel
from samekey import Idempotency
from samekey.sqlalchemy import AsyncSession, Session


class Base(DeclarativeBase):
    pass


class Row(Base):
    __tablename__ = "rows"
    id: Mapped[int] = mapped_column(primary_key=True)


engine, loops = create_engine("sqlite:///a.db"), create_async_engine("sqlite+aiosqlite:///a.db")
sessions = sessionmaker(engine, class_=Session)
async_sessions = async_sessionmaker(loops, class_=AsyncSession)
idempotency, other = Idempotency(engine), Idempotency(loops, pool_size=3)


@idempotency.atomic
def handler(number: int) -> int:
    with sessions() as session:
        session.add(Row())
        session.commit()
        return session.merge(session.scalars(select(Row)).one()).id.bit_length()


async def service(session: AsyncSession) -> int:
    await session.commit()
    return (await session.scalars(select(Row))).one().id


async def use() -> None:
    async with async_sessions() as session:
        (await service(session)).bit_length()
    samekey.sqlmodel.Session(engine).close()


handler(1).bit_length()
"""
WRONG = [
    "Idempotency(42)",
    "sessions().comit()",
    "sessions().scalars(select(Row)).one().nam",
    "handler('one')",
]


@whole
@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_type_checkers_see_through_the_sessions(checker: str, tmp_path: Path) -> None:
    page = tmp_path / "right.py"
    page.write_text(RIGHT)
    code, said = _errors(checker, page)
    assert code == 0, said
    wrong = tmp_path / "wrong.py"
    wrong.write_text(page.read_text() + "\n" + "\n".join(WRONG) + "\n")
    code, said = _errors(checker, wrong)
    first = page.read_text().count("\n") + 2
    for number, line in enumerate(WRONG, first):
        assert f"wrong.py:{number}:" in said, f"{checker} lets this pass: {line}\n{said}"
