"""One application in several stacks: what a test does to a session stands in each of them.

A test says what is done before the claim, in the handler and after the answer, as functions of a session.
They are sync functions; in async stacks ``AsyncSession.run_sync`` runs them, so their waits are awaited.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fastapi import Depends, FastAPI
from fastapi.responses import JSONResponse
from flask import Flask, g
from sqlalchemy import ForeignKey, String, create_engine, delete, event, select, update
from sqlalchemy.engine import Engine
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship, sessionmaker
from sqlalchemy.pool import NullPool
from starlette.testclient import TestClient

from samekey import Idempotency
from samekey.asgi import IdempotencyMiddleware as ASGIMiddleware
from samekey.sqlalchemy import AsyncSession, Session
from samekey.wsgi import IdempotencyMiddleware as WSGIMiddleware

Act = Callable[[Session], Any]


class Base(DeclarativeBase):
    pass


class Note(Base):
    """What handlers write."""

    __tablename__ = "notes"

    id: Mapped[int] = mapped_column(primary_key=True)
    text: Mapped[str] = mapped_column(String(60), unique=True)
    about: Mapped[int | None] = mapped_column(ForeignKey("notes.id"))
    answers: Mapped[list[Note]] = relationship()


class Declined(Exception):
    """A card is. It may carry what words its page, and that is read wherever the error passes."""

    def __init__(self, page: Callable[[], Any] = lambda: {"declined": True}) -> None:
        self.page = page


async def _told_declined(_: Any, error: Any) -> JSONResponse:
    return JSONResponse(error.page(), 402)


@dataclass(frozen=True)
class Got:
    status: int
    body: Any
    replayed: bool


DRIVERS = {"postgres": ("psycopg", "asyncpg"), "mariadb": ("pymysql", "asyncmy"), "sqlite": ("", "aiosqlite")}


def url_for(url: str, *, is_async: bool) -> str:
    """As SQLAlchemy wants it."""
    scheme, _, rest = url.partition("://")
    store = {"postgresql": "postgres", "mysql": "mariadb"}.get(scheme, scheme)
    driver = DRIVERS[store][is_async]
    return f"{scheme}+{driver}://{rest}" if driver else url


class Stack:
    """An application around one handler, with a session that is made before the claim."""

    def __init__(self, kind: str, url: str, **options: Any) -> None:
        self.kind = kind
        self.is_async = kind == "async"
        self.act: Act = write("tea")
        self.before: Act | None = None
        self.after: Act | None = None
        self.on_decline: Act | None = None
        """What is done with the session where the handler has raised ``Declined``, which is answered 402."""
        self.teardown: Act | None = None
        """Flask only: what is done after the handler, and before the operation ends."""
        self._last: list[Session] = []
        self.after_error: BaseException | None = None
        self.runs = 0
        self.plain = create_engine(url_for(url, is_async=False), poolclass=NullPool)
        self.tenant = uuid.uuid4().hex
        Base.metadata.create_all(self.plain)
        with self.plain.begin() as connection:
            connection.execute(update(Note).values(about=None))  # MariaDB deletes them one by one
            connection.execute(delete(Note))
        self.engine: Engine
        self.given: Engine | AsyncEngine
        if self.is_async:
            self.given = create_async_engine(url_for(url, is_async=True), pool_size=2, max_overflow=0)
            self.engine = self.given.sync_engine
        else:
            self.given = self.engine = create_engine(
                url_for(url, is_async=False), pool_size=2, max_overflow=0
            )
        if url.startswith("sqlite"):
            event.listen(self.engine, "connect", _enforce_foreign_keys)
        self.idempotency = Idempotency(self.given)
        self.idempotency.migrate()
        self.sessions: Any
        if isinstance(self.given, AsyncEngine):
            self.sessions = async_sessionmaker(self.given, class_=AsyncSession, **options)
        else:
            self.sessions = sessionmaker(self.engine, class_=Session, **options)

    def rows(self) -> list[str]:
        """What stands, as somebody else sees it."""
        with self.plain.connect() as connection:
            return list(connection.scalars(select(Note.text).order_by(Note.id)))

    @contextmanager
    def served(self) -> Iterator[Callable[..., Got]]:
        if self.kind == "flask":
            client = self._flask().test_client()

            def send(key: str = "k") -> Got:
                found = client.post("/", headers={"Idempotency-Key": key}, json={})
                session = self._last.pop()
                try:
                    if self.after is not None:
                        self.after(session)
                except Exception as error:
                    self.after_error = error
                session.close()
                return Got(found.status_code, found.json, "idempotent-replayed" in found.headers)

            yield send
            self.idempotency.close()
        else:
            app = self._fastapi_async() if self.is_async else self._fastapi_sync()
            with TestClient(app, raise_server_exceptions=False) as served:

                def post(key: str = "k") -> Got:
                    found = served.post("/", headers={"Idempotency-Key": key}, json={})
                    is_json = found.headers["content-type"].startswith("application/json")
                    body = found.json() if is_json else found.text
                    return Got(found.status_code, body, "idempotent-replayed" in found.headers)

                yield post
                if isinstance(self.given, AsyncEngine):
                    assert served.portal is not None
                    served.portal.call(self.idempotency.aclose)
                    served.portal.call(self.given.dispose)
                else:
                    self.idempotency.close()
        self.engine.dispose(close=not self.is_async)
        self.plain.dispose()

    def _answer(self, made: Any) -> tuple[int, Any]:
        if isinstance(made, tuple):
            return made
        return 201, {"run": self.runs, "made": made}

    def _fastapi_async(self) -> FastAPI:
        app = FastAPI(exception_handlers={Declined: _told_declined})
        app.add_middleware(ASGIMiddleware, idempotency=self.idempotency, tenant=lambda _: self.tenant)

        async def get_session() -> AsyncIterator[AsyncSession]:
            async with self.sessions() as session:
                if self.before is not None:
                    await session.run_sync(self.before)
                try:
                    yield session
                except Declined as error:
                    error.page()
                    if self.on_decline is not None:
                        await session.run_sync(self.on_decline)
                    raise
                if self.after is not None:
                    try:
                        await session.run_sync(self.after)
                    except Exception as error:
                        self.after_error = error

        @app.post("/")
        @self.idempotency.atomic
        async def handler(session: Any = Depends(get_session)) -> JSONResponse:  # noqa: B008
            self.runs += 1
            status, body = self._answer(await session.run_sync(self.act))
            return JSONResponse(body, status)

        return app

    def _fastapi_sync(self) -> FastAPI:
        app = FastAPI(exception_handlers={Declined: _told_declined})
        app.add_middleware(ASGIMiddleware, idempotency=self.idempotency, tenant=lambda _: self.tenant)

        def get_session() -> Iterator[Session]:
            with self.sessions() as session:
                if self.before is not None:
                    self.before(session)
                try:
                    yield session
                except Declined as error:
                    error.page()
                    if self.on_decline is not None:
                        self.on_decline(session)
                    raise
                if self.after is not None:
                    try:
                        self.after(session)
                    except Exception as error:
                        self.after_error = error

        @app.post("/")
        @self.idempotency.atomic
        def handler(session: Any = Depends(get_session)) -> JSONResponse:  # noqa: B008
            self.runs += 1
            status, body = self._answer(self.act(session))
            return JSONResponse(body, status)

        return app

    def _flask(self) -> Flask:
        app = Flask("notes")
        app.wsgi_app = WSGIMiddleware(  # type: ignore[method-assign]
            app.wsgi_app, idempotency=self.idempotency, tenant=lambda _: self.tenant
        )

        @app.before_request
        def begin() -> None:
            g.session = self.sessions()
            self._last.append(g.session)
            if self.before is not None:
                self.before(g.session)

        @app.errorhandler(Declined)
        def declined(error: Declined) -> Any:
            page = error.page()
            if self.on_decline is not None:
                self.on_decline(g.session)
            return page, 402

        @app.teardown_request
        def end(_: BaseException | None) -> None:
            if self.teardown is not None:
                self.teardown(g.session)

        @app.post("/")
        @self.idempotency.atomic
        def handler() -> Any:
            self.runs += 1
            status, body = self._answer(self.act(g.session))
            return body, status

        return app


def _enforce_foreign_keys(connection: Any, _: Any) -> None:
    cursor = connection.cursor()
    cursor.execute("pragma foreign_keys = on")
    cursor.close()


def write(*texts: str, commit: bool = True) -> Act:
    """A service that writes, and commits as services do."""

    def act(session: Session) -> list[str]:
        session.add_all([Note(text=text) for text in texts])
        if commit:
            session.commit()
        return list(texts)

    return act
