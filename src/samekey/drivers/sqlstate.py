"""What PostgreSQL's error codes mean to samekey, for every driver alike."""

from __future__ import annotations

from ..errors import (
    ConfigurationError,
    ConnectionLost,
    SamekeyError,
    SchemaMismatch,
    StoreBusy,
    StoreError,
    StoreUnavailable,
    TransactionConflict,
)


def from_sqlstate(state: str | None, message: str) -> SamekeyError:
    """The error that a five-character SQLSTATE stands for."""
    if state is None:
        return ConnectionLost(f"The connection to PostgreSQL was lost: {message}")
    if state in ("40001", "40P01"):
        return TransactionConflict(f"PostgreSQL gave up this transaction: {message}")
    if state in ("42P01", "3F000", "42703"):
        return SchemaMismatch(
            f"The tables of samekey are missing or old ({message}). Run: samekey migrate URL"
        )
    if state == "42501":
        return ConfigurationError(
            f"PostgreSQL refused ({message}). Grant this role the use of samekey's schema and tables."
        )
    if state.startswith("08") or state in ("57P01", "57P02", "57P03", "25P03", "57P05"):
        return ConnectionLost(f"The connection to PostgreSQL was lost: {message}")
    if state == "55P03":
        return StoreBusy(f"PostgreSQL could not have a lock: {message}")
    if state.startswith(("53", "57", "58", "XX", "28", "3D", "25006")):
        return StoreUnavailable(f"PostgreSQL cannot do it now: {message}")
    return StoreError(f"PostgreSQL refused a statement of samekey ({state}): {message}")
