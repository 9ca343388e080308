"""The process helpers: races are real, faults hit, and no process is left behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from lab import environment
from lab.processes import (
    PORTS,
    Barrier,
    GuardedProcess,
    ProcessFailed,
    Racers,
    ServedApp,
    Turn,
    alive,
    children_of,
    free_port,
    kill9,
    pause,
    race,
    resume,
    serve_asgi,
    serve_wsgi,
    spawn,
    wait_until,
)
from tests.chosen import whole

pytestmark = whole


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


# ------------------------------------------------------------------ waiting, ports, signals


def test_wait_until_returns_what_is_true_and_gives_up() -> None:
    answers = iter([0, 0, 7])
    assert wait_until(lambda: next(answers)) == 7
    with pytest.raises(TimeoutError, match="still False"):
        wait_until(lambda: False, timeout=0.02)


def test_free_ports_differ_and_are_free() -> None:
    ports = [free_port() for _ in range(50)]
    assert len(set(ports)) == 50
    assert all(port in PORTS for port in ports)
    with socket.create_server(("127.0.0.1", ports[0])):
        pass


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"]
    with subprocess.Popen(command) as process:
        yield process
        kill9(process)


def test_pause_resume_kill(sleeper: subprocess.Popen[bytes]) -> None:
    assert sleeper.pid in children_of(os.getpid())
    pause(sleeper)
    wait_until(lambda: state_of(sleeper.pid) == "T")
    assert alive(sleeper.pid)
    resume(sleeper.pid)
    wait_until(lambda: state_of(sleeper.pid) != "T")
    kill9(sleeper)
    assert sleeper.returncode == -signal.SIGKILL
    assert not alive(sleeper.pid)
    kill9(sleeper.pid)  # no error


# ------------------------------------------------------------------ functions in processes


def add(a: int, b: int = 0) -> tuple[int, int]:
    return a + b, os.getpid()


def fail() -> None:
    raise LookupError("nothing here")


def sleep_for_ever() -> None:
    time.sleep(600)


def meet(barrier: Barrier) -> int:
    return barrier.wait()


def test_spawn_returns_the_result() -> None:
    with spawn(add, 2, b=3) as process:
        total, pid = process.result()
        assert (total, pid) == (5, process.pid)
        assert process.result() == (total, pid)
    assert not alive(pid)
    assert process.exitcode == 0


def test_spawn_shows_what_was_raised() -> None:
    with spawn(fail) as process, pytest.raises(ProcessFailed, match="LookupError: nothing here"):
        process.result()


def test_a_spawned_process_is_paused_killed_and_does_not_stay() -> None:
    with spawn(sleep_for_ever) as first, spawn(sleep_for_ever) as second:
        first.pause()
        wait_until(lambda: state_of(first.pid) == "T")
        with pytest.raises(TimeoutError):
            first.result(timeout=0.01)
        first.resume()
        second.kill9()
        with pytest.raises(ProcessFailed, match="code -9"):
            second.result()
    assert not alive(first.pid)
    assert not alive(second.pid)


def test_a_barrier_holds_processes_together() -> None:
    barrier = Barrier(3)
    with spawn(meet, barrier) as one, spawn(meet, barrier) as two:
        assert one.running
        places = {barrier.wait(), one.result(), two.result()}
    assert places == {0, 1, 2}


def test_a_barrier_does_not_wait_for_ever() -> None:
    with pytest.raises(threading.BrokenBarrierError):
        Barrier(2, timeout=0.01).wait()


# ------------------------------------------------------------------ races


_connections: dict[str, psycopg.Connection[tuple[object, ...]]] = {}


def claim(turn: Turn, url: str) -> tuple[bool, int]:
    """Try to be the first to insert this round's row; the connection is kept between rounds."""
    if url not in _connections:
        _connections[url] = psycopg.connect(url, autocommit=True)
    cursor = _connections[url].execute(
        "INSERT INTO claims VALUES (%s, %s) ON CONFLICT DO NOTHING", [turn.round, turn.racer]
    )
    return cursor.rowcount == 1, os.getpid()


def test_race_over_one_row(postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        connection.execute("CREATE TABLE claims (round int PRIMARY KEY, racer int)")
    results = race(claim, 4, postgres_url, rounds=50)
    assert len(results) == 50
    assert [sum(won for won, _ in round_) for round_ in results] == [1] * 50
    pids = {pid for round_ in results for _, pid in round_}
    assert len(pids) == 4  # the same four processes in all rounds
    assert not any(map(alive, pids))
    with psycopg.connect(postgres_url) as connection:
        winners = connection.execute("SELECT racer FROM claims ORDER BY round").fetchall()
    assert [racer for (racer,) in winners] == [
        next(racer for racer, (won, _) in enumerate(round_) if won) for round_ in results
    ]


def when(turn: Turn) -> tuple[int, float]:
    began = time.monotonic()
    time.sleep(0.2)
    return turn.racer, began


def meets_all(turn: Turn, folder: Path, count: int) -> int:
    (folder / f"{turn.racer}").touch()
    wait_until(lambda: len(list(folder.iterdir())) == count)
    return count


def unlucky(turn: Turn) -> None:
    if turn.racer == 1:
        raise LookupError(f"not in round {turn.round}")


def suicidal(turn: Turn) -> None:
    if turn.racer == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def stuck(turn: Turn) -> None:
    if turn.racer == 1:
        time.sleep(600)


def test_a_racer_killed_between_rounds_is_named() -> None:
    with Racers(2) as racers:
        racers.race(when)
        kill9(racers.pids[0])
        with pytest.raises(ProcessFailed, match="Racer 0 ended with code -9"):
            racers.race(when)


def test_racers_run_at_the_same_time(tmp_path: Path) -> None:
    with Racers(3) as racers:
        racers.race(when)
        result = racers.race(when)
        assert [racer for racer, _ in result] == [0, 1, 2]
        assert racers.race(meets_all, tmp_path, 3) == [3] * 3  # each began before any had ended


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (unlucky, ProcessFailed, r"Racer 1 in round 1(.|\n)*LookupError: not in round 1"),
        (suicidal, ProcessFailed, "Racer 1 ended with code -9"),
        (stuck, TimeoutError, r"Racers 1 were not done after 2 s"),
    ],
)
def test_a_failed_race_says_who_and_ends_all(
    function: Callable[[Turn], None], error: type[Exception], message: str
) -> None:
    with Racers(2) as racers:
        pids = racers.pids
        racers.race(when)  # they have started
        racers.timeout = 2 if function is stuck else 60
        with pytest.raises(error, match=message):
            racers.race(function)
        assert not any(map(alive, pids))


# ------------------------------------------------------------------ killed owners


OWNER = """
import sys, time
from pathlib import Path
from lab.processes import GuardedProcess, spawn
if __name__ == "__main__":
    directory = Path(sys.argv[1])
    guarded = GuardedProcess(
        [sys.executable, "-c", "import time; time.sleep(600)"],
        log=directory / "log", remove=[directory],
    )
    spawned = spawn(time.sleep, 600)
    print(guarded.pid, spawned.pid, flush=True)
    time.sleep(600)
"""


def test_nothing_outlives_a_killed_owner(tmp_path: Path) -> None:
    script, directory = tmp_path / "owner.py", tmp_path / "removed"
    script.write_text(OWNER)
    directory.mkdir()
    command = [sys.executable, str(script), str(directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as owner:
        assert owner.stdout is not None
        pids = [int(pid) for pid in owner.stdout.readline().split()]
        assert len(pids) == 2
        assert all(map(alive, pids))
        kill9(owner)
    wait_until(lambda: not any(map(alive, pids)))
    wait_until(lambda: not directory.exists())


# ------------------------------------------------------------------ guarded processes


def test_a_guarded_process_reports_its_end(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "print('words'); raise SystemExit(3)"]
    process = GuardedProcess(command, log=tmp_path / "log")
    assert process.wait(10) == 3
    assert not process.running
    assert process.output() == "words\n"
    assert process.end() == 3


def test_a_guarded_process_that_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(ProcessFailed, match="No such file"):
        GuardedProcess(["/no/such/command"], log=tmp_path / "log")


def test_a_guarded_process_that_will_not_end_is_killed(tmp_path: Path) -> None:
    stubborn = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "print('deaf', flush=True); time.sleep(600)"
    )
    process = GuardedProcess([sys.executable, "-c", stubborn], log=tmp_path / "log")
    wait_until(process.output)
    with pytest.raises(TimeoutError):
        process.wait(0.01)
    assert process.end(grace=0.1) == -signal.SIGKILL
    assert not alive(process.pid)


# ------------------------------------------------------------------ served applications


APPS = """
import os

async def asgi(scope, receive, send):
    if scope["type"] == "lifespan":
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        print("stopped in order")
        return await send({"type": "lifespan.shutdown.complete"})
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": os.environ["GREETING"].encode()})

def wsgi(environ, start_response):
    start_response("200 OK", [])
    return [os.environ["GREETING"].encode()]
"""


@pytest.fixture
def apps(tmp_path: Path) -> Path:
    (tmp_path / "served_apps.py").write_text(APPS)
    return tmp_path


Serve = Callable[[Path], ServedApp]


def with_uvicorn(apps: Path) -> ServedApp:
    return serve_asgi("served_apps:asgi", {"GREETING": "hello"}, directory=apps)


def with_gunicorn(apps: Path) -> ServedApp:
    return serve_wsgi("served_apps:wsgi", {"GREETING": "hello"}, directory=apps, threads=2)


def get(app: ServedApp, timeout: float = 10) -> str:
    with urllib.request.urlopen(app.url, timeout=timeout) as response:
        body: bytes = response.read()
    return body.decode()


@pytest.mark.parametrize("serve", [with_uvicorn, with_gunicorn])
def test_a_served_app_is_paused_and_stopped(serve: Serve, apps: Path) -> None:
    with serve(apps) as app:
        assert get(app) == "hello"
        pids = [app.pid, *children_of(app.pid)]
        app.pause()
        with pytest.raises(TimeoutError):
            get(app, timeout=0.2)
        app.resume()
        assert get(app) == "hello"
        assert app.running
    assert not any(map(alive, pids))
    assert "hut" in app.output()  # "Shutting down": it was asked, not killed
    app.stop()  # no error
    with pytest.raises(OSError, match="refused"):
        get(app)


@pytest.mark.parametrize("serve", [with_uvicorn, with_gunicorn])
def test_a_served_app_is_killed(serve: Serve, apps: Path) -> None:
    with serve(apps) as app:
        get(app)
        pids = [app.pid, *children_of(app.pid)]
        app.kill9()
        wait_until(lambda: not any(map(alive, pids)))
        assert not app.running
        assert "hutting" not in app.output()


def test_a_served_app_that_fails_shows_its_output(apps: Path) -> None:
    with pytest.raises(ProcessFailed, match="no_such_module"):
        serve_asgi("no_such_module:app", directory=apps)


def test_a_port_can_be_taken_again_after_a_kill(apps: Path) -> None:
    with with_uvicorn(apps) as first:
        get(first)
        first.kill9()
        with serve_asgi("served_apps:asgi", {"GREETING": "again"}, directory=apps, port=first.port) as second:
            assert get(second) == "again"
