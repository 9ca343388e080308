"""What a session's objects show once their operation has fallen: whoever answers the error reads them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import insert, select, update
from sqlalchemy.exc import IntegrityError

from samekey.errors import CommitRefused
from samekey.sqlalchemy import Session
from tests.chosen import whole
from tests.sqlalchemy.stacks import Declined, Note, Stack

_MORE = ("async-postgres", "sync-postgres", "async-mariadb", "flask-sqlite")
EVERY = pytest.mark.parametrize(
    "make", ["async-sqlite", "sync-sqlite", *(pytest.param(one, marks=whole) for one in _MORE)], indirect=True
)


def _account(session: Session) -> Note:
    return session.scalars(select(Note).where(Note.text.like("account%"))).one()


def _loaded(session: Session) -> Note:
    found = _account(session)
    session.flush()
    session.add(Note(text="order"))  # so that there is something to fall
    return found


def _added(session: Session) -> Note:
    session.add(made := Note(text="account"))
    return made


def _flushed(session: Session) -> Note:
    session.add(made := Note(text="account of another"))
    session.flush()
    return made


def _changed(session: Session) -> Note:
    found = _account(session)
    found.text = "account, changed"
    return found


def _changed_and_flushed(session: Session) -> Note:
    found = _changed(session)
    session.flush()
    return found


def _changed_and_committed(session: Session) -> Note:
    found = _changed(session)
    session.commit()
    session.refresh(found)
    return found


def _deleted(session: Session) -> Note:
    session.delete(found := _account(session))
    return found


def _deleted_and_flushed(session: Session) -> Note:
    found = _deleted(session)
    session.flush()
    return found


KINDS = [
    _loaded,
    _added,
    _flushed,
    _changed,
    _changed_and_flushed,
    _changed_and_committed,
    _deleted,
    _deleted_and_flushed,
]


def _with_an_account(stack: Stack) -> None:
    with stack.plain.begin() as connection:
        connection.execute(insert(Note).values(text="account"))


@EVERY
@pytest.mark.parametrize("kind", KINDS)
def test_who_answers_an_error_reads_what_the_handler_had(
    stack: Stack, kind: Callable[[Session], Note]
) -> None:
    """Each kind of object, and one that was loaded before the claim; in a dependency and in an error page."""
    _with_an_account(stack)
    before: list[Note] = []

    def load(session: Session) -> None:
        before[:] = [_account(session)]

    def act(session: Session) -> None:
        held = kind(session)
        raise Declined(lambda: {"user": before[0].text[:7], "held": held.text[:7]})

    stack.before, stack.act = load, act
    with stack.served() as post:
        for _ in range(2):
            got = post()
            assert (got.status, got.body) == (402, {"user": "account", "held": "account"})
    assert stack.rows() == ["account"]


@EVERY
@pytest.mark.parametrize("kind", [_changed, _changed_and_flushed, _deleted, _deleted_and_flushed, _loaded])
@pytest.mark.parametrize("rolls_back", [True, False])
def test_a_session_that_is_used_again_loads_them_anew(
    stack: Stack, kind: Callable[[Session], Note], rolls_back: bool
) -> None:
    _with_an_account(stack)
    held: list[Note] = []
    seen: list[str] = []

    def act(session: Session) -> None:
        held[:] = [kind(session)]
        raise Declined

    def go_on(session: Session) -> None:
        with stack.plain.begin() as connection:
            connection.execute(update(Note).values(text="account, since then"))
        if rolls_back:
            session.rollback()
        found = session.get(Note, held[0].id)
        assert found is held[0]
        seen.append(found.text)
        found.text += "!"
        session.commit()

    stack.act, stack.on_decline = act, go_on
    with stack.served() as post:
        assert post().status == 402
    assert seen == ["account, since then"]
    assert stack.rows() == ["account, since then!"]


@EVERY
def test_a_change_of_a_value_that_was_never_stored_is_refused(stack: Stack) -> None:
    _with_an_account(stack)
    held: list[Note] = []

    def act(session: Session) -> None:
        held[:] = [_changed_and_flushed(session)]
        raise Declined

    def go_on(session: Session) -> None:
        held[0].text += ", and again"
        with pytest.raises(CommitRefused, match="never stored"):
            session.commit()
        session.rollback()
        held[0].text += ", after all"
        session.commit()

    stack.act, stack.on_decline = act, go_on
    with stack.served() as post:
        assert post().status == 402
    assert stack.rows() == ["account, after all"]


@EVERY
@pytest.mark.parametrize("flushes", [True, False])
def test_what_the_handler_has_made_is_not_added_by_a_cascade(stack: Stack, flushes: bool) -> None:
    """It hangs on an object that stays in the session, to which whoever answers hangs something too."""
    _with_an_account(stack)
    held: list[Note] = []

    def act(session: Session) -> None:
        held[:] = [_account(session)]
        held[0].answers.append(Note(text="order"))
        if flushes:
            session.flush()
        raise Declined

    def go_on(session: Session) -> None:
        held[0].answers.append(Note(text="attempt"))
        session.add(held[0])
        session.commit()

    stack.act, stack.on_decline = act, go_on
    with stack.served() as post:
        assert post().status == 402
    assert stack.rows() == ["account", "attempt"]


def _swallows(session: Session) -> None:
    session.add(Note(text="account"))
    with pytest.raises(IntegrityError):
        session.flush()


def _holds_back(session: Session) -> None:
    with session.no_autoflush:
        session.add(Note(text="account"))


@EVERY
@pytest.mark.parametrize("act", [_holds_back, _swallows])
def test_of_a_refusal_nothing_is_sent_so_it_is_the_answer(
    stack: Stack, act: Callable[[Session], None]
) -> None:
    """What cannot be stored was not to be stored. Nor does whoever commits afterwards store anything."""
    _with_an_account(stack)

    def refuses(session: Session) -> tuple[int, dict[str, str]]:
        act(session)
        return 409, {"error": "there is one"}

    stack.act, stack.after = refuses, Session.commit
    with stack.served() as post:
        for replayed in (False, True):
            got = post()
            assert (got.status, got.body, got.replayed) == (409, {"error": "there is one"}, replayed)
    assert stack.rows() == ["account"]


@EVERY
def test_nothing_is_sent_either_of_what_is_to_be_done_elsewhere(stack: Stack) -> None:
    """307 says that nothing was done here: everything falls, and a retry runs again."""
    _with_an_account(stack)

    def leads_on(session: Session) -> tuple[int, dict[str, str]]:
        _holds_back(session)
        return 307, {"see": "the other region"}

    stack.act = leads_on
    with stack.served() as post:
        for _ in range(2):
            got = post()
            assert (got.status, got.body, got.replayed) == (307, {"see": "the other region"}, False)
    assert stack.rows() == ["account"]
