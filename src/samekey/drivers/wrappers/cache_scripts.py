"""The Lua scripts of the cache. Each is one step of the rules in ``copies.py``, done whole or not at all.

KEYS: the copy's name and its epoch's. MGET gives nil for what is no string: rubbish of any type is nothing.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

MARK: Final = b"samekey-copy-1:"
"""How a copy begins."""
BLOCK: Final = 120_000
"""Milliseconds. Longer than any COMMIT takes, also one whose acknowledgement was lost."""
EPOCH_LIFE: Final = 7 * 24 * 3600 * 1000
"""An epoch that is lost is made anew; it goes at last where nobody uses the cache any more."""


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script, and the name under which the server knows it."""

    source: str
    sha: str


def _script(source: str) -> Script:
    for name, value in _WORDS.items():
        source = source.replace(name, value)
    return Script(source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())


_WORDS: Final = {
    "$BLOCKED": "'blocked'",
    "$MARK": f"'{MARK.decode()}'",
    "$EPOCH_LIFE": str(EPOCH_LIFE),
    "$BLOCK_LIFE": str(BLOCK),
}

LOOK: Final = _script("""
local found = redis.call('MGET', KEYS[1], KEYS[2])
if found[1] and string.sub(found[1], 1, string.len($MARK)) == $MARK then
    return found[1]
end
if not found[2] then
    redis.call('SET', KEYS[2], ARGV[1], 'PX', $EPOCH_LIFE)
    found[2] = ARGV[1]
end
local time = redis.call('TIME')
return {found[1] == $BLOCKED and 1 or 0, found[2], time[1] * 1000 + math.floor(time[2] / 1000)}
""")
"""A copy; or whether one is blocked, the epoch (this one, if there is none), and the cache's clock."""

FILL: Final = _script("""
local found = redis.call('MGET', KEYS[1], KEYS[2])
if found[2] ~= ARGV[1] or (found[1] and ARGV[4] == '1') then
    return 0
end
redis.call('SET', KEYS[1], ARGV[2], 'PXAT', ARGV[3])
return 1
""")
"""A copy until then, if the epoch still stands. A marker takes no place that is taken."""

DROP: Final = _script("""
local found = redis.call('MGET', KEYS[1])
if found[1] ~= $BLOCKED or ARGV[2] == '1' then
    redis.call('DEL', KEYS[1])
end
if ARGV[1] ~= '' then
    redis.call('SET', KEYS[2], ARGV[1], 'PX', $EPOCH_LIFE)
end
return 1
""")
"""Whatever is there goes; a blocker only if it is our own. With a new epoch, nobody puts it back."""

PUT_BLOCK: Final = _script("""
redis.call('SET', KEYS[1], $BLOCKED, 'PX', $BLOCK_LIFE)
redis.call('SET', KEYS[2], ARGV[1], 'PX', $EPOCH_LIFE)
return 1
""")
"""A blocker in the copy's place, and a new epoch."""
