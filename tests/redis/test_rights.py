"""The rights that the page prints: with each of them everything works, and one less is said by name before
anything is written."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import samekey
from lab.servers.redis import RedisServer, connect
from samekey import ConfigurationError, Idempotency

ROOT = Path(samekey.__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "stores" / "redis.md"
RIGHTS = re.findall(r"^ACL SETUSER app on >password (.*)$", PAGE.read_text("utf-8"), re.MULTILINE)[0].split()
ELSEWHERE = {"+wait", "+select", "+ping", "+client|setinfo", "+cluster|slots"}
"""For a URL with wait=…, for another database, for redis-py's own words to the server, for a Cluster."""


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer.start() as started:
        yield started


def user(server: RedisServer, rights: list[str]) -> str:
    with connect(server.url) as client:
        client.flushall()
        client.execute_command("ACL", "SETUSER", "app", "reset", "on", ">pw", *rights)
        client.script_flush()
    return f"redis://app:pw@127.0.0.1:{server.port}"


def use(url: str) -> None:
    idempotency = Idempotency(url)
    try:
        idempotency.check()
        for _ in range(2):
            assert idempotency.once(tenant="t", key="k", run=lambda: 1) == 1
    finally:
        idempotency.close()


def test_everything_works_under_the_rights_of_the_page(server: RedisServer) -> None:
    use(user(server, RIGHTS))


@pytest.mark.parametrize("right", RIGHTS)
def test_one_right_less_is_named_before_anything_is_written(server: RedisServer, right: str) -> None:
    url = user(server, [one for one in RIGHTS if one != right])
    if right in ELSEWHERE:
        use(url)
        return
    with pytest.raises(ConfigurationError) as refused:
        use(url)
    name = right.removeprefix("+")
    said = f"lacks rights that the scripts need: {right}. Grant"
    if name in ("eval", "evalsha", "info"):
        said = f"no permissions to run the '{name}' command"
    elif right.startswith("~"):
        said = "keys"
    assert said in str(refused.value).partition("ACL SETUSER")[0]
    with connect(server.url) as client:
        assert all(name.endswith(b"rights") for name in client.keys("*")), "nothing half written"


def test_every_command_of_the_scripts_is_tried() -> None:
    scripts = "".join(path.read_text("utf-8") for path in (ROOT / "stores" / "redis").glob("*.lua"))
    tried = (ROOT / "stores" / "redis" / "missing_rights.lua").read_text("utf-8")
    assert set(re.findall(r"redis\.p?call\(\'([A-Z]+)\'", scripts)) <= set(
        re.findall(r"\{\'([A-Z]+)\'", tried)
    )
