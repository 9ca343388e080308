"""Real operating-system processes for tests: start them, race them, pause them, kill them.

What only shows between processes (two workers with one key, a holder paused past its lease, a
server killed between two statements) is tested with processes, not with mocks. Whatever starts
here also ends here: by its context manager, at the interpreter's exit, and when the test process
itself is killed with SIGKILL. This module knows nothing about samekey.
"""

from __future__ import annotations

import inspect
import json
import multiprocessing
import multiprocessing.connection
import os
import pickle
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar

from lab import environment

__all__ = [
    "Barrier",
    "GuardedProcess",
    "ProcessFailed",
    "Racers",
    "ServedApp",
    "Spawned",
    "Turn",
    "alive",
    "children_of",
    "free_port",
    "kill9",
    "pause",
    "race",
    "resume",
    "serve_asgi",
    "serve_wsgi",
    "spawn",
    "wait_until",
]

T = TypeVar("T")

LOOPBACK = "127.0.0.1"

# Linux gives outgoing connections ports from 32768 up, other systems from 49152: below that,
# nothing takes a port by accident between its choice and its use, or while a server restarts.
PORTS = range(20_000, 32_000)

# Long enough for a loaded machine with slow cores, short enough to end before a test's own limit.
PATIENCE = 30.0

_SPAWN = multiprocessing.get_context("spawn")  # fork would copy the threads' locks, held


class ProcessFailed(RuntimeError):
    """A process ended before it was due, or its function raised; the message has its output."""


class HasPid(Protocol):
    """Anything that runs as a process: Popen, multiprocessing's Process, the classes here."""

    @property
    def pid(self) -> int | None: ...


# ------------------------------------------------------------------ waiting, ports, signals


def wait_until(predicate: Callable[[], T], timeout: float = PATIENCE, *, interval: float = 0.005) -> T:
    """Poll until `predicate` returns something true and return it; TimeoutError after `timeout`."""
    deadline = time.monotonic() + timeout
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() >= deadline:
            name = getattr(predicate, "__qualname__", repr(predicate))
            raise TimeoutError(f"{name} was still {value!r} after {timeout:g} s.")
        time.sleep(interval)


_given_ports: set[int] = set()


def free_port() -> int:
    """A loopback port that nobody listens on, not given out before by this process."""
    for port in random.sample(PORTS, len(PORTS)):
        if port in _given_ports:
            continue
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((LOOPBACK, port))
            except OSError:
                continue
        _given_ports.add(port)
        return port
    raise OSError(f"No free port on {LOOPBACK} between {PORTS.start} and {PORTS.stop - 1}.")


def alive(pid: int) -> bool:
    """Whether the process still runs; a zombie, dead but not yet reaped, does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return not Path("/proc/self/stat").exists()  # no procfs here: the signal's word counts
    return stat.rpartition(")")[2].split()[0] not in {"Z", "X"}


def children_of(pid: int) -> list[int]:
    """The ids of the processes whose parent is `pid`."""
    if Path("/proc/self/stat").exists():
        children = []
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                try:
                    stat = Path(f"/proc/{entry}/stat").read_text(errors="replace")
                except OSError:
                    continue  # ended meanwhile
                if int(stat.rpartition(")")[2].split()[1]) == pid:
                    children.append(int(entry))
        return children
    listing = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], check=True, capture_output=True, text=True)
    pairs = (line.split() for line in listing.stdout.splitlines())
    return [int(child) for child, parent in pairs if int(parent) == pid]


def _pid_of(process: HasPid | int) -> int:
    pid = process if isinstance(process, int) else process.pid
    if pid is None:
        raise ValueError("The process has not been started.")
    return pid


def pause(process: HasPid | int) -> None:
    """SIGSTOP: the process is frozen where it stands, as by a long garbage collection."""
    os.kill(_pid_of(process), signal.SIGSTOP)


def resume(process: HasPid | int) -> None:
    """SIGCONT: a paused process goes on, believing that no time has passed."""
    os.kill(_pid_of(process), signal.SIGCONT)


def kill9(process: HasPid | int) -> None:
    """SIGKILL, and wait until the process is gone; nothing in it can run any more."""
    pid = _pid_of(process)
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    wait_until(lambda: not alive(pid))
    if isinstance(process, subprocess.Popen):
        process.wait()  # reap it, so that it does not warn when collected


# ------------------------------------------------------------------ guarded processes


def _stand_guard() -> None:
    """Run one command and end it when the owner, who holds the other end of stdin, is gone.

    A process of its own: only that survives a SIGKILL of the owner. (Linux' parent-death signal would not
    do: it fires when the *thread* that started the child ends, needs Python code between fork and exec,
    and cannot remove a directory.) It is the command's parent, so the id that it signals can never be
    another process's. A fork of the owner counts as the owner. The source of this function is sent to a
    bare interpreter, hence its own imports.
    """
    import json
    import os
    import select
    import shutil
    import signal
    import subprocess
    import sys

    order = json.loads(sys.argv[1])

    def report(fact: dict[str, object]) -> None:
        try:
            os.write(1, json.dumps(fact).encode() + b"\n")
        except BrokenPipeError:
            pass  # the owner is gone

    woken, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker)
    try:
        child = subprocess.Popen(
            order["command"],
            stdin=subprocess.DEVNULL,
            stdout=2,
            stderr=2,
            cwd=order["cwd"],
            start_new_session=True,
            **order["identity"],
        )
    except OSError as error:
        report({"error": str(error)})
        return
    report({"pid": child.pid})
    while child.poll() is None:
        ready, _, _ = select.select([0, woken], [], [])
        if woken in ready:
            os.read(woken, 512)
        if 0 in ready and not os.read(0, 512):
            child.send_signal(order["signal"])
            try:
                child.wait(order["grace"])
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
            for directory in order["remove"]:
                shutil.rmtree(directory, ignore_errors=True)
    try:
        os.killpg(child.pid, signal.SIGKILL)  # whatever of its group outlived it
    except (ProcessLookupError, PermissionError):
        pass
    report({"returncode": child.returncode})


class GuardedProcess:
    """A command that cannot outlive the process that started it, not even if that is SIGKILLed.

    It runs in a session of its own (Ctrl-C in a terminal does not reach it), as `identity` says
    (Popen's user, group and extra_groups), and writes all its output to the file `log`. When the
    owner is gone it gets `end_signal`, after `grace` seconds SIGKILL, and the directories in
    `remove` are deleted. Raises ProcessFailed if it cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        log: Path,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        identity: Mapping[str, Any] | None = None,
        end_signal: signal.Signals = signal.SIGTERM,
        grace: float = 5.0,
        remove: Sequence[Path] = (),
    ) -> None:
        self.command = list(command)
        self.log = log
        self.returncode: int | None = None
        self._end_signal = end_signal
        self._grace = grace
        order = {
            "command": self.command,
            "cwd": None if cwd is None else str(cwd),
            "identity": dict(identity or {}),
            "signal": int(end_signal),
            "grace": grace,
            "remove": [str(directory) for directory in remove],
        }
        source = f"{inspect.getsource(_stand_guard)}\n_stand_guard()\n"
        with log.open("ab") as output:
            self._guard = subprocess.Popen(
                # Isolated and without site: it must start fast and import nothing of the user's.
                [sys.executable, "-I", "-S", "-c", source, json.dumps(order)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env=None if env is None else dict(env),
                start_new_session=True,
            )
        fact = self._heard()
        if "pid" not in fact:
            self._guard.communicate()
            raise ProcessFailed(
                f"{command[0]} did not start: {fact.get('error', 'no reason given')}\n{self.output()}"
            )
        self.pid: int = fact["pid"]

    def _heard(self) -> dict[str, Any]:
        assert self._guard.stdout is not None
        line = self._guard.stdout.readline()
        fact: dict[str, Any] = json.loads(line) if line else {}
        return fact

    @property
    def running(self) -> bool:
        """Whether it has not ended; a paused process is running."""
        if self.returncode is None and self._guard.poll() is not None:
            self._settle()
        return self.returncode is None

    def _settle(self) -> None:
        fact = self._heard()
        self._guard.communicate()
        self.returncode = fact.get("returncode", -signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end and return its code as Popen does; TimeoutError after `timeout`."""
        if self.returncode is None:
            try:
                self._guard.wait(timeout)
            except subprocess.TimeoutExpired:
                raise TimeoutError(f"{self.command[0]} still runs after {timeout:g} s.") from None
            self._settle()
        assert self.returncode is not None
        return self.returncode

    def send(self, number: signal.Signals, *, group: bool = False) -> None:
        """Send a signal to it, or to it and all its children that stayed in its group."""
        if self.running:
            try:
                (os.killpg if group else os.kill)(self.pid, number)
            except ProcessLookupError:
                pass  # it ended just now

    def end(self, number: signal.Signals | None = None, *, grace: float | None = None) -> int:
        """Ask it to end, and after `grace` seconds kill it; returns its code. May be repeated."""
        self.send(number or self._end_signal)
        self.send(signal.SIGCONT, group=True)  # a paused process would not hear the first one
        try:
            return self.wait(self._grace if grace is None else grace)
        except TimeoutError:
            return self.kill9()

    def kill9(self) -> int:
        """SIGKILL to its whole group at once, and wait for its end."""
        self.send(signal.SIGKILL, group=True)
        return self.wait()

    def output(self) -> str:
        """All that it has written so far."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""


# ------------------------------------------------------------------ served applications


class ServedApp:
    """An application behind a real HTTP server in a process of its own, on a loopback port.

    A context manager: leaving it stops the server. `kill9`, `pause` and `resume` reach the server's
    own worker processes too.
    """

    def __init__(
        self, process: GuardedProcess, port: int, directory: tempfile.TemporaryDirectory[str]
    ) -> None:
        self.port = port
        self.url = f"http://{LOOPBACK}:{port}"
        self._process = process
        self._directory = directory
        self._last_words: str | None = None

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.running

    def output(self) -> str:
        """All that the server has written to its standard output and error."""
        return self._process.output() if self._last_words is None else self._last_words

    def pause(self) -> None:
        self._process.send(signal.SIGSTOP, group=True)

    def resume(self) -> None:
        self._process.send(signal.SIGCONT, group=True)

    def kill9(self) -> None:
        """SIGKILL: no clean-up, no answer to requests under way; returns when it is gone."""
        self._process.kill9()
        self._tidy()

    def stop(self, grace: float = 10.0) -> None:
        """Graceful shutdown, then SIGKILL after `grace` seconds. May be repeated."""
        self._process.end(grace=grace)
        self._tidy()

    def _tidy(self) -> None:
        self._last_words = self.output()  # only the first time: the file is gone after
        self._directory.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def serve_asgi(
    app_path: str,
    env: Mapping[str, str] | None = None,
    *,
    directory: Path | None = None,
    port: int | None = None,
    options: Sequence[str] = (),
    timeout: float = PATIENCE,
) -> ServedApp:
    """Run `uvicorn module:app` and return when it accepts connections.

    `env` is added to this process's environment; `directory` is where the module is found and
    the working directory; `options` are more of uvicorn's own. Raises ProcessFailed, with what
    the server wrote, if it ends or does not listen within `timeout`.
    """
    return _serve(
        lambda chosen: ["uvicorn", app_path, "--host", LOOPBACK, "--port", str(chosen), *options],
        env,
        directory,
        port,
        timeout,
    )


def serve_wsgi(
    app_path: str,
    env: Mapping[str, str] | None = None,
    *,
    threads: int = 8,
    workers: int = 1,
    directory: Path | None = None,
    port: int | None = None,
    options: Sequence[str] = (),
    timeout: float = PATIENCE,
) -> ServedApp:
    """Run `gunicorn module:app` with threaded workers; everything else as `serve_asgi`."""
    from gunicorn.config import KNOWN_SETTINGS  # type: ignore[import-untyped]

    # Newer versions open a control socket in the home directory: one for all servers of a user.
    quiet = [
        "--no-control-socket" for setting in KNOWN_SETTINGS if "--no-control-socket" in (setting.cli or ())
    ]

    def command(chosen: int) -> list[str]:
        return [
            *("gunicorn", app_path, "--bind", f"{LOOPBACK}:{chosen}"),
            *("--worker-class", "gthread", "--workers", str(workers), "--threads", str(threads)),
            *("--timeout", "0"),  # a server that was paused must not be restarted for its silence
            *quiet,
            *options,
        ]

    return _serve(command, env, directory, port, timeout)


class _PortTaken(ProcessFailed):
    """Another process took the port between its choice and its use."""


def _serve(
    command: Callable[[int], Sequence[str]],
    env: Mapping[str, str] | None,
    directory: Path | None,
    port: int | None,
    timeout: float,
) -> ServedApp:
    if port is not None:
        return _serve_on(port, command(port), env, directory, timeout)
    attempts = 3
    while True:
        attempts -= 1
        chosen = free_port()
        try:
            return _serve_on(chosen, command(chosen), env, directory, timeout)
        except _PortTaken:
            if not attempts:
                raise


def _serve_on(
    port: int,
    command: Sequence[str],
    env: Mapping[str, str] | None,
    directory: Path | None,
    timeout: float,
) -> ServedApp:
    logs = tempfile.TemporaryDirectory(prefix="samekey-served-")
    process = GuardedProcess(
        [sys.executable, "-m", *command],
        log=Path(logs.name) / "output.log",
        cwd=directory,
        env=environment(**(env or {})),
        remove=[Path(logs.name)],
    )
    served = ServedApp(process, port, logs)
    try:
        wait_until(lambda: not process.running or _answers(port), timeout)
        reason = f"ended with code {process.returncode}"
    except TimeoutError:
        served.kill9()
        reason = f"did not listen on port {port} within {timeout:g} s"
    except BaseException:
        served.kill9()
        raise
    if process.running:
        return served
    served.kill9()
    error = _PortTaken if "in use" in served.output() else ProcessFailed
    raise error(f"{' '.join(command)} {reason}:\n{served.output()}")


def _answers(port: int) -> bool:
    try:
        with socket.create_connection((LOOPBACK, port), timeout=1):
            return True
    except OSError:
        return False


# ------------------------------------------------------------------ functions in processes


class Barrier:
    """Holds back processes until `parties` of them wait; pass it as an argument of `spawn`.

    `wait` raises threading.BrokenBarrierError when the others do not come within `timeout`.
    """

    def __init__(self, parties: int, timeout: float = PATIENCE) -> None:
        self._barrier = _SPAWN.Barrier(parties, timeout=timeout)

    def wait(self) -> int:
        """Wait for the others; each process gets a different number from 0 on."""
        return self._barrier.wait()


def _die_with_parent() -> None:
    """End this process when its parent is gone, even if its own code hangs."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    sentinel = parent.sentinel

    def watch() -> None:
        multiprocessing.connection.wait([sentinel])
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def _outcome(function: Callable[..., object], *args: object, **kwargs: object) -> bytes:
    """The pickled result, or the traceback as text: not every exception can be pickled."""
    try:
        return pickle.dumps((True, function(*args, **kwargs)))
    except BaseException:
        return pickle.dumps((False, traceback.format_exc()))


def _settled(name: str, outcome: bytes) -> Any:
    succeeded, value = pickle.loads(outcome)  # noqa: S301 - written by our own child
    if not succeeded:
        raise ProcessFailed(f"{name} raised:\n{value}")
    return value


def _run_spawned(
    answer: Connection,
    target: Callable[..., object],
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> None:
    _die_with_parent()
    answer.send_bytes(_outcome(target, *args, **kwargs))
    answer.close()


class Spawned(Generic[T]):
    """A function running in a process of its own. Leaving the context kills what still runs."""

    def __init__(self, target: Callable[..., T], args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        self._name = getattr(target, "__qualname__", repr(target))
        self._answer, theirs = _SPAWN.Pipe(duplex=False)
        self._process = _SPAWN.Process(target=_run_spawned, args=(theirs, target, args, kwargs), daemon=True)
        self._outcome: bytes | None = None
        try:
            self._process.start()
        finally:
            theirs.close()

    @property
    def pid(self) -> int:
        return _pid_of(self._process)

    @property
    def running(self) -> bool:
        return self._process.is_alive()

    @property
    def exitcode(self) -> int | None:
        return self._process.exitcode

    def result(self, timeout: float = PATIENCE) -> T:
        """Wait for what the function returns.

        Raises ProcessFailed if the function raised or the process was killed, and TimeoutError.
        """
        if self._outcome is None:
            if not self._answer.poll(timeout):
                raise TimeoutError(f"{self._name} has not returned after {timeout:g} s.")
            try:
                self._outcome = self._answer.recv_bytes()
            except EOFError:
                self._process.join()
                raise ProcessFailed(
                    f"{self._name} ended with code {self._process.exitcode} and no result."
                ) from None
        self._process.join(timeout)
        value: T = _settled(self._name, self._outcome)
        return value

    def pause(self) -> None:
        pause(self)

    def resume(self) -> None:
        resume(self)

    def kill9(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self._process.kill()
        self._process.join()

    def close(self) -> None:
        """Kill it if it still runs. May be repeated."""
        self.kill9()
        self._answer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def spawn(target: Callable[..., T], *args: Any, **kwargs: Any) -> Spawned[T]:
    """Start `target(*args, **kwargs)` in a fresh interpreter; it and they must be picklable."""
    return Spawned(target, args, kwargs)


@dataclass(frozen=True, slots=True)
class Turn:
    """Who runs, and when: the first argument of every function that races."""

    racer: int
    round: int


def _run_racer(racer: int, commands: Connection, start: Connection) -> None:
    _die_with_parent()
    while True:
        try:
            order = commands.recv_bytes()
        except EOFError:
            return
        try:
            function, number, args = pickle.loads(order)  # noqa: S301 - from our own parent
        except BaseException:
            commands.send_bytes(pickle.dumps((False, traceback.format_exc())))
            continue
        commands.send_bytes(b"ready")
        os.read(start.fileno(), 1)
        commands.send_bytes(_outcome(function, Turn(racer, number), *args))


class Racers:
    """A pool of processes that run the same function at the same moment, round after round.

    Starting an interpreter takes longer than most races, so the processes are kept. What should
    outlive a round, such as a connection, the function may keep in a module's global.
    """

    def __init__(self, count: int, *, timeout: float = PATIENCE) -> None:
        self.timeout = timeout
        self._round = 0
        self._processes: list[Any] = []
        self._commands: list[Connection] = []
        # One pipe for all: a single write of one byte each wakes every racer. Passing the
        # starting signal to one after the other would give the first a head start.
        start, self._start = _SPAWN.Pipe(duplex=False)
        try:
            for racer in range(count):
                ours, theirs = _SPAWN.Pipe()
                process = _SPAWN.Process(target=_run_racer, args=(racer, theirs, start), daemon=True)
                self._commands.append(ours)
                process.start()
                self._processes.append(process)
                theirs.close()
        except BaseException:
            self.close()
            raise
        finally:
            start.close()

    @property
    def pids(self) -> list[int]:
        return [_pid_of(process) for process in self._processes]

    def race(self, function: Callable[..., T], *args: Any) -> list[T]:
        """One round: `function(turn, *args)` in every process at once; results by racer.

        Raises ProcessFailed if a racer raised or died, TimeoutError if one is late; after either
        the pool is closed, since nobody knows what the others still do.
        """
        deadline = time.monotonic() + self.timeout
        order = pickle.dumps((function, self._round, args))
        self._round += 1
        try:
            for commands in self._commands:
                try:
                    commands.send_bytes(order)
                except ConnectionError:
                    pass  # it died between the rounds: gathering says which
            for racer, word in enumerate(self._gather(deadline)):
                if word != b"ready":
                    _settled(f"Racer {racer}", word)
            os.write(self._start.fileno(), b"!" * len(self._commands))
            outcomes = self._gather(deadline)
            return [
                _settled(f"Racer {racer} in round {self._round - 1}", outcome)
                for racer, outcome in enumerate(outcomes)
            ]
        except BaseException:
            self.close()
            raise

    def _gather(self, deadline: float) -> list[bytes]:
        missing = {commands: racer for racer, commands in enumerate(self._commands)}
        words = [b""] * len(missing)
        while missing:
            ready = multiprocessing.connection.wait(list(missing), max(0.0, deadline - time.monotonic()))
            if not ready:
                late = ", ".join(str(racer) for racer in missing.values())
                raise TimeoutError(f"Racers {late} were not done after {self.timeout:g} s.")
            for commands in ready:
                assert isinstance(commands, Connection)
                racer = missing.pop(commands)
                try:
                    words[racer] = commands.recv_bytes()
                except (EOFError, ConnectionError):
                    self._processes[racer].join(1)
                    code = self._processes[racer].exitcode
                    raise ProcessFailed(f"Racer {racer} ended with code {code}.") from None
        return words

    def close(self) -> None:
        """End all processes. May be repeated."""
        for commands in self._commands:
            commands.close()  # an idle racer ends by itself
        self._start.close()
        for process in self._processes:
            process.join(0.5)
            process.kill()
            process.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def race(
    function: Callable[..., T], count: int, *args: Any, rounds: int = 1, timeout: float = PATIENCE
) -> list[list[T]]:
    """Run `function(turn, *args)` in `count` processes at once, `rounds` times over.

    Returns one list per round, with each racer's result in it. `timeout` is for one round.
    """
    with Racers(count, timeout=timeout) as racers:
        return [racers.race(function, *args) for _ in range(rounds)]
