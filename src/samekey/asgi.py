"""The ASGI middleware: ``from samekey.asgi import IdempotencyMiddleware``."""

from .edges.asgi import IdempotencyMiddleware

__all__ = ["IdempotencyMiddleware"]
