"""``manage.py samekey_doctor``: looks at the live store and says what is wrong, and what to do about it."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from samekey.django.conf import the_idempotency


class Command(BaseCommand):  # type: ignore[misc]
    """As ``samekey doctor``."""

    help = "Looks at samekey's live store and says what is wrong, and what to do about it."

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("--json", action="store_true", help="for scripts")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            from samekey.cli.doctor import tell_about
        except ModuleNotFoundError as error:
            raise CommandError(f"This needs {error.name}: pip install 'samekey[cli]'.") from None
        if not tell_about(the_idempotency(), as_json=options["json"]):
            raise CommandError("Something needs attention.", returncode=1)
