"""``make demo``: a real payments API, started, doubted, killed and asked again.

Each step prints what was sent, what came back and why, and checks each claim that it makes. With ``CI`` set
it ends there, and its exit code says whether every claim held; otherwise the API keeps running for you to
try, until Ctrl-C.

With ``DEMO_NEW_KEYS=1`` the demo's client makes the commonest mistake of all, a new key for every attempt:
watch the claims break.
"""

import json
import os
import signal
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2 as httpx

from samekey.testing.processes import ServedApp, serve_asgi, wait_until

PATIENCE = 20.0
"""Seconds for anything in this demo, which takes ten in all."""


class Story:
    """Prints the steps and keeps count of the claims that did not hold."""

    def __init__(self, *, colour: bool) -> None:
        self.broken = 0
        self._colour = colour
        self._steps = 0

    def step(self, title: str) -> None:
        self._steps += 1
        print("\n" + self._paint("1;36", f"{self._steps}. {title}"))

    def sent(self, line: str) -> None:
        print(f"   {self._paint('33', '→')} {line}")

    def came_back(self, line: str) -> None:
        print(f"   {self._paint('35', '←')} {line}")

    def why(self, *sentences: str) -> None:
        for sentence in sentences:
            print(f"     {self._paint('2', sentence)}")

    def claim(self, sentence: str, held: bool) -> None:
        """Nothing is printed as true without having been looked at."""
        self.broken += not held
        mark = self._paint("32", "✓") if held else self._paint("1;31", "✗ NOT TRUE:")
        print(f"   {mark} {sentence}", flush=True)

    def plain(self, text: str = "") -> None:
        print(text, flush=True)

    def _paint(self, code: str, text: str) -> str:
        return f"\033[{code}m{text}\033[0m" if self._colour else text


class Client:
    """A client of the payments API. It sends what it is told, and prints what it sends."""

    def __init__(self, story: Story, url: str, *, new_keys: bool) -> None:
        self.story = story
        self.url = url
        self._new_keys = new_keys

    def post(self, path: str, key: str, body: dict[str, Any], *, pause: float = 0) -> httpx.Response | None:
        """None if the connection broke before an answer came."""
        if self._new_keys:
            key = f"{key}-{uuid4()}"
        headers = {"Authorization": "Bearer demo", "Idempotency-Key": f'"{key}"'}
        if pause:
            headers["Demo-Pause"] = str(pause)
        asked = f"  Demo-Pause: {pause:g}" if pause else ""
        self.story.sent(f"POST {path}  Idempotency-Key: {key}{asked}  {json.dumps(body)}")
        try:
            answer = httpx.post(self.url + path, headers=headers, json=body, timeout=PATIENCE)
        except httpx.TransportError as error:
            self.story.came_back(f"no answer: {error}")
            return None
        self.story.came_back(summary(answer))
        return answer

    def post_until_settled(self, path: str, key: str, body: dict[str, Any]) -> httpx.Response:
        """Retries as a good client does: the same key, and not before ``Retry-After``."""
        deadline = time.monotonic() + PATIENCE
        while True:
            answer = self.post(path, key, body)
            assert answer is not None, "The API is gone."
            if code(answer) != "in_progress" or time.monotonic() > deadline:
                return answer
            time.sleep(int(answer.headers["retry-after"]))

    def status(self, path: str) -> dict[str, Any]:
        self.story.sent(f"GET {path}")
        answer = httpx.get(self.url + path, headers={"Authorization": "Bearer demo"}, timeout=PATIENCE)
        status: dict[str, Any] = answer.json()
        self.story.came_back(f"{answer.status_code}  state: {status['state']}")
        return status


def summary(answer: httpx.Response) -> str:
    """Status, the headers that matter here, and the part of the body that a person would read."""
    shown = [str(answer.status_code)]
    for name in ("Idempotent-Replayed", "Retry-After"):
        if name in answer.headers:
            shown.append(f"{name}: {answer.headers[name]}")
    shown.append(f"code: {code(answer)}" if code(answer) else answer.text)
    return "  ".join(shown)


def code(answer: httpx.Response) -> str | None:
    """The machine-readable code of an error, or None."""
    is_problem = answer.headers["content-type"] == "application/problem+json"
    return str(answer.json().get("code")) if is_problem else None


def replayed(answer: httpx.Response | None) -> bool:
    return answer is not None and answer.headers.get("idempotent-replayed") == "true"


def same(first: httpx.Response | None, second: httpx.Response | None) -> bool:
    if first is None or second is None:
        return False
    return (first.status_code, first.content) == (second.status_code, second.content)


class Background:
    """Something that runs in a thread while the demo goes on."""

    def __init__(self, work: Callable[[], httpx.Response | None]) -> None:
        self._answer: httpx.Response | None = None
        self._thread = threading.Thread(target=lambda: setattr(self, "_answer", work()), daemon=True)
        self._thread.start()

    @property
    def still_running(self) -> bool:
        return self._thread.is_alive()

    def answer(self) -> httpx.Response | None:
        self._thread.join(PATIENCE)
        return self._answer


class Demo:
    """The API, its two databases, and the steps in order."""

    def __init__(self, story: Story, directory: Path, *, new_keys: bool) -> None:
        self.story = story
        self.directory = directory
        self.api = self.start()
        self.client = Client(story, self.api.url, new_keys=new_keys)

    def start(self, port: int | None = None) -> ServedApp:
        return serve_asgi(
            "examples.payments_demo_app:app",
            {"DEMO_DIRECTORY": str(self.directory)},
            directory=Path(__file__).parent.parent,
            port=port,
            options=["--log-level", "warning"],
        )

    def kill_and_restart(self) -> None:
        self.story.plain("   ! kill -9, in the middle of the handler; then the API is started again")
        port = self.api.port
        self.api.kill9()
        self.api = self.start(port)

    def payments(self) -> list[Any]:
        return self._rows("payments.db", "select id, customer, cents from payments order by id")

    def transfers(self) -> list[Any]:
        return self._rows("bank.db", "select account, cents, reference from transfers")

    def _rows(self, file: str, query: str) -> list[Any]:
        connection = sqlite3.connect(self.directory / file)
        try:
            return connection.execute(query).fetchall()
        finally:
            connection.close()

    def started_slowly(self, path: str, key: str, body: dict[str, Any], pause: float) -> Background:
        """Sends a request whose handler stops half-way, and returns when it is there."""
        slow = Background(lambda: self.client.post(path, key, body, pause=pause))
        wait_until(lambda: f"half-way through {key_line(key)}" in self.api.output(), PATIENCE)
        return slow

    def run(self) -> None:
        first = self.payment_and_retry()
        self.different_body()
        self.two_at_once()
        self.killed_while_atomic()
        self.killed_while_leased()
        self.proof(first)

    def payment_and_retry(self) -> httpx.Response | None:
        story, coffee = self.story, {"customer": "ada", "cents": 450}
        story.step("A payment")
        first = self.client.post("/payments", "coffee", coffee)
        story.why("The key is new, so the handler ran. Its row and its answer were committed together.")
        story.claim("201, and one row in the payments table", is_created(first) and len(self.payments()) == 1)

        story.step("Its retry: the client did not get the answer and sends the same again")
        second = self.client.post("/payments", "coffee", coffee)
        story.why("The key is known and the request is the same, so the handler did not run.")
        story.claim("the first answer, byte for byte", same(first, second))
        story.claim("marked as a replay", replayed(second))
        story.claim("still one row", len(self.payments()) == 1)
        return first

    def different_body(self) -> None:
        story = self.story
        story.step("A different body under the same key")
        other = self.client.post("/payments", "coffee", {"customer": "ada", "cents": 99999})
        story.why("A key stands for one operation. This is another one, so it is a mistake or an attack.")
        story.claim(
            "422 with the code `reused`",
            other is not None and other.status_code == 422 and code(other) == "reused",
        )
        story.claim("nothing was done: still one row", len(self.payments()) == 1)

    def two_at_once(self) -> None:
        story, tea = self.story, {"customer": "bob", "cents": 300}
        story.step("Two at once: the second arrives while the first is being worked on")
        before = len(self.payments())
        slow = self.started_slowly("/payments", "tea", tea, pause=2)
        second = self.client.post("/payments", "tea", tea)
        still_running = slow.still_running
        story.why("Somebody holds this key, so the second is told to come back; it does not queue up.")
        story.claim(
            "409 with the code `in_progress` and Retry-After",
            second is not None and code(second) == "in_progress" and "retry-after" in second.headers,
        )
        story.claim("answered while the first was still running", still_running)
        first = slow.answer()
        third = self.client.post("/payments", "tea", tea)
        story.why("Now the first is done, and the retry gets its answer.")
        story.claim("the same answer for both", same(first, third) and replayed(third))
        story.claim("one row for the two of them", len(self.payments()) == before + 1)

    def killed_while_atomic(self) -> None:
        story, cake = self.story, {"customer": "cyd", "cents": 700}
        story.step("A retry after kill -9, atomic: the row is written, the process dies before the commit")
        before = len(self.payments())
        slow = self.started_slowly("/payments", "cake", cake, pause=PATIENCE)
        self.kill_and_restart()
        story.claim("the client got no answer", slow.answer() is None)
        story.claim("the half-done payment was rolled back", len(self.payments()) == before)
        retry = self.client.post_until_settled("/payments", "cake", cake)
        story.why(
            "409 until the dead process's lease (two seconds here) has run out: until then nobody can know",
            "that it is dead. Its transaction is gone for certain, so then the retry may run.",
        )
        story.claim(
            "201, and this time it is there", is_created(retry) and len(self.payments()) == before + 1
        )
        again = self.client.post("/payments", "cake", cake)
        story.claim(
            "one more retry gets the same answer", same(retry, again) and len(self.payments()) == before + 1
        )

    def killed_while_leased(self) -> None:
        story, rent = self.story, {"account": "landlord", "cents": 90000}
        story.step("A retry after kill -9, leased: the bank has been told, then the process dies")
        slow = self.started_slowly("/transfers", "rent", rent, pause=PATIENCE)
        self.kill_and_restart()
        story.claim("the client got no answer", slow.answer() is None)
        retry = self.client.post_until_settled("/transfers", "rent", rent)
        story.why(
            "Nobody can tell from here whether the bank did it. Running it again might pay twice, so samekey",
            "says so and does not run it. The downstream key is what to ask the bank about.",
        )
        story.claim("409 with the code `outcome_unknown`", code(retry) == "outcome_unknown")
        story.claim("the bank was told once", len(self.transfers()) == 1)
        status = self.client.status(status_link(retry)) if "status" in retry.links else {}
        story.claim("the status resource says `unknown`", status.get("state") == "unknown")

    def proof(self, first: httpx.Response | None) -> None:
        story = self.story
        story.step("The proof: what is in the two databases")
        payments, transfers = self.payments(), self.transfers()
        story.plain("   payments.db  payments")
        for number, customer, cents in payments:
            story.plain(f"     {number:>3}  {customer:<10} {cents / 100:>8.2f}")
        story.plain("   bank.db  transfers")
        for account, cents, _ in transfers:
            story.plain(f"          {account:<10} {cents / 100:>8.2f}")
        expected = [("ada", 450), ("bob", 300), ("cyd", 700)]
        story.claim("each payment is there once", [row[1:] for row in payments] == expected)
        story.claim("so is the transfer", [row[:2] for row in transfers] == [("landlord", 90000)])
        last = self.client.post("/payments", "coffee", {"customer": "ada", "cents": 450})
        story.claim("and after two crashes the first retry's answer is still the same", same(first, last))


def is_created(answer: httpx.Response | None) -> bool:
    return answer is not None and answer.status_code == 201


def key_line(key: str) -> str:
    return f'"{key}'  # no closing quote: DEMO_NEW_KEYS adds something


def status_link(answer: httpx.Response) -> str:
    return str(answer.links["status"]["url"])


INVITATION = """
The API is still running, on {url}. Try it (Ctrl-C ends it):

  curl -i {url}/payments -H 'Authorization: Bearer demo' -H 'Idempotency-Key: "mine-1"' \\
       -H 'Content-Type: application/json' -d '{{"customer": "you", "cents": 100}}'

Send it again; then with other cents; then with a new key and -H 'Demo-Pause: 5', twice at once.
Its databases are in {directory}"""


def main() -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # either way of being stopped cleans up
    story = Story(colour=sys.stdout.isatty() and not os.environ.get("NO_COLOR"))
    with tempfile.TemporaryDirectory(prefix="samekey-demo-") as directory:
        demo = Demo(story, Path(directory), new_keys=bool(os.environ.get("DEMO_NEW_KEYS")))
        try:
            story.plain(f"A payments API on SQLite is running: {demo.api.url}  (process {demo.api.pid})")
            demo.run()
            story.plain("\n" + verdict(story.broken))
            if not os.environ.get("CI"):
                story.plain(INVITATION.format(url=demo.api.url, directory=directory))
                wait_for_ctrl_c()
        except KeyboardInterrupt:
            return 130
        finally:
            demo.api.stop()
    return 1 if story.broken else 0


def verdict(broken: int) -> str:
    if broken:
        return f"{broken} claim{'s'[: broken > 1]} did not hold."
    return "Every claim held: same key, same answer, one effect."


def wait_for_ctrl_c() -> None:
    try:
        signal.pause()
    except KeyboardInterrupt:
        print()


if __name__ == "__main__":
    sys.exit(main())
