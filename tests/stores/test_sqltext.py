"""Which texts would end a transaction, and which leave traces: by PostgreSQL's lexical rules."""

from __future__ import annotations

import pytest

from samekey.drivers.sqltext import SideEffect, effect_of, may_change_role

ENDS = [
    "commit",
    "COMMIT",
    "  Commit ; ",
    "commit and chain",
    "COMMIT WORK AND NO CHAIN",
    "end",
    "END TRANSACTION",
    "rollback",
    "ROLLBACK WORK",
    "rollback and chain",
    "abort",
    "begin",
    "BEGIN ISOLATION LEVEL SERIALIZABLE",
    "start transaction read only",
    "prepare transaction 'x'",
    "commit prepared 'x'",
    "rollback prepared 'x'",
    "-- a comment\ncommit",
    "/* a /* nested */ comment */ commit",
    "\n\t/**/--\n/* */COMMIT--",
    "select 1; commit",
    "select 1;commit;select 2",
    "insert into t values ('a;b'); rollback;",
    "insert into t values (E'it\\'s'); commit",
    "select $$ ; $$; commit",
    "select $body$ $$ $body$; commit; select $$x$$",
    'select 1 as "a;b"; commit',
    "; ; commit",
    "select $€$ ' $€$; commit; select $€$ ' $€$",
    "select 1 as €$$; commit; select 2 as €$$",
    "select 1 as ٣$$; commit; select 2 as ٣$$",
    "select e'a'\n'\\''; commit; select 1 --'",
    "select e'a' -- x\n -- y\r '\\''; commit; select 1 --'",
    "select 1 --\r; commit",
    "create table t (begin atomic); commit",
    "select ';' -- ;\n; end",
    "create function f() returns int begin atomic select 1; end; commit",
    "create function f() returns int begin atomic select case when true then 1 end; end; commit",
]
HARMLESS = [
    "select 1",
    "select 'commit'",
    "insert into t values ('; commit')",
    "insert into t values ('it''s; commit;')",
    "insert into t values (E'\\'; commit; ')",
    "select $$; commit; $$",
    "select $a$; commit; $$ ; rollback; $a$",
    'select 1 as "x; commit"',
    "select 1 -- ; commit",
    "select 1 /* ; commit */",
    "select 1 as commit",
    "savepoint a",
    "rollback to a",
    "ROLLBACK WORK TO SAVEPOINT a",
    "rollback transaction to a; select 1",
    "release savepoint a",
    "create function f() returns int begin atomic select 1; select case when true then 1 end; end",
    "do $$ begin perform 1; end $$",
    "set local search_path to public",
    "start_of_something",
    "commitment",
    "select a$b$; select c$b$",
    "",
    "';",
]
TRACES = [
    "prepare mine as select 1",
    "deallocate all",
    "discard plans",
    "load 'auto_explain'",
    "listen channel",
    "select 1; listen channel",
]


@pytest.mark.parametrize("text", ENDS)
def test_a_text_that_ends_the_transaction(text: str) -> None:
    assert effect_of(text) is SideEffect.ENDS


@pytest.mark.parametrize("text", HARMLESS)
def test_a_text_that_does_not(text: str) -> None:
    assert effect_of(text) is SideEffect.NONE


def test_a_session_in_which_backslashes_escape_in_every_string() -> None:
    text = r"select '\''; commit; select 1 --'"
    assert effect_of(text) is SideEffect.NONE
    assert effect_of(text, backslashes=True) is SideEffect.ENDS
    assert effect_of(r"insert into t values ('\'; commit; ')", backslashes=True) is SideEffect.ENDS, (
        "to be safe"
    )


@pytest.mark.parametrize("text", TRACES)
def test_a_text_that_stays_in_the_session(text: str) -> None:
    assert effect_of(text) is SideEffect.TRACES


@pytest.mark.parametrize(
    ("text", "may"),
    [
        ("insert into payments (id, cents) values ($1, $2) returning id", False),
        ("INSERT INTO shop.payments(id) SELECT coalesce(max(id), 0) + 1 FROM shop.payments", False),
        ("insert into t (a) values (%s) on conflict (a) do update set a = (excluded.a)", False),
        ("update accounts set cents = cents - $1 where id = any($2) and (cents >= $1)", False),
        ("with gone as (delete from t where id in (1, 2) returning *) select count(*) from gone", False),
        ("select * from t where exists (select 1 from u) for update", False),
        ("select app.log_in($1)", True),
        ("select log_in ($1)", True),
        ('select "Log in"($1)', True),
        ("select set_config($1, $2, true)", True),
        ("call log_in()", True),
        ("do $$ begin perform f(); end $$", True),
        ("set role alice", True),
        ("select " + "x" * 3000, True),
    ],
)
def test_what_may_change_the_role(text: str, may: bool) -> None:
    assert may_change_role(text) is may


def test_a_text_without_end_is_looked_at_in_no_time() -> None:
    for text in ("a" * 2000, " " * 2000, "a " * 1000, "(" * 2000, "into " * 400, '"' * 2000):
        may_change_role(text)  # linear: else this would take for ever
