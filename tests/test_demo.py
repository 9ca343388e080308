"""The demo, run as a user runs it: a process whose exit code must say whether its claims hold."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from examples.demo import Story, verdict

ROOT = Path(__file__).parent.parent

STEPS = (
    "1. A payment",
    "2. Its retry",
    "3. A different body under the same key",
    "4. Two at once",
    "5. A retry after kill -9, atomic",
    "6. A retry after kill -9, leased",
    "7. The proof",
)


def environment(**changes: str) -> dict[str, str]:
    """This one's, without what would change the demo."""
    kept = {name: value for name, value in os.environ.items() if name not in ("CI", "DEMO_NEW_KEYS")}
    return {**kept, "PYTHONUNBUFFERED": "1", **changes}


def run_demo(**changes: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "examples.demo"],
        cwd=ROOT,
        env=environment(CI="1", **changes),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def demo() -> subprocess.CompletedProcess[str]:
    return run_demo()


def test_every_step_is_shown_and_every_claim_holds(demo: subprocess.CompletedProcess[str]) -> None:
    assert demo.returncode == 0, demo.stdout + demo.stderr
    positions = [demo.stdout.index(step) for step in STEPS]
    assert positions == sorted(positions)
    for block in demo.stdout.split("\n\n")[1:7]:
        assert "→ POST" in block and "← " in block and "✓" in block, block
    assert "NOT TRUE" not in demo.stdout
    assert "Every claim held" in demo.stdout
    assert "\033[" not in demo.stdout, "colour is for terminals"
    assert demo.stderr == ""


def test_the_rows_are_printed_as_the_proof(demo: subprocess.CompletedProcess[str]) -> None:
    proof = demo.stdout.partition("7. The proof")[2]
    for customer, amount in [("ada", "4.50"), ("bob", "3.00"), ("cyd", "7.00"), ("landlord", "900.00")]:
        lines = [line for line in proof.splitlines() if customer in line and amount in line]
        assert len(lines) == 1, proof


def test_broken_claims_give_a_failing_exit_code() -> None:
    """A client that makes a new key for each attempt has no idempotency, and the demo must notice."""
    demo = run_demo(DEMO_NEW_KEYS="1")
    assert demo.returncode == 1
    assert "✗ NOT TRUE: still one row" in demo.stdout
    assert "✗ NOT TRUE: the bank was told once" in demo.stdout
    assert "claims did not hold" in demo.stdout


def test_without_ci_the_api_stays_until_ctrl_c() -> None:
    demo = subprocess.Popen(
        [sys.executable, "-m", "examples.demo"],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert demo.stdout is not None
        url = ""
        for line in demo.stdout:
            if "The API is still running" in line:
                url = line.split(" on ")[1].split(". ")[0]
            if "Its databases are in" in line:
                break
        answer = httpx2.post(
            f"{url}/payments",
            headers={"Authorization": "Bearer demo", "Idempotency-Key": '"mine-1"'},
            json={"customer": "you", "cents": 100},
        )
        assert answer.status_code == 201
        demo.send_signal(signal.SIGINT)
        assert demo.wait(30) == 0
        with pytest.raises(httpx2.ConnectError):
            httpx2.get(url)
    finally:
        demo.kill()
        demo.communicate()


def test_a_claim_that_does_not_hold_is_counted_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    story = Story(colour=False)
    story.claim("water is wet", True)
    story.claim("the moon is cheese", False)
    assert story.broken == 1
    assert capsys.readouterr().out == "   ✓ water is wet\n   ✗ NOT TRUE: the moon is cheese\n"
    assert verdict(1) == "1 claim did not hold."
    assert verdict(2) == "2 claims did not hold."


def test_a_terminal_gets_colour(capsys: pytest.CaptureFixture[str]) -> None:
    Story(colour=True).step("A payment")
    assert "\033[1;36m1. A payment\033[0m" in capsys.readouterr().out
