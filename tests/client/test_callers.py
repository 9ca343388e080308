"""The programs for callers in other languages, as ``samekey spec`` writes them: those that can be run are."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

import lab
from samekey import Idempotency, Policy, ietf, stripe
from samekey.asgi import IdempotencyMiddleware
from samekey.ops.spec_page import markdown
from samekey.tenants import single_tenant
from tests.chosen import whole

from .scripted import Cut, Hang, Say, Trickle, problem, scripted

_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def programs(tmp_path: Path, policy: Policy, mode: str = "leased") -> dict[str, str]:
    """By language, for an API of this policy with one route."""
    idempotency = Idempotency(f"sqlite:///{tmp_path / 'spec.db'}", policy=policy)

    async def pay(_request: Any) -> JSONResponse:
        return JSONResponse({}, 201)

    app = Starlette(routes=[Route("/payments", getattr(idempotency, mode)(pay), methods=["POST"])])
    app.add_middleware(IdempotencyMiddleware, idempotency=idempotency, tenant=single_tenant())
    page = markdown(app)
    idempotency.close()
    found = {language: code for language, code in _FENCE.findall(page) if language != "json"}
    assert found.keys() == {"bash", "js", "go", "java", "php"}
    for code in found.values():
        assert "@" not in code.replace("@order-17.json", "") and "https://api.example.com" not in code[:40]
    return found


def run(*command: str, directory: Path) -> str:
    environment = lab.environment(PATH=f"{directory}{os.pathsep}{os.environ['PATH']}")
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


TROUBLE = (
    Cut(),
    # After a lost attempt these may be a gateway's, and are not the operation's answer.
    Say(403, b"<html>blocked</html>", (("Content-Type", "text/html"),)),
    Say(404, b"{}"),
    Say(302, b"", (("Location", "/login"),)),
    Say(200, b"<html>log in</html>", (("Content-Type", "text/html"),)),
    Say(503, b""),
    Say(429, b"", (("retry-after", "0"),)),
    problem(409, "in_progress"),
    problem(409, "outcome_unknown"),
    Say(201, b'{"half": "' + b"x" * 900 + b'"}', cut_body=True),
    Say(201, b'{"done": true}', (("Idempotent-Replayed", "true"),)),
)


SOLD_OUT = Say(409, b'{"detail": "sold out", "order": "in_progress"}')
"""Final: the word is not its code."""


def needs(program: str) -> str:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    return program


def quickly(code: str) -> str:
    """The same program with pauses that a test can wait for."""
    quick = code
    for pause in ("500 * 2 **", "0.5 * 2 **", "0.5 * Math.pow", "0.5*math.Pow"):
        quick = quick.replace(pause, pause.replace("500", "5").replace("0.5", "0.005"))
    assert quick != code
    return quick


def test_the_javascript(tmp_path: Path) -> None:
    node = needs("node")
    (tmp_path / "send.mjs").write_text(quickly(programs(tmp_path, ietf())["js"]))
    (tmp_path / "main.mjs").write_text(
        'import { send } from "./send.mjs";\n'
        "const [url, key, deadline] = process.argv.slice(2);\n"
        "const body = JSON.stringify({ cents: 450 });\n"
        "try { console.log(JSON.stringify(await send(url, { key, body, deadline: Number(deadline) }))); }\n"
        'catch (error) { console.log("still open: " + error.message); }\n'
    )
    with scripted(*TROUBLE) as server:
        told = json.loads(run(node, "main.mjs", f"{server.url}/payments", "k-1", "60", directory=tmp_path))
        assert told == {"status": 201, "body": '{"done": true}', "replayed": True}
        assert len(server.seen) == len(TROUBLE) and server.keys == {'"k-1"'}
        assert {one.body for one in server.seen} == {b'{"cents":450}'}
        server.script[:] = [SOLD_OUT]
        told = json.loads(run(node, "main.mjs", server.url, "k-2", "60", directory=tmp_path))
        assert told["status"] == 409
        server.script[:] = [Cut()]
        assert "Keep the key" in run(node, "main.mjs", server.url, "k-3", "0.3", directory=tmp_path)


@whole
def test_the_java(tmp_path: Path) -> None:
    needs("javac")
    main = (
        "public final class Main {\n"
        "  public static void main(String[] given) throws Exception {\n"
        "    var client = java.net.http.HttpClient.newHttpClient();\n"
        "    var deadline = java.time.Duration.ofSeconds(Long.parseLong(given[1]));\n"
        '    var answer = Sender.send(client, given[0], "k-1", "{}", deadline);\n'
        '    System.out.println(answer.statusCode() + " " + answer.body());\n'
        "  }\n}\n"
    )
    (tmp_path / "Sender.java").write_text(quickly(programs(tmp_path, ietf())["java"]))
    (tmp_path / "Main.java").write_text(main)
    run("javac", "Sender.java", "Main.java", directory=tmp_path)
    with scripted(*TROUBLE) as server:
        told = run("java", "Main", f"{server.url}/payments", "60", directory=tmp_path)
        assert told.strip() == '201 {"done": true}' and server.keys == {'"k-1"'}
        assert len(server.seen) == len(TROUBLE)
    with scripted(Trickle()) as server:  # a body that comes byte by byte, for longer than the deadline
        with pytest.raises(AssertionError, match="Keep the key"):
            run("java", "Main", f"{server.url}/payments", "1", directory=tmp_path)
        assert server.drops < 150


@whole
def test_the_go(tmp_path: Path) -> None:
    go = needs("go")
    main = (
        "package main\n\n"
        'import ("context"; "fmt"; "net/http"; "os"; "time"; "example.com/shop/orders")\n\n'
        "func main() {\n"
        "  seconds, _ := time.ParseDuration(os.Args[3])\n"
        "  ctx, cancel := context.WithTimeout(context.Background(), seconds)\n"
        "  defer cancel()\n"
        "  answer, text, err := orders.Send(ctx, http.DefaultClient, os.Args[1], os.Args[2], "
        '[]byte("{\\"cents\\":450}"))\n'
        '  if err != nil { fmt.Println("still open:", err); return }\n'
        "  fmt.Println(answer.StatusCode, string(text))\n"
        "}\n"
    )
    (tmp_path / "orders").mkdir()
    (tmp_path / "orders" / "send.go").write_text(quickly(programs(tmp_path, ietf())["go"]))
    (tmp_path / "main.go").write_text(main)
    (tmp_path / "go.mod").write_text("module example.com/shop\n\ngo 1.19\n")
    run(go, "vet", "./...", directory=tmp_path)
    run(go, "build", "-o", "main", directory=tmp_path)
    _holds_to_its_key(tmp_path, str(tmp_path / "main"), hang=True)


@whole
def test_the_php(tmp_path: Path) -> None:
    php = needs("php")
    if "curl" not in run(php, "-m", directory=tmp_path).split():
        pytest.skip("PHP's curl is not installed")
    (tmp_path / "send.php").write_text(quickly(programs(tmp_path, ietf())["php"]))
    (tmp_path / "main.php").write_text(
        "<?php\nrequire 'send.php';\n"
        "try { [$status, $text] = send($argv[1], $argv[2], '{\"cents\":450}', (float) $argv[3]);\n"
        "      echo $status, ' ', $text; }\n"
        "catch (RuntimeException $error) { echo 'still open: ', $error->getMessage(); }\n"
    )
    _holds_to_its_key(tmp_path, php, "main.php")


def _holds_to_its_key(directory: Path, *program: str, hang: bool = False) -> None:
    """``program URL KEY SECONDS`` prints a status and a body, or "still open" and why."""
    with scripted(*TROUBLE) as server:
        told = run(*program, f"{server.url}/payments", "k-1", "60s", directory=directory)
        assert told.strip() == '201 {"done": true}' and server.keys == {'"k-1"'}
        assert len(server.seen) >= len(TROUBLE)
        assert {one.body for one in server.seen} == {b'{"cents":450}'}
        server.script[:] = [SOLD_OUT]
        assert run(*program, server.url, "k-2", "60s", directory=directory).startswith("409 ")
        server.script[:] = [Say(307, b"", (("Location", f"{server.url}/elsewhere"),))]
        assert run(*program, server.url, "k-4", "60s", directory=directory).startswith("307")
        assert "/elsewhere" not in {one.path for one in server.seen}
        never: list[Cut | Say | Hang] = [Cut(), Say(503), Hang()]
        for open_for_ever in never[: 3 if hang else 2]:
            server.script[:] = [open_for_ever]
            told = run(*program, server.url, "k-3", "0.3s", directory=directory)
            assert told.startswith("still open") and "eep the key" in told


def test_the_commands_of_curl(tmp_path: Path) -> None:
    needs("curl")
    code = programs(tmp_path, ietf())["bash"].replace("1 1 2 4 8 15 15 15 0", "0 " * 20)
    (tmp_path / "order-17.json").write_text('{"cents": 450}')
    with scripted(*TROUBLE) as server:
        local = code.replace("https://api.example.com", server.url)
        for _ in range(2):  # the second call of the whole script finds the key of the first
            assert '{"done": true}' in run("sh", "-c", local, directory=tmp_path)
    key = (tmp_path / "order-17.key").read_text().strip()
    assert server.keys == {f'"{key}"'} and len(server.seen) == len(TROUBLE) + 1
    with scripted(problem(409, "in_progress")) as server:
        local = code.replace("https://api.example.com", server.url)
        ran = subprocess.run(["sh", "-c", local], cwd=tmp_path, capture_output=True, check=False, timeout=30)
    assert ran.returncode == 1 and b"Keep order-17.key" in ran.stderr


def test_curl_sends_nothing_without_a_key(tmp_path: Path) -> None:
    """A disk that is full, say: the file is there, and empty, and cannot be written."""
    needs("curl")
    code = programs(tmp_path, ietf())["bash"]
    (tmp_path / "order-17.json").write_text('{"cents": 450}')
    (tmp_path / "order-17.new").mkdir()
    with scripted(Say()) as server:
        local = code.replace("https://api.example.com", server.url)
        ran = subprocess.run(["sh", "-c", local], cwd=tmp_path, capture_output=True, check=False, timeout=30)
    assert ran.returncode != 0 and server.seen == []


def test_the_programs_are_for_the_users_own_api(tmp_path: Path) -> None:
    plain = programs(tmp_path, ietf(header="X-Key"))
    assert all("X-Key" in code for code in plain.values())
    assert all("outcome_unknown" in plain[language] for language in ("js", "go", "java", "php"))
    assert '"X-Key": `"${key}"`' in plain["js"] and "X-Key" in plain["bash"]
    of_stripe = programs(tmp_path, stripe())
    assert "idempotency_key_in_use" in of_stripe["go"] and "`${key}`" in of_stripe["js"]
    assert '"X-Key", "\\"" + key' in plain["java"] and '"Idempotency-Key", "" + key' in of_stripe["java"]
    later = programs(tmp_path, ietf(on_in_progress="accept"))
    assert "[202, 408, 425, 429]" in later["js"] and "[408, 425, 429]" in plain["js"]
