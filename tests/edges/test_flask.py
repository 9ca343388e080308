"""What is Flask's own: views in classes, blueprints, error handlers, contexts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import flask
import pytest
from flask.views import MethodView, View

from samekey import ConfigurationError, Idempotency, current_operation
from samekey.core.outcome import OnError
from samekey.engine.exchange import Answered
from samekey.wsgi import IdempotencyMiddleware
from tests.edges.apps import tenant_of
from tests.edges.callers import Client, Got, Request, WsgiClient, call_wsgi
from tests.edges.counting import touches
from tests.edges.scenarios import Ask
from tests.edges.world import Store, Stores, World


class Service:
    """An application with one client, and what its views count."""

    def __init__(self, store: Store, threads: ThreadPoolExecutor) -> None:
        self.store = store
        self.world = World()
        self.app = flask.Flask(__name__)
        self.app.wsgi_app = IdempotencyMiddleware(  # type: ignore[method-assign]
            self.app.wsgi_app, idempotency=store.idempotency, tenant=tenant_of
        )
        self.client: Client = WsgiClient(self.app, threads)

    @property
    def idempotency(self) -> Idempotency:
        return self.store.idempotency

    def run(self) -> int:
        return self.world.begin(guarded=False)[0]

    def ask(self, path: str, **changes: Any) -> Got:
        return self.client.send(Ask(**changes).request(path, self.world.name))

    def twice(self, path: str, **changes: Any) -> Got:
        """Sends twice and demands the same answer; gives the first."""
        first, again = self.ask(path, **changes), self.ask(path, **changes)
        assert again.replayed and not first.replayed and again.content == first.content, (first, again)
        return first


@pytest.fixture
def service(stores: Stores, threads: ThreadPoolExecutor) -> Service:
    return Service(stores.get(), threads)


def test_views_in_classes(service: Service) -> None:
    class Payments(MethodView):
        @service.idempotency.leased
        def post(self, shop: int) -> Any:
            return {"run": service.run(), "shop": shop, "body": flask.request.get_json()}

        def patch(self, shop: int) -> Any:
            return {"run": service.run()}

    class Dispatched(View):
        methods = ["POST"]  # noqa: RUF012 - as Flask spells it

        @service.idempotency.leased
        def dispatch_request(self) -> Any:
            return {"run": service.run()}

    class Decorated(View):
        methods = ["POST"]  # noqa: RUF012
        decorators = [service.idempotency.leased]  # noqa: RUF012

        def dispatch_request(self) -> Any:
            return {"run": service.run()}

    service.app.add_url_rule("/shops/<int:shop>", view_func=Payments.as_view("payments"))
    service.app.add_url_rule("/dispatched", view_func=Dispatched.as_view("dispatched"))
    service.app.add_url_rule("/decorated", view_func=Decorated.as_view("decorated"))
    assert service.twice("/shops/7").json() == {"run": 1, "shop": 7, "body": {"amount": 100}}
    assert service.twice("/shops/7", method="PATCH", keys=(b"key-2",)).json() == {"run": 2}
    assert service.twice("/dispatched", keys=(b"key-3",)).json() == {"run": 3}
    assert service.twice("/decorated", keys=(b"key-4",)).json() == {"run": 4}
    for path in ("/shops/7", "/dispatched", "/decorated"):
        assert service.ask(path, keys=()).code == "missing", path
    assert service.ask("/shops/8").code == "reused"


def test_blueprints(service: Service) -> None:
    inner, outer = flask.Blueprint("inner", __name__), flask.Blueprint("outer", __name__)

    @inner.post("/pay/<name>")
    @service.idempotency.leased
    def pay(name: str) -> Any:
        return {"run": service.run(), "name": name, "url": flask.url_for(".pay", name="x")}

    outer.register_blueprint(inner, url_prefix="/inner")
    service.app.register_blueprint(outer, url_prefix="/outer")
    got = service.twice("/outer/inner/pay/ann")
    assert got.json() == {"run": 1, "name": "ann", "url": "/outer/inner/pay/x"}
    assert service.ask("/outer/inner/pay/ann", keys=()).code == "missing"


def test_hosts_and_subdomains(stores: Stores) -> None:
    """Routes are matched as Flask matches them."""
    store, world = stores.get(), World()
    app = flask.Flask(__name__, subdomain_matching=True)
    app.config["SERVER_NAME"] = "shop.example"

    @app.post("/pay", subdomain="api")
    @store.idempotency.leased
    def pay() -> Any:
        return {"run": world.begin()[0]}

    guard = IdempotencyMiddleware(app.wsgi_app, idempotency=store.idempotency, tenant=tenant_of)
    ask = Ask(headers=((b"host", b"api.shop.example"),)).request("/pay", world.name)
    assert [call_wsgi(guard, ask).replayed for _ in range(2)] == [False, True]
    with touches(store.idempotency) as touched:
        other = Ask(headers=((b"host", b"www.shop.example"),)).request("/pay", world.name)
        assert call_wsgi(guard, other).status == 404
    assert touched == []


def test_the_router_refuses_by_itself(service: Service) -> None:
    service.app.add_url_rule("/get", "get", lambda: "", methods=["GET"])
    service.app.add_url_rule("/slash/", "slash", lambda: str(service.run()), methods=["POST"])
    with touches(service.idempotency) as touched:
        for path, status in (("/nothing", 404), ("/get", 405), ("/slash", 308)):
            for tenant in ("alice", "nobody"):
                assert service.ask(path, tenant=tenant).status == status, path
    assert (touched, service.world.runs) == ([], 0)


def test_what_a_view_may_return(service: Service) -> None:
    answers: dict[str, Callable[[], Any]] = {
        "text": lambda: "text",
        "tuple": lambda: ({"a": 1}, 202, {"x-extra": "1"}),
        "list": lambda: [1, 2],
        "empty": lambda: ("", 204),
        "redirect": lambda: flask.redirect("/elsewhere", 303),
        "abort": lambda: flask.abort(404),
        "abort with a reason": lambda: flask.abort(409, "taken"),
        "bytes": lambda: bytes(range(256)),
        "cookies": lambda: flask.make_response("x"),
    }

    @service.app.post("/answer/<name>")
    @service.idempotency.leased
    def answer(name: str) -> Any:
        service.run()
        return answers[name]()

    for name in answers:
        service.twice(f"/answer/{name}", keys=(name.replace(" ", "-").encode(),))
    assert service.world.runs == len(answers)


@pytest.mark.parametrize(
    ("status", "on_error", "again"),
    [
        *((500, "unknown", 409), (503, "unknown", 409), (502, "unknown", 409), (404, "unknown", 404)),
        *((500, "retry", 200), (503, "retry", 200), (502, "retry", 409), (404, "retry", 404)),
    ],
)
def test_abort_is_the_frameworks_own_exception(
    service: Service, status: int, on_error: OnError, again: int
) -> None:
    """Below 500 it is an answer. From 500 on it is an error like any other (X2)."""

    @service.app.post("/pay")
    @service.idempotency.leased(on_error=on_error)
    def pay() -> Any:
        if service.run() == 1:
            flask.abort(status)
        return {}

    assert [service.ask("/pay").status for _ in range(2)] == [status, again]


@pytest.mark.parametrize("mode", ["leased", "atomic"])
def test_handled_exceptions(service: Service, mode: str) -> None:
    class Declined(Exception): ...

    class Overloaded(Exception): ...

    @service.app.errorhandler(Declined)
    def declined(_error: Exception) -> Any:
        return {"declined": True}, 402

    @service.app.errorhandler(Overloaded)
    def overloaded(_error: Exception) -> Any:
        return {"overloaded": True}, 503

    @service.app.post("/pay/<what>")
    @getattr(service.idempotency, mode)  # type: ignore[untyped-decorator]
    def pay(what: str) -> Any:
        number = service.run()
        if mode == "atomic":
            current_operation().connection.execute(service.store.insert, (service.world.name, number))
        if what == "declined":
            raise Declined
        if number == 3:
            raise Overloaded
        return {"run": number}

    first, again = (service.ask("/pay/declined") for _ in range(2))
    assert service.store.effects(service.world) == 0
    if mode == "leased":  # a page that somebody made of an error proves nothing
        assert first.code == again.code == "outcome_unknown" and service.world.runs == 1
        return
    assert first.status == again.status == 402 and service.world.runs == 2
    assert service.ask("/pay/other", keys=(b"key-2",)).status == 503
    assert service.twice("/pay/other", keys=(b"key-2",)).json() == {"run": 4}
    assert service.store.effects(service.world) == 1


def test_hooks_and_contexts(service: Service) -> None:
    events: list[str] = []

    @service.app.before_request
    def before() -> None:
        flask.g.started = "yes"

    @service.app.after_request
    def after(response: flask.Response) -> flask.Response:
        response.headers["x-after"] = flask.g.started
        return response

    @service.app.teardown_request
    def teardown(_error: BaseException | None) -> None:
        events.append("teardown")

    @service.app.post("/pay")
    @service.idempotency.leased
    def pay() -> Any:
        response = flask.make_response({"run": service.run(), "g": flask.g.started})
        response.call_on_close(lambda: events.append("closed"))
        return response

    got = service.twice("/pay")
    assert got.header("x-after") == "yes"
    assert events == ["teardown", "closed", "teardown"]


def test_a_failing_clean_up_does_not_change_the_answer(service: Service) -> None:
    @service.app.post("/pay")
    @service.idempotency.leased
    def pay() -> Any:
        response = flask.make_response({"run": service.run()})
        response.call_on_close(lambda: 1 / 0)
        return response

    with pytest.raises(ZeroDivisionError):
        service.ask("/pay")
    assert service.ask("/pay").replayed and service.world.runs == 1


def test_streaming_with_a_context(service: Service) -> None:
    @service.app.post("/pay")
    @service.idempotency.leased
    def pay() -> Any:
        service.run()

        def lines() -> Iterator[str]:
            for number in range(3):
                yield f"{flask.request.path} {number}\n"

        return flask.stream_with_context(lines())

    assert service.twice("/pay").body == b"/pay 0\n/pay 1\n/pay 2\n"


def test_propagated_exceptions(service: Service) -> None:
    service.app.config["PROPAGATE_EXCEPTIONS"] = True

    @service.app.post("/pay")
    @service.idempotency.leased
    def pay() -> Any:
        if service.run() == 1:
            raise TimeoutError
        return {}

    first = service.ask("/pay")
    assert first.code == "outcome_unknown" and isinstance(first.error, TimeoutError)
    assert service.ask("/pay").code == "outcome_unknown"


def test_a_method_that_is_not_guarded(service: Service) -> None:
    """One view for GET and POST: GET never needs the header, and its errors are its own (K8)."""

    @service.app.route("/pay", methods=["GET", "POST"])
    @service.idempotency.leased
    def pay() -> Any:
        if service.run() == 2:
            raise ValueError
        return {"run": service.world.runs}

    def get() -> Got:
        return service.ask("/pay", method="GET", keys=(), body=b"", tenant=None)

    assert get().json() == {"run": 1}
    failed = get()
    assert (failed.status, failed.error) == (500, None)
    assert get().json() == {"run": 3}
    assert service.twice("/pay").json() == {"run": 4}


def test_without_the_middleware(stores: Stores) -> None:
    app, world = flask.Flask(__name__), World()
    app.config["PROPAGATE_EXCEPTIONS"] = True

    @app.post("/pay")
    @stores.get().idempotency.leased
    def pay() -> Any:
        return {"run": world.begin()[0]}

    got = call_wsgi(app, Ask().request("/pay", world.name))
    assert isinstance(got.error, ConfigurationError) and "IdempotencyMiddleware" in str(got.error)
    assert world.runs == 0


def test_two_guards_in_one_request(service: Service) -> None:
    service.app.config["PROPAGATE_EXCEPTIONS"] = True

    @service.idempotency.atomic
    def inner() -> Any:
        return {"run": service.run()}

    def hides_the_mark() -> Any:
        return inner()

    @service.idempotency.leased(on_error="retry")
    def outer() -> Any:
        return inner()

    service.app.add_url_rule("/nested", "nested", outer, methods=["POST"])
    service.app.add_url_rule("/hidden", "hidden", hides_the_mark, methods=["POST"])
    for path in ("/nested", "/hidden"):
        got = service.ask(path, keys=(path.encode(),))
        assert isinstance(got.error, ConfigurationError) and "Two guards" in str(got.error)
    assert service.world.runs == 0


def test_bare_applications_with_decorated_functions(stores: Stores) -> None:
    """A generator as the application: nothing of it runs before its first chunk is asked for."""
    store, world = stores.get(), World()

    @store.idempotency.leased
    def pay() -> bytes:
        return b"run %d" % world.begin()[0]

    def app(environ: Any, start_response: Any) -> Iterator[bytes]:
        write = start_response("200 OK", [("content-type", "text/plain")])
        write(b"<")
        body = pay() if environ["PATH_INFO"] == "/pay" else b"free"
        yield body
        write(b">")
        yield b"!"

    guard = IdempotencyMiddleware(app, idempotency=store.idempotency, tenant=tenant_of, undecorated="pass")
    ask = Ask().request("/pay", world.name)
    first, again = call_wsgi(guard, ask), call_wsgi(guard, ask)
    assert again.replayed and again.content == first.content and world.runs == 1
    assert sorted(first.body) == sorted(b"<run 1>!")
    assert call_wsgi(guard, Ask().request("/free", world.name)).body == b"<free>!"
    assert store.records(f"{world.name}-alice") == [("completed", 1)]


def test_an_application_that_breaks_the_rules(stores: Stores) -> None:
    """What it did may have happened, so it is recorded as an error, not left in progress."""
    store = stores.get()

    def no_start(environ: Any, start_response: Any) -> list[bytes]:
        return [b"x"]

    def odd_header(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [("x-snow", "\N{SNOWMAN}")])
        return [b"x"]

    for app in (no_start, odd_header):
        world = World()
        guard = IdempotencyMiddleware(app, idempotency=store.idempotency, tenant=tenant_of)
        got = call_wsgi(guard, Ask().request("/x", world.name))
        assert got.code == "outcome_unknown" and not isinstance(got.error, Answered)
        assert store.records(f"{world.name}-alice") == [("unknown", 1)]


def test_a_prefix_of_the_server(service: Service) -> None:
    """SCRIPT_NAME is part of the path; the router sees the rest."""

    @service.app.post("/pay")
    @service.idempotency.leased
    def pay() -> Any:
        return {"run": service.run()}

    def mounted(environ: Any, start_response: Any) -> Any:
        environ["SCRIPT_NAME"], environ["PATH_INFO"] = "/shop", environ["PATH_INFO"].removeprefix("/shop")
        return service.app(environ, start_response)

    ask: Request = Ask().request("/shop/pay", service.world.name)
    assert [call_wsgi(mounted, ask).replayed for _ in range(2)] == [False, True]
    assert service.ask("/pay").code == "reused"
