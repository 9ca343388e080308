"""Plans, and reports in every form."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from samekey.check import RULES, Budget, Endpoint, check, serving_asgi, serving_wsgi
from samekey.check.plan import read_plan
from samekey.errors import ConfigurationError
from tests.check.base import BODY, Asked, Reply, Server, said, serving
from tests.check.broken import NoFingerprint
from tests.check.test_command import samekey_check

PLAN = """
profile = "ietf"
headers = {{Authorization = "Bearer ${{TOKEN}}"}}
other_headers = {{Authorization = "Bearer bob"}}

[[endpoint]]
name = "orders"
url = "{url}/orders"
body = {{item = "book", amount = 100}}
count_url = "{url}/count"
slow = {{headers = {{X-Slow = "0.5"}}}}
failing = {{headers = {{X-Fail = "1"}}, times = 1}}
retention = 1

[[endpoint]]
name = "the same, by its answers"
url = "{url}/orders"
body = '{{"item": "pen", "amount": 1}}'
same = "/id"
"""


class Planned(Server):
    """Slow and failing on request; forgets books after a second, by a clock that only waiting moves."""

    waited = 0.0

    def wait(self, seconds: float) -> None:
        self.waited += seconds

    def monotonic(self) -> float:
        return time.monotonic() + self.waited

    def guarded(self, asked: Asked, tenant: str, key: str) -> Reply:
        known = self.scope(asked, tenant, key) in self.records
        began = self.__dict__.setdefault("began", {}).setdefault(key, self.waited)
        if known and b"book" in asked.body and self.waited - began > 1.05:
            self.records.pop(self.scope(asked, tenant, key), None)
        if asked.header("x-fail") and not known and key not in self.__dict__.setdefault("failed", set()):
            self.__dict__["failed"].add(key)
            return said(500, {"detail": "as asked"})
        return super().guarded(asked, tenant, key)

    def attempt(self, scope: Any, document: Any, tenant: str) -> Reply:
        return super().attempt(scope, document, tenant)


def write_plan(directory: Path, url: str) -> Path:
    path = directory / "plan.toml"
    path.write_text(PLAN.format(url=url))
    return path


def test_a_plan_checks_every_endpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "ann")
    server = Planned()
    clock = SimpleNamespace(sleep=server.wait, monotonic=server.monotonic)
    monkeypatch.setattr("samekey.check.probes.lifetime.time", clock)
    with serving(server) as url:
        result = samekey_check("--plan", str(write_plan(tmp_path, url)), "--json", "--rate", "2000")
    report = json.loads(result.stdout)
    assert (result.exit_code, report["findings"]) == (0, [])
    one, two = report["reports"]
    assert one["name"] == "orders" and {"errors.remembered-5xx", "errors.ran-twice", "lifetime.early"} <= set(
        one["passed"]
    )
    assert one["facts"]["after expiry"] == "a retry ran (201)"
    assert two["facts"]["effects"] == "told apart by the answers: /id"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("nonsense", "is no TOML"),
        ("", "has no endpoint"),
        ("[[endpoint]]\nurl = 7", "url must be a text"),
        ("[[endpoint]]\nbody = {}", "has no url"),
        ("[[endpoint]]\nurl = 'http://127.0.0.1/x'\nnonsense = 1", "cannot have nonsense"),
        ("[[endpoint]]\nurl = 'http://127.0.0.1/x'\nbody = 'nonsense'", "is no JSON"),
        ("[[endpoint]]\nurl = 'http://127.0.0.1/x'\nheaders = ['a']", "a table of texts"),
        ("[[endpoint]]\nurl = 'http://127.0.0.1/x'\nslow = 3", "slow must be a table"),
        ("[[endpoint]]\nurl = 'http://127.0.0.1/x'\nretention = 'long'", "must be seconds"),
        ("headers = {A = '${NOWHERE_SET}'}\n[[endpoint]]\nurl = 'http://127.0.0.1/x'", "not set"),
    ],
)
def test_a_plan_that_makes_no_sense_is_a_sentence(text: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=sentence.replace("$", r"\$")):
        read_plan(path)
    result = samekey_check("--plan", str(path))
    assert (result.exit_code, sentence in result.stderr) == (2, True)


def test_a_plan_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    result = samekey_check("--plan", str(tmp_path / "nowhere.toml"))
    assert (result.exit_code, "cannot be read" in result.stderr) == (2, True)


@pytest.fixture(scope="module")
def forms(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    directory = tmp_path_factory.mktemp("reports")
    found = {}
    with serving(NoFingerprint()) as url:
        words = ["--body", BODY, "--header", "Authorization: Bearer ann", "--rate", "2000"]
        for form in ("junit", "sarif", "html", "text"):
            path = directory / form
            assert (
                samekey_check(f"{url}/orders", *words, "--format", form, "--output", str(path)).exit_code == 1
            )
            found[form] = path.read_text()
    return found


def test_junit(forms: dict[str, str]) -> None:
    (suite,) = ET.fromstring(forms["junit"])
    assert suite.get("failures") == "1"
    cases = {case.get("name"): case for case in suite}
    failure = cases["misuse.body"].find("failure")
    assert failure is not None and failure.text is not None and "POST /orders" in failure.text
    assert cases["loss.ran-again"].find("skipped") is not None and len(cases["header.case"]) == 0


def test_sarif(forms: dict[str, str]) -> None:
    (run,) = json.loads(forms["sarif"])["runs"]
    assert len(run["tool"]["driver"]["rules"]) == len(RULES)
    (result,) = [found for found in run["results"] if found["level"] == "error"]
    assert result["ruleId"] == "misuse.body"
    assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == "misuse.body"


def test_a_page_that_needs_nothing_else(forms: dict[str, str]) -> None:
    page = forms["html"]
    assert "misuse.body" in page and "Authorization: •••" in page
    assert "<script" not in page and "src=" not in page and "<link" not in page


def test_no_form_shows_credentials(forms: dict[str, str]) -> None:
    assert not [form for form, text in forms.items() if "Bearer ann" in text]


def test_every_rule_is_a_sentence_with_a_source_and_a_fix() -> None:
    for rule in RULES.values():
        assert rule.says.endswith(".") and rule.fix.endswith(".") and rule.source, rule.id


# ------------------------------------------------------------------ applications, in a test


def test_an_asgi_application_in_process_as_the_page_has_it(tmp_path: Path) -> None:
    from examples.shop.starlette import make, prepare

    page = (Path(__file__).parent.parent.parent / "docs/check.md").read_text()
    (code,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code, "docs/check.md", "exec"), names)
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    prepare(url)
    names["test_orders_keep_their_promise"](make(url))


def test_the_plan_of_the_page_is_one(tmp_path: Path) -> None:
    page = (Path(__file__).parent.parent.parent / "docs/check.md").read_text()
    (text,) = re.findall(r"^```toml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    path = tmp_path / "plan.toml"
    path.write_text(text)
    plan = read_plan(path, {"TOKEN_OF_ANN": "a", "TOKEN_OF_BOB": "b"})
    assert [endpoint.name for endpoint in plan.endpoints] == ["orders", "refunds"]
    assert plan.endpoints[0].other_tenant == (("Authorization", "Bearer b"),)


def test_a_wsgi_application_in_process(tmp_path: Path) -> None:
    from examples.shop.flask import make, prepare

    url = f"sqlite:///{tmp_path / 'shop.db'}"
    prepare(url)
    with serving_wsgi(make(url)) as address:
        report = check(endpoint(address), budget=Budget(rate=2000))
    assert report.ok, report.findings


def endpoint(address: str) -> Endpoint:
    return Endpoint(
        f"{address}/orders",
        {"sku": "tea", "quantity": 2},
        headers=(("Authorization", "Bearer ann"),),
        other_headers=(("Authorization", "Bearer bob"),),
        count_url=f"{address}/orders",
    )


def test_an_application_that_does_not_start_is_a_sentence() -> None:
    async def broken(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "no database"})

    with pytest.raises(ConfigurationError, match="did not start"), serving_asgi(broken):
        pass
