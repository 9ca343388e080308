"""``python -m examples.provider``: the provider's process."""

from __future__ import annotations

import argparse
import asyncio
import os
from pathlib import Path

from lab.processes import LOOPBACK

from .ledger import Ledger
from .process import DAY
from .server import Server
from .webhooks import Webhooks


async def serve(options: argparse.Namespace) -> None:
    """Until it is ended. It listens on this machine only."""
    server = Server(
        Ledger(options.ledger),
        Ledger(options.ledger.with_name(f"{options.ledger.stem}-declines{options.ledger.suffix}")),
        Webhooks(options.webhook_url, options.webhook_secret),
        deduplicate=options.deduplication,
        window=options.window,
        latency=options.latency,
    )
    async with await asyncio.start_server(server.serve, LOOPBACK, options.port, backlog=512) as listener:
        await listener.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m examples.provider", description="A payment provider to test against."
    )
    parser.add_argument("--port", type=int, required=True, help="on loopback")
    parser.add_argument("--ledger", type=Path, required=True, help="the file; goes on with one that is there")
    parser.add_argument("--latency", type=float, default=0.0, help="seconds between an entry and its answer")
    parser.add_argument("--window", type=float, default=DAY, help="seconds for which a key is remembered")
    parser.add_argument("--deduplication", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--webhook-url", help="where to tell what happened")
    parser.add_argument(
        "--webhook-secret",
        default=os.environ.get("PROVIDER_SECRET", ""),
        help="signs webhooks; better in the environment, as PROVIDER_SECRET",
    )
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
