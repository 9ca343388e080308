"""What MariaDB takes and MySQL does not: looked for in the statements, since no MySQL server may be at hand.

``SAMEKEY_TEST_MYSQL_URL`` names one; then every test of MySQL and MariaDB runs there.
"""

from __future__ import annotations

import re
from importlib.resources import files

HERE = files("samekey.stores.sql") / "mysql"
TEXTS = [
    part
    for folder in (HERE, HERE / "migrations")
    for file in folder.iterdir()
    if file.name.endswith(".sql")
    for part in re.split(r"^-- (?:then|name: .*)$", file.read_text(), flags=re.MULTILINE)
]


def test_no_function_that_mysql_has_dropped() -> None:
    """MySQL 9.6 knows neither without a component."""
    assert not [text for text in TEXTS if re.search(r"\b(sha1?|md5)\s*\(", text, re.IGNORECASE)]


def test_rows_that_are_locked_do_not_stand_beside_a_list() -> None:
    """``from json_table(…) join rows … for update`` is refused by MySQL (3569): no lease would be renewed."""
    locking = [text for text in TEXTS if "json_table" in text and "for update" in text]
    assert locking
    for text in locking:
        assert re.search(r"from \(select [\w., ]+ from json_table\(", text), text
