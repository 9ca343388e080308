"""Views that are classes: methods that they inherit are guarded by a line in the class.

    class CreateOrder(Idempotent, CreateView):
        idempotent = {"post": idempotency.atomic}

    class Orders(Idempotent, ModelViewSet):
        idempotent = {"perform_create": idempotency.atomic, "destroy": idempotency.leased}

A method that the class writes itself takes the decorator directly. A subclass that overrides what is named so
has its own method guarded alike: what it calls by ``super()`` is a part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from ..engine.handler.marks import mark_of
from ..errors import ConfigurationError


class Idempotent:
    # Guards the methods that ``idempotent`` names, of Django's class-based views and of REST framework's. Not
    # in a docstring: schema generators would print it as the description of the user's own endpoints.

    idempotent: ClassVar[Mapping[str, Callable[[Any], Any]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = vars(cls).get("idempotent", {})
        named: dict[str, Callable[[Any], Any]] = {}
        for place in reversed(cls.__mro__[1:]):
            named |= vars(place).get("idempotent", {})
        for name, guard in ({one: named[one] for one in named if one in vars(cls)} | dict(own)).items():
            method = getattr(cls, name, None)
            if method is None:
                raise ConfigurationError(
                    f"{cls.__qualname__}.idempotent names {name!r}, which it does not have."
                )
            if mark_of(method) is None:
                setattr(cls, name, guard(method))
