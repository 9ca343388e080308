"""The WSGI middleware: ``from samekey.wsgi import IdempotencyMiddleware``."""

from .edges.wsgi import WsgiMiddleware as IdempotencyMiddleware

__all__ = ["IdempotencyMiddleware"]
