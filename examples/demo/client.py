"""A client of the service: it sends what it is told, prints it, and retries as a good client does."""

import json
import threading
import time
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import httpx2 as httpx

from lab.processes import wait_until

from .show import Screen
from .stage import PATIENCE, Account, Stage

SETTLED = ("completed", "unknown", "dead_letter")
LONGEST_PAUSE = 1.0
"""Seconds between two attempts: ``Retry-After`` speaks of half a minute where a person would have to act."""


class Client:
    """``new_keys``: it makes the commonest mistake of all, a new key for every attempt."""

    def __init__(self, screen: Screen, stage: Stage, *, new_keys: bool = False) -> None:
        self._screen = screen
        self._stage = stage
        self._new_keys = new_keys
        self._first: dict[tuple[Account, str], str] = {}
        # What the environment says about proxies is not for loopback.
        self._http = httpx.Client(base_url=stage.url, timeout=PATIENCE, trust_env=False)

    def close(self) -> None:
        self._http.close()

    def first_key(self, account: Account, key: str) -> str:
        """The key as it was sent with the first attempt."""
        return self._first.get((account, key), key)

    def post(
        self, account: Account, path: str, key: str, body: dict[str, Any], *, called: str = ""
    ) -> httpx.Response | None:
        """None if the connection broke before an answer came. ``called``: which of several it is."""
        sent = f"{key}-{uuid4()}" if self._new_keys else key
        first = self._first.setdefault((account, key), sent)
        self._screen.watch(key, lambda: self._stage.look_up(account, first).timeline)
        self._screen.request(f"{called}POST {path}   {account.id}", sent, body)
        headers = {"Authorization": f"Bearer {account.token}", "Idempotency-Key": f'"{sent}"'}
        try:
            answer = self._http.post(path, headers=headers, json=body)
        except httpx.TransportError as error:
            self._screen.no_answer(str(error))
            return None
        self._show(answer, called)
        return answer

    def post_until_settled(
        self, account: Account, path: str, key: str, body: dict[str, Any]
    ) -> httpx.Response | None:
        """The same request again while the first one may still be at work, or the database is busy."""
        deadline = time.monotonic() + PATIENCE
        while True:
            answer = self.post(account, path, key, body)
            if code(answer) not in ("in_progress", "store_unavailable") or time.monotonic() > deadline:
                return answer
            assert answer is not None  # it had a code
            time.sleep(min(float(answer.headers["retry-after"]), LONGEST_PAUSE))

    def get(self, account: Account, path: str) -> httpx.Response:
        self._screen.request(f"GET {path}   {account.id}")
        answer = self._get(account, path)
        self._show(answer)
        return answer

    def follow(self, account: Account, path: str) -> dict[str, Any]:
        """Asks the status resource until it is settled; shows the last answer."""
        self._screen.request(f"GET {path}   {account.id}, until it is settled")
        wait_until(lambda: is_settled(self._get(account, path)), PATIENCE, interval=0.1)
        answer = self._get(account, path)
        self._show(answer)
        status: dict[str, Any] = answer.json()
        return status

    def _get(self, account: Account, path: str) -> httpx.Response:
        return self._http.get(path, headers={"Authorization": f"Bearer {account.token}"})

    def _show(self, answer: httpx.Response, called: str = "") -> None:
        line = f"{called}{answer.status_code} {answer.reason_phrase}"
        self._screen.answer(line, answer.headers, shown_body(answer))


class Background:
    """A request that is under way while the tour goes on."""

    def __init__(self, work: Callable[[], httpx.Response | None]) -> None:
        self._answer: httpx.Response | None = None
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()

    def _run(self, work: Callable[[], httpx.Response | None]) -> None:
        self._answer = work()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def answer(self) -> httpx.Response | None:
        """Waits for it."""
        self._thread.join(PATIENCE)
        if self._thread.is_alive():
            raise TimeoutError("A request got neither an answer nor an error.")
        return self._answer


def is_settled(status: httpx.Response) -> bool:
    """Whether the status resource will not say anything else any more."""
    return status.status_code != 200 or status.json()["state"] in SETTLED


def code(answer: httpx.Response | None) -> str | None:
    """The machine-readable code of one of samekey's own errors, or None."""
    if answer is None or answer.headers.get("content-type") != "application/problem+json":
        return None
    found = answer.json().get("code")
    return None if found is None else str(found)


def is_replay(answer: httpx.Response | None) -> bool:
    return answer is not None and answer.headers.get("idempotent-replayed") == "true"


def has_status(answer: httpx.Response | None, status: int) -> bool:
    return answer is not None and answer.status_code == status


def same(first: httpx.Response | None, second: httpx.Response | None) -> bool:
    """The same status and the same bytes."""
    if first is None or second is None:
        return False
    return (first.status_code, first.content) == (second.status_code, second.content)


def shown_body(answer: httpx.Response) -> str:
    """The body; of a long error or status only what matters here, with an ellipsis for the rest."""
    if code(answer) is not None:
        problem = answer.json()
        return json.dumps({name: problem[name] for name in ("code", "title")})[:-1] + ", …}"
    try:
        content = answer.json()
    except ValueError:
        return answer.text
    if isinstance(content, dict) and "state" in content:
        told = {name: content[name] for name in ("id", "state", "answer") if name in content}
        if told.get("answer"):
            told["answer"] = {name: told["answer"][name] for name in ("status", "body")}
        return json.dumps(told)[:-1] + ", …}"
    return answer.text
