"""One small shop in every framework: the same requests, the same answers, the same promises.

    python -m examples.shop fastapi --port 8000 [--url postgresql://…] [--workers 4] [--profile stripe]

Every request names its account by a bearer token; without one it gets 401. An account sees its own orders.

| request | answer |
|---|---|
| ``POST /orders`` ``{"sku": "tea", "quantity": 2}`` | 201 ``{"id": 1, "sku": "tea", "quantity": 2}`` |
| ``GET /orders`` | 200, a list of these |
| ``POST /orders/slow``, the same body | writes the order, takes a second, then 201 |
| ``POST /orders/refused``, the same body | 409 ``{"detail": "sold out"}``; what it wrote is rolled back |

The three POSTs need an ``Idempotency-Key``. A body that is no JSON, or no order (``sku`` is a text that is
not empty, ``quantity`` at least 1), gets the framework's own 4xx before anything is claimed, so that the
client can correct it under the same key.

A shop is a module here, named as in ``SHOPS``, of two functions. ``prepare(url)`` makes the tables, samekey's
and its own; it runs once, before any server process. ``make(url)`` gives the application, in each of them.
"""

import hashlib
import importlib
import json
import os
from types import ModuleType
from typing import Any

from samekey import Policy, ietf, stripe, stripe_v2

SHOPS = {
    "starlette": "asgi",
    "fastapi": "asgi",
    "fastapi-sqlalchemy": "asgi",
    "fastapi-sqlmodel": "asgi",
    "flask": "wsgi",
    "flask-sqlalchemy": "wsgi",
    "django": "wsgi",
    "django-async": "asgi",
    "drf": "wsgi",
    "litestar": "asgi",
}
"""Every shop by its name, with the kind of server that it needs."""

NAME, URL, PROFILE = "SHOP_NAME", "SHOP_URL", "SHOP_PROFILE"
"""The environment by which server processes know what to serve."""

PROFILES = {"ietf": ietf, "stripe": stripe, "stripe_v2": stripe_v2}

SLOW = 1.0
"""Seconds that ``POST /orders/slow`` takes."""
SOLD_OUT = {"detail": "sold out"}


class NoSuchShop(Exception):
    """There is no module for a shop of this name."""


def module_of(name: str) -> ModuleType:
    """The module of a shop; ``NoSuchShop`` with a sentence where there is none."""
    module = f"{__name__}.{name.replace('-', '_')}"
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise NoSuchShop(f"The shop {name!r} needs {error.name}, which is not installed.") from error
        raise NoSuchShop(f"There is no shop {name!r} yet: {module} would be its module.") from error


def application() -> Any:
    """The application that the environment names: what server processes import."""
    return module_of(os.environ[NAME]).make(os.environ[URL])


def policy() -> Policy:
    """The settings of every shop. A process that was killed is given up after three seconds, not sixty: on
    SQLite and MySQL that is how long a retry of its request is told to wait."""
    return PROFILES[profile()](lease=3)


def profile() -> str:
    """Whose rules the shop follows: the draft's, unless the environment says otherwise."""
    return os.environ.get(PROFILE, "ietf")


def account_of(authorization: str | None) -> str | None:
    """The account that a request is for; None where it names none.

    Here whoever has a token is an account of its own, by a digest: the token itself is stored nowhere. A real
    service looks up whose token it is.
    """
    scheme, _, token = (authorization or "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        return None
    return hashlib.sha256(token.strip().encode()).hexdigest()[:16]


def order_of(body: bytes) -> dict[str, Any]:
    """The order in a body, where the framework has no validation of its own; ``ValueError`` if it is none."""
    wanted = json.loads(body)
    match wanted:
        case {"sku": str(sku), "quantity": int(quantity)} if sku and quantity > 0 and quantity is not True:
            return {"sku": sku, "quantity": quantity}
    raise ValueError("An order is an object with a sku and a quantity of at least 1.")
