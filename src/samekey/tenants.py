"""Ready-made answers to "whose key is this?". The scope of a key always holds its tenant.

A resolver takes the ASGI scope or WSGI environ, or the framework's own request if its parameter says so. It
gives a stable id of the authenticated caller, or None (then 401). Never the credential itself: a refreshed
token must not be a new caller.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from uuid import UUID

from .errors import ConfigurationError

Tenant = Callable[[Any], str | Awaitable[str | None] | None]
"""A resolver. It may be async under ASGI and in Django."""
Resolver = Callable[[Any], str | None]
"""One that answers at once."""
_SECURITY = "__samekey_security__"
"""The attribute of a resolver that says what it asks for."""
_CLIENTS_OWN = ("HTTP_", "CONTENT_", "QUERY_STRING", "PATH_INFO", "REQUEST_", "RAW_URI", "SCRIPT_NAME")
"""What a client says itself, as WSGI spells it."""
_IDENTITIES = ("identity", "id", "pk", "user_id", "username")
"""Where a user object keeps what identifies it. Not its display name: two users may share one."""


def by_user(context: Any) -> str | None:
    """The authenticated user: ``scope["user"]`` (Starlette's AuthenticationMiddleware and its like),
    ``request.state.user``, or under WSGI ``REMOTE_USER``."""
    user = context.get("user")
    if user is None:
        user = _state(context).get("user")
    if user is None:
        user = context.get("REMOTE_USER")
    return _identity(user)


def by_state(name: str) -> Resolver:
    """What your authentication left in ``request.state`` (ASGI) or in the environ (WSGI) under a name.

    Works with authentication in FastAPI dependencies: a decorated handler claims after them.
    """
    if name.startswith(_CLIENTS_OWN):
        raise ConfigurationError(
            f"by_state({name!r}) would take the client's own word for who it is. "
            "Name what your authentication leaves in the environ, such as REMOTE_USER."
        )

    def resolve(context: Any) -> str | None:
        # Not the ASGI scope: "type" or "path" would be there for every caller.
        place = context if _is_wsgi(context) else _state(context)
        return _identity(place.get(name))

    return resolve


def by_api_key(accounts: Mapping[str, str], *, header: str = "Authorization") -> Resolver:
    """Static API keys: ``{key: account}``. The tenant is the account, so that a rotated key is still the same
    caller. The keys themselves are stored nowhere.

    Only these keys are accepted, with or without ``Bearer``; any other gives None.
    """
    texts = [*accounts, *accounts.values()] if isinstance(accounts, Mapping) else []
    if not texts or not all(isinstance(text, str) and text.strip() for text in texts):
        raise ConfigurationError(
            "by_api_key needs the account of each key, {key: account}, none of them empty: a key that is "
            "rotated must not be a new caller."
        )
    known = [(key.encode(), account) for key, account in accounts.items()]

    def resolve(context: Any) -> str | None:
        sent = _header(context, header)
        if sent is None:
            return None
        scheme, _, rest = sent.partition(b" ")
        sent = rest.strip() if scheme.lower() == b"bearer" else sent
        # All of them are looked at, so that the time it takes tells nothing.
        matches = [account for key, account in known if hmac.compare_digest(key, sent)]
        return matches[0] if matches else None

    if header.lower() == "authorization":
        return _asks_for(resolve, {"type": "http", "scheme": "bearer"})
    return _asks_for(resolve, {"type": "apiKey", "in": "header", "name": header})


def single_tenant(name: str = "single") -> Resolver:
    """One scope for everybody, said explicitly. Only for a service with one caller."""
    if not isinstance(name, str) or not name:
        raise ConfigurationError("single_tenant needs a name: nobody is let in under an empty one.")

    def resolve(_context: Any) -> str | None:
        return name

    return _asks_for(resolve, None)


def security_of(tenant: Any, challenge: str) -> dict[str, str] | None:
    """What a caller must send for a resolver to know it, as a security scheme of OpenAPI; None: nothing.
    Where the resolver does not say, it is by what a 401 asks for (the policy's ``challenge``)."""
    scheme: dict[str, str] | None = getattr(
        tenant, _SECURITY, {"type": "http", "scheme": challenge.split(maxsplit=1)[0].lower()}
    )
    return scheme


def _asks_for(resolve: Resolver, scheme: dict[str, str] | None) -> Resolver:
    setattr(resolve, _SECURITY, scheme)
    return resolve


def _state(context: Any) -> dict[str, Any]:
    state = context.get("state")
    if isinstance(state, dict):
        return state
    inner = getattr(state, "_state", None)
    return inner if isinstance(inner, dict) else {}


def _identity(user: Any) -> str | None:
    if user is None or user is False or user == "" or _is_anonymous(user):
        return None
    if isinstance(user, str):
        return user
    if isinstance(user, int | UUID) and user is not True:
        return str(user)
    for name in _IDENTITIES:
        try:
            value = getattr(user, name, None)
        except NotImplementedError:
            continue
        if value is not None and value != "" and _is_stable(value):
            return str(value)
    raise ConfigurationError(
        f"The user is a {type(user).__name__} without any of {', '.join(_IDENTITIES)}. "
        "Write a resolver of your own that gives its stable id."
    )


def _is_anonymous(user: Any) -> bool:
    authenticated = getattr(user, "is_authenticated", True)
    return not callable(authenticated) and not authenticated


def _is_stable(value: Any) -> bool:
    """False for a method, or an object without a text of its own: that text holds a memory address."""
    kind: Any = type(value)
    bare = kind.__str__ is object.__str__ and kind.__repr__ is object.__repr__
    return not (callable(value) or bare or isinstance(value, bool))


def _is_wsgi(context: Any) -> bool:
    return "wsgi.input" in context


def _header(context: Any, name: str) -> bytes | None:
    if _is_wsgi(context):
        value = context.get("HTTP_" + name.upper().replace("-", "_"))
        return None if value is None else str(value).encode("latin-1")
    wanted = name.lower().encode("latin-1")
    return next((bytes(v) for n, v in context.get("headers", ()) if n.lower() == wanted), None)
