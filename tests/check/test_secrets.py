"""What was given as a secret is in no report and in no message; and a plan keeps what it has found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree as ET

import pytest

from samekey.check import Budget, Endpoint, check
from samekey.check.masking import Secrets, secrets_of
from tests.check.base import BODY, Asked, Reply, Server, said, serving
from tests.check.broken import IgnoresKeys, NoFingerprint
from tests.check.test_command import samekey_check, unused_port

FORMS = ("text", "json", "junit", "sarif", "html")
SECRETS = {
    "Authorization": "Bearer first-secret-of-all",
    "X-Access-Key": "second-secret",
    "Ocp-Apim-Subscription-Key": "third-secret-é",
    "X-Plain": "fourth secret/with=odd&characters",
    "Cookie": "sid=fifth-secret-cookie; theme=dark",
}
IN_THE_URL = "sixth+secret%2Furl"
SHOWN = ("first-secret", "second-secret", "third-secret", "fourth", "fifth-secret", "sixth", "secret/url")


class Echoes(IgnoresKeys):
    """Repeats all that it was sent, as debug pages do, and lets everybody in."""

    def authenticate(self, asked: Asked) -> str:
        return "ann"

    def run(self, document: Any, tenant: str) -> Reply:
        reply = super().run(document, tenant)
        return said(
            201, {**reply.document, "you_sent": self.__dict__["asked"]}, ("Location", "/x?" + IN_THE_URL)
        )

    def answer(self, asked: Asked) -> Reply:
        self.__dict__["asked"] = {
            **asked.headers,
            "query": asked.query,
            "in_a_url": quote(str(asked.headers)),
        }
        return super().answer(asked)


def shown_in(text: str) -> list[str]:
    return [word for word in SHOWN if word in text]


@pytest.mark.parametrize("form", FORMS)
def test_no_form_shows_what_the_server_repeats(form: str) -> None:
    words = [word for name, value in SECRETS.items() for word in ("--header", f"{name}: {value}")]
    words += ["--header", "Accept-Language: en-of-somewhere"]
    with serving(Echoes()) as url:
        result = samekey_check(
            f"{url}/orders?access_token={IN_THE_URL}&pin=12", "--body", BODY, *words, "--format", form
        )
    assert result.exit_code == 1
    assert shown_in(result.output) == [] and "pin=12" not in result.output
    assert "en-of-somewhere" in result.output or form == "text"


def test_a_finding_in_a_test_of_ones_own_shows_no_credentials() -> None:
    with serving(IgnoresKeys()) as url:
        report = check(
            Endpoint(f"{url}/orders", json.loads(BODY), headers=(("Authorization", "Bearer ann"),)),
            budget=Budget(rate=2000),
        )
    assert not report.ok and "Bearer" not in repr(report.findings) and "Bearer" not in repr(report)


@pytest.mark.parametrize(
    "words",
    [
        ["http://127.0.0.1:9/x", "--header", "X-Plain: very-secret€"],
        ["http://127.0.0.1:9/x", "--header", "very-secret"],
        ["http://127.0.0.1:9/x", "--other-header", "X-Plain: very-secret\r\nX: y"],
        ["http://127.0.0.1:port/x?token=very-secret"],
        ["http://ann:very-secret@127.0.0.1:port/x"],
        ["http://ann:very-secret/x@127.0.0.1/x"],
        ["ftp://127.0.0.1/x?token=very-secret"],
        ["http://127.0.0.1/x?token=very-secret and more"],
        ["http://127.0.0.1:9/x", "--count-url", "ftp://127.0.0.1/x?token=very-secret"],
        ["http://192.0.2.1/x?token=very-secret"],
        ["http://ann:very-secret@192.0.2.1/x"],
    ],
)
def test_no_message_shows_a_secret(words: list[str]) -> None:
    result = samekey_check(*words, "--body", "{}")
    assert result.exit_code == 2 and result.stderr.startswith("samekey: ")
    assert "very-secret" not in result.output


class RefusesAndEchoes(Server):
    def authenticate(self, asked: Asked) -> str:
        raise AssertionError

    def answer(self, asked: Asked) -> Reply:
        if asked.path == "/count":
            return said(200, {"you_sent": asked.headers})
        padding = "x" * 270
        return said(401, {"padding": padding, "you_sent": asked.headers, "query": asked.query})


@pytest.mark.parametrize(
    "count", [[], ["--count-url", "{}/count?token=sixth-secret"]], ids=["request", "count"]
)
def test_what_is_not_accepted_is_told_without_secrets(count: list[str]) -> None:
    with serving(RefusesAndEchoes()) as url:
        words = [word.format(url) for word in count]
        header = f"Authorization: {SECRETS['Authorization']}"
        result = samekey_check(f"{url}/orders?t=sixth-secret", "--body", BODY, "--header", header, *words)
    assert result.exit_code == 2 and shown_in(result.output) == []


PLAN = """
headers = {{Authorization = "Bearer ann", X-Trace = "${{TRACE}}"}}

[[endpoint]]
url = "{one}/orders"
body = {{item = "book", amount = 100}}

[[endpoint]]
url = "{two}/${{TRACE}}?x=${{TRACE}}"
body = {{item = "book", amount = 100}}

[[endpoint]]
url = "{three}/orders"
body = {{item = "book", amount = 100}}
"""


def run_plan(directory: Path, one: str, two: str, three: str, *words: str) -> Any:
    path = directory / "plan.toml"
    path.write_text(PLAN.format(one=one, two=two, three=three))
    return samekey_check("--plan", str(path), "--rate", "2000", *words)


@pytest.mark.parametrize("form", FORMS)
def test_an_endpoint_that_is_down_takes_nothing_away_from_the_others(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACE", "first-secret-of-all")
    down = f"http://127.0.0.1:{unused_port()}"
    with serving(IgnoresKeys()) as one, serving(IgnoresKeys()) as three:
        result = run_plan(tmp_path, one, down, three, "--format", form)
    assert (result.exit_code, "cannot be reached" in result.stderr) == (1, True)
    assert result.stdout.count("cannot be reached") == 1 and one in result.stdout and three in result.stdout
    assert shown_in(result.output) == []
    if form == "json":
        reports = json.loads(result.stdout)["reports"]
        assert [len(report["findings"]) for report in reports] == [1, 0, 1]
        assert [report["ok"] for report in reports] == [False] * 3 and reports[0]["unchecked"] is None
    if form == "junit":
        assert [suite.get("errors") for suite in ET.fromstring(result.stdout)] == [None, "1", None]


def test_an_endpoint_that_is_down_is_3_if_nothing_else_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACE", "orders")
    down = f"http://127.0.0.1:{unused_port()}"
    with serving(Server()) as right:
        result = run_plan(tmp_path, down, f"{right}/nowhere", right, "--json")
    reports = json.loads(result.stdout)["reports"]
    assert (result.exit_code, [report["ok"] for report in reports]) == (3, [False, False, True])
    assert "answered 404" in reports[1]["unchecked"]


def test_a_finding_is_1_whatever_comes_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACE", "nowhere")
    with serving(NoFingerprint()) as broken:
        result = run_plan(tmp_path, broken, broken, "http://nowhere.invalid", "--output", str(tmp_path / "x"))
    assert result.exit_code == 1 and "misuse.body" in (tmp_path / "x").read_text()


def test_what_is_masked_and_what_is_not() -> None:
    secrets = secrets_of(
        [
            ("Authorization", "Basic YW5uOm9wZW4tc2VzYW1l"),
            ("X-Delay", "1"),
            ("X-Env", "test"),
            ("Accept", "*/*"),
        ],
        ["http://u:pass-word@h/p?a=b%20c-d-e-f&limit=1000"],
        ["http://127.0.0.1:8000"],
    )
    masked = secrets.out_of
    assert masked('"open-sesame" YW5uOm9wZW4tc2VzYW1l') == '"•••" •••'
    assert masked("b c-d-e-f, b%20c-d-e-f, b+c-d-e-f, pass-word") == "•••, •••, •••, •••"
    assert masked("a test of the latest, 1 of 1000") == "a ••• of the latest, 1 of 1000"
    assert masked("http://127.0.0.1:8000/x */*") == "http://127.0.0.1:8000/x */*"
    assert Secrets().out_of("https://ann:secret@host/x") == "https://•••@host/x"
