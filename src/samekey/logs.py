"""Others' texts in our log lines: none begins a line of its own, moves a cursor or hides what follows.

Clients, providers and databases give words to paths, errors and ids. Whatever comes from there into the log
of ``samekey`` is escaped here, at the one place that every record passes; nobody has to remember it.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator, Mapping


def one_line(text: str) -> str:
    """The text with everything escaped that is no printable character, newlines too."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


class _Shown(str):
    """A text that was escaped; ``%r`` does not escape it once more."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"'{self}'"


class OneLine(logging.Filter):
    """Lets every record pass, disarmed."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg = _shown(record.msg)
        if isinstance(record.args, Mapping):
            record.args = {name: _shown(value) for name, value in record.args.items()}
        elif record.args:
            record.args = tuple(_shown(value) for value in record.args)
        for name, value in [*vars(record).items()]:
            if name.startswith("samekey_"):
                setattr(record, name, _shown(value))
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and any(not _text_of(one).isprintable() for one in _chain(error)):
            # The lines of a traceback are ours, those of an error's text may be anybody's: none of them all
            # begins where a record does.
            lines = "".join(traceback.format_exception(error)).splitlines()
            record.exc_text = "\n".join("  " + one_line(line) for line in lines)
        return True


def _shown(value: object) -> object:
    if value is None or isinstance(value, int | float):
        return value
    text = _text_of(value)
    return value if text.isprintable() else _Shown(one_line(text))


def _text_of(value: object) -> str:
    try:
        return str(value)
    except Exception:  # logging itself says so
        return ""


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        one = todo.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            yield one
            todo += [one.__cause__, one.__context__]
            todo += one.exceptions if isinstance(one, BaseExceptionGroup) else ()


def disarm() -> None:
    """Once, when samekey is imported."""
    logger = logging.getLogger("samekey")
    if not any(isinstance(one, OneLine) for one in logger.filters):
        logger.addFilter(OneLine())
