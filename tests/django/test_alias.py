"""The store on another alias than ``default``: there its tables are, and there atomic views commit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management import call_command
from django.db import connections, transaction
from django.http import HttpResponse
from django.urls import path

from samekey import Idempotency
from tests.django.world import world


def texts(alias: str) -> list[str]:
    from tests.django.ledger.models import Entry

    return list(Entry.objects.using(alias).order_by("id").values_list("text", flat=True))


def tables(alias: str) -> list[str]:
    """Of samekey's."""
    wrapper = connections[alias]
    with wrapper.cursor() as cursor:
        if wrapper.vendor == "postgresql":
            cursor.execute("select table_name from information_schema.tables where table_schema = 'samekey'")
            return [row[0] for row in cursor.fetchall()]
        return [name for name in wrapper.introspection.table_names(cursor) if name.startswith("samekey")]


def test_what_is_written_to_the_alias_commits_with_the_answer(each_url: str, tmp_path: Path) -> None:
    from tests.django.ledger.models import Entry

    said: list[str] = []

    def urls(idempotency: Idempotency) -> list[Any]:
        @idempotency.atomic
        def pay(request: Any) -> HttpResponse:
            with transaction.atomic(using="money"):
                Entry.objects.using("money").create(text="paid")
            if request.headers["X-How"] == "raises":
                raise ValueError("after the block")
            if request.headers["X-How"] == "elsewhere":
                try:
                    Entry.objects.create(text="in default")
                except Exception as error:
                    said.append(str(error))
                    raise
            return HttpResponse("done", status=201)

        return [path("pay", pay)]

    default = f"sqlite:///{tmp_path / 'default.db'}"
    quietly: dict[str, Any] = {"interactive": False, "verbosity": 0}
    quietly["inhibit_post_migrate"] = True  # other apps have no tables here
    with world(default, urls, aliases={"money": each_url}, database="money") as shop:
        assert tables("money")
        assert tables("default") == []
        for how in ("raises", "elsewhere"):
            assert shop.post("/pay", "k", X_How=how).status_code == 500
            assert (texts("money"), texts("default")) == ([], [])
        assert "in an operation on the database 'money'" in said[0].lower()
        first, again = (shop.post("/pay", "k", X_How="returns") for _ in range(2))
        assert (first.status_code, again["Idempotent-Replayed"]) == (201, "true")
        assert (texts("money"), texts("default")) == (["paid"], [])

        # Another alias is flushed: nothing of ours goes. This one: everything does.
        call_command("flush", database="default", **quietly)
        assert shop.post("/pay", "k", X_How="returns")["Idempotent-Replayed"] == "true"
        call_command("flush", database="money", **quietly)
        assert texts("money") == []
        anew = shop.post("/pay", "k", X_How="returns")
        assert (anew.status_code, anew.has_header("Idempotent-Replayed")) == (201, False)
        assert texts("money") == ["paid"]
