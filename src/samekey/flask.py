"""samekey in Flask: an extension.

    samekey = Samekey(idempotency, tenant=lambda: g.account)

    def create_app():
        app = Flask(__name__)
        samekey.init_app(app)

A view claims when Flask reaches it, after whatever runs before each request: authentication comes first. What
is not said here may stand in the configuration of each application: ``SAMEKEY_TENANT``, ``SAMEKEY_ROUTES`` …
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable
from typing import Any, Literal

from flask import Flask, has_request_context, request
from werkzeug.exceptions import HTTPException

from .core.outcome import OnError
from .edges.guards import Decorators, RouteGuard
from .edges.wsgi import WsgiMiddleware
from .errors import ConfigurationError
from .idempotency import Idempotency
from .openapi import describe

__all__ = ["Samekey"]

logger = logging.getLogger("samekey")

_PREFIX = "SAMEKEY_"

Tenant = Callable[..., str | None]
"""Of the WSGI environ (see ``samekey.tenants``), or of nothing: it then looks at ``flask.g``."""


class Samekey:
    """Guards the views of every application that it is given to.

    The options are those of ``samekey.wsgi.IdempotencyMiddleware``. ``tenant`` and ``binding`` may also be
    functions without arguments, which are called in the request's context.
    """

    def __init__(
        self,
        idempotency: Idempotency,
        app: Flask | None = None,
        *,
        tenant: Tenant | None = None,
        routes: dict[str, RouteGuard] | None = None,
        undecorated: Literal["guard", "pass"] | None = None,
        on_error: OnError | None = None,
        binding: Tenant | None = None,
        decorators: Decorators | None = None,
    ) -> None:
        if not isinstance(idempotency, Idempotency):
            raise ConfigurationError("Samekey is given an Idempotency: Samekey(idempotency, tenant=…).")
        self.idempotency = idempotency
        self._said = {
            "tenant": tenant,
            "routes": routes,
            "undecorated": undecorated,
            "on_error": on_error,
            "binding": binding,
            "decorators": decorators,
        }
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Guards an application, before or after it has its routes. ``ConfigurationError`` where nothing says
        whose keys they are, or it is guarded already."""
        if not isinstance(app, Flask):
            raise ConfigurationError(f"init_app takes a Flask application, not a {type(app).__name__}.")
        if "samekey" in app.extensions:
            raise ConfigurationError(
                f"{app.name} is guarded already: call init_app once for each application."
            )
        options = self._options(app)
        for name in ("tenant", "binding"):
            if options.get(name) is not None:
                options[name] = _in_context(app, options[name])
        if "tenant" not in options:
            raise ConfigurationError(
                f"Nothing says whose keys those of {app.name} are: give Samekey a tenant, such as "
                "tenant=lambda: g.account, or set SAMEKEY_TENANT."
            )
        app.extensions["samekey"] = self
        guard = _Guard(app, app.wsgi_app, idempotency=self.idempotency, **options)
        app.wsgi_app = guard  # type: ignore[method-assign]
        if "flask-smorest" in app.extensions:
            describe(app, self.idempotency)

    def _options(self, app: Flask) -> dict[str, Any]:
        """What was said here, and else in the configuration."""
        found = {
            name.removeprefix(_PREFIX).lower(): app.config[name] for name in app.config if _is_ours(name)
        }
        unknown = sorted(found.keys() - self._said.keys())
        if unknown:
            names = ", ".join(f"{_PREFIX}{name.upper()}" for name in self._said)
            raise ConfigurationError(
                f"{_PREFIX}{unknown[0].upper()} is no setting of samekey's extension, which has {names}. All "
                "others belong to the Idempotency."
            )
        return {**found, **{name: value for name, value in self._said.items() if value is not None}}


class _Guard(WsgiMiddleware):
    """Looks, at the first request, whether something would have no effect on what samekey answers itself."""

    def __init__(self, flask: Flask, app: Any, **options: Any) -> None:
        super().__init__(app, **options)
        self._unseen: Flask | None = flask

    def __call__(self, environ: Any, start_response: Any) -> Any:
        flask, self._unseen = self._unseen, None
        if flask is not None and any(_is_cors(one) for all_of in _after(flask) for one in all_of):
            logger.warning("%s", _CORS)
        return super().__call__(environ, start_response)


_CORS = (
    "flask-cors sets its headers inside of samekey: what samekey refuses has none of them, so that a browser "
    "shows it to no page, and a replay has those of the first request's origin. Set them around app.wsgi_app "
    "in its place: docs/cors.md has the lines."
)


def _after(app: Flask) -> list[list[Any]]:
    return list(app.after_request_funcs.values())


def _is_cors(function: Any) -> bool:
    return str(getattr(function, "__module__", "")).startswith("flask_cors")


def _is_ours(name: str) -> bool:
    return name.startswith(_PREFIX)


def _in_context(app: Flask, resolve: Tenant) -> Callable[[Any], str | None]:
    """A resolver that is called in the context of its request, after what runs before each one. Only the
    status of an operation is asked for where no view is reached."""
    try:
        takes_none = not inspect.signature(resolve).parameters
    except (TypeError, ValueError):
        raise ConfigurationError(f"{resolve!r} is no function that could say whose key it is.") from None

    def found(environ: Any) -> str | None:
        return resolve() if takes_none else resolve(environ)

    @functools.wraps(resolve)  # with what it asks a caller for
    def resolve_in_context(environ: Any) -> str | None:
        if has_request_context() and request.environ is environ:
            return found(environ)
        try:
            with app.request_context(environ):
                return found(environ) if app.preprocess_request() is None else None
        except HTTPException:
            return None

    return resolve_in_context
