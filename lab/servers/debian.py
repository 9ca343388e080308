"""Servers from Debian's packages: installed once, and only on a machine where that is allowed.

A test run may want a server that is not there. On somebody's laptop nothing is ever installed
unless they ask for it with SAMEKEY_INSTALL=yes; in CI (the variable CI is set) it is, as root, unless
SAMEKEY_INSTALL=never forbids it. Nothing here starts a server.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["INSTALL_VARIABLE", "allowed", "in_ci", "install", "why_not"]

INSTALL_VARIABLE = "SAMEKEY_INSTALL"

# A slow mirror may need minutes; a broken one must not eat a whole run.
LIMIT = 300.0

# How long one apt-get waits for another that has dpkg's lock, such as a machine's nightly update.
LOCK_WAIT = "DPkg::Lock::Timeout=120"


def in_ci() -> bool:
    """Whether a server that cannot be had must fail the run instead of skipping it."""
    return os.environ.get("CI", "").lower() not in {"", "0", "false", "no"}


def why_not() -> str:
    """Why nothing may be installed here, as the end of a sentence; empty if it may."""
    wish = os.environ.get(INSTALL_VARIABLE, "").lower()
    if wish == "never":
        return f"{INSTALL_VARIABLE}=never forbids to install it"
    if wish != "yes" and not in_ci():
        return f"{INSTALL_VARIABLE}=yes would let it be installed from Debian's packages"
    if os.geteuid() != 0:
        return "only root could install it"
    if shutil.which("apt-get") is None:
        return "there is no apt-get to install it with"
    return ""


def allowed() -> bool:
    """Whether `install` would try."""
    return not why_not()


def install(package: str) -> bool:
    """Install one of Debian's packages if that is allowed: whether it is there now.

    Several processes may ask at once: one installs, the others wait for it. Its services are not
    started. False if it is not allowed, if it fails, or if five minutes were not enough.
    """
    if not allowed():
        return False
    deadline = time.monotonic() + LIMIT
    with _alone(deadline) as first:
        if not first:
            return False
        if installed(package):
            return True
        # A fresh image has no package lists, an old one has stale ones: try, refresh, try again.
        return _fetch(package, deadline) or (_apt(["update"], deadline) and _fetch(package, deadline))


def installed(package: str) -> bool:
    """Whether dpkg has the package, unpacked and configured."""
    if shutil.which("dpkg-query") is None:
        return False
    asked = subprocess.run(
        ["dpkg-query", "--show", "--showformat=${db:Status-Status}", package],
        check=False,
        capture_output=True,
        text=True,
    )
    return asked.returncode == 0 and asked.stdout == "installed"


def _fetch(package: str, deadline: float) -> bool:
    # A recommended package may start a service or bring a desktop; none of it is wanted.
    done = _apt(["install", "--yes", "--no-install-recommends", package], deadline)
    return done and installed(package)


def _apt(arguments: list[str], deadline: float) -> bool:
    left = deadline - time.monotonic()
    if left <= 0:
        return False
    with _no_services() as environment:
        try:
            ran = subprocess.run(
                ["apt-get", "--quiet=2", "-o", LOCK_WAIT, *arguments],
                check=False,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                timeout=left,
            )
        except subprocess.TimeoutExpired:
            return False
    return ran.returncode == 0


@contextmanager
def _no_services() -> Iterator[dict[str, str]]:
    """An environment for apt-get in which packages do not start the servers that they bring.

    Their scripts ask policy-rc.d, and 101 means no; a file of the administrator's is left as it is.
    """
    policy = Path("/usr/sbin/policy-rc.d")
    ours = not policy.exists()
    if ours:
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    try:
        yield {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    finally:
        if ours:
            policy.unlink(missing_ok=True)


@contextmanager
def _alone(deadline: float) -> Iterator[bool]:
    """A lock among all processes of this machine; False if it was not to be had in time."""
    with (Path(tempfile.gettempdir()) / "samekey-install.lock").open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    yield False
                    return
                time.sleep(0.1)
        yield True
