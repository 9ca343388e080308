"""What the WSGI edge can learn from Flask, without importing it first."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any, Final

from ..core.record import Answer
from ..engine.exchange import SEEN, UNKNOWN_FRAMEWORK, Asked, Exchange, Framework, current_exchange
from ..engine.handler.around import is_wrapped
from ..engine.handler.boundary import Pieces
from ..engine.handler.marks import mark_of, own_handler, stands_in
from ..engine.handler.streams import WatchedPieces
from ..engine.operation import Running
from . import wrapped
from .bound import bound
from .guards import NO_ROUTE, Found, Route
from .wrapped import attribute

logger = logging.getLogger("samekey")


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
    view = _view(views.get(rule.endpoint), environ["REQUEST_METHOD"])
    hook = partial(_guard_view, views, rule.endpoint, environ["REQUEST_METHOD"])
    return Route(view, rule.rule, guard_handler=hook)


def behind(app: Any) -> Any:
    """The Flask application behind other middleware."""
    return wrapped.behind(app, lambda one: attribute(one, "view_functions") is not None)


def _in_context(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Asked | None:
    """The request that Flask calls a view for."""
    flask = sys.modules["flask"]
    if not flask.has_request_context():
        return None
    environ = flask.request.environ
    return Asked(environ, framework_of())


def reached_view(guarded: Collection[str]) -> Route | None:
    """The view that Flask has reached, by its own word, for a request by a method that is not guarded."""
    flask = sys.modules.get("flask")
    if flask is None or not flask.has_request_context() or flask.request.method in guarded:
        return None
    view = flask.current_app.view_functions.get(flask.request.endpoint)
    return None if view is None else Route(_view(view, flask.request.method), flask.request.path)


def _guard_view(views: dict[str, Any], endpoint: str, method: str, decorated: bool) -> bool:
    """Puts a stand-in around the view that Flask calls, below whatever runs before each request; a view that
    is a class is guarded method by method."""
    view = views.get(endpoint)
    if view is None:
        return False
    method_of = _method_of(view, method)
    as_a_whole = mark_of(view) is not None if decorated else _has_others_around(view)
    if method_of is None or as_a_whole:
        if not stands_in(view):
            leaves, wrapped = partial(_is_for_decorated, view), as_a_whole or is_wrapped(view)
            views[endpoint] = bound(view, _in_context, decorated=decorated, wrapped=wrapped, leaves=leaves)
        return True
    view_class, name = method_of
    handler = getattr(view_class, name)
    if not stands_in(handler):
        is_decorated, wrapped = mark_of(handler) is not None, is_wrapped(handler)
        stands = bound(handler, _in_context, decorated=is_decorated, wrapped=wrapped)
        setattr(view_class, name, stands)
    return True


def is_wrapped_view(view: Any, method: str) -> bool:
    """Whether others stand around the function of a view, or its class dispatches by itself."""
    method_of = _method_of(view, method)
    return is_wrapped(view) or (
        method_of is not None and (_has_others_around(view) or is_wrapped(getattr(*method_of)))
    )


def _method_of(view: Any, method: str) -> tuple[type, str] | None:
    """The method that a view calls which is a class."""
    view_class: Any = getattr(view, "view_class", None)
    names = (name for name in (method.lower(), "dispatch_request") if hasattr(view_class, name))
    return next(((view_class, name) for name in names), None)


def _has_others_around(view: Any) -> bool:
    """Whether a class of views has decorators, or a dispatch of its own."""
    view_class = getattr(view, "view_class", None)
    if view_class is None:
        return False
    known = sys.modules["flask.views"].MethodView
    dispatch = own_handler(view_class.dispatch_request)
    return is_wrapped(view) or (issubclass(view_class, known) and dispatch is not known.dispatch_request)


def _is_for_decorated(view: Any, args: tuple[Any, ...]) -> bool:
    request = sys.modules["flask"].request
    method_of = _method_of(view, request.method)
    return method_of is not None and mark_of(getattr(*method_of)) is not None


def _view(view: Any, method: str) -> Any:
    """A class-based view is guarded as a whole, method by method, or where it dispatches."""
    view_class = getattr(view, "view_class", None)
    for name in (method.lower(), "dispatch_request"):
        handler = getattr(view_class, name, None)
        if mark_of(view) is None and mark_of(handler) is not None:
            return handler
    return view


class FlaskFramework(Framework):
    """Flask, and what it takes from Werkzeug."""

    def __init__(self, flask: Any) -> None:
        self._flask = flask
        self._response = sys.modules["werkzeug.wrappers"].Response
        self._exception = sys.modules["werkzeug.exceptions"].HTTPException

    def respond(self, answer: Answer) -> Any:
        if not self._flask.has_request_context():
            return super().respond(answer)
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in answer.headers]
        return self._flask.Response(answer.body, status=answer.status, headers=headers)

    def own_status(self, value: Any, noted: Any) -> int | None:
        chosen: Any = None
        if isinstance(value, tuple) and len(value) in (2, 3):
            # (body, status) and (body, status, headers); (body, headers) says nothing about the status.
            chosen = None if len(value) == 2 and isinstance(value[1], dict | list | tuple) else value[1]
            value = value[0]
        if chosen is None:
            chosen = getattr(value, "status_code", None) if isinstance(value, self._response) else None
        try:
            return None if chosen is None else int(str(chosen).split(" ", 1)[0])
        except ValueError:
            return None

    def watch(self, value: Any, running: Running) -> Any:
        given, rest = (value[0], value[1:]) if isinstance(value, tuple) and value else (value, None)
        if isinstance(given, self._response):
            if isinstance(given.response, Iterator) and not given.direct_passthrough:
                given.response = WatchedPieces(given.response, running)
            elif given.is_sequence and not running.boundary.wrapped:
                running.boundary.pieces = Pieces.WHOLE  # nothing of it is left to come
        elif isinstance(given, Iterator):
            pieces = WatchedPieces(given, running)
            return pieces if rest is None else (pieces, *rest)
        elif not callable(given) and not running.boundary.wrapped:
            running.boundary.pieces = Pieces.WHOLE
        return value

    def asked(self, arguments: Sequence[Any]) -> Asked | None:
        return _in_context((), {})

    def refusal(self, error: BaseException) -> int | None:
        if not isinstance(error, self._exception):
            return None
        response = getattr(error, "response", None)
        code = error.code if response is None else getattr(response, "status_code", None)
        return code if isinstance(code, int) else None


_CALLBACKS: Final = "samekey.flask.callbacks"
"""The key in the environ under which they stand, once Flask has made its response."""


class _Callbacks:
    """What a view has registered for after its answer (``call_on_close``). A layer in between may close the
    answer before it is known whether the client gets it: they wait for that."""

    def __init__(self, functions: list[Callable[[], object]]) -> None:
        self._functions = functions
        self._closed = False
        self._wanted: bool | None = None

    def __call__(self) -> None:
        """The answer is closed."""
        self._closed = True
        if self._wanted:
            self._run()

    def decide(self, wanted: bool) -> None:
        self._wanted = wanted
        if wanted and self._closed:
            try:
                self._run()
            except Exception:
                logger.exception("What was to follow an answer failed")

    def _run(self) -> None:
        functions, self._functions = self._functions, []
        for function in functions:
            function()


def note_answers() -> None:
    """From now on what follows the answer to a guarded request is known from where Flask has made it: other
    layers may wrap what comes to the edge."""
    flask = sys.modules.get("flask")
    if flask is not None:
        flask.request_finished.connect(_note)


def _note(_sender: Any, response: Any, **_: Any) -> None:
    seen = sys.modules["flask"].request.environ.get(SEEN)
    if isinstance(seen, Exchange) and current_exchange.get() is seen:
        callbacks = _Callbacks(response._on_close)
        # One view may answer by another application, on the same environ.
        seen.context.setdefault(_CALLBACKS, []).append(callbacks)
        response._on_close = [callbacks]


def decide_callbacks(environ: dict[str, Any], *, wanted: bool) -> None:
    for callbacks in environ.pop(_CALLBACKS, ()):
        callbacks.decide(wanted)


def runs_callbacks(chunks: Any, environ: dict[str, Any]) -> bool:
    """Whether closing an answer runs what was registered for after it, whatever is decided about that: it is
    Werkzeug's, and no Flask has made it."""
    kind = getattr(sys.modules.get("werkzeug.wsgi"), "ClosingIterator", None)
    return kind is not None and isinstance(chunks, kind) and _CALLBACKS not in environ


def framework_of() -> Framework:
    """The framework behind a WSGI application. Where it cannot be seen, Flask knows its own when it is asked:
    it goes by types, and by the request that it is handling."""
    flask = sys.modules.get("flask")
    return UNKNOWN_FRAMEWORK if flask is None else FlaskFramework(flask)
