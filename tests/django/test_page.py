"""docs/django.md: a project made by its commands and its files passes its own tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lab import environment
from lab.processes import LOOPBACK, free_port
from tests.chosen import whole
from tests.frames.curled import serve_and_ask_twice
from tests.test_docs import blocks

PAGE = """
from django.contrib.auth.models import User
from django.test import TestCase

from orders.models import Order
from tests.frames.test_openapi import built


class PageTests(TestCase):
    def test_a_request_that_is_built_from_the_page_alone_succeeds(self):
        self.client.force_login(User.objects.create_user("ann"))
        assert b"swagger" in self.client.get("/docs").content
        document = self.client.get("/schema", headers={"Accept": "application/json"}).json()
        request = built(document, "/api/orders/")
        sent = {"Idempotency-Key": request["headers"]["Idempotency-Key"]}  # the session says who asks
        first, again = (
            self.client.post("/api/orders/", request["json"], "application/json", headers=sent)
            for _ in range(2)
        )
        assert (first.status_code, again.content) == (201, first.content), first.content
        assert again["Idempotent-Replayed"] == "true"
        assert Order.objects.count() == 1
        said = document["paths"]["/api/orders/"]["post"]["responses"]
        assert {"201", "400", "409", "422", "503"} <= said.keys()
        assert "/idempotency/{operation}" in document["paths"]
"""


@whole
def test_the_page_builds_a_project_that_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    written = {"shop/settings.py"}
    for code in blocks("docs/django.md", "python"):
        name = code.splitlines()[0].removeprefix("# ")
        with (project / name).open("a" if name in written else "w") as file:
            file.write(f"\n{code}")
        written.add(name)
    (project / "orders" / "test_page.py").write_text(PAGE)
    run("manage.py", "makemigrations", "orders")
    run("manage.py", "makemigrations", "--check")  # the models of the admin are those of the migration
    run("manage.py", "migrate", "--verbosity", "0")
    assert "no issues" in run("manage.py", "check")
    told = run("manage.py", "test", "orders.tests", "orders.test_api", "orders.test_page")
    assert "Ran 5 tests" in told
    _, _, _, served = blocks("docs/django.md", "console")
    _, create, serve, curl = served.replace("$ ", "").splitlines()
    monkeypatch.setenv("DJANGO_SUPERUSER_PASSWORD", "secret")
    run(*create.split()[1:])
    place = f"{LOOPBACK}:{free_port()}"
    command = [sys.executable, *serve.split()[1:], place, "--noreload"]
    serve_and_ask_twice(command, curl, place, project, environment())
