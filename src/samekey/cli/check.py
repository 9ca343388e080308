"""``samekey check URL``: probes a live endpoint, and says what its idempotency is worth."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from ..check import Limits, Report, Target, Unreachable, check
from ..check.render.as_json import content
from ..check.render.people import lines
from ..check.run import Progress
from ..check.target import ABSENT, body_of, headers_of
from ..errors import SamekeyError
from .output import printable

FOUND = 1
WRONG_USE = 2
UNREACHABLE = 3


def check_command(
    url: Annotated[str, typer.Argument(envvar="SAMEKEY_CHECK_URL", help="The endpoint.", metavar="URL")],
    body: Annotated[
        str | None, typer.Option(envvar="SAMEKEY_CHECK_BODY", help="A JSON body that the endpoint accepts.")
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            envvar="SAMEKEY_CHECK_HEADER", help="'Name: value', sent with each request; repeatable."
        ),
    ] = None,
    other_header: Annotated[
        list[str] | None,
        typer.Option(envvar="SAMEKEY_CHECK_OTHER_HEADER", help="How a second tenant differs; repeatable."),
    ] = None,
    count_url: Annotated[
        str | None,
        typer.Option(
            envvar="SAMEKEY_CHECK_COUNT_URL",
            help="Answers how many effects there are: a number, or JSON with a count or a list.",
        ),
    ] = None,
    profile: Annotated[
        str, typer.Option(envvar="SAMEKEY_CHECK_PROFILE", help="ietf, stripe or stripe_v2.")
    ] = "ietf",
    strict: Annotated[
        bool, typer.Option("--strict", envvar="SAMEKEY_CHECK_STRICT", help="Advice counts as a finding.")
    ] = False,
    method: Annotated[str, typer.Option(envvar="SAMEKEY_CHECK_METHOD", help="POST by default.")] = "POST",
    mine: Annotated[
        bool,
        typer.Option(
            "--mine", envvar="SAMEKEY_CHECK_MINE", help="The endpoint is not on this machine, and is yours."
        ),
    ] = False,
    timeout: Annotated[
        float, typer.Option(envvar="SAMEKEY_CHECK_TIMEOUT", min=0.1, help="Seconds for one answer.")
    ] = 30.0,
    rate: Annotated[
        float, typer.Option(envvar="SAMEKEY_CHECK_RATE", min=0.1, help="Requests in a second.")
    ] = 100.0,
    as_json: Annotated[
        bool, typer.Option("--json", envvar="SAMEKEY_JSON", help="JSON, for scripts.")
    ] = False,
) -> None:
    """Probe a live endpoint and report what its idempotency is worth."""
    try:
        target = Target(
            url,
            ABSENT if body is None else body_of(body),
            method.upper(),
            headers_of(header or []),
            headers_of(other_header or []),
            count_url,
        )
        with _shown(quiet=as_json) as progress:
            report = check(
                target, profile, strict=strict, mine=mine, limits=Limits(timeout, rate), progress=progress
            )
    except Unreachable as error:
        typer.echo(f"samekey: {error}", err=True)
        raise typer.Exit(UNREACHABLE) from None
    except SamekeyError as error:
        typer.echo(f"samekey: {error}", err=True)
        raise typer.Exit(WRONG_USE) from None
    _print(report, as_json)
    if not report.ok:
        raise typer.Exit(FOUND)


def _print(report: Report, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(content(report), indent=2))
        return
    for line in lines(report):
        typer.echo(printable(line))


@contextmanager
def _shown(*, quiet: bool) -> Iterator[Progress]:
    """What is being looked at, on a terminal's standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    with Bar(
        BarColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=quiet or not sys.stderr.isatty(),
    ) as bar:
        task = bar.add_task("", total=None)
        yield lambda name, done, total: bar.update(task, description=name, completed=done, total=total)
