"""What requests and answers are made of."""

import re
from typing import Annotated, Literal

from fastapi import Query
from fastapi import Response as HTTPResponse
from pydantic import BaseModel, ConfigDict, Field

from samekey import Response

ID = r"^[0-9a-f]{16,64}$"

Text = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[^\x00-\x1f\x7f]+$")]
"""A line of text; no control characters, which databases and logs do not agree about."""

Reference = Annotated[Text, Field(description="Your own name for it. It goes to the provider unchanged.")]
Amount = Annotated[int, Field(strict=True, ge=1, le=1_000_000, description="In cents.")]
Status = Literal["pending", "succeeded", "declined"]

Limit = Annotated[int, Query(ge=1, le=10_000, description="How many at most.")]
After = Annotated[str | None, Query(pattern=ID, description="Only those made after this one: its id.")]


class Body(BaseModel):
    """A request's body. A member that we do not know is refused, not ignored: it may be a misspelt amount."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def is_id(text: str) -> bool:
    """Whether it may be an id of ours at all; anything else need not be looked for."""
    return re.fullmatch(ID, text) is not None


def as_http(response: Response) -> HTTPResponse:
    """The bytes that samekey stores for this answer, for a handler that must return the framework's kind.

    What a handler answers now, and what a lookup or a webhook says later, must be the same bytes.
    """
    answer = response.answer()
    return HTTPResponse(answer.body, answer.status, media_type="application/json")


def problem(status: int, detail: str) -> Response:
    """A refusal of the service's own."""
    return Response(status, {"detail": detail})
