"""``python -m lab.dist``: builds wheel and sdist, and uses the wheel as a new user would.

The metadata are checked; the wheel is installed into an empty environment, by the README's own command; the
README's first application is saved, started and asked twice; and ``samekey --help`` is run. Everything but
``dist/`` is thrown away.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

from lab import ROOT
from lab.processes import LOOPBACK, GuardedProcess, free_port

DIST = ROOT / "dist"
PATIENCE = 30.0


def main() -> None:
    shutil.rmtree(DIST, ignore_errors=True)
    _say("Building wheel and sdist")
    _run(sys.executable, "-m", "build", "--outdir", str(DIST), str(ROOT))
    _run(sys.executable, "-m", "twine", "check", "--strict", *(str(path) for path in DIST.iterdir()))
    (wheel,) = DIST.glob("*.whl")
    _check_content(wheel)
    with tempfile.TemporaryDirectory(prefix="samekey-dist-") as directory:
        _use(wheel, Path(directory))
    _say(f"{wheel.name} works, from an empty environment.")


def lines_in(wheel: Path) -> int:
    """How many lines of Python a wheel carries."""
    with zipfile.ZipFile(wheel) as archive:
        modules = [name for name in archive.namelist() if name.endswith(".py")]
        return sum(archive.read(name).count(b"\n") for name in modules)


def _check_content(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        strangers = {name.split("/")[0] for name in archive.namelist()} - {"samekey"}
    if any(not name.endswith(".dist-info") for name in strangers):
        raise SystemExit(f"The wheel carries more than the package: {', '.join(sorted(strangers))}")
    _say(f"The wheel holds {lines_in(wheel):,} lines of Python.")


def _use(wheel: Path, directory: Path) -> None:
    readme = (ROOT / "README.md").read_text()
    (application,) = re.findall(r"^Save this as `payments.py`:\n\n```python\n(.*?)```", readme, re.M | re.S)
    (install,) = re.findall(r"^pip install '\.(\[\w+\])' (.+)$", readme, re.M)
    extras, beside = install
    _say("Installing the wheel into an empty environment")
    _run(sys.executable, "-m", "venv", str(directory / "venv"))
    tools = directory / "venv" / "bin"
    _run(
        *(str(tools / "pip"), "install", "--quiet", "-c", str(ROOT / "constraints.txt")),
        *(f"{wheel}{extras}", *beside.split()),
    )
    (directory / "payments.py").write_text(application)
    port = free_port()
    command = [str(tools / "uvicorn"), "payments:app", "--port", str(port)]
    server = GuardedProcess(command, log=directory / "server.log", cwd=directory)
    try:
        first, again = (_pay(port, server) for _ in range(2))
    finally:
        server.end()
    if first[:2] != again[:2] or again[2] != "true":
        raise SystemExit(f"The README's application does not replay: {first}, then {again}")
    _say(f"The README's application answered {first[0]} {first[1]} twice, the second time from the store.")
    _run(str(tools / "samekey"), "--help")


def _pay(port: int, server: GuardedProcess) -> tuple[int, str, str | None]:
    headers = {
        "Authorization": "Bearer demo",
        "Idempotency-Key": '"coffee-1"',
        "Content-Type": "application/json",
    }
    request = Request(f"http://{LOOPBACK}:{port}/payments", json.dumps({"cents": 450}).encode(), headers)
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            with urlopen(request, timeout=PATIENCE) as answer:  # noqa: S310 - the same
                return answer.status, answer.read().decode(), answer.headers["Idempotent-Replayed"]
        except URLError:
            if time.monotonic() > deadline or not server.running:
                raise SystemExit(f"The README's application does not answer:\n{server.output()}") from None
            time.sleep(0.1)


def _run(*command: str) -> None:
    if subprocess.run(command, check=False).returncode != 0:
        raise SystemExit(f"This failed: {' '.join(command)}")


def _say(sentence: str) -> None:
    print(sentence, flush=True)


if __name__ == "__main__":
    main()
