"""``samekey check URL``: probes a live endpoint, and says what its idempotency is worth."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.text import Text

from ..check import Budget, Endpoint, Report, Unreachable, check
from ..check.endpoint import ABSENT, body_of, headers_of
from ..check.plan import Plan, read_plan
from ..check.profiles import profile_of
from ..check.render.as_json import as_json
from ..check.render.junit import as_junit
from ..check.render.page import as_page
from ..check.render.people import lines
from ..check.render.sarif import as_sarif
from ..check.run import Progress, not_checked
from ..errors import ConfigurationError, SamekeyError
from ..logs import one_line
from .spec import write
from .speech import complain, pour

FOUND = 1
WRONG_USE = 2
BROKEN = 4
UNREACHABLE = 3

FORMATS: dict[str, Callable[[Sequence[Report]], str]] = {
    "text": lambda reports: "\n".join(_plain(reports)) + "\n",
    "json": as_json,
    "junit": as_junit,
    "sarif": as_sarif,
    "html": as_page,
}

_STYLES = {
    "✗": "bold red",
    "  rule:": "red",
    "  fix:": "green",
    "    >": "dim",
    "    <": "dim",
    "  ?": "yellow",
}


def check_command(
    url: Annotated[
        str | None, typer.Argument(envvar="SAMEKEY_CHECK_URL", help="The endpoint.", metavar="URL")
    ] = None,
    body: Annotated[
        str | None, typer.Option(envvar="SAMEKEY_CHECK_BODY", help="A JSON body that the endpoint accepts.")
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            envvar="SAMEKEY_CHECK_HEADER",
            help="'Name: value', sent each time; repeatable. In the environment: one on each line.",
        ),
    ] = None,
    other_header: Annotated[
        list[str] | None,
        typer.Option(
            envvar="SAMEKEY_CHECK_OTHER_HEADER",
            help="How a second tenant differs; repeatable.",
        ),
    ] = None,
    count_url: Annotated[
        str | None,
        typer.Option(
            envvar="SAMEKEY_CHECK_COUNT_URL",
            help="Answers how many effects there are: a number, or JSON with a count or a list.",
        ),
    ] = None,
    plan: Annotated[
        Path | None,
        typer.Option(
            envvar="SAMEKEY_CHECK_PLAN", help="A TOML file with several endpoints, in place of a URL."
        ),
    ] = None,
    profile: Annotated[
        str | None, typer.Option(envvar="SAMEKEY_CHECK_PROFILE", help="ietf (default), stripe or stripe_v2.")
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", envvar="SAMEKEY_CHECK_STRICT", help="Notes count as findings.")
    ] = False,
    method: Annotated[
        str, typer.Option(envvar="SAMEKEY_CHECK_METHOD", help="The method of the endpoint.")
    ] = "POST",
    mine: Annotated[
        bool,
        typer.Option(
            "--mine", envvar="SAMEKEY_CHECK_MINE", help="It is not on this machine, and it is mine to check."
        ),
    ] = False,
    timeout: Annotated[
        float, typer.Option(envvar="SAMEKEY_CHECK_TIMEOUT", min=0.1, max=3600, help="Seconds for one answer.")
    ] = 30.0,
    rate: Annotated[
        float,
        typer.Option(
            envvar="SAMEKEY_CHECK_RATE", min=0.1, max=100_000, help="Requests in a second, at most."
        ),
    ] = 100.0,
    deadline: Annotated[
        float,
        typer.Option(envvar="SAMEKEY_CHECK_DEADLINE", min=1, max=86_400, help="Seconds for one endpoint."),
    ] = 900.0,
    form: Annotated[
        str, typer.Option("--format", envvar="SAMEKEY_CHECK_FORMAT", help=f"One of {', '.join(FORMATS)}.")
    ] = "text",
    as_json: Annotated[
        bool, typer.Option("--json", envvar="SAMEKEY_JSON", help="The same as --format json.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option(envvar="SAMEKEY_CHECK_OUTPUT", help="Write the report to this file.")
    ] = None,
) -> None:
    """Probe a live endpoint and report what its idempotency is worth."""
    form = "json" if as_json else form
    try:
        if form not in FORMATS:
            raise ConfigurationError(f"There is no format {form!r}: use {', '.join(FORMATS)}.")
        wanted = _wanted(url, plan, body, header, other_header, count_url, method)
        rules = profile_of(profile or wanted.profile or "ietf").name
    except SamekeyError as error:
        complain(error)
        raise typer.Exit(WRONG_USE) from None
    reports: list[Report] = []
    wrong = 0
    with _shown(quiet=form == "json") as progress:
        for endpoint in wanted.endpoints:
            # One endpoint that cannot be checked takes nothing away from what is known of the others.
            try:
                report = check(
                    endpoint,
                    rules,
                    strict=strict or wanted.strict,
                    mine=mine,
                    budget=Budget(timeout, rate, deadline=deadline),
                    progress=progress,
                )
            except (Unreachable, SamekeyError) as error:
                complain(error)
                wrong = max(wrong, UNREACHABLE if isinstance(error, Unreachable) else WRONG_USE)
                report = not_checked(endpoint, str(error), rules, strict=strict or wanted.strict)
            except Exception as error:  # no finding of the endpoint's, and it must not read as one
                fault = f"The check itself failed ({type(error).__name__}); that is a fault of the tool."
                complain(SamekeyError(fault))
                wrong = max(wrong, BROKEN)
                report = not_checked(endpoint, fault, rules, strict=strict or wanted.strict)
            reports.append(report)
    if wrong and len(reports) == 1:
        raise typer.Exit(wrong)
    if form == "text" and output is None:
        _print(reports)
    else:
        write(FORMATS[form](reports), output, WRONG_USE)
    if any(report.findings for report in reports):
        raise typer.Exit(FOUND)
    if wrong:
        raise typer.Exit(wrong)


def _wanted(
    url: str | None,
    plan: Path | None,
    body: str | None,
    header: list[str] | None,
    other_header: list[str] | None,
    count_url: str | None,
    method: str,
) -> Plan:
    """The plan of the file, or one of the single endpoint of the command line."""
    if plan is not None:
        if url is not None or body is not None or header or other_header or count_url is not None:
            raise ConfigurationError(
                "A plan names its endpoints itself: leave out the URL and what belongs to it."
            )
        return read_plan(plan)
    if url is None:
        raise ConfigurationError("Give the URL of the endpoint, or a plan with --plan.")
    document = ABSENT if body is None else body_of(body)
    headers = (
        headers_of(_lines("SAMEKEY_CHECK_HEADER", header)),
        headers_of(_lines("SAMEKEY_CHECK_OTHER_HEADER", other_header)),
    )
    return Plan((Endpoint(url, document, method.upper(), *headers, count_url),))


def _lines(variable: str, given: list[str] | None) -> list[str]:
    """What the variable holds, one on each line: typer takes each word for one, and headers have blanks."""
    text = os.environ.get(variable, "")
    if not given or given != text.split():
        return given or []
    return [line for line in text.splitlines() if line.strip()]


def _plain(reports: Sequence[Report]) -> Iterator[str]:
    for number, report in enumerate(reports):
        if number:
            yield ""
        yield from map(one_line, lines(report))


def _print(reports: Sequence[Report]) -> None:
    """In colours on a terminal, as plain lines anywhere else."""
    if not sys.stdout.isatty():
        pour(FORMATS["text"](reports))
        return
    console = Console(highlight=False)
    for line in _plain(reports):
        style = next((style for start, style in _STYLES.items() if line.startswith(start)), "")
        console.print(Text(line, style=style), soft_wrap=True)


@contextmanager
def _shown(*, quiet: bool) -> Iterator[Progress]:
    """What is being looked at, on a terminal's standard error."""
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
