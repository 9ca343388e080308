"""What real libraries raise after a real provider has acted: ``on_error="retry"`` frees no key by it."""

from __future__ import annotations

import asyncio
import http.server
import json
import smtplib
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import aiohttp
import botocore.config
import botocore.session
import httpx
import httpx2
import pytest
import requests
import urllib3
from requests.adapters import HTTPAdapter

from samekey.core.outcome import Outcome, of_error


class Provider(http.server.BaseHTTPRequestHandler):
    """Does what it is asked for, and then answers as its path says."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        how = self.path.strip("/")
        if how == "cut":
            self.close_connection = True
            return
        self.send_response(int(how) if how.isdigit() else 200)
        self.send_header("content-length", "10" if how == "short" else "3")
        if how == "garbled":
            self.send_header("content-encoding", "gzip")
        self.end_headers()
        self.wfile.write(b"<a>")
        self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def provider() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Provider) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def with_httpx(url: str) -> None:
    with httpx.Client(trust_env=False) as client:
        client.post(url, content=b"x").raise_for_status().json()


def with_httpx2(url: str) -> None:
    with httpx2.Client(trust_env=False) as client:
        client.post(url, content=b"x").raise_for_status().json()


def with_requests(url: str) -> None:
    with requests.Session() as session:
        session.trust_env = False
        response = session.post(url, data=b"x")
        response.raise_for_status()
        response.json()


def with_an_adapter(url: str) -> None:
    with requests.Session() as session:
        session.trust_env = False
        again = urllib3.Retry(1, status_forcelist=[502, 503, 504], allowed_methods=None, backoff_factor=0)
        session.mount("http://", HTTPAdapter(max_retries=again))
        response = session.post(url, data=b"x")
        response.raise_for_status()
        response.json()


class OfMine(Exception):
    """As whoever calls urllib3 has to have one."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


def with_urllib3(url: str) -> None:
    again = urllib3.Retry(1, status_forcelist=[502, 504], allowed_methods=None, raise_on_status=True)
    with urllib3.PoolManager(retries=again) as pool:
        response = pool.request("POST", url, body=b"x")
        if response.status >= 400:
            raise OfMine(response.status)
        response.json()


def with_urllib(url: str) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, b"x") as response:
            json.loads(response.read())
    except urllib.error.HTTPError as error:
        error.close()
        raise


def with_aiohttp(url: str) -> None:
    async def post() -> None:
        async with aiohttp.ClientSession() as session, session.post(url, data=b"x") as response:
            response.raise_for_status()
            await response.json()

    asyncio.run(post())


def with_botocore(url: str) -> None:
    session = botocore.session.get_session()
    session.set_credentials("x", "y")
    client = session.create_client(
        "sqs",
        region_name="us-east-1",
        endpoint_url=url,
        config=botocore.config.Config(retries={"max_attempts": 0}, proxies={}),
    )

    def aside(request: Any, **_: Any) -> None:
        request.url = url

    client.meta.events.register("before-send.sqs.*", aside)
    client.send_message(QueueUrl=url, MessageBody="x")


LIBRARIES = [with_httpx, with_httpx2, with_requests, with_an_adapter, with_urllib3, with_urllib, with_aiohttp]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("how", ["500", "502", "504", "200", "short", "garbled", "cut"])
@pytest.mark.parametrize("post", LIBRARIES, ids=lambda post: post.__name__)
def test_a_provider_that_acted_may_have_acted(post: Callable[[str], None], how: str, provider: str) -> None:
    with pytest.raises(Exception) as raised:  # noqa: PT011 - each library has its own
        post(f"{provider}/{how}")
    assert of_error(raised.value) is Outcome.UNKNOWN


@pytest.mark.timeout(60)
@pytest.mark.parametrize("how", ["502", "504", "cut"])
def test_a_cloud_that_acted_may_have_acted(how: str, provider: str) -> None:
    test_a_provider_that_acted_may_have_acted(with_botocore, how, provider)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("how", ["400", "402", "429"])
@pytest.mark.parametrize("post", [*LIBRARIES, with_botocore], ids=lambda post: post.__name__)
def test_a_provider_that_refused_did_nothing(post: Callable[[str], None], how: str, provider: str) -> None:
    with pytest.raises(Exception) as raised:  # noqa: PT011 - each library has its own
        post(f"{provider}/{how}")
    assert of_error(raised.value) is Outcome.FAIL


@pytest.mark.timeout(60)
def test_a_mail_server_that_leaves_after_the_letter_may_have_it() -> None:
    def serve(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        with connection, connection.makefile("rwb", 0) as talk:
            talk.write(b"220 x\r\n")
            while line := talk.readline().upper():
                talk.write(b"354 go\r\n" if line.startswith(b"DATA") else b"250 ok\r\n")
                if line.startswith(b"DATA"):
                    while talk.readline() not in (b".\r\n", b""):
                        pass
                    return

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=serve, args=(listening,), daemon=True).start()
        port = listening.getsockname()[1]
        with smtplib.SMTP("127.0.0.1", port) as mail, pytest.raises(smtplib.SMTPException) as raised:
            mail.sendmail("a@b", ["c@d"], "hello")
    assert of_error(raised.value) is Outcome.UNKNOWN
