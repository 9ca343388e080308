"""``python -m lab.dependencies``: are the packages that we are built and tested with the ones that they were,
and is any of them known to be weak?

The first is asked of the installed files: ``constraints.sha256`` has one digest for each package of
``constraints.txt``, by the platform that it was built for; ``--write`` writes it anew. That needs no network,
and names no host. The second is asked of ``pip-audit``, which is installed for the occasion; where it, or the
advisories, cannot be reached, one line says so and nothing fails.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution, PackagePath, distributions
from pathlib import Path
from typing import Any

from lab import ROOT

PINS = ROOT / "constraints.txt"
DIGESTS = ROOT / "constraints.sha256"
AUDIT = "pip-audit==2.10.1"
PATIENCE = 90
"""Seconds for one step of asking: an index that hangs must not hold up everything else."""
LOCAL = ("certifi/cacert.pem",)
"""Files that a machine may have added to: the authorities that its own network needs."""
ACCEPTED: Mapping[str, str] = {}
"""Advisories that do not concern us, by id, each with the reason."""


@dataclass(frozen=True, slots=True)
class Package:
    """One installed package: what it is, what it was built for, and a digest of its files."""

    name: str
    version: str
    platform: str
    digest: str

    def __str__(self) -> str:
        return f"{self.name}=={self.version} {self.platform} {self.digest}"


def main() -> None:
    installed = [*chosen(distributions(), pins(PINS.read_text("utf-8")))]
    found = [package_of(one) for one in installed]
    if "--write" in sys.argv[1:]:
        DIGESTS.write_text("".join(f"{one}\n" for one in sorted(found, key=str)), "utf-8")
        print(f"{DIGESTS.name} has {len(found)} packages.")
        return
    strange, unknown = compared(found, DIGESTS.read_text("utf-8"))
    strange += [sentence for one in installed for sentence in altered(one)]
    for sentence in strange:
        print(sentence)
    print(f"{len(found) - len(unknown)} packages compared; {len(unknown)} are not listed for this platform.")
    weak, said = judged(asked())
    for sentence in (*weak, said):
        print(sentence)
    if strange or weak:
        raise SystemExit(1)


# ------------------------------------------------------------------ the same files


def pins(text: str) -> set[str]:
    """The names in a file of constraints."""
    return {_plain(line.partition("==")[0]) for line in text.splitlines() if "==" in line}


def chosen(installed: Iterable[Distribution], names: set[str]) -> Iterator[Distribution]:
    return (one for one in installed if _plain(one.metadata["Name"]) in names)


def package_of(installed: Distribution) -> Package:
    """A package by what its wheel says of its files."""
    wheel = installed.read_text("WHEEL") or ""
    (platform, *_) = re.findall(r"^Tag: (\S+)$", wheel, re.MULTILINE) or ["unknown"]
    lines = sorted(f"{path} {path.hash and path.hash.value}\n" for path in _files(installed))
    digest = hashlib.sha256("".join(lines).encode()).hexdigest()
    return Package(_plain(installed.metadata["Name"]), installed.version, platform, digest)


def altered(installed: Distribution) -> Iterator[str]:
    """A sentence for each file that is no longer as its wheel says."""
    for path in _files(installed):
        there = Path(str(installed.locate_file(path)))
        if path.hash is None or str(path) in LOCAL:
            continue
        content = hashlib.new(path.hash.mode, there.read_bytes()).digest() if there.is_file() else b""
        if base64.urlsafe_b64encode(content).decode().rstrip("=") != path.hash.value:
            yield f"{path} of {installed.metadata['Name']} was changed after it was installed. Find out why."


def _files(installed: Distribution) -> Iterator[PackagePath]:
    """Without what an installer makes: scripts, which name an interpreter, compiled files, its own notes."""
    for path in installed.files or ():
        if ".." not in path.parts and path.suffix != ".pyc" and ".dist-info" not in path.parts[0]:
            yield path


def compared(found: Iterable[Package], listed: str) -> tuple[list[str], list[Package]]:
    """A sentence for each package whose files are not those that are listed; and the packages not listed."""
    digests = {tuple(line.split()[:2]): line.split()[2] for line in listed.splitlines()}
    strange, unknown = [], []
    for one in found:
        wanted = digests.get((f"{one.name}=={one.version}", one.platform))
        if wanted is None:
            unknown.append(one)
        elif wanted != one.digest:
            strange.append(
                f"{one.name} {one.version} is not the package that it was: its files differ. Find out why, "
                "before you use it. If that is as it should be: python -m lab.dependencies --write"
            )
    return strange, unknown


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


# ------------------------------------------------------------------ known to be weak


def asked() -> Any:
    """What pip-audit says of the constraints; None where it cannot be asked."""
    with tempfile.TemporaryDirectory(prefix="samekey-audit-") as directory:
        venv.create(directory, with_pip=True)
        python = str(Path(directory, "bin", "python"))
        asking = [python, "-m", "pip_audit", "--requirement", str(PINS), "--no-deps", "--disable-pip"]
        try:
            _run([python, "-m", "pip", "install", "--quiet", AUDIT]).check_returncode()
            # It ends with 1 where it has found something, and where it could not ask.
            said = _run([*asking, "--progress-spinner", "off", "--timeout", "10", "--format", "json"])
            return json.loads(said.stdout)
        except (subprocess.SubprocessError, ValueError, OSError):
            return None


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)


def judged(said: Any) -> tuple[list[str], str]:
    """A sentence for each advisory that counts, and one about how far was looked."""
    packages = [] if said is None else said.get("dependencies", [])
    seen = [one for one in packages if "skip_reason" not in one]
    weak = [
        f"{one['name']} {one['version']}: {advisory['id']} is published, mended in "
        f"{', '.join(advisory.get('fix_versions') or ['no version yet'])}."
        for one in seen
        for advisory in one.get("vulns", [])
        if advisory["id"] not in ACCEPTED
    ]
    if not seen:
        return weak, "Published advisories could not be reached: no package was looked up."
    return weak, f"{len(seen)} of {len(packages)} packages looked up; {len(weak)} advisories."


if __name__ == "__main__":
    main()
