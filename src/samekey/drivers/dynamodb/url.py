"""``dynamodb://region/table?endpoint=http://127.0.0.1:8000``: which table, and where."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Self
from urllib.parse import parse_qsl, urlsplit

from ...errors import ConfigurationError

_FORM: Final = "Write dynamodb://eu-central-1/samekey"
_TABLE: Final = re.compile(r"[A-Za-z0-9_.-]{3,255}")
_REGION: Final = re.compile(r"[a-z]{2,}(-[a-z]+)+-[0-9]+")


@dataclass(frozen=True, slots=True)
class DynamoURL:
    """A table of one region. ``endpoint``: where that is not AWS's own."""

    region: str
    table: str
    endpoint: str | None = None

    def __str__(self) -> str:
        end = "" if self.endpoint is None else f"?endpoint={self.endpoint}"
        return f"dynamodb://{self.region}/{self.table}{end}"

    @classmethod
    def parse(cls, url: str) -> Self:
        """``ConfigurationError`` with a sentence for anything that is not such a URL."""
        parts = urlsplit(url)
        if "@" in parts.netloc:
            raise ConfigurationError(
                f"Credentials do not belong in a DynamoDB URL: AWS's usual places are asked for them. "
                f"{_FORM}."
            )
        table = parts.path.removeprefix("/")
        if not _REGION.fullmatch(parts.netloc):
            raise ConfigurationError(f"{parts.netloc!r} is not an AWS region. {_FORM}.")
        if not _TABLE.fullmatch(table):
            raise ConfigurationError(
                f"{table!r} cannot be the name of a DynamoDB table: 3 to 255 letters, digits, '_', '-' "
                f"and '.'. {_FORM}."
            )
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        endpoint = options.pop("endpoint", None)
        if options:
            raise ConfigurationError(
                f"A DynamoDB URL has no setting {next(iter(options))!r}; there is endpoint=http://…"
            )
        if endpoint is not None and not re.match(r"https?://[^/]+", endpoint):
            raise ConfigurationError(
                f"The endpoint {endpoint!r} is not a URL: write endpoint=http://host:port."
            )
        return cls(parts.netloc, table, endpoint)
