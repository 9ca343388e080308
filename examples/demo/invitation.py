"""The lines to try by hand once the tour is over."""

import json
import shlex
import sys
from typing import Any

from .stage import ANN, LEASE, Stage


def invitation(stage: Stage) -> str:
    """Addresses, and commands that can be pasted as they are."""
    payment = {"amount": 1250, "currency": "EUR", "reference": "mine"}
    order = {"item": "cake", "quantity": 1, "reference": "mine"}
    transfer = {"account": "me", "amount": 100, "reference": "mine"}
    url = shlex.quote(stage.database_url)
    samekey = f"{shlex.quote(sys.executable)} -m samekey.cli"
    return f"""
Everything is still running; Ctrl-C ends it.

  service     {stage.url}          API: {stage.url}/docs   metrics: {stage.url}/metrics
  provider    {stage.provider.url}          ledger: {stage.provider.url}/entries
  database    {stage.database_url}

A payment; send it again, then with another amount:
{post(stage, "/payments", "mine-1", payment)}

Your payments, and what the provider says:
  curl -s {stage.url}/payments -H 'Authorization: Bearer {ANN.token}'
  curl -s '{stage.provider.url}/entries'

An order, in one transaction; a transfer, with you waiting:
{post(stage, "/orders", "mine-2", order)}
{post(stage, "/transfers", "mine-3", transfer)}

Let the provider's next answer be lost, and make a transfer; send it again a moment later:
  curl -s {stage.provider.url}/faults -d '{{"fault": "charge_then_drop"}}'
{post(stage, "/transfers", "mine-4", {**transfer, "reference": "mine-4"})}

What became of a key, and who moved it:
  {samekey} keys show --url {url} --tenant {ANN.id} --key mine-1
  {samekey} keys list --url {url} --reveal

Leases are {LEASE:g} seconds. Kill the worker or the service in the middle of it; each is started again:
  kill -9 {stage.worker.pid}
  kill -9 {stage.service.pid}"""


def post(stage: Stage, path: str, key: str, body: dict[str, Any]) -> str:
    return (
        f"  curl -i {stage.url}{path} -H 'Authorization: Bearer {ANN.token}' "
        f"-H 'Idempotency-Key: \"{key}\"' -H 'Content-Type: application/json' -d '{json.dumps(body)}'"
    )
