"""One call of a client library may be several requests: attempts are repeated, redirects followed. The error
is about the last one, and proves nothing about the first, which was carried out."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import get_context

import aiohttp
import boto3  # type: ignore[import-untyped]
import httpx
import httpx2
import pytest
import requests
import urllib3
from botocore.config import Config
from requests.adapters import HTTPAdapter
from urllib3.util.retry import Retry

from samekey.core.arrival import left_this_machine, may_have_happened

PAGE = b"<ErrorResponse><Error><Type>Sender</Type><Code>No</Code></Error></ErrorResponse>"


@contextmanager
def nobody() -> Iterator[str]:
    """An address that refuses connections: bound, so that nobody else gets it, and not listening."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}/done"


@contextmanager
def provider(answer: Callable[[BaseHTTPRequestHandler, int], None]) -> Iterator[tuple[str, list[str]]]:
    """Notes each request, then answers it: told whether it is the first, the second …"""
    seen: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            told(404)(self, 0)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            seen.append(self.path)
            answer(self, len(seen))

        def log_message(self, *_arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/charge", seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def told(status: int, location: str = "") -> Callable[[BaseHTTPRequestHandler, int], None]:
    def answer(request: BaseHTTPRequestHandler, _number: int) -> None:
        request.send_response(status)
        if location:
            request.send_header("Location", location)
        request.send_header("Content-Length", str(len(PAGE)))
        request.end_headers()
        request.wfile.write(PAGE)

    return answer


def lost_then(status: int) -> Callable[[BaseHTTPRequestHandler, int], None]:
    def answer(request: BaseHTTPRequestHandler, number: int) -> None:
        if number == 1:
            request.close_connection = True
        else:
            told(status)(request, number)

    return answer


def by_requests(url: str) -> None:
    requests.post(url, json={}, timeout=5).raise_for_status()


def by_requests_again(url: str) -> None:
    with requests.Session() as session:
        session.mount("http://", HTTPAdapter(max_retries=Retry(total=2, allowed_methods=None)))
        session.post(url, json={}, timeout=5).raise_for_status()


def by_httpx(url: str) -> None:
    with httpx.Client(follow_redirects=True) as client:
        client.post(url, json={}).raise_for_status()


def by_httpx2(url: str) -> None:
    with httpx2.Client(follow_redirects=True) as client:
        client.post(url, json={}).raise_for_status()


def by_aiohttp(url: str) -> None:
    async def post() -> None:
        async with aiohttp.ClientSession(raise_for_status=True) as session, session.post(url, json={}):
            pass

    asyncio.run(post())


def by_boto3(url: str) -> None:
    config = Config(retries={"max_attempts": 1}, connect_timeout=5, read_timeout=5)
    named = {"region_name": "eu-1", "aws_access_key_id": "a", "aws_secret_access_key": "b"}
    client = boto3.client("sns", endpoint_url=url, config=config, **named)
    try:
        client.publish(TopicArn="arn:aws:sns:eu-1:1:t", Message="charge")
    finally:
        client.close()


def by_urllib3(url: str) -> None:
    with urllib3.PoolManager() as pool:
        pool.request("POST", url, retries=Retry(total=2, allowed_methods=None))


FOLLOWING = (by_requests, by_httpx, by_httpx2, by_aiohttp)


def error_of(call: Callable[[str], None], url: str) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: PT011
        call(url)
    return caught.value


@pytest.mark.parametrize("call", FOLLOWING)
@pytest.mark.parametrize("to", ["refused", "myshop://done", "http://[bad/done"])
def test_a_redirect_that_leads_nowhere_proves_nothing(call: Callable[[str], None], to: str) -> None:
    with nobody() as refused, provider(told(303, refused if to == "refused" else to)) as (url, seen):
        assert may_have_happened(error_of(call, url))
        assert seen == ["/charge"]


@pytest.mark.parametrize("call", FOLLOWING)
def test_what_was_sent_on_before_anything_was_done_is_still_proof(call: Callable[[str], None]) -> None:
    """307: the method stays, and so does the intent; whoever gave it has done nothing."""
    with nobody() as refused, provider(told(307, refused)) as (url, seen):
        error = error_of(call, url)
        # requests says the same of a broken connection as of one that was refused
        assert may_have_happened(error) == (call is by_requests)
        assert seen == ["/charge"]


@pytest.mark.parametrize("call", [by_httpx, by_httpx2, by_aiohttp])
def test_one_request_that_was_refused_is_proof(call: Callable[[str], None]) -> None:
    with nobody() as refused:
        assert not may_have_happened(error_of(call, refused))


@pytest.mark.parametrize("call", [by_boto3, by_requests_again, by_urllib3])
def test_a_second_attempt_that_is_refused_proves_nothing(call: Callable[[str], None]) -> None:
    """The first is carried out, its reply is lost, and then nobody listens any more."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(1)
        seen: list[bytes] = []

        def act_and_go() -> None:
            accepted, _ = listening.accept()
            with accepted:
                seen.append(accepted.recv(65_536))
                listening.close()

        thread = threading.Thread(target=act_and_go)
        thread.start()
        error = error_of(call, f"http://127.0.0.1:{listening.getsockname()[1]}/charge")
        thread.join()
        assert len(seen) == 1
    assert may_have_happened(error)
    assert left_this_machine(error) is not False


@pytest.mark.parametrize("status", [400, 403, 409, 429])
@pytest.mark.parametrize("call", [by_boto3, by_requests_again])
def test_a_second_attempt_that_the_provider_refuses_proves_nothing(
    call: Callable[[str], None], status: int
) -> None:
    with provider(lost_then(status)) as (url, seen):
        assert may_have_happened(error_of(call, url))
        assert len(seen) > 1


@pytest.mark.parametrize("call", [*FOLLOWING, by_boto3, by_requests_again])
def test_the_refusal_of_the_only_request_is_proof(call: Callable[[str], None]) -> None:
    with provider(told(402)) as (url, seen):
        assert not may_have_happened(error_of(call, url))
        assert len(seen) == 1


def test_an_sdk_that_repeats_requests_and_says_so() -> None:
    """Generated SDKs count their attempts in a header."""
    with provider(told(409)) as (url, _), httpx.Client() as client:
        first, second = (client.post(url, headers={"x-stainless-retry-count": count}) for count in ("0", "1"))
    for response, happened in ((first, False), (second, True)):
        with pytest.raises(httpx.HTTPStatusError) as caught:
            response.raise_for_status()
        assert may_have_happened(caught.value) is happened


def by_urllib(url: str) -> None:
    try:
        urllib.request.urlopen(url, b"x").close()
    except urllib.error.HTTPError as error:
        error.close()
        raise


@pytest.mark.parametrize("call", [by_urllib, by_aiohttp])
def test_the_refusal_of_where_a_redirect_led_proves_nothing(call: Callable[[str], None]) -> None:
    with provider(told(404)) as (other, _), provider(told(303, other)) as (url, seen):
        assert may_have_happened(error_of(call, url))
        assert seen == ["/charge"]


def test_what_comes_out_of_another_process_proves_nothing() -> None:
    with nobody() as refused, ProcessPoolExecutor(1, get_context("spawn")) as pool:
        error = error_of(lambda url: pool.submit(by_httpx, url).result(), refused)
    assert isinstance(error, httpx.ConnectError) and may_have_happened(error)


@pytest.mark.parametrize(
    ("error", "happened"),
    [
        (EOFError(), True),
        (BrokenProcessPool(), True),
        (subprocess.CalledProcessError(-9, "pay"), True),
        (subprocess.CalledProcessError(1, "pay"), False),
    ],
)
def test_what_broke_off_proves_nothing(error: Exception, happened: bool) -> None:
    assert may_have_happened(error) is happened
