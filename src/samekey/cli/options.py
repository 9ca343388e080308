"""What the operator's commands have in common: their options, and who acts."""

from __future__ import annotations

import getpass
import re
from datetime import timedelta
from typing import Annotated, Final

import typer

from ..stores.protocols import Actor

STORE_URL: Final = (
    "The store: sqlite:///app.db, postgresql://…, mysql://…, redis://… or dynamodb://…; or your Idempotency, "
    "as module:name."
)
Url = Annotated[str, typer.Option("--url", envvar="SAMEKEY_URL", help=STORE_URL)]
Schema = Annotated[
    str,
    typer.Option("--schema", envvar="SAMEKEY_SCHEMA", help="The PostgreSQL schema that holds the tables."),
]
Timeout = Annotated[
    float,
    typer.Option("--timeout", envvar="SAMEKEY_TIMEOUT", min=0.1, help="Seconds that one statement may take."),
]
DigestSecret = Annotated[
    str,
    typer.Option(
        "--digest-secret",
        envvar="SAMEKEY_DIGEST_SECRET",
        help="The digest_secret of your Idempotency, so that digests match its logs.",
    ),
]
EncryptionKeys = Annotated[
    list[str] | None,
    typer.Option(
        "--encryption-key",
        envvar="SAMEKEY_ENCRYPTION_KEYS",
        help="The Fernet keys of your Idempotency, newest first, if it encrypts: repeat the option, or put "
        "spaces between them in the variable.",
    ),
]
CacheUrl = Annotated[
    str | None,
    typer.Option(
        "--cache",
        envvar="SAMEKEY_CACHE_URL",
        help="The cache of your Idempotency, if it has one: redis://…",
    ),
]
ActorName = Annotated[
    str | None,
    typer.Option("--actor", envvar="SAMEKEY_ACTOR", help="Who acts, for the audit; else the system's user."),
]
Reason = Annotated[str, typer.Option("--reason", envvar="SAMEKEY_REASON", help="Why, for the audit.")]
Despite = Annotated[
    list[str] | None,
    typer.Option(
        "--despite",
        envvar="SAMEKEY_DESPITE",
        metavar="SOURCE:EVENT",
        help="An event by which a provider says that it happened: you set it aside. Repeatable.",
    ),
]

Id = Annotated[
    str,
    typer.Argument(
        envvar="SAMEKEY_ID",
        help="The operation's id, or how it begins: six characters or more.",
        metavar="ID",
    ),
]

DIGEST_SECRET: Final = "samekey"  # noqa: S105 - the default of Idempotency, known to everybody
MACHINES: Final = frozenset(
    {"request", "sweeper", "reaper", "reconciler", "webhook", "worker", "completer", "lookup"}
)
"""Names that stand in the audit for parts of samekey; a person must not be taken for one."""
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|d)?")
_UNITS: Final = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}


class CommandRefused(Exception):
    """A command that cannot be carried out as things stand. The sentence says why; the exit code is 1."""


def duration(text: str) -> timedelta:
    """``90``, ``90s``, ``15m``, ``24h``, ``30d``."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise typer.BadParameter(f"{text!r} is no duration; write 90s, 15m, 24h or 30d.")
    try:
        return timedelta(seconds=float(match[1]) * _UNITS[match[2] or "s"])
    except OverflowError:
        raise typer.BadParameter(f"{text!r} is too long.") from None


def actor(name: str | None, reason: str) -> Actor:
    """Who acts. A blank reason is no reason."""
    if not reason.strip():
        raise typer.BadParameter("say why: it is kept in the audit.", param_hint="--reason")
    if name is None or not name.strip():
        try:
            name = getpass.getuser()
        except (KeyError, OSError, ImportError):
            raise typer.BadParameter(
                "who are you? This system has no name for you.", param_hint="--actor"
            ) from None
    if name.strip() in MACHINES:
        raise typer.BadParameter(f"{name!r} stands for a part of samekey.", param_hint="--actor")
    return Actor(name.strip(), reason.strip())
