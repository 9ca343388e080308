"""What is not said of a URL: a sentence about one that cannot be read never repeats its user or password.

A password with a slash, a question mark or an at sign in it is cut in odd places, and whoever complains of a
piece repeats it: in a log, in a terminal, in an issue.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import unquote

from ..errors import ConfigurationError


@contextmanager
def unsaid(url: str) -> Iterator[None]:
    """Around whatever reads a URL. A sentence that holds a piece of its login is said otherwise."""
    try:
        yield
    except (ConfigurationError, ValueError) as error:
        if isinstance(error, ConfigurationError) and not any(piece in str(error) for piece in _pieces(url)):
            raise
        raise ConfigurationError(
            "The store's URL cannot be read. In its user and password some characters are escaped: / as %2F, "
            "@ as %40, : as %3A, ? as %3F, # as %23, [ as %5B, % as %25. It is not repeated here, since it "
            "holds the password."
        ) from None


def _pieces(url: str) -> Iterator[str]:
    """Of all that stands before the last at sign, wherever a parser may have cut it."""
    login = url.partition("://")[2] or url
    user, _, rest = login.rpartition("@")[0].partition(":")
    for text in (rest, unquote(rest)):
        yield from (piece for piece in (text, *re.split(r"[:/?#@%\[\]&=]", text)) if len(piece) > 2)
    if not rest:
        yield from (piece for piece in re.split(r"[:/?#@%\[\]&=]", user) if len(piece) > 2)
