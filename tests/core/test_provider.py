"""A provider's id: text that every store can keep, checked when it is set."""

from __future__ import annotations

from typing import Any

import pytest

from samekey import ConfigurationError
from samekey.core.provider import StoredText, checked_provider_id


class Holder:
    provider_id = StoredText()


@pytest.mark.parametrize("good", ["c", "ch_1", "x" * 255, "Zoë 日本 🙂", " "])
def test_text_is_kept_as_it_is(good: str) -> None:
    holder = Holder()
    assert holder.provider_id is None
    holder.provider_id = good
    assert holder.provider_id == checked_provider_id(good) == good
    holder.provider_id = None
    assert holder.provider_id is None


@pytest.mark.parametrize(
    "wrong",
    ["", "x" * 256, "a\x00b", "a\nb", "\x1b[2J", "\x7f", "\x85", "\ud800", 7, b"ch_1", 1.5, True, ["x"]],
)
def test_what_a_store_would_refuse_is_refused_where_it_is_set(wrong: Any) -> None:
    holder = Holder()
    holder.provider_id = "ch_1"
    with pytest.raises(ConfigurationError, match="provider_id must"):
        holder.provider_id = wrong
    assert holder.provider_id == "ch_1"
