"""samekey's tables as Django may read them, for the admin: no key, no request and no answer is among them."""

from __future__ import annotations

from typing import Any

from django.db import models

from .tables import table


class Key(models.Model):  # type: ignore[misc]
    """One operation: the present life of a key."""

    id = models.CharField(primary_key=True, max_length=64)
    tenant = models.TextField()
    endpoint = models.TextField()
    state = models.CharField(max_length=32)
    mode = models.CharField(max_length=32)
    attempts = models.BigIntegerField()
    answer_status = models.BigIntegerField(null=True)
    error_code = models.TextField(null=True)
    provider_id = models.TextField(null=True)
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

    id = models.CharField(primary_key=True, max_length=64)
    operation_id = models.CharField(max_length=64)
    tenant = models.TextField()
    name = models.TextField()
    state = models.CharField(max_length=32)
    attempts = models.BigIntegerField()
    error = models.TextField(null=True)
    provider_id = models.TextField(null=True)
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
    operation_id = models.CharField(max_length=64)
    tenant = models.TextField()
    from_state = models.CharField(max_length=32, null=True)
    to_state = models.CharField(max_length=32, null=True)
    actor = models.TextField()
    reason = models.TextField(null=True)

    class Meta:
        managed = False
        db_table = table("audit")
        default_permissions = ("view",)

    def __str__(self) -> str:
        said: Any = f"{self.operation_id}: {self.from_state} → {self.to_state}"
        return str(said)
