"""A client in a process of its own, which is killed now and then: it pays every order, however often it
takes. ``python -m tests.client.payer WIRE URL FOLDER COUNT DISCIPLINE``

What it has an answer for stands in its books, a line for each. With ``new-keys`` it makes the mistake that
this is all about: a new key for each attempt.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import httpx2

from samekey import Backoff
from samekey.client import FileJournal, Keyed, Patience, Unsettled
from tests.client.wires import Wire, wire_named

TRY_AGAIN = 75
"""Its exit code where the server was away for too long: it is kept, so the next one finishes it."""
QUICK = Backoff(first=timedelta(milliseconds=5), longest=timedelta(milliseconds=80))


def pay_all(wire: Wire, url: str, folder: Path, count: int) -> None:
    keyed = Keyed(
        patience=Patience(deadline=timedelta(seconds=20), backoff=QUICK),
        journal=FileJournal(folder / "operations"),
    )
    books = folder / "books"
    with books.open("a", buffering=1) as writing:
        paid = _paid(books)
        try:
            for answer in wire.finish_pending(keyed):  # what an earlier one of us had begun
                assert answer.status == 201, answer
            for order in (str(number) for number in range(count)):
                if order not in paid:
                    answer = wire.post(
                        f"{url}/payments", {"order": order}, keyed, name=f"order {order}", timeout=5.0
                    )
                    assert answer.status == 201, answer
                    writing.write(f"{order} {answer.told.attempts} {int(answer.told.replayed)}\n")
        except Unsettled as error:
            print(error, file=sys.stderr)
            raise SystemExit(TRY_AGAIN) from None


def pay_all_badly(url: str, folder: Path, count: int) -> None:
    books = folder / "books"
    with (
        httpx2.Client(trust_env=False, timeout=5.0, verify=False) as client,
        books.open("a", buffering=1) as writing,
    ):
        paid = _paid(books)
        for order in (str(number) for number in range(count)):
            for attempt in range(1, 1000):
                if order in paid:
                    break
                try:
                    key = {"Idempotency-Key": str(uuid4())}
                    answer = client.post(f"{url}/payments", json={"order": order}, headers=key)
                except httpx2.TransportError:
                    continue
                if answer.status_code == 201:
                    writing.write(f"{order} {attempt} 0\n")
                    break


def _paid(books: Path) -> set[str]:
    return {line.split()[0] for line in books.read_text().splitlines()}


if __name__ == "__main__":
    name, url, folder, count, discipline = sys.argv[1:]
    if discipline == "new-keys":
        pay_all_badly(url, Path(folder), int(count))
    else:
        pay_all(wire_named(name), url, Path(folder), int(count))
