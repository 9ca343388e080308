"""``pymysql.install_as_MySQLdb()``, as Django projects call it, loads PyMySQL's modules a second time under
another name, and puts those into the package: our own driver goes by the classes that are really raised."""

from __future__ import annotations

import socket
import subprocess
import sys

from lab import environment

STORY = """
import sys
import pymysql
pymysql.install_as_MySQLdb()
import MySQLdb.constants, MySQLdb.converters
from samekey import Idempotency
from samekey.errors import StoreUnavailable
before = pymysql.err.MySQLError is not sys.modules["pymysql.err"].MySQLError
assert before, "the modules were not doubled: this test shows nothing any more"
try:
    Idempotency(sys.argv[1], timeout=1).check()
except StoreUnavailable as error:
    print(type(error).__name__)
"""


def test_a_store_that_is_away_is_said_to_be_away() -> None:
    with socket.socket() as bound:  # and not listening: connections are refused
        bound.bind(("127.0.0.1", 0))
        url = f"mysql://root@127.0.0.1:{bound.getsockname()[1]}/shop"
        ran = subprocess.run(
            [sys.executable, "-c", STORY, url],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert ran.stdout.split() == ["StoreUnreachable"], ran.stderr
