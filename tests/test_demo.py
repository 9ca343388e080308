"""The demo, run as a user runs it: a process whose exit code must say whether its claims hold."""

from __future__ import annotations

import io
import itertools
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import httpx2
import pytest

from examples.demo.__main__ import STEPS, main
from examples.demo.client import Client
from examples.demo.show import Screen, path_of
from examples.demo.stage import Stage
from examples.demo.tour import Step, Tour, chosen
from lab.processes import alive, kill9, wait_until
from samekey.stores.sql.looking import Transition
from tests.chosen import whole

ROOT = Path(__file__).parent.parent
PATIENCE = 240.0

TITLES = (
    "1. A payment, and its retry",
    "2. The same key with another body",
    "3. Another tenant with the same key",
    "4. Two at once",
    "5. An order whose process is killed with -9 in the middle",
    "6. A payment whose worker is killed with -9 in the middle of the charge",
    "7. A transfer whose answer is lost",
    "8. Another lost answer, and a webhook that comes late and out of order",
    "9. A refund that kill -9 interrupts, finished without the client",
    "10. The proof: both ledgers",
)


def environment(directory: Path, **changes: str) -> dict[str, str]:
    """This one's, without what would change the demo. All that the demo writes is in ``directory``."""
    kept = {
        name: value for name, value in os.environ.items() if name != "CI" and not name.startswith("DEMO_")
    }
    return {**kept, "TMPDIR": str(directory), "PYTHONUNBUFFERED": "1", **changes}


def command(*steps: str) -> list[str]:
    return [sys.executable, "-W", "error", "-m", "examples.demo", *steps]


def run_demo(directory: Path, *steps: str, **changes: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*steps),
        cwd=ROOT,
        env=environment(directory, CI="1", **changes),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def left_running(directory: Path, output: str) -> list[int]:
    """Processes of a demo that is over: with its TMPDIR, or where that cannot be seen, those it named."""
    if not Path("/proc/self/environ").exists():
        return [pid for pid in map(int, re.findall(r"process (\d+)", output)) if alive(pid)]
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                mark = b"TMPDIR=" + str(directory).encode()
                if mark in (entry / "environ").read_bytes().split(b"\0") and alive(int(entry.name)):
                    found.append(int(entry.name))
            except OSError:
                continue  # it ended meanwhile, or is somebody else's
    return found


def assert_nothing_is_left(directory: Path, output: str) -> None:
    wait_until(lambda: not left_running(directory, output))
    assert list(directory.iterdir()) == []


# The whole tour


@dataclass(frozen=True, slots=True)
class Toured:
    """The one run at full length."""

    code: int
    output: str
    errors: str
    directory: Path


@pytest.fixture(scope="module")
def toured(tmp_path_factory: pytest.TempPathFactory) -> Toured:
    directory = tmp_path_factory.mktemp("tour")
    done = run_demo(directory)
    return Toured(done.returncode, done.stdout, done.stderr, directory)


@whole
def test_every_claim_of_the_tour_holds(toured: Toured) -> None:
    assert toured.code == 0, toured.output + toured.errors
    assert "NOT TRUE" not in toured.output
    claims = toured.output.count("   ✓ ")
    assert claims >= 40
    assert f"All {claims} claims held" in toured.output
    assert toured.errors == ""


@whole
def test_every_step_shows_requests_answers_claims_and_states(toured: Toured) -> None:
    positions = [toured.output.index(f"\n{title}\n") for title in TITLES]
    assert positions == sorted(positions)
    for begin, end in itertools.pairwise(positions):
        step = toured.output[begin:end]
        assert "→ POST" in step or "→ first: POST" in step
        assert re.search(r"   ← (second: )?(201|202|422)", step)
        assert re.search(r"✓ \S+ \((deferred|atomic|leased|phased)\): in_progress by request → ", step), step


@whole
def test_each_crash_and_its_recovery_are_told(toured: Toured) -> None:
    assert toured.output.count("! kill -9 for the service") == 2
    assert toured.output.count("! kill -9 for the worker") == 1
    for recovered in (
        r"cake-1 \(atomic\): .*failed_retryable by \w+ → in_progress by request → completed by request\n",
        r"flight-1 \(deferred\): .* → completed by worker\n",
        r"rent-1 \(leased\): .* → unknown by request → completed by reconciler\n",
        r"gift-1 \(leased\): .* → unknown by request → completed by webhook\n",
        r"shoes-back-1 \(phased\): .* → in_progress by completer → completed by ",
    ):
        assert re.search(recovered, toured.output), recovered


@whole
def test_the_ledger_is_printed_as_the_proof(toured: Toured) -> None:
    proof = toured.output.partition(TITLES[-1])[2]
    for kind, reference, amount in (
        ("charge", "coffee", "4.50"),
        ("charge", "flight", "480.00"),
        ("transfer", "rent", "900.00"),
        ("refund", "shoes-back", "20.00"),
    ):
        assert len(re.findall(rf"{kind} +{reference} +{amount}\n", proof)) == 1, proof
    assert '"equal": 8, "missing": [], "extra": [], "different": [], "duplicated": []' in proof


@whole
def test_a_pipe_gets_no_control_codes(toured: Toured) -> None:
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", toured.output)


@whole
def test_nothing_is_left_of_the_tour(toured: Toured) -> None:
    assert_nothing_is_left(toured.directory, toured.output)


# Broken promises


@whole
def test_broken_claims_give_a_failing_exit_code(tmp_path: Path) -> None:
    """A client without idempotency, and a provider without it: the demo must notice each of them."""
    demo = run_demo(tmp_path, "payment", "worker-killed", DEMO_NEW_KEYS="1", DEMO_FORGETFUL_PROVIDER="1")
    assert demo.returncode == 1, demo.stdout + demo.stderr
    assert "✗ NOT TRUE: Each retry gets that final answer" in demo.stdout
    assert "✗ NOT TRUE: Another worker did the job again, with the same key" in demo.stdout
    assert "✗ NOT TRUE: The provider's ledger has one charge of 480.00." in demo.stdout
    broken = demo.stdout.count("✗ NOT TRUE")
    assert re.search(rf"\n{broken} of \d+ claims did not hold\.\n", demo.stdout)
    assert_nothing_is_left(tmp_path, demo.stdout)


def test_a_step_that_breaks_off_is_a_broken_claim_and_the_next_one_is_taken() -> None:
    class EmptyStage(Stage):
        def set_right(self) -> None:
            file.write("   set right\n")

    def breaks_off(_: Tour) -> None:
        raise TimeoutError("nobody came")

    def goes_on(tour: Tour) -> None:
        tour.claim("This one is taken.", True)

    file = io.StringIO()
    screen = Screen(file)
    tour = Tour(screen, EmptyStage(Path("nowhere")), cast("Client", None))
    tour.run([Step("a", "One", "It waits.", breaks_off), Step("b", "Two", "It goes on.", goes_on)])
    assert file.getvalue() == (
        "\n1. One\n   It waits.\n"
        "   ✗ NOT TRUE: This step came to its end (TimeoutError: nobody came).\n   set right\n"
        "\n2. Two\n   It goes on.\n   ✓ This one is taken.\n   set right\n"
    )
    assert screen.broken == 1


def test_claims_are_counted() -> None:
    file = io.StringIO()
    screen = Screen(file)
    screen.claim("Water is wet.", True)
    screen.claim("The moon is cheese.", False)
    assert file.getvalue() == "   ✓ Water is wet.\n   ✗ NOT TRUE: The moon is cheese.\n"
    assert (screen.claims, screen.broken) == (2, 1)
    assert screen.verdict() == "1 of 2 claims did not hold."


# Trying it by hand


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A demo without CI, of one step."""
    demo = subprocess.Popen(
        command("payment"), cwd=ROOT, env=environment(tmp_path), stdout=subprocess.PIPE, text=True
    )
    try:
        yield demo
    finally:
        kill9(demo)
        assert demo.stdout is not None
        demo.stdout.close()


def read_until(demo: subprocess.Popen[str], words: str) -> str:
    """What it prints up to and with the line that has these words."""
    assert demo.stdout is not None
    lines = []
    for line in demo.stdout:
        lines.append(line)
        if words in line:
            return "".join(lines)
    raise AssertionError(f"It ended without saying {words!r}:\n{''.join(lines)}")


@whole
def test_without_ci_everything_stays_until_ctrl_c(waiting: subprocess.Popen[str], tmp_path: Path) -> None:
    output = read_until(waiting, "kill -9") + read_until(waiting, "kill -9")
    assert "Everything is still running" in output
    commands = [shlex.split(line) for line in output.splitlines() if re.match(r"  \S+ (-|\S+ -m)", line)]

    posts = [words for words in commands if words[:2] == ["curl", "-i"]]
    answers = [send(words) for words in posts]
    assert [answer.status_code for answer in answers] == [202, 201, 201, 201]
    url = posts[0][2].removesuffix("/payments")

    (show,) = [words for words in commands if words[1:5] == ["-m", "samekey.cli", "keys", "show"]]
    shown = subprocess.run(show, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert shown.returncode == 0 and "pending" in shown.stdout, shown.stderr

    worker, service = (int(pid) for pid in re.findall(r"kill -9 (\d+)", output))
    os.kill(worker, signal.SIGKILL)
    assert "a worker is started again" in read_until(waiting, "started again")
    assert alive(service)

    waiting.send_signal(signal.SIGINT)
    assert waiting.wait(PATIENCE) == 0
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(url, trust_env=False)
    assert_nothing_is_left(tmp_path, output)


def send(curl: list[str]) -> httpx2.Response:
    """What this command line would send."""
    assert curl[:2] == ["curl", "-i"] and curl[3::2] == ["-H", "-H", "-H", "-d"]
    headers = dict(header.split(": ", 1) for header in curl[4:10:2])
    json.loads(curl[10])
    return httpx2.post(curl[2], headers=headers, content=curl[10].encode(), timeout=60, trust_env=False)


# On a terminal


class Terminal(io.StringIO):
    """A file that says it is one."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_colour_and_follows_the_states_of_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    timeline = [Transition(1, None, "in_progress", "a", "request", None)]
    file = Terminal()
    screen = Screen(file)
    with screen.step("A payment", "Ann pays."):
        screen.watch("coffee-1", lambda: timeline)
        wait_until(lambda: "coffee-1: in_progress by request" in file.getvalue())
        timeline.append(Transition(2, "in_progress", "completed", "a", "worker", None))
        wait_until(lambda: "coffee-1: in_progress by request → completed by worker" in file.getvalue())
    assert "\033[1;36m1. A payment\033[0m" in file.getvalue()


def test_the_states_of_a_key_in_a_line() -> None:
    assert path_of([]) == "no record"
    gone = [
        Transition(1, None, "in_progress", "a", "request", None),
        Transition(2, "in_progress", None, "a", "x", None),
    ]
    assert path_of(gone) == "in_progress by request → gone by x"


# Choosing steps


def test_a_chosen_step_brings_what_it_needs() -> None:
    def names(steps: list[Step]) -> list[str]:
        return [step.name for step in steps]

    assert names(chosen(STEPS, [])) == names(list(STEPS))
    assert names(chosen(STEPS, ["ledgers", "other-body"])) == ["payment", "other-body", "ledgers"]


def test_a_step_that_does_not_exist_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["lunch"])
    assert "there is no step lunch; there are payment, " in capsys.readouterr().err
