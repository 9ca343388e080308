"""samekey's own client against the service: a 202 is followed to the final answer, by name, once."""

from __future__ import annotations

from datetime import timedelta

from samekey.client import Keyed, MemoryJournal, Patience, operation, told
from samekey.client.httpx2 import Client

from .running import ANN, Service, unique


def test_a_payment_is_followed_to_its_final_answer(running: Service) -> None:
    keyed = Keyed(patience=Patience(deadline=timedelta(seconds=60)), journal=MemoryJournal())
    headers = {"Authorization": f"Bearer {ANN}"}
    name = unique("order")
    body = {"amount": 450, "currency": "EUR", "reference": name}
    with Client(base_url=running.url, headers=headers, keyed=keyed, trust_env=False) as client:
        with operation(name):
            first = client.post("/payments", json=body)
            again = client.post("/payments", json=body)
        assert (first.status_code, first.json()["status"]) == (201, "succeeded")
        assert first.json()["provider_id"] and again.content == first.content
        assert told(again).replayed and told(again).key == told(first).key
        assert client.pending() == []
        found = client.get(f"/payments/{first.json()['id']}").json()
    assert (found["status"], found["reference"]) == ("succeeded", name)
