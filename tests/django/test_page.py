"""docs/django.md: a project made by its commands and its files passes its own tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from lab import environment
from tests.chosen import whole
from tests.test_docs import blocks

API = """
from django.test import override_settings
from django.urls import include, path
from rest_framework.routers import SimpleRouter
from orders.api import Orders
router = SimpleRouter()
router.register("api", Orders)
urlpatterns = [path("", include(router.urls))]


from orders.tests import OrderTests


@override_settings(ROOT_URLCONF=__name__)
class ApiTests(OrderTests):
    def order(self, key):
        return self.client.post("/api/", {"sku": "tea"}, "application/json", headers={"Idempotency-Key": key})

    def test_a_key_is_needed(self):
        self.assertEqual(self.client.post("/api/", {"sku": ""}, "application/json").status_code, 400)
"""


@whole
def test_the_page_builds_a_project_that_works(tmp_path: Path) -> None:
    def run(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-W", "error", *words],
            cwd=project if project.exists() else tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    project = tmp_path / "shop"
    run("-m", "django", "startproject", "shop")
    run("manage.py", "startapp", "orders")
    for code in blocks("docs/django.md", "python"):
        name = code.splitlines()[0].removeprefix("# ")
        with (project / name).open("a" if name == "shop/settings.py" else "w") as file:
            file.write(f"\n{code}")
    (project / "orders" / "test_api.py").write_text(API)
    with (project / "shop" / "settings.py").open("a") as file:
        file.write('\nINSTALLED_APPS += ["rest_framework"]\n')
    run("manage.py", "makemigrations", "orders")
    run("manage.py", "makemigrations", "--check")  # the models of the admin are those of the migration
    run("manage.py", "migrate", "--verbosity", "0")
    assert "no issues" in run("manage.py", "check")
    told = run("manage.py", "test", "orders.tests", "orders.test_api.ApiTests")
    assert "Ran 4 tests" in told
