"""samekey's tables as Django may read them, for the admin: no key, no request and no answer is among them."""

from __future__ import annotations

from typing import Any

from django.db import models

from .tables import table


class _Decoded:
    """MySQL keeps what is compared byte by byte (identifiers, tenants) as bytes. To Django's migrations it is
    an ordinary field."""

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else value

    def deconstruct(self) -> Any:
        name, _, args, kwargs = super().deconstruct()  # type: ignore[misc]
        return name, f"django.db.models.{type(self).__name__}", args, kwargs


class CharField(_Decoded, models.CharField):  # type: ignore[misc]
    """A short text."""


class TextField(_Decoded, models.TextField):  # type: ignore[misc]
    """A text of any length."""


class Key(models.Model):  # type: ignore[misc]
    """One operation: the present life of a key."""

    id = CharField(primary_key=True, max_length=64)
    tenant = TextField()
    endpoint = TextField()
    state = CharField(max_length=32)
    mode = CharField(max_length=32)
    attempts = models.BigIntegerField()
    answer_status = models.BigIntegerField(null=True)
    error_code = TextField(null=True)
    provider_id = TextField(null=True)
    disputed = models.BigIntegerField()
    created_at = models.BigIntegerField()
    last_run_at = models.BigIntegerField()
    expires_at = models.BigIntegerField()

    class Meta:
        managed = False
        db_table = table("keys")
        default_permissions = ("view", "change")

    def __str__(self) -> str:
        return str(self.id)


class DeadLetter(models.Model):  # type: ignore[misc]
    """A job, of which the admin shows those that were given up."""

    id = CharField(primary_key=True, max_length=64)
    operation_id = CharField(max_length=64)
    tenant = TextField()
    name = TextField()
    state = CharField(max_length=32)
    attempts = models.BigIntegerField()
    error = TextField(null=True)
    provider_id = TextField(null=True)
    created_at = models.BigIntegerField()
    done_at = models.BigIntegerField(null=True)

    class Meta:
        managed = False
        db_table = table("jobs")
        default_permissions = ("view", "change")

    def __str__(self) -> str:
        return f"{self.name} {self.id}"


class AuditLine(models.Model):  # type: ignore[misc]
    """Who has moved what, when and why."""

    id = models.BigIntegerField(primary_key=True)
    at = models.BigIntegerField()
    operation_id = CharField(max_length=64)
    tenant = TextField()
    from_state = CharField(max_length=32, null=True)
    to_state = CharField(max_length=32, null=True)
    actor = TextField()
    reason = TextField(null=True)

    class Meta:
        managed = False
        db_table = table("audit")
        default_permissions = ("view",)

    def __str__(self) -> str:
        said: Any = f"{self.operation_id}: {self.from_state} → {self.to_state}"
        return str(said)
