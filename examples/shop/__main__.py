"""Starts a shop on loopback: ``python -m examples.shop NAME [--port N] [--url URL] [--workers K]``.

Without ``--server`` it is uvicorn for ASGI, gunicorn for WSGI; hypercorn serves both.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

from . import NAME, PROFILE, PROFILES, SHOPS, URL, NoSuchShop, module_of, profile

HOST = "127.0.0.1"
REPOSITORY = Path(__file__).resolve().parent.parent.parent


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.shop", description="A shop in any framework.")
    parser.add_argument("name", choices=SHOPS, metavar="NAME", help=", ".join(SHOPS))
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--url", help="of the database; a SQLite file in a directory of its own if left out")
    parser.add_argument("--workers", type=int, default=1, help="server processes")
    parser.add_argument("--profile", choices=PROFILES, default=profile(), help="whose rules it follows")
    parser.add_argument("--server", choices=("uvicorn", "gunicorn", "hypercorn"), help="other than its usual")
    asked = parser.parse_args()
    kind = SHOPS[asked.name]
    server = asked.server or {"asgi": "uvicorn", "wsgi": "gunicorn"}[kind]
    if {server, kind} in ({"uvicorn", "wsgi"}, {"gunicorn", "asgi"}):
        parser.error(f"{server} does not serve {kind.upper()}, which {asked.name} is.")
    os.environ[PROFILE] = asked.profile
    url = asked.url or f"sqlite:///{tempfile.mkdtemp(prefix='samekey-shop-')}/shop.db"
    try:
        module_of(asked.name).prepare(url)
    except NoSuchShop as error:
        parser.error(str(error))
    print(f"The shop {asked.name} on http://{HOST}:{asked.port}, its orders in {url}", flush=True)
    paths = [str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
    found = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), NAME: asked.name, URL: url}
    command = [sys.executable, "-m", *_command(server, asked.port, asked.workers)]
    # The server takes this process's place, so that its id and its signals are the server's.
    os.execve(sys.executable, command, {**os.environ, **found})  # noqa: S606


def _command(server: str, port: int, workers: int) -> list[str]:
    if server == "hypercorn":
        return [
            *("hypercorn", "examples.shop:application()", "--bind", f"{HOST}:{port}"),
            *("--workers", str(workers), "--log-level", "WARNING"),
        ]
    if server == "uvicorn":
        return [
            *("uvicorn", "--factory", "examples.shop:application", "--host", HOST, "--port", str(port)),
            *("--workers", str(workers), "--log-level", "warning"),
        ]
    return [
        *("gunicorn", "examples.shop:application()", "--bind", f"{HOST}:{port}", "--workers", str(workers)),
        *("--worker-class", "gthread", "--threads", "8", "--log-level", "warning", "--no-control-socket"),
    ]


if __name__ == "__main__":
    main()
