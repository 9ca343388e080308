"""What else is at the other end: a count that others move, answers without end, a server that forgets."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest

from lab.processes import wait_until
from samekey.check import Budget, Endpoint, Report
from samekey.check.bench import Bench, CannotGoOn
from samekey.check.profiles import profile_of
from samekey.check.variants import Leaf, changed
from samekey.check.wire import RawRequest, send, together
from tests.check.base import Asked, Record, Reply, Server
from tests.check.broken import ReplaysAndRuns
from tests.check.test_broken import report_of
from tests.check.test_command import samekey_check

# ------------------------------------------------------------------ a count that others move


class CountedByEverybody(Server):
    """Somebody else's operation falls between any two readings of the count."""

    def answer(self, asked: Asked) -> Reply:
        if asked.path == "/count":
            self.effects.append("somebody else")
        return super().answer(asked)


class OnceDuringARetry(Server):
    """One operation of somebody else's, at the worst moment: while a retry is answered from the record."""

    elsewhere: ClassVar[int] = 1

    def meet(self, record: Record, asked: Asked) -> Reply:
        if self.elsewhere > self.effects.count("somebody else"):
            self.effects.append("somebody else")
        return super().meet(record, asked)


class OnceAfterTheFirstRetries(OnceDuringARetry):
    """The same, while a key is misused."""

    def meet(self, record: Record, asked: Asked) -> Reply:
        return Server.meet(self, record, asked)

    def mismatch(self) -> Reply:
        if not self.effects.count("somebody else"):
            self.effects.append("somebody else")
        return super().mismatch()


class OthersDelete(Server):
    """The count falls now and then."""

    def answer(self, asked: Asked) -> Reply:
        if asked.method == "POST" and len(self.effects) > 3:
            self.effects.pop()
        return super().answer(asked)


@pytest.mark.parametrize(
    "server", [CountedByEverybody, OnceDuringARetry, OnceAfterTheFirstRetries, OthersDelete]
)
def test_a_count_that_others_move_proves_nothing_and_accuses_nobody(server: type[Server]) -> None:
    report = report_of(server())
    assert [(finding.id, finding.detail) for finding in report.findings] == []
    assert "loss.ran-again" in report.not_proven and "changes by itself" in report.facts["count URL"]


def test_a_second_effect_that_only_the_count_tells_is_found() -> None:
    assert [finding.id for finding in report_of(ReplaysAndRuns()).findings] == ["replay.ran-again"]


# ------------------------------------------------------------------ answers without end


@contextmanager
def answering(act: Callable[[socket.socket], None]) -> Iterator[str]:
    """Serves each connection by the act, until the other side leaves."""
    over = threading.Event()

    def one(connection: socket.socket) -> None:
        with connection:
            connection.recv(65536)
            try:
                while not over.is_set():
                    act(connection)
            except OSError:
                pass

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=one, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/orders"
        over.set()
        listening.shutdown(socket.SHUT_RDWR)
    thread.join()


def trickles(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 201 Created\r\nContent-Length: 100000\r\n\r\n")
    while True:
        connection.sendall(b"x")
        time.sleep(0.05)


def trickles_its_head(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 201 Created\r\nX-Long: ")
    while True:
        connection.sendall(b"x")
        time.sleep(0.05)


def goes_on(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")


def hints(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 103 Early Hints\r\n\r\n")


WITHOUT_END = [trickles, trickles_its_head, goes_on, hints]


@pytest.mark.timeout(30)
@pytest.mark.parametrize("act", WITHOUT_END, ids=lambda act: act.__name__)
def test_an_answer_without_end_is_none(act: Callable[[socket.socket], None]) -> None:
    with answering(act) as url:
        result = samekey_check(url, "--body", "{}", "--timeout", "0.3")
        bursts = together([RawRequest("POST", url, (), b"{}")] * 2, 0.3)
    assert (result.exit_code, "no answer in time" in result.stderr) == (3, True)
    assert [exchange.silence for exchange in bursts] == ["no answer in time"] * 2


def test_an_answer_right_behind_an_interim_one_is_read() -> None:
    both = b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\nok"
    with answering(lambda connection: connection.sendall(both)) as url:
        exchange = send(RawRequest("POST", url, (), b"{}"), 5)
    assert exchange.answer is not None and (exchange.status, exchange.answer.body) == (201, b"ok")


# ------------------------------------------------------------------ a server that forgets


class ForgetsTheOldest(Server):
    """A cache with room for so many keys."""

    room: ClassVar[int] = 25

    def claim(self, scope: Any, fingerprint: str) -> Record | None:
        found = super().claim(scope, fingerprint)
        with self.lock:
            while len(self.records) > self.room:
                del self.records[next(iter(self.records))]
        return found


@pytest.mark.parametrize("count", [True, False], ids=["counted", "by answers"])
def test_a_server_that_forgets_the_first_key_during_the_check_is_found(count: bool) -> None:
    report = report_of(ForgetsTheOldest(), count=count)
    assert [finding.id for finding in report.findings] == ["lifetime.forgotten"]
    assert len(report.findings[0].exchanges) == 2


class SaysWhenItForgets(ForgetsTheOldest):
    def run(self, document: Any, tenant: str) -> Reply:
        reply = super().run(document, tenant)
        gone = ("Idempotency-Key-Expires", "Thu, 01 Jan 2026 00:00:00 GMT")
        return Reply(reply.status, reply.body, (*reply.headers, gone))


def test_a_server_that_has_said_when_it_forgets_may() -> None:
    report = report_of(SaysWhenItForgets())
    assert report.findings == [] and "lifetime.forgotten" in report.not_proven


def test_the_report_says_for_how_long_a_key_was_seen_to_be_kept() -> None:
    report = report_of(Server())
    assert "lifetime.forgotten" in report.passed and report.facts["keys are kept"].endswith("s at least")


# ------------------------------------------------------------------ time, and what is written into a request


@contextmanager
def silent() -> Iterator[tuple[str, list[Any]]]:
    """Takes connections, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        links: list[Any] = []

        def take() -> None:
            while True:
                try:
                    links.append(listening.accept())
                except OSError:
                    return

        threading.Thread(target=take, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/orders", links
        finally:
            for link, _ in links:
                link.close()


def test_who_says_nothing_is_not_waited_for_three_times() -> None:
    with silent() as (url, links):
        bench = _bench(url, Budget(timeout=0.5))
        assert bench.steady(bench.request('"k"', body=b"{}")).answer is None
        wait_until(lambda: len(links) >= 1)
        assert len(links) == 1


def test_the_time_for_a_check_has_an_end() -> None:
    bench = _bench("http://127.0.0.1:9/orders", Budget(deadline=-1))
    with pytest.raises(CannotGoOn, match="used up its"):
        bench.spend(1)


def _bench(url: str, budget: Budget) -> Bench:
    return Bench(Endpoint(url, {}), profile_of("ietf"), Report(url, "POST", "ietf"), budget)


def test_what_the_user_gives_stands_in_the_place_of_the_tools_own() -> None:
    given = (("Host", "shop.example"), ("Content-Length", "7"), ("Accept-Encoding", "gzip"))
    head = RawRequest("POST", "http://ann:p%40ss@127.0.0.1/orders", given, b"{}").head().decode()
    lines = [line.partition(": ")[0].lower() for line in head.split("\r\n")]
    assert all(lines.count(name) == 1 for name in ("host", "content-length", "accept-encoding"))
    assert "Host: shop.example" in head and "Authorization: Basic YW5uOnBAc3M=" in head


def test_a_secret_that_a_page_repeats_in_html_is_masked() -> None:
    secrets = Endpoint("http://h/", {}, headers=(("X-Token", "a<b&c'd\"efgh"),)).secrets
    assert "efgh" not in secrets.out_of("<p>a&lt;b&amp;c&#x27;d&quot;efgh</p>")


def test_another_number_is_another_one_beyond_all_bounds_too() -> None:
    for value in (1e16, 1e18, -1e18, 100, 0.5):
        assert changed({"a": value}, Leaf(("a",), value)) != {"a": value}
