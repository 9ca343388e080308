"""The shop in Django REST framework: a viewset whose serializer validates. Its views are in ``urls.py``."""

from typing import Any

from ..orm import configure, migrate


def prepare(url: str) -> None:
    migrate(url, f"{__name__}.urls", "rest_framework")


def make(url: str) -> Any:
    configure(url, f"{__name__}.urls", "rest_framework")
    from django.core.wsgi import get_wsgi_application

    return get_wsgi_application()
