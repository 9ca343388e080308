"""The WSGI middleware: ``from samekey.wsgi import IdempotencyMiddleware``."""

from .edges.wsgi import IdempotencyMiddleware

__all__ = ["IdempotencyMiddleware"]
