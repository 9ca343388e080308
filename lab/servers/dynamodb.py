"""A throwaway DynamoDB for tests: moto in a process of its own on 127.0.0.1, gone when it is stopped.

``SAMEKEY_TEST_DYNAMODB_URL`` names a server that is there already, such as DynamoDB Local:
``http://127.0.0.1:8000``. Nothing here may be used in production: all data is in memory, and whoever
reaches the port is let in.

Three things of moto's are mended in the server's process. Its requests are not atomic among themselves, as
DynamoDB's are, so they are handled one after the other. An update that it refuses as too large leaves half of
itself behind. And it measures the bytes of an update by their base64 text, a third too long, so that it would
refuse items that DynamoDB takes.
"""

from __future__ import annotations

import copy
import importlib.util
import os
import secrets
import shutil
import signal
import sys
import tempfile
import threading
from base64 import b64decode
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol, Self
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from lab import environment
from lab.processes import LOOPBACK, GuardedProcess, ProcessFailed, free_port, wait_until

__all__ = ["CREDENTIALS", "DynamoUnavailable", "NamedServer", "find_server"]

VARIABLE = "SAMEKEY_TEST_DYNAMODB_URL"
REGION = "eu-central-1"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "samekey", "AWS_SECRET_ACCESS_KEY": "samekey"}
"""The server takes any, but the client insists on having some."""
NEEDED = ("moto", "flask", "flask_cors")
"""What moto's server imports for DynamoDB. Its own extra ``server`` brings a hundred packages more."""


class DynamoUnavailable(RuntimeError):
    """No server could be had; the message says why, in one line."""


class NamedServer(Protocol):
    """A server that tests may use."""

    endpoint: str

    def url(self, table: str | None = None) -> str:
        """The URL of a table; without a name, of one that nobody else has."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class _Server:
    endpoint: str

    def url(self, table: str | None = None) -> str:
        name = f"samekey-{secrets.token_hex(8)}" if table is None else table
        return f"dynamodb://{REGION}/{name}?endpoint={self.endpoint}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """A server that was there already stays."""


class GivenServer(_Server):
    """The one that the environment names."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint.rstrip("/")


class ThrowawayServer(_Server):
    """moto, started by us."""

    def __init__(self) -> None:
        missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
        if missing:
            raise DynamoUnavailable(
                f"DynamoDB tests need {', '.join(missing)}: pip install moto flask flask-cors, "
                f"or name a server in {VARIABLE}."
            )
        self._directory = Path(tempfile.mkdtemp(prefix="samekey-dynamodb-"))
        self.port = free_port()
        self.endpoint = f"http://{LOOPBACK}:{self.port}"
        try:
            self._process = GuardedProcess(
                [sys.executable, "-m", "lab.servers.dynamodb", str(self.port)],
                log=self._directory / "server.log",
                env=environment(),
                remove=[self._directory],
            )
            wait_until(self._answers)
        except (ProcessFailed, TimeoutError) as error:
            raise DynamoUnavailable(f"moto's server did not start: {error}") from error

    def _answers(self) -> bool:
        if not self._process.running:
            raise DynamoUnavailable(f"moto's server ended at once: {self._process.output()[-500:]}")
        try:
            with urlopen(self.endpoint, timeout=5):  # noqa: S310 - our own port on loopback
                return True
        except HTTPError:
            return True  # not a request that it knows, but it answers
        except (URLError, OSError):
            return False

    def pause(self) -> None:
        """From now on it answers nobody."""
        self._process.send(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send(signal.SIGCONT)

    def stop(self) -> None:
        """Ends it; all of its data is gone."""
        self._process.end()
        shutil.rmtree(self._directory, ignore_errors=True)

    def __exit__(self, *_: object) -> None:
        self.stop()


def find_server() -> NamedServer:
    """The server that the environment names, else one of our own. ``DynamoUnavailable`` if neither."""
    given = os.environ.get(VARIABLE)
    return GivenServer(given) if given else ThrowawayServer()


# ------------------------------------------------------------------ in the server's process


def _measure_bytes_by_their_length() -> None:
    from moto.dynamodb.models.dynamo_type import DynamoType

    as_moto_does = DynamoType.size

    def size(self: Any) -> int:
        if self.type == "B" and isinstance(self.value, str):
            return len(b64decode(self.value))
        measured: int = as_moto_does(self)
        return measured

    DynamoType.size = size  # type: ignore[method-assign]


def _leave_refused_items_as_they_were() -> None:
    from moto.dynamodb.models import DynamoDBBackend

    as_moto_does = DynamoDBBackend.update_item

    def update_item(self: Any, table_name: str, key: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        before = copy.deepcopy(self.get_item(table_name, key))
        try:
            return as_moto_does(self, table_name, key, *args, **kwargs)
        except Exception:
            there = self.get_item(table_name, key)
            if before is not None and there is not None:
                there.attrs = before.attrs
            raise

    DynamoDBBackend.update_item = update_item  # type: ignore[method-assign]


def _serve(port: int) -> None:
    from moto.moto_server.werkzeug_app import create_backend_app
    from werkzeug.serving import WSGIRequestHandler, run_simple

    _measure_bytes_by_their_length()
    _leave_refused_items_as_they_were()
    application = create_backend_app("dynamodb")
    one_at_a_time = threading.Lock()

    def serialised(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        with one_at_a_time:
            return list(application(environ, start_response))

    class Quiet(WSGIRequestHandler):
        def log_request(self, *_: object) -> None:
            """Thousands of lines that nobody reads."""

    run_simple(LOOPBACK, port, serialised, threaded=True, request_handler=Quiet)


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
