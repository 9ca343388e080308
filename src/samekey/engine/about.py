"""What a log record is about, for whoever keeps logs as data: attributes of the record, beside its sentence.

``samekey_operation``, ``samekey_job``, ``samekey_job_name``, ``samekey_attempt``, ``samekey_endpoint``,
``samekey_key`` (a digest): in whatever logging the application has. Never a key, a tenant or a body.
"""

from __future__ import annotations


def about(**facts: str | int | None) -> dict[str, str | int]:
    """The ``extra`` of a log record; what is not known is left out."""
    return {f"samekey_{name}": fact for name, fact in facts.items() if fact is not None}
