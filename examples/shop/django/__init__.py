"""The shop in Django: views and the ORM under WSGI. Its views are in ``urls.py``."""

from typing import Any

from ..orm import configure, migrate


def prepare(url: str) -> None:
    migrate(url, f"{__name__}.urls")


def make(url: str) -> Any:
    configure(url, f"{__name__}.urls")
    from django.core.wsgi import get_wsgi_application

    return get_wsgi_application()
