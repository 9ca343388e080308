"""docs/tutorial.md and the service's README: what they quote stands in the code, and what they send works."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import httpx2
import pytest

from tests.payments.running import ROOT, Service

TUTORIAL = ROOT / "docs" / "tutorial.md"
README = ROOT / "examples" / "payments" / "README.md"
QUOTED = re.compile(r"^`(examples/payments/\w+\.py)`:\n\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHELL = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_what_is_quoted_stands_in_the_code() -> None:
    text = TUTORIAL.read_text()
    quoted = QUOTED.findall(text)
    assert len(quoted) == text.count("```python") > 10, "a block of code must name its file in the line above"
    for file, code in quoted:
        assert code in (ROOT / file).read_text(), f"{file} does not say any more:\n{code}"


def test_every_mode_is_walked_through() -> None:
    code = "".join(code for _, code in QUOTED.findall(TUTORIAL.read_text()))
    for decorator in ("atomic", "deferred", "job", "phased", "leased", "lookup"):
        assert f"@idempotency.{decorator}" in code


def test_the_readme_lists_every_file_and_every_setting() -> None:
    text = README.read_text()
    files = {path.name for path in (ROOT / "examples" / "payments").glob("*.py")} - {"__init__.py"}
    assert set(re.findall(r"\]\((\w+\.py)\)", text)) == files
    read = re.findall(
        r'"((?:PAYMENTS|PROVIDER|CARDS|DATABASE)_\w+)"', (README.parent / "settings.py").read_text()
    )
    assert set(re.findall(r"^\| `([A-Z_]+)` \|", text, re.MULTILINE)) == set(read)


@pytest.mark.parametrize("page", [TUTORIAL, README], ids=lambda page: page.name)
def test_what_is_sent_is_understood(quiet: Service, page: Path) -> None:
    """Every curl line, sent to a service and a provider of our own in the place of those of the reader."""
    sent = 0
    for block in SHELL.findall(page.read_text()):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line)
            if words[:1] == ["curl"]:
                curl(quiet, words[1:])
                sent += 1
    assert sent >= 7
    assert {entry.kind for entry in quiet.provider.entries()} >= {"transfer"}


def curl(service: Service, words: list[str]) -> None:
    url = next(word for word in words if word.startswith("http://"))
    url = url.replace("http://127.0.0.1:8000", service.url).replace(
        "http://127.0.0.1:9000", service.provider.url
    )
    url = url.replace("http://127.0.0.1:9001", service.cards.url)
    headers = dict(words[at + 1].split(": ", 1) for at, word in enumerate(words) if word == "-H")
    if "--json" in words:
        headers["Content-Type"] = "application/json"
        content = words[words.index("--json") + 1]
        answer = httpx2.post(url, headers=headers, content=content, timeout=60)
    else:
        answer = httpx2.get(url, headers=headers, timeout=60)
    if url.startswith(service.url):
        service.cards.recover()
        service.provider.recover()  # a fault is for the next request; some of those wait for a worker
    # There is no payment "ID"; and what was told to lose an answer loses it.
    expected = {404} if "/ID/" in url else {200, 201, 202, 409}
    assert answer.status_code in expected, f"{words}: {answer.text}"


@pytest.mark.parametrize("page", [TUTORIAL, README], ids=lambda page: page.name)
def test_no_line_is_wider_than_the_others(page: Path) -> None:
    lines = page.read_text().splitlines()
    assert [line for line in lines if len(line) > 120 and not line.startswith("|")] == []


def test_no_example_takes_an_error_for_proof_that_nothing_happened() -> None:
    """The optimistic reading is for those who ask for it; what users copy from does not."""
    pages = [ROOT / "README.md", TUTORIAL, README, *(ROOT / "examples").rglob("*.py")]
    assert len(pages) > 20
    asked = re.compile(r"on_error\s*=|repeatable\s*=\s*True")
    assert [page for page in pages if asked.search(page.read_text())] == []
