"""samekey's tables as Django may read them, for the admin: no key, no request and no answer is among them.

They are for looking only. ``dumpdata`` finds nothing in them, and whatever would write through them is
refused: they show a part of each row, and a state that was put back would have its work done again.
"""

from __future__ import annotations

from typing import Any, NoReturn

from django.db import models
from django.db.models.signals import pre_delete, pre_save

from ..errors import ConfigurationError
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


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise ConfigurationError(
        "samekey's tables are not written by Django: these models are for looking. Use the acts of the admin "
        "or of the samekey command. A fixture that has them was made with dumpdata --all: leave samekey out "
        "of it (--exclude samekey). To move a database with its keys, take the database's own tools."
    )


class _Rows(models.QuerySet):  # type: ignore[misc]
    """What can be read, and no more."""

    update = delete = bulk_create = bulk_update = _raw_delete = _refuse


class _NothingToKeep(models.Manager):  # type: ignore[misc]
    """What ``dumpdata`` reads."""

    def get_queryset(self) -> Any:
        return super().get_queryset().none()


class _Shown(models.Model):  # type: ignore[misc]
    kept = _NothingToKeep()  # the first one is what dumpdata goes by
    objects = _Rows.as_manager()

    class Meta:
        abstract = True


class Key(_Shown):
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


class DeadLetter(_Shown):
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


class AuditLine(_Shown):
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


for _model in (Key, DeadLetter, AuditLine):  # signals, since loaddata calls no method of the model's own
    pre_save.connect(_refuse, sender=_model)
    pre_delete.connect(_refuse, sender=_model)
