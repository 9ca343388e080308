"""A project's own tests, of each kind that Django has."""

from typing import Any
from urllib.request import Request, urlopen

from django.core.management import call_command
from django.test import LiveServerTestCase, TestCase, TransactionTestCase

from tests.django.ledger.models import Entry
from tests.django.own_urls import called

KEY = {"Idempotency-Key": "k"}


class Cases:
    """The same for both kinds."""

    client: Any
    async_client: Any

    def setUp(self) -> None:
        called.clear()
        Entry.objects.create(text="of the test")  # a transaction that has written before

    def texts(self) -> list[str]:
        return list(Entry.objects.order_by("id").values_list("text", flat=True))

    def test_a_retry(self) -> None:
        answers = [self.client.post("/pay", headers=KEY) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [201, 201], answers[0].content
        assert answers[1]["Idempotent-Replayed"] == "true"
        assert self.client.post("/pay", {"other": "body"}, headers=KEY).status_code == 422
        assert self.texts() == ["of the test", "paid"]

    def test_a_failure(self) -> None:
        self.client.raise_request_exception = False
        assert self.client.post("/pay?fail=1", headers=KEY).status_code == 500
        assert self.texts() == ["of the test"]
        assert called == []
        assert self.client.post("/swallows", headers={"Idempotency-Key": "k2"}).status_code == 500
        assert self.texts() == ["of the test"]

    def test_leased(self) -> None:
        assert [self.client.post("/call", headers=KEY).status_code for _ in range(2)] == [201, 201]
        assert self.texts() == ["of the test", "called"]

    async def test_async(self) -> None:
        answers = [await self.async_client.post("/pay_async", headers=KEY) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [201, 201], answers[0].content
        found = [entry.text async for entry in Entry.objects.order_by("id")]
        assert found == ["of the test", "async"]


class Wrapped(Cases, TestCase):  # type: ignore[misc]
    """In a transaction that Django rolls back at the end."""

    def test_what_runs_on_commit(self) -> None:
        with self.captureOnCommitCallbacks(execute=True) as callbacks:
            assert self.client.post("/pay", headers=KEY).status_code == 201
        assert (len(callbacks), called) == (1, ["paid"])


class Real(Cases, TransactionTestCase):  # type: ignore[misc]
    """With commits of its own."""

    def test_what_runs_on_commit(self) -> None:
        assert self.client.post("/pay", headers=KEY).status_code == 201
        assert called == ["paid"]


class Anew:
    """Each test begins with no key, as it begins with no row."""

    client: Any

    def pay(self) -> None:
        answer = self.client.post("/pay", headers=KEY)
        assert (answer.status_code, answer.has_header("Idempotent-Replayed")) == (201, False)
        assert Entry.objects.count() == 1

    def test_one(self) -> None:
        self.pay()

    def test_another(self) -> None:
        self.pay()


class AsSerialized(Anew, TransactionTestCase):  # type: ignore[misc]
    """With the rows of migrations loaded again for each. (Django wants it before others that flush, and goes
    by the alphabet.)"""

    serialized_rollback = True


class SomeApps(Anew, TransactionTestCase):  # type: ignore[misc]
    """With the tables of some apps emptied."""

    available_apps = ("django.contrib.contenttypes", "django.contrib.auth", "tests.django.ledger")


class Flushed(Anew, TransactionTestCase):  # type: ignore[misc]
    """By hand, in the middle."""

    def test_flush(self) -> None:
        self.pay()
        call_command("flush", interactive=False, verbosity=0)
        self.pay()


class Served(LiveServerTestCase):  # type: ignore[misc]
    """By a server in a thread of this process, over a socket."""

    def pay(self) -> Any:
        request = Request(f"{self.live_server_url}/pay", b"", {**KEY, "Content-Type": "text/plain"})
        return urlopen(request, timeout=30)

    def test_a_retry(self) -> None:
        with self.pay() as first, self.pay() as again:
            assert (first.status, again.status) == (201, 201)
            assert (first.headers["Idempotent-Replayed"], again.headers["Idempotent-Replayed"]) == (
                None,
                "true",
            )
        assert Entry.objects.count() == 1

    def test_the_same_key_in_another_test(self) -> None:
        with self.pay() as first:
            assert first.headers["Idempotent-Replayed"] is None
        assert Entry.objects.count() == 1
