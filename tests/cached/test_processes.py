"""Ten processes on one key, with a cache in front: one of them runs, and all others get its answer."""

from __future__ import annotations

import psycopg

from lab.processes import Racers
from lab.servers.redis import RedisServer
from tests.cached.racing import ask
from tests.cached.world import migrated
from tests.chosen import whole

pytestmark = whole


PROCESSES = 10
ROUNDS = 30
PATIENCE = 240.0
"""Seconds for a round: in the first, ten processes import everything at once."""


def test_one_runs_whether_or_not_the_cache_is_there(postgres_url: str, own_cache_server: RedisServer) -> None:
    migrated(postgres_url)
    racing = Racers(PROCESSES, timeout=PATIENCE)
    with psycopg.connect(postgres_url, autocommit=True) as connection, racing as racers:
        connection.execute("create table effects (key text, pid bigint)")
        for number in range(ROUNDS):
            if number == ROUNDS // 3:
                own_cache_server.kill()
            if number == 2 * ROUNDS // 3:
                own_cache_server.start_again()
            key = f"round {number}"
            told = racers.race(ask, postgres_url, own_cache_server.url, key)
            ran = [pid for (pid,) in connection.execute("select pid from effects where key = %s", (key,))]
            assert len(ran) == 1, f"{key}: {ran}"
            assert set().union(*told) == {*ran}
