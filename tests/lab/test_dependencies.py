"""The packages that we are built with: one whose files have changed is found, an advisory is not missed."""

from __future__ import annotations

import base64
import hashlib
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest

from lab.dependencies import DIGESTS, PINS, altered, chosen, compared, judged, package_of, pins
from tests.chosen import whole


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A directory with one installed package."""
    notes = tmp_path / "paid-1.0.dist-info"
    notes.mkdir()
    (notes / "METADATA").write_text("Metadata-Version: 2.1\nName: Paid\nVersion: 1.0\n")
    (notes / "WHEEL").write_text("Wheel-Version: 1.0\nGenerator: one\nTag: py3-none-any\n")
    publish(tmp_path, "amount = 1\n")
    return tmp_path


def publish(site: Path, content: str, name: str = "paid.py") -> None:
    """As an installer does it."""
    (site / name).write_text(content)
    digest = base64.urlsafe_b64encode(hashlib.sha256(content.encode()).digest()).decode().rstrip("=")
    record = f"{name},sha256={digest},{len(content)}\npaid-1.0.dist-info/WHEEL,,\n../../bin/paid,,\n"
    (site / "paid-1.0.dist-info" / "RECORD").write_text(record)


def look(site: Path, listed: str) -> tuple[list[str], int]:
    installed = [*chosen(distributions(path=[str(site)]), {"paid"})]
    strange, unknown = compared([package_of(one) for one in installed], listed)
    return [*strange, *(sentence for one in installed for sentence in altered(one))], len(unknown)


def listed(site: Path) -> str:
    (one,) = distributions(path=[str(site)])
    return str(package_of(one))


def test_a_package_is_the_one_that_it_was(site: Path) -> None:
    before = listed(site)
    assert before.startswith("paid==1.0 py3-none-any ")
    (site / "paid-1.0.dist-info" / "WHEEL").write_text("Generator: another\nTag: py3-none-any\n")
    assert look(site, before) == ([], 0), "who built it does not matter"


@pytest.mark.parametrize(("content", "name"), [("amount = 2\n", "paid.py"), ("import os\n", "hidden.pth")])
def test_another_content_under_the_same_version_is_found(site: Path, content: str, name: str) -> None:
    before = listed(site)
    publish(site, content, name)
    (sentence,), unknown = look(site, before)
    assert sentence.startswith("paid 1.0 is not the package that it was")
    assert unknown == 0


def test_a_file_that_was_changed_where_it_lies_is_found(site: Path) -> None:
    before = listed(site)
    (site / "paid.py").write_text("amount = 2\n")
    assert look(site, before)[0] == ["paid.py of Paid was changed after it was installed. Find out why."]
    (site / "paid.py").unlink()
    assert len(look(site, before)[0]) == 1


def test_what_was_built_for_another_platform_is_not_guessed_at(site: Path) -> None:
    other = listed(site).replace("py3-none-any", "cp399-cp399-elsewhere")
    assert look(site, other) == ([], 1)


def test_an_advisory_fails_and_says_what_mends_it() -> None:
    said: Any = {
        "dependencies": [
            {"name": "paid", "version": "1.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["1.1"]}]},
            {"name": "good", "version": "1.0", "vulns": []},
        ]
    }
    assert judged(said) == (
        ["paid 1.0: PYSEC-1 is published, mended in 1.1."],
        "2 of 2 packages looked up; 1 advisories.",
    )


@pytest.mark.parametrize("said", [None, {"dependencies": [{"name": "paid", "skip_reason": "not found"}]}])
def test_what_was_not_looked_up_is_not_said_to_be_well(said: Any) -> None:
    assert judged(said) == ([], "Published advisories could not be reached: no package was looked up.")


def test_every_pin_has_its_digest() -> None:
    digests = {line.split("==")[0] for line in DIGESTS.read_text("utf-8").splitlines()}
    assert digests <= pins(PINS.read_text("utf-8"))
    assert len(digests) > 100
    core = {"rfc8785", "http-sf", "asyncpg", "psycopg", "pymysql", "redis", "cryptography"}
    assert core <= digests


@whole
def test_what_is_installed_here_is_what_is_listed() -> None:
    installed = [*chosen(distributions(), pins(PINS.read_text("utf-8")))]
    strange, _ = compared([package_of(one) for one in installed], DIGESTS.read_text("utf-8"))
    assert [*strange, *(sentence for one in installed for sentence in altered(one))] == []
