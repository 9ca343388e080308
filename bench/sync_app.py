"""The application under measurement, for WSGI: the handlers of ``bench.app`` in Flask, with a sync driver.

``BENCH_KEYS`` is the database of the rows and of the keys: PostgreSQL (psycopg), SQLite or MariaDB (PyMySQL).
"""

from __future__ import annotations

import os
import threading
from typing import Any
from urllib.parse import urlsplit

from flask import Flask, Response, jsonify, request

from bench.load import connect
from samekey import Idempotency, current_operation
from samekey.tenants import single_tenant
from samekey.wsgi import IdempotencyMiddleware

URL = os.environ["BENCH_KEYS"]
KIND = urlsplit(URL).scheme
MARK = "?" if KIND == "sqlite" else "%s"
INSERT = f"insert into bench_payments (amount) values ({MARK}) returning id"  # noqa: S608
IGNORE, NOTHING = ("ignore", "") if KIND == "mysql" else ("", "on conflict do nothing")
NAME = "`key`" if KIND == "mysql" else "key"
CLAIM = f"insert {IGNORE} into bench_keys ({NAME}, request) values ({MARK}, {MARK}) {NOTHING} returning 1"  # noqa: S608
FIND = f"select request, status, body from bench_keys where {NAME} = {MARK}"  # noqa: S608
ANSWER = f"update bench_keys set status = 201, body = {MARK} where {NAME} = {MARK}"  # noqa: S608
idempotency = Idempotency(URL, pool_size=10)
_mine = threading.local()


def mine() -> Any:
    """This thread's connection."""
    if not hasattr(_mine, "connection"):
        _mine.connection = connect(URL)
    return _mine.connection


def ask(connection: Any, sql: str, *values: Any) -> Any:
    """The first row of it, if any."""
    cursor = connection.cursor()
    cursor.execute(sql, values)
    row = cursor.fetchone() if cursor.description else None
    cursor.close()
    return row


def insert(connection: Any) -> Any:
    return ask(connection, INSERT, request.get_json()["amount"])[0]


def unguarded() -> Any:
    return jsonify(id=insert(mine())), 201


def _again(connection: Any, key: str, raw: bytes) -> Any:
    stored, status, body = ask(connection, FIND, key)
    if bytes(stored) != raw:
        return jsonify(error="reused"), 422
    if status is None:
        return jsonify(error="in progress"), 409
    return Response(bytes(body), status, {"idempotent-replayed": "true"}, content_type="application/json")


def _claim_work_answer(connection: Any) -> Any:
    raw, key = request.get_data(), request.headers["idempotency-key"]
    if ask(connection, CLAIM, key, raw) is None:
        return _again(connection, key, raw)
    response = jsonify(id=insert(connection))
    ask(connection, ANSWER, response.get_data(), key)
    return response, 201


def by_hand() -> Any:
    connection = mine()
    ask(connection, "begin immediate" if KIND == "sqlite" else "begin")
    answer = _claim_work_answer(connection)
    ask(connection, "commit")
    return answer


def three_commits() -> Any:
    return _claim_work_answer(mine())


@idempotency.leased
def leased() -> Any:
    return unguarded()


@idempotency.atomic
def atomic() -> Any:
    return jsonify(id=insert(current_operation().connection)), 201


@idempotency.deferred
def deferred() -> Any:
    operation = current_operation()
    payment = insert(operation.connection)
    operation.enqueue("nothing", {"payment": payment})
    return jsonify(id=payment), 202


@idempotency.job("nothing", timeout=30)
def nothing(_job: Any, _payload: Any) -> None:
    return None


def flask(**handlers: Any) -> Flask:
    made = Flask("bench")
    for name, handler in handlers.items():
        made.post("/" + name.replace("_", "-"))(handler)
    return made


_guarded_flask = flask(leased=leased, atomic=atomic, deferred=deferred)
_guarded = IdempotencyMiddleware(_guarded_flask, idempotency=idempotency, tenant=single_tenant())
_others = flask(unguarded=unguarded, by_hand=by_hand, three_commits=three_commits)
_GUARDED = {"/leased", "/atomic", "/deferred"}


def app(environ: Any, start_response: Any) -> Any:
    return (_guarded if environ["PATH_INFO"] in _GUARDED else _others)(environ, start_response)
