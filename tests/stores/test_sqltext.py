"""Which texts would end a transaction, and which leave traces: by PostgreSQL's lexical rules."""

from __future__ import annotations

import pytest

from samekey.drivers.sqltext import SideEffect, effect_of

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
