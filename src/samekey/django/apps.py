"""The app: what ``INSTALLED_APPS`` gets."""

from __future__ import annotations

from django.apps import AppConfig
from django.core.checks import Tags, register
from django.core.signals import request_finished
from django.db import connections
from django.db.backends.signals import connection_created


class SamekeyConfig(AppConfig):  # type: ignore[misc]
    """``INSTALLED_APPS = [..., "samekey.django"]``"""

    name = "samekey.django"
    label = "samekey"
    verbose_name = "Idempotency keys"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from ..workers.apart import surround
        from .calls import DjangosSurroundings
        from .checks import check, check_views
        from .flushing import flush_with
        from .outside import watch

        register(check, Tags.compatibility)
        register(check_views, Tags.urls)
        for told in (watch, flush_with):
            connection_created.connect(told, dispatch_uid=f"samekey {told.__name__}")
            for connection in connections.all(initialized_only=True):  # open before the app was ready
                told(connection)
        surround(DjangosSurroundings())
        request_finished.connect(_leave_the_test_database, dispatch_uid="samekey")


def _leave_the_test_database(**_: object) -> None:
    """A test database cannot be dropped while somebody is connected to it."""
    from . import conf
    from .driver import DjangoDriver, in_tests

    for idempotency in conf.made if in_tests() else ():
        driver = idempotency.engine.drivers.sync
        if isinstance(driver, DjangoDriver):
            driver.close()
