"""Servers from Debian's packages: never without leave, and one clear line where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.servers import debian, pgbouncer
from lab.servers.pgbouncer import PgBouncerUnavailable, find_pgbouncer


@pytest.mark.parametrize(
    ("ci", "wish", "reason"),
    [
        ("", "", "SAMEKEY_INSTALL=yes would let it be installed"),
        ("false", "", "SAMEKEY_INSTALL=yes would let it be installed"),
        ("true", "never", "SAMEKEY_INSTALL=never forbids"),
        ("", "never", "SAMEKEY_INSTALL=never forbids"),
    ],
)
def test_nothing_is_installed_without_leave(
    ci: str, wish: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", ci)
    monkeypatch.setenv(debian.INSTALL_VARIABLE, wish)
    assert reason in debian.why_not()
    assert not debian.allowed()
    assert not debian.install("a-package-that-nobody-has")


def test_a_pooler_that_cannot_be_had_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv(debian.INSTALL_VARIABLE, "never")
    monkeypatch.setattr(pgbouncer, "DEBIAN", tmp_path / "pgbouncer")
    with pytest.raises(PgBouncerUnavailable) as raised:
        find_pgbouncer()
    assert "No pgbouncer was found" in str(raised.value) and "\n" not in str(raised.value)
