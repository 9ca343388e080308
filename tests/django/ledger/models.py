"""One table of the application's own."""

from django.db import models


class Entry(models.Model):  # type: ignore[misc]
    text = models.TextField(unique=True)

    class Meta:
        db_table = "entries"
