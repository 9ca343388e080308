"""``python -m lab.peers``: checks servers that are not samekey's; writes what was seen into docs/check.md.

It installs two packages into an environment of their own (.peers), which is made if it is not there. It is
no part of the tests: packages change, and nothing here depends on them.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from lab import environment
from lab.processes import GuardedProcess, free_port, wait_until
from samekey.check import Budget, Endpoint, Report, check

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PACKAGES = ("asgi-idempotency-header", "idemkit")
NEEDED = ("fastapi", "redis", "starlette", "uvicorn")
"""What the first imports without asking for it, and what serves both."""
ENVIRONMENT = ROOT / ".peers"
PAGE = ROOT / "docs" / "check.md"
BLOCK = re.compile(r"(<!-- begin measured: peers -->\n)(.*?)(<!-- end measured: peers -->)", re.DOTALL)


def main() -> None:
    """Checks all of them, prints the table, and writes it into the page."""
    python = installed()
    versions = json.loads(
        subprocess.run(
            [python, "-m", "pip", "list", "--format", "json"], check=True, capture_output=True, text=True
        ).stdout
    )
    known = {row["name"].lower(): row["version"] for row in versions}
    seen: list[tuple[str, Report]] = []
    for name in PACKAGES:
        print(f"checking {name} {known[name]} …", flush=True)
        with served([str(python), str(HERE / "shop.py"), name]) as url:
            seen.append((f"{name} {known[name]}", report_of(url)))
    if node := shutil.which("node"):
        said = subprocess.run([node, "--version"], check=True, capture_output=True, text=True).stdout.strip()
        print(f"checking a server on Node {said} …", flush=True)
        with served([node, str(HERE / "server.mjs")]) as url:
            seen.append((f"a small server on Node {said} (`lab/peers/server.mjs`)", report_of(url)))
    else:
        print("node is missing: the server on Node is left out", flush=True)
    print("checking samekey …", flush=True)
    with tempfile.TemporaryDirectory() as directory, samekey_shop(Path(directory)) as url:
        seen.append(
            (f"samekey {version('samekey')}, the FastAPI shop", report_of(url, count=f"{url}/orders"))
        )
    text = table(seen)
    print(text)
    PAGE.write_text(
        BLOCK.sub(lambda match: f"{match[1]}\n{text}\n{match[3]}", PAGE.read_text("utf-8")), "utf-8"
    )


def installed() -> Path:
    """The Python of the environment that has the packages."""
    python = ENVIRONMENT / "bin" / "python"
    if not python.exists():
        venv.create(ENVIRONMENT, with_pip=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES, *NEEDED], check=True)
    return python


@contextmanager
def served(command: list[str]) -> Iterator[str]:
    """The address of a server that takes its port as the last word."""
    port = free_port()
    log = Path(tempfile.mkdtemp()) / "log"
    process = GuardedProcess([*command, str(port)], log=log, env=environment())
    try:
        wait_until(lambda: not process.running or _listens(port), timeout=60)
        assert process.running, process.output()
        yield f"http://127.0.0.1:{port}"
    finally:
        process.end(grace=10)


@contextmanager
def samekey_shop(directory: Path) -> Iterator[str]:
    url = f"sqlite:///{directory / 'shop.db'}"
    with served([sys.executable, "-m", "examples.shop", "fastapi", "--url", url, "--port"]) as found:
        yield found


def _listens(port: int) -> bool:
    import socket

    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def report_of(url: str, count: str | None = None) -> Report:
    """The same check for everybody."""
    return check(
        Endpoint(
            f"{url}/orders",
            {"sku": "tea", "quantity": 2},
            headers=(("Authorization", "Bearer ann"),),
            other_headers=(("Authorization", "Bearer bob"),),
            count_url=count or f"{url}/count",
        ),
        budget=Budget(rate=500),
    )


def table(seen: list[tuple[str, Report]]) -> str:
    """What was seen, with versions and the day."""
    rows = [f"Seen on {datetime.now(UTC):%Y-%m-%d}, profile `ietf`, by `make peers`.", ""]
    rows += ["| server | findings | notes | held | not proven |", "|---|---|---|---|---|"]
    for name, report in seen:
        findings = "<br>".join(f"`{finding.id}`: {finding.detail}" for finding in report.findings) or "none"
        notes = ", ".join(f"`{note.id}`" for note in report.notes) or "none"
        rows.append(f"| {name} | {findings} | {notes} | {len(report.passed)} | {len(report.not_proven)} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    main()
