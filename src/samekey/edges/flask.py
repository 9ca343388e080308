"""What the WSGI edge can learn from Flask, without importing it first."""

from __future__ import annotations

import sys
from typing import Any

from ..core.record import Answer
from ..engine.decorate import GUARD
from ..engine.exchange import Exchange, Respond, current_exchange, raise_answered
from .guards import NO_ROUTE, Found, Route

_DEEPEST = 64
"""Middleware in middleware; a chain that is longer than this goes round in circles."""


def find_route(app: Any, environ: dict[str, Any]) -> Found:
    """Asks Flask's router before it runs; ``app`` is the Flask object or its ``wsgi_app``."""
    flask_app = behind(app)
    views, make_adapter = (getattr(flask_app, n, None) for n in ("view_functions", "create_url_adapter"))
    if views is None or make_adapter is None:
        return None
    try:
        # As Flask does it, so that hosts and subdomains count the same.
        adapter = make_adapter(flask_app.request_class(environ))
        rule, _ = adapter.match(return_rule=True)
    except Exception:
        return NO_ROUTE  # no such route, another method, a redirect, a bad host: Flask will say so itself
    return Route(_view(views.get(rule.endpoint), environ["REQUEST_METHOD"]), rule.rule)


def behind(app: Any) -> Any:
    """The application behind other middleware, which keeps what it wraps as ``app`` (Werkzeug's does)."""
    for _ in range(_DEEPEST):
        found = getattr(app, "__self__", app)
        if hasattr(found, "view_functions"):
            return found
        app = getattr(found, "app", None)
        if app is None:
            break
    return None


def note_errors(app: Any) -> None:
    """Flask makes a 500 of what a view raises and tells only its signal. Where the edge claims, the error
    decides what may be done again: a time-out is not a failure."""
    flask, flask_app = sys.modules.get("flask"), behind(app)
    if flask is not None and isinstance(flask_app, flask.Flask):
        flask.got_request_exception.connect(_note_error, flask_app, weak=False)


def _note_error(_app: Any, exception: BaseException, **_: Any) -> None:
    exchange = current_exchange.get()
    if isinstance(exchange, Exchange) and exchange.error is None:
        exchange.error = exception


def _view(view: Any, method: str) -> Any:
    """A class-based view is guarded as a whole, method by method, or where it dispatches."""
    view_class = getattr(view, "view_class", None)
    for name in (method.lower(), "dispatch_request"):
        handler = getattr(view_class, name, None)
        if not hasattr(view, GUARD) and hasattr(handler, GUARD):
            return handler
    return view


def make_response() -> Respond:
    """How a decorated handler gives a decided answer to its framework."""
    flask = sys.modules.get("flask")
    if flask is None:
        return raise_answered

    def respond(answer: Answer) -> Any:
        if not flask.has_request_context():
            return raise_answered(answer)
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in answer.headers]
        return flask.Response(answer.body, status=answer.status, headers=headers)

    return respond
