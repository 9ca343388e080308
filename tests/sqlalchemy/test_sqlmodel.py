"""SQLModel's sessions, with ``exec``, in an operation."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy.ext.asyncio import create_async_engine
from sqlmodel import Field, SQLModel, create_engine, select

from samekey import Idempotency
from samekey.sqlmodel import AsyncSession, Session


class Letter(SQLModel, table=True):
    id: int | None = Field(default=None, primary_key=True)
    text: str


def test_a_session_of_sqlmodels_is_in_the_operation(sqlite_url: str) -> None:
    engine = create_engine(sqlite_url)
    SQLModel.metadata.create_all(engine, tables=[Letter.__table__])  # type: ignore[attr-defined]
    idempotency = Idempotency(engine)

    def write(*, fail: bool) -> list[str]:
        with Session(engine) as session:
            session.add(Letter(text="tea"))
            session.commit()
            if fail:
                raise ValueError("after the commit")
            return [letter.text for letter in session.exec(select(Letter)).all()]

    with pytest.raises(ValueError, match="after the commit"):
        idempotency.once(tenant="ann", key="k", run=lambda: write(fail=True), mode="atomic")
    assert idempotency.once(tenant="ann", key="k", run=lambda: write(fail=False), mode="atomic") == ["tea"]
    idempotency.close()
    engine.dispose()


def test_an_async_session_of_sqlmodels_is_in_the_operation(sqlite_url: str) -> None:
    async def run() -> None:
        engine = create_async_engine(sqlite_url.replace("sqlite", "sqlite+aiosqlite", 1))
        async with engine.begin() as connection:
            await connection.run_sync(
                lambda sync: SQLModel.metadata.create_all(sync, tables=[Letter.__table__])  # type: ignore[attr-defined]
            )
        idempotency = Idempotency(engine)

        async def write(*, fail: bool) -> list[str]:
            async with AsyncSession(engine, expire_on_commit=False) as session:
                session.add(Letter(text="tea"))
                await session.commit()
                if fail:
                    raise ValueError("after the commit")
                return [letter.text for letter in (await session.exec(select(Letter))).all()]

        async def once(*, fail: bool) -> object:
            run = write(fail=fail)
            return await idempotency.once_async(tenant="ann", key="k", run=lambda: run, mode="atomic")

        with pytest.raises(ValueError, match="after the commit"):
            await once(fail=True)
        assert await once(fail=False) == ["tea"]
        await idempotency.aclose()
        await engine.dispose()

    asyncio.run(run())
