"""The code in docs/clients.md, against a real server."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import lab
from lab.processes import serve_asgi
from samekey import Idempotency
from samekey.client import told
from tests.client.scripted import Say, scripted
from tests.test_docs import blocks


def test_the_examples_of_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database = tmp_path / "shop.db"
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("create table payments (order_name text)")
    Idempotency(f"sqlite:///{database}").close()
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    with serve_asgi("tests.client.shop:app", lab.environment(SHOP_DATABASE=str(database))) as shop:
        for code in blocks("docs/clients.md", "python"):
            local = code.replace("https://api.shop.example", shop.url).replace('"cents": 450', '"order": 17')
            exec(compile(local, "<documentation>", "exec"), names)
            if "answer" in names:
                assert names["answer"].status_code == 201 and not told(names["answer"]).replayed
        with closing(names["client"]) as client, names["operation"]("pay order 17"):
            again = client.post("/payments", json={"order": 17})
            assert told(again).replayed and again.content == names["answer"].content
            assert client.pending() == []
    assert names["finished"].answer.status == 201
    # A redirect is the answer: whoever follows it gives key and credentials to others.
    with scripted(Say()) as other, scripted(Say(303, b"", (("Location", f"{other.url}/there"),))) as server:
        request = names["Request"]("POST", f"{server.url}/payments", names["headers"], b"{}")
        assert names["send"](request, 5.0).status == 303 and other.seen == []
    with closing(sqlite3.connect(database)) as connection:
        assert Counter(connection.execute("select order_name from payments")) == {("17",): 2}  # two orders
