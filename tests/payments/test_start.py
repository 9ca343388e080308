"""Starting: settings, tables that several processes make at once, and every route guarded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from examples.payments.database import Database
from examples.payments.settings import DEMO_ACCOUNTS, Settings
from lab.processes import GuardedProcess
from tests.payments.running import ROOT, Service


def test_several_processes_start_at_once_on_a_new_database(fresh_url: str, tmp_path: Path) -> None:
    environment = {**os.environ, "DATABASE_URL": fresh_url, "PROVIDER_SECRET": "s"}
    command = [sys.executable, "-c", "import examples.payments.app"]
    started = [
        GuardedProcess(command, log=tmp_path / f"{n}.log", env=environment, cwd=ROOT) for n in range(3)
    ]
    assert [process.wait(240) for process in started] == [0, 0, 0], [one.output() for one in started]
    checked = subprocess.run(
        [sys.executable, "-m", "samekey.cli", "migrate", fresh_url, "--check"], timeout=120, check=False
    )
    assert checked.returncode == 0


def test_the_settings_come_from_the_environment() -> None:
    assert Settings.from_environment({}) == Settings()
    assert Settings().accounts == DEMO_ACCOUNTS
    found = Settings.from_environment(
        {
            "DATABASE_URL": "postgresql://db/payments",
            "PROVIDER_URL": "http://provider",
            "PROVIDER_SECRET": "shh",
            "CARDS_URL": "http://cards",
            "CARDS_SECRET": "pst",
            "PAYMENTS_ACCOUNTS": '{"t": "acct"}',
            "PAYMENTS_LEASE": "2.5",
            "PAYMENTS_CALL_TIMEOUT": "1",
            "PAYMENTS_TTL": "3600",
            "PAYMENTS_ENCRYPTION_KEYS": "hush quiet",
        }
    )
    expected = Settings(
        database_url="postgresql://db/payments",
        provider_url="http://provider",
        provider_secret="shh",
        cards_url="http://cards",
        cards_secret="pst",
        accounts={"t": "acct"},
        lease=2.5,
        call_timeout=1.0,
        ttl=3600,
        encryption_keys=("hush", "quiet"),
    )
    assert found == expected
    assert not any(secret in repr(found) for secret in ("shh", "pst", "hush", "quiet"))


@pytest.mark.parametrize(
    "environment",
    [
        {"PAYMENTS_ACCOUNTS": "[]"},
        {"PAYMENTS_ACCOUNTS": '{"t": 1}'},
        {"PAYMENTS_ACCOUNTS": "nonsense"},
        {"PAYMENTS_LEASE": "0"},
        {"PAYMENTS_CALL_TIMEOUT": "-1"},
        {"PAYMENTS_LEASE": "soon"},
        {"PAYMENTS_TTL": "0"},
    ],
)
def test_settings_that_make_no_sense_are_refused(environment: dict[str, str]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - each has its own sentence
        Settings.from_environment(environment)


def test_a_database_that_it_does_not_know_is_refused() -> None:
    with pytest.raises(ValueError, match="DATABASE_URL begins with oracle:"):
        Database("oracle://db")


def test_every_route_is_guarded(sqlite_url: str) -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "samekey.cli", "coverage", "examples.payments.app:app", "--json"],
        env={**os.environ, "DATABASE_URL": sqlite_url},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert shown.returncode == 0, shown.stdout + shown.stderr
    modes = ("deferred", "phased", "atomic", "leased", "exempt")
    assert all(mode in json.dumps(json.loads(shown.stdout)) for mode in modes)


def test_the_ledgers_agree_and_a_stranger_is_noticed(running: Service) -> None:
    from examples.provider import ProviderClient

    running.paid()
    assert running.provider.entries()
    stranger = ProviderClient(running.provider.url).charge(5, key=None, reference="nobody ordered this")
    compared = running.compare()
    assert compared.returncode == 1, compared.stderr
    assert stranger.id in compared.stdout
