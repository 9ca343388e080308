"""samekey's own schema, by its own SQL for the alias' vendor. A later version of it is a later migration."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import migrations

from samekey.django.schema import apply


class Migration(migrations.Migration):  # type: ignore[misc]
    """Runs on the alias of ``SAMEKEY["DATABASE"]`` only."""

    initial = True
    dependencies: ClassVar[list[Any]] = []
    operations: ClassVar[list[Any]] = [migrations.RunPython(apply, migrations.RunPython.noop, elidable=False)]
