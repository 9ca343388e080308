"""Who is calling. The account is the tenant: it owns its keys, and sees nothing of any other account."""

import hmac
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Depends, HTTPException, Request
from fastapi.security import HTTPBearer

from .service import settings

_bearer = HTTPBearer(auto_error=False, description="A token of an account.")


def account_of(scope: Mapping[str, Any]) -> str | None:
    """The account of an ASGI request, or None: for samekey's middleware, and for the dependency below."""
    sent = [value for name, value in scope["headers"] if name == b"authorization"]
    if len(sent) != 1:
        return None
    scheme, _, token = sent[0].partition(b" ")
    if scheme.lower() != b"bearer":
        return None
    # Compared with every token, in a time that tells nothing about any of them.
    found = [
        account
        for known, account in settings.accounts.items()
        if hmac.compare_digest(known.encode(), token.strip())
    ]
    return found[0] if found else None


def authenticated(request: Request, _: Annotated[Any, Depends(_bearer)]) -> str:
    """The caller's account; 401 for anybody else, before any key is looked at."""
    account = account_of(request.scope)
    if account is None:
        raise HTTPException(401, "Send a valid token.", headers={"WWW-Authenticate": "Bearer"})
    return account


Account = Annotated[str, Depends(authenticated)]
