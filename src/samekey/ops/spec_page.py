"""The specification as a page for people."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from ..core.policy import NEVER_REMEMBERED
from ..core.states import State
from .coverage import RouteCoverage
from .spec import Section, body_of, lines, openapi_path, personal, sections, shown_code, size, span
from .spec_callers import callers

__all__ = ["markdown"]


def markdown(app: Any) -> str:
    """The specification as a page of Markdown."""
    found = sections(app)
    rules = (line for section in found for line in _section(section, found))
    return "\n".join([*_opening(found), *rules, *callers(found)])


def _opening(found: list[Section]) -> Iterator[str]:
    several = len(found) > 1
    headers = " or ".join(f"`{name}`" for name in dict.fromkeys(section.edge.header for section in found))
    yield "# Idempotent requests"
    yield ""
    yield (
        f"These requests may be repeated without fear: sent again with the same {headers}, the operation is "
        "carried out once, and every repetition gets the first answer."
    )
    yield ""
    yield "| route | key | kept for |" + (" rules |" if several else "")
    yield "|---|---|---|" + ("---|" if several else "")
    for section in found:
        for route in section.routes:
            key = "required" if route.required else "optional"
            if route.required_from is not None:
                key = f"required from {route.required_from:%Y-%m-%d}"
            assert route.rules is not None
            row = f"| {_name(route)} | {key} | {span(route.rules.policy.ttl)} |"
            yield row + (f" [{section.number}](#rules-{section.number}) |" if several else "")
    yield ""
    if any(not route.refuses_without_key for section in found for route in section.routes):
        yield "Where the key is not required, a request without one is carried out each time that it arrives."
        yield ""


def _section(section: Section, found: list[Section]) -> Iterator[str]:
    """One section. Later ones say only what is different from the first."""
    level, first = "##", found[0]
    if len(found) > 1:
        yield f"## Rules {section.number}"
        yield ""
        yield "For " + ", ".join(_name(route) for route in section.routes) + "."
        if section is not first:
            yield "What is not said here is as in [rules 1](#rules-1)."
        yield ""
        level = "###"
    for title, part in _PARTS:
        text = list(part(section))
        if text and (section is first or text != list(part(first))):
            yield f"{level} {title}"
            yield ""
            yield from text
            yield ""


def _key(section: Section) -> Iterator[str]:
    rules, policy, header = section.policy.key, section.policy, section.edge.header
    yield f"- The client makes it, one for each operation, and sends it as `{header}` with every attempt."
    if rules.strict:
        yield (
            "- A String of RFC 9651: in double quotation marks, "
            f'`{header}: "8e03978e-40d5-43dd-bc93-6894a57f9324"`. A bare value is refused.'
        )
    else:
        yield (
            "- A bare value of visible ASCII without commas, or the same in double quotation marks (a String "
            "of RFC 9651). Both spellings are one key."
        )
    yield f"- {rules.min_length} to {rules.max_length} characters, not counting quotation marks."
    if rules.pattern is not None:
        flags = " (upper and lower case alike)" if rules.pattern.flags & re.IGNORECASE else ""
        yield f"- All of it matches {_code(rules.pattern.pattern)}{flags}."
    yield "- A random value such as a UUID. It is stored, and it is no secret."
    if rules.personal:
        yield f"- It must not look like {personal(policy)}."
    if policy.scope == "tenant":
        yield "- It belongs to its caller, for all routes: on another route it counts as a different request."
    else:
        yield "- It belongs to its caller and to one route: on another route it is another key."
    if policy.new_keys_per_minute is not None:
        yield f"- A caller may use {policy.new_keys_per_minute:,} new keys in a minute; retries do not count."
    if policy.active_keys is not None:
        yield f"- A caller may have {policy.active_keys:,} keys at a time that have not expired."
    if policy.attempts_per_key is not None:
        most = f"{policy.attempts_per_key:,}"
        yield f"- A key that fails each time may be tried {most} times before it expires."
    if policy.max_age is not None:
        yield (
            f"- Each request says in `{policy.timestamp_header}` when it was made. One that is older than "
            f"{span(policy.max_age)} is refused, whatever its key."
        )


def _same(section: Section) -> Iterator[str]:
    rules = section.policy.fingerprint
    parts = ["method", "path", "query", "media type"]
    if rules.headers:
        parts.append("the headers " + ", ".join(f"`{name}`" for name in rules.headers))
    yield (
        f"Two requests are the same if they agree in {', '.join(parts)} and body. JSON is compared by value: "
        "the order of members, white space and the spelling of numbers do not matter."
    )
    if rules.include:
        yield ""
        yield f"Of a JSON body or a form only these members count: {_names(rules.include)}."
    if rules.exclude_query:
        yield ""
        yield f"These parameters of the query do not count: {_names(rules.exclude_query)}."
    if rules.exclude:
        yield ""
        yield f"These members of the body do not count: {_names(rules.exclude)}."


def _names(pointers: tuple[str, ...]) -> str:
    return ", ".join(_code(pointer) for pointer in pointers)


def _gets(section: Section) -> Iterator[str]:
    policy = section.policy
    yield "| | | status | code | `Retry-After` |"
    yield "|---|---|---|---|---|"
    for line in lines(section):
        status = "its own" if line.status is None else str(line.status)
        code = shown_code(line, policy)
        shown = "" if code is None else f"`{code}`"
        pause = "" if line.retry_after is None else f"{line.retry_after} s"
        yield f"| {line.situation} | {line.outcome} | {status} | {shown} | {pause} |"
    yield ""
    media = "application/json" if policy.errors == "stripe" else "application/problem+json"
    example = next(line for line in lines(section) if line.code == "malformed")
    yield f"Errors are `{media}`:"
    yield ""
    yield "```json"
    yield json.dumps(body_of(example, policy), indent=2)
    yield "```"


def _kept(section: Section) -> Iterator[str]:
    policy = section.policy
    never = ", ".join(map(str, sorted(NEVER_REMEMBERED)))
    match policy.remember:
        case "definite":
            kept = (
                f"Answers with 2xx, 3xx and 4xx, except {never}. After another answer a retry is carried out"
            )
        case "successes":
            kept = "Answers with 2xx and 3xx. After another answer a retry is carried out"
        case "everything":
            kept = "Every answer once the operation has begun, errors included, except 401 and 429"
    text = f"{kept}, unless its outcome is not known. A refusal before the operation begins is never kept."
    yield text + (" These routes have rules of their own beyond that." if section.classified else "")
    yield ""
    since = "the end of the operation" if policy.ttl_from == "completion" else "the first request"
    after = f"gets {policy.gone_status}" if policy.after_expiry == "gone" else "is a new one"
    yield (
        f"How long is in the table at the top, counted from {since}. After that the key {after}. The body of "
        f"an answer is kept up to {size(policy.max_answer)}; a larger one is sent once."
    )
    yield ""
    yield "A repeated answer says what the request did, not what the resource is now; use GET for that."


def _headers(section: Section) -> Iterator[str]:
    policy = section.policy
    yield "| header | on | |"
    yield "|---|---|---|"
    yield f"| `{policy.replayed_header}` | repeated answers | `true` |"
    expiring = "answers that are kept or repeated, 202, 409"
    if policy.on_mismatch == "reject" and policy.mismatch_status != 409:
        expiring += f", {policy.mismatch_status} for a different request"
    yield f"| `{policy.expires_header}` | {expiring} | when the key expires, as an HTTP date |"
    yield "| `Retry-After` | see above | seconds |"
    yield f'| `Link` | errors | `<{policy.documentation}>; rel="describedby"` |'
    if section.edge.status_path is not None:
        yield '| `Link` | 409, where there is a status | `rel="status"` |'
        yield "| `Location` | 202 | the status |"


def _status(section: Section) -> Iterator[str]:
    path = section.edge.status_path
    if path is None:
        return
    states = ", ".join(f"`{state}`" for state in State if state is not State.EXPIRED)
    resource = f"{path.rstrip('/')}/{{operation}}"
    yield (
        f"`GET {resource}` gives the state of an operation ({states}), its times, and its answer when "
        "there is one. 404 for an operation of another caller, 410 once it has expired."
    )


_PARTS: Final = (
    ("The key", _key),
    ("The same request", _same),
    ("What a request gets", _gets),
    ("What is kept", _kept),
    ("Headers", _headers),
    ("The status of an operation", _status),
)


def _code(text: str) -> str:
    """Text as code in Markdown, also inside a table."""
    fence = "``" if "`" in text else "`"
    return fence + text.replace("|", "\\|") + fence


def _name(route: RouteCoverage) -> str:
    return _code(f"{route.method} {openapi_path(route.path)}")
