"""A session that outlives its operation, as thread-local ones do: it is an ordinary one again."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from flask import Flask
from sqlalchemy import create_engine, select
from sqlalchemy.orm import scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

from samekey import Idempotency
from samekey.errors import OperationOver
from samekey.sqlalchemy import Session
from samekey.wsgi import IdempotencyMiddleware
from tests.sqlalchemy.stacks import Base, Note, Stack, write

Shop = Callable[[str, str], tuple[int, object]]


@pytest.fixture(params=["commit", "rollback", "nothing"])
def shop(request: pytest.FixtureRequest, sqlite_url: str) -> Iterator[Shop]:
    """An application with one session for the thread, which it never closes."""
    engine = create_engine(sqlite_url, poolclass=NullPool)
    Base.metadata.create_all(engine)
    idempotency = Idempotency(engine)
    idempotency.migrate()
    db = scoped_session(sessionmaker(engine, class_=Session))
    app = Flask("notes")
    app.wsgi_app = IdempotencyMiddleware(  # type: ignore[method-assign]
        app.wsgi_app, idempotency=idempotency, tenant=lambda _: "everybody"
    )

    @app.teardown_request
    def end(_: BaseException | None) -> None:
        if request.param != "nothing":
            getattr(db, request.param)()

    @app.get("/<_>")
    def show(_: str) -> list[str]:
        return list(db.scalars(select(Note.text).order_by(Note.id)))

    @app.post("/<text>")
    @idempotency.atomic
    def add(text: str) -> tuple[dict[str, str], int]:
        db.add(Note(text=text))
        db.commit()
        return {"text": text}, 409 if text == "sold-out" else 201

    client = app.test_client()

    def ask(method: str, text: str) -> tuple[int, object]:
        found = client.open(f"/{text}", method=method, headers={"Idempotency-Key": f"key-{text}"})
        return found.status_code, found.json

    yield ask
    db.remove()
    idempotency.close()


def test_one_session_serves_request_after_request(shop: Shop) -> None:
    assert shop("POST", "tea")[0] == 201
    assert shop("GET", "all") == (200, ["tea"])
    assert shop("POST", "sold-out")[0] == 409
    assert shop("GET", "all") == (200, ["tea"])
    assert shop("POST", "milk")[0] == 201
    assert shop("POST", "cake")[0] == 201
    assert shop("GET", "all") == (200, ["tea", "milk", "cake"])


@pytest.mark.parametrize("end", [Session.commit, Session.rollback])
def test_a_session_that_was_ended_after_its_operation_is_an_ordinary_one(
    stack: Stack, end: Callable[[Session], None]
) -> None:
    def after(session: Session) -> None:
        end(session)
        write("later")(session)

    stack.after = after
    with stack.served() as post:
        assert post().status == 201
    assert (stack.after_error, stack.rows()) == (None, ["tea", "later"])


def test_what_was_refused_after_the_operation_is_not_sent_later(stack: Stack) -> None:
    def after(session: Session) -> None:
        for _ in range(2):
            with pytest.raises(OperationOver):
                write("refused")(session)
        session.rollback()
        write("later")(session)

    stack.after = after
    with stack.served() as post:
        assert post().status == 201
    assert (stack.after_error, stack.rows()) == (None, ["tea", "later"])
