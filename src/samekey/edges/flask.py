"""What the WSGI edge can learn from Flask, without importing it first."""

from __future__ import annotations

import sys
from typing import Any

from ..core.record import Answer
from ..engine.exchange import Respond, raise_answered
from .guards import Route


def find_route(app: Any, environ: dict[str, Any]) -> Route | None:
    """Asks Flask's router before it runs; ``app`` is the Flask object or its ``wsgi_app``."""
    flask_app = getattr(app, "__self__", app)
    url_map, views = getattr(flask_app, "url_map", None), getattr(flask_app, "view_functions", None)
    if url_map is None or views is None:
        return None
    try:
        rule, _ = url_map.bind_to_environ(environ).match(return_rule=True)
    except Exception:
        return None  # no such route, another method, a redirect: Flask will say so itself
    view = views.get(rule.endpoint)
    view_class = getattr(view, "view_class", None)
    if view_class is not None:
        # A class-based view is guarded method by method.
        view = getattr(view_class, environ["REQUEST_METHOD"].lower(), view)
    return Route(view, rule.rule)


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
