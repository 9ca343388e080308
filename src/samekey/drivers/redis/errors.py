"""What Redis's errors mean to samekey, for sync and async alike."""

from __future__ import annotations

from typing import Final

from redis import exceptions as redis

from ...errors import (
    ConfigurationError,
    ConnectionLost,
    ReadOnlyStore,
    SamekeyError,
    StoreBusy,
    StoreError,
    StoreUnavailable,
    StoreUnreachable,
)
from ..places import NoPlace

_ACL: Final = (
    "Let the user do what the scripts do, on samekey's keys: ACL SETUSER name ~samekey:* +eval +evalsha +del "
    "+exists +get +hdel +hget +hgetall +hmget +hset +mget +persist +pexpire +sadd +scard +set +smembers "
    "+srem +zadd +zcard +zcount +zrange +zrem +time +info +wait +ping +select +client|setinfo "
    "+cluster|slots, and nothing else."
)
_CLUSTER: Final = "This server is a node of a Redis Cluster: write redis+cluster://… in the URL."

# By the first word of what the server says. It refused, so nothing was done.
_BUSY: Final = {
    "LOADING": "Redis is still loading its data",
    "CLUSTERDOWN": "The Redis Cluster does not serve all slots now",
    "TRYAGAIN": "The Redis Cluster is moving this slot",
    "MASTERDOWN": "This replica has lost its master",
    "OOM": "Redis has no memory left for another key; with noeviction it refuses rather than forgets",
    "BUSY": "Redis is held up by a script",
}


def translate(error: Exception, *, cluster: bool = False) -> Exception:
    """redis-py's error as one of ours; anything that is not about Redis stays what it is."""
    if isinstance(error, SamekeyError):
        return error
    words = " ".join(str(error).split())
    if isinstance(error, redis.MaxConnectionsError) or words == "No connection available.":
        return NoPlace("No connection to Redis was free in time. Retry with the same key.")
    if isinstance(error, redis.AuthenticationError | redis.AuthenticationWrongNumberOfArgsError):
        return StoreUnavailable(f"Redis does not let us in: {words} Check user and password in the URL.")
    if isinstance(error, redis.TimeoutError | TimeoutError):
        return StoreUnavailable("Redis did not answer in time.")
    if isinstance(error, redis.BusyLoadingError):
        return StoreBusy(f"{_BUSY['LOADING']}. Retry with the same key.")
    if isinstance(error, redis.ConnectionError | OSError):
        return _connection(words or type(error).__name__, cluster=cluster)
    if isinstance(error, redis.ResponseError):
        return _response(error, words)
    return error


def _connection(words: str, *, cluster: bool) -> SamekeyError:
    if "connecting to" in words and not cluster:
        return StoreUnreachable(
            f"Redis cannot be reached: {words} Is it running there, and are host and port in the URL right?"
        )
    # Of a Cluster, another node may have taken over: worth a second try, with a fresh map of the slots.
    return ConnectionLost(f"The connection to Redis was lost: {words}")


def _response(error: redis.ResponseError, words: str) -> SamekeyError:
    # redis-py cuts the code off the errors that it has classes for.
    known = (code for kind, code in _CODES if isinstance(error, kind))
    code = next(known, words.partition(" ")[0])
    if code in _BUSY:
        return StoreBusy(f"{_BUSY[code]} ({words}). Retry with the same key.")
    if code == "READONLY":
        return ReadOnlyStore(
            f"Redis refused to write ({words}). This server is a replica: name the master in the URL, or the "
            "Cluster."
        )
    if code == "MOVED":
        return ConfigurationError(f"Redis said {words}. {_CLUSTER}")
    if code == "NOPERM":
        return ConfigurationError(f"Redis refused ({words}). {_ACL}")
    if code in ("NOAUTH", "WRONGPASS"):
        return StoreUnavailable(f"Redis does not let us in: {words} Check user and password in the URL.")
    if code in ("MISCONF", "NOREPLICAS"):
        return StoreUnavailable(f"Redis takes no writes now: {words}")
    if "cluster support disabled" in words:
        return ConfigurationError(
            f"Redis said: {words}. It is a single server: write redis://… in the URL, without +cluster."
        )
    return StoreError(f"Redis refused a script of samekey: {words}")


_CODES: Final[tuple[tuple[type[Exception], str], ...]] = (
    (redis.MovedError, "MOVED"),
    (redis.TryAgainError, "TRYAGAIN"),
    (redis.ClusterDownError, "CLUSTERDOWN"),
    (redis.MasterDownError, "MASTERDOWN"),
    (redis.ReadOnlyError, "READONLY"),
    (redis.OutOfMemoryError, "OOM"),
    (redis.NoPermissionError, "NOPERM"),
)
