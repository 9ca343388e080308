"""The app: what ``INSTALLED_APPS`` gets."""

from __future__ import annotations

from django.apps import AppConfig
from django.core.checks import Tags, register
from django.core.signals import request_finished
from django.db.backends.signals import connection_created
from django.db.models.signals import post_migrate


class SamekeyConfig(AppConfig):  # type: ignore[misc]
    """``INSTALLED_APPS = [..., "samekey.django"]``"""

    name = "samekey.django"
    label = "samekey"
    verbose_name = "Idempotency keys"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from .checks import check, check_views
        from .outside import watch, watch_all

        register(check, Tags.compatibility)
        register(check_views, Tags.urls)
        post_migrate.connect(_empty_the_test_database, sender=self, dispatch_uid="samekey")
        connection_created.connect(watch, dispatch_uid="samekey")
        watch_all()
        request_finished.connect(_leave_the_test_database, dispatch_uid="samekey")


def _leave_the_test_database(**_: object) -> None:
    """A test database cannot be dropped while somebody is connected to it."""
    from . import conf
    from .driver import DjangoDriver, in_tests

    for idempotency in conf.made if in_tests() else ():
        driver = idempotency.engine.drivers.sync
        if isinstance(driver, DjangoDriver):
            driver.close()


def _empty_the_test_database(using: str, **_: object) -> None:
    """A ``TransactionTestCase`` empties the tables of models after each test; samekey's go with them."""
    from ..drivers.run import run
    from ..testing.kit_store import empty
    from . import conf
    from .driver import in_tests

    if in_tests() and conf.read().alias == using:
        engine = conf.the_idempotency().engine
        run(engine.drivers.sync, lambda: empty(engine.queries))
