"""What the shops on Django share: the settings of a project, a table, and who asks."""

from typing import Any
from urllib.parse import unquote, urlsplit

from .. import account_of, profile


def configure(url: str, urls: str, *apps: str) -> None:
    """The settings of a project whose views are in ``urls``. A project of your own writes them in a file."""
    import django
    from django.conf import settings

    settings.configure(
        DATABASES={"default": database(url)},
        INSTALLED_APPS=[*apps, "samekey.django", "examples.shop.orm"],
        MIDDLEWARE=["examples.shop.orm.known.Known", "samekey.django.IdempotencyMiddleware"],
        SAMEKEY={
            "DATABASE": "default",
            "TENANT": "examples.shop.orm.tenant",
            # A process that was killed is given up after three seconds, as in every shop.
            "POLICY": {"lease": 3},
            "PROFILE": profile(),
        },
        ROOT_URLCONF=urls,
        ALLOWED_HOSTS=["*"],
        DEFAULT_AUTO_FIELD="django.db.models.AutoField",
        REST_FRAMEWORK={"UNAUTHENTICATED_USER": None, "DEFAULT_AUTHENTICATION_CLASSES": []},
        USE_TZ=True,
    )
    django.setup()


def migrate(url: str, urls: str, *apps: str) -> None:
    """``manage.py migrate``: samekey's tables and the shop's own."""
    configure(url, urls, *apps)
    from django.core.management import call_command

    call_command("migrate", run_syncdb=True, verbosity=0)


def tenant(request: Any) -> str | None:
    return account_of(request.headers.get("Authorization"))


def database(url: str) -> dict[str, Any]:
    """A URL as ``DATABASES`` has it."""
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": unquote(parts.path).removeprefix("/")}
    kind = "postgresql" if parts.scheme.startswith("postgres") else "mysql"
    return {
        "ENGINE": f"django.db.backends.{kind}",
        "NAME": unquote(parts.path).removeprefix("/"),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname or "",
        "PORT": parts.port or "",
        "OPTIONS": dict(pair.split("=", 1) for pair in parts.query.split("&") if pair),
    }
