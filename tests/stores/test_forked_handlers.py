"""A handler forks a helper, and the child leaves through our frames: the operation is its parent's."""

from __future__ import annotations

import os
import sys
from typing import Any, Literal

import pytest

from samekey import Idempotency, NotExecuted, current_operation
from tests.stores.crash_scenarios import execute

Mode = Literal["leased", "atomic"]
BELONGS = 7


def leave(how: str) -> Any:
    if how == "exit":
        sys.exit(0)
    if how == "not executed":
        raise NotExecuted("the helper had nothing to do")
    return "child"


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("how", ["return", "exit", "not executed"])
@pytest.mark.parametrize(
    ("store", "mode"), [("sqlite", "leased"), ("postgres", "leased"), ("postgres", "atomic")]
)
def test_a_child_does_not_finish_its_parents_operation(
    request: pytest.FixtureRequest, store: str, mode: Mode, how: str
) -> None:
    url = request.getfixturevalue(f"{store}_url")
    idempotency = Idempotency(url)
    idempotency.migrate()
    execute(url, "create table effects (n int)")
    parent = os.getpid()

    def handler() -> Any:
        if mode == "atomic":
            current_operation().connection.execute("insert into effects values (1)")
        child = os.fork()
        if child == 0:
            return leave(how)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == BELONGS
        return "parent"

    def call(run: Any) -> Any:
        return idempotency.once(tenant="t", key="k", name="call", run=run, mode=mode)

    try:
        told = call(handler)
    except BaseException as error:
        if os.getpid() != parent:
            os._exit(BELONGS if "belongs to the parent process" in str(error) else 1)
        raise
    finally:
        if os.getpid() != parent:
            os._exit(2)
    assert told == "parent"
    assert call(lambda: pytest.fail("it ran again")) == "parent"
    idempotency.close()
