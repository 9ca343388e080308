"""The shop in Django under ASGI: async views and the ORM's async methods. Its views are in ``urls.py``."""

from typing import Any

from ..orm import configure, migrate


def prepare(url: str) -> None:
    migrate(url, f"{__name__}.urls")


def make(url: str) -> Any:
    configure(url, f"{__name__}.urls")
    from django.core.asgi import get_asgi_application

    return get_asgi_application()
