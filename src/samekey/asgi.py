"""The ASGI middleware: ``from samekey.asgi import IdempotencyMiddleware``."""

from .edges.asgi import AsgiMiddleware as IdempotencyMiddleware

__all__ = ["IdempotencyMiddleware"]
