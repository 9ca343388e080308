"""``Response``: how code that knows no web framework gives its answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .core.record import Answer
from .errors import ConfigurationError, NotSerialisable


@dataclass(frozen=True, slots=True)
class Response:
    """An HTTP answer: ``Response(201, {"id": 7})``. Bytes and text go as they are, the rest as JSON."""

    status: int = 200
    content: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def answer(self) -> Answer:
        """As it is stored and sent."""
        if not 200 <= self.status <= 599:
            raise ConfigurationError(f"{self.status} is not a final HTTP status.")
        for name, value in self.headers.items():
            if set(f"{name}{value}") & set("\r\n\0"):
                raise ConfigurationError(f"The header {name!r} has a line break in it, which ends a header.")
        names = {name.lower() for name in self.headers}
        headers = [(n.lower().encode("latin-1"), v.encode("latin-1")) for n, v in self.headers.items()]
        if self.content is None:
            return Answer(self.status, tuple(headers), b"")
        if isinstance(self.content, bytes):
            media, body = b"application/octet-stream", self.content
        elif isinstance(self.content, str):
            media, body = b"text/plain; charset=utf-8", self.content.encode()
        else:
            try:
                media, body = b"application/json", json.dumps(self.content, allow_nan=False).encode()
            except (TypeError, ValueError, RecursionError) as error:
                raise NotSerialisable(f"The response cannot be written as JSON: {error}.") from None
        if "content-type" not in names:
            headers.insert(0, (b"content-type", media))
        return Answer(self.status, tuple(headers), body)


def answer_of(result: Any) -> Answer:
    """A value as an answer: a ``Response`` as it is, anything else as JSON with status 200."""
    if isinstance(result, Answer):
        return result
    return (result if isinstance(result, Response) else Response(200, result)).answer()
