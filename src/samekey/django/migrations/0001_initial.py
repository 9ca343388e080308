"""samekey's own schema, by its own SQL for the alias' vendor. A later version of it is a later migration."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import migrations, models

from samekey.django.schema import apply
from samekey.django.tables import table

_TEXT, _NUMBER = models.TextField, models.BigIntegerField


def _seen(name: str, of: str, permissions: tuple[str, ...], *fields: tuple[str, Any]) -> Any:
    """What the admin reads; the table itself is made by samekey's SQL."""
    options = {"managed": False, "db_table": table(of), "default_permissions": permissions}
    return migrations.CreateModel(name=name, fields=list(fields), options=options)


class Migration(migrations.Migration):  # type: ignore[misc]
    """Runs on the alias of ``SAMEKEY["DATABASE"]`` only."""

    initial = True
    dependencies: ClassVar[list[Any]] = []
    operations: ClassVar[list[Any]] = [
        migrations.RunPython(apply, migrations.RunPython.noop, elidable=False),
        _seen(
            "Key",
            "keys",
            ("view", "change"),
            ("id", models.CharField(primary_key=True, max_length=64, serialize=False)),
            ("tenant", _TEXT()),
            ("endpoint", _TEXT()),
            ("state", models.CharField(max_length=32)),
            ("mode", models.CharField(max_length=32)),
            ("attempts", _NUMBER()),
            ("answer_status", _NUMBER(null=True)),
            ("error_code", _TEXT(null=True)),
            ("provider_id", _TEXT(null=True)),
            ("disputed", _NUMBER()),
            ("created_at", _NUMBER()),
            ("last_run_at", _NUMBER()),
            ("expires_at", _NUMBER()),
        ),
        _seen(
            "DeadLetter",
            "jobs",
            ("view", "change"),
            ("id", models.CharField(primary_key=True, max_length=64, serialize=False)),
            ("operation_id", models.CharField(max_length=64)),
            ("tenant", _TEXT()),
            ("name", _TEXT()),
            ("state", models.CharField(max_length=32)),
            ("attempts", _NUMBER()),
            ("error", _TEXT(null=True)),
            ("provider_id", _TEXT(null=True)),
            ("created_at", _NUMBER()),
            ("done_at", _NUMBER(null=True)),
        ),
        _seen(
            "AuditLine",
            "audit",
            ("view",),
            ("id", _NUMBER(primary_key=True, serialize=False)),
            ("at", _NUMBER()),
            ("operation_id", models.CharField(max_length=64)),
            ("tenant", _TEXT()),
            ("from_state", models.CharField(max_length=32, null=True)),
            ("to_state", models.CharField(max_length=32, null=True)),
            ("actor", _TEXT()),
            ("reason", _TEXT(null=True)),
        ),
    ]
