"""The command line: exit codes, sentences, and what a script reads."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from samekey.cli.app import app
from tests.check.base import BODY, Server, serving
from tests.check.broken import IgnoresKeys, NoFingerprint
from tests.check.broken_together import GlobalKeys

ANN, BOB = "Authorization: Bearer ann", "Authorization: Bearer bob"


def samekey_check(*words: str) -> Result:
    result = CliRunner().invoke(app, ["check", *words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_a_server_that_is_right_passes_and_the_report_is_json_on_standard_output() -> None:
    with serving(Server()) as url:
        words = ["--body", BODY, "--header", ANN, "--other-header", BOB, "--count-url", f"{url}/count"]
        result = samekey_check(f"{url}/orders", *words, "--profile", "ietf", "--json")
    report = json.loads(result.stdout)
    assert (result.exit_code, report["ok"], report["findings"]) == (0, True, [])
    assert "isolation.tenant" in report["passed"] and "loss.ran-again" in report["passed"]
    assert "Bearer" not in result.stdout


def test_a_finding_has_what_a_script_needs_and_no_credentials() -> None:
    with serving(NoFingerprint()) as url:
        result = samekey_check(
            f"{url}/orders", "--body", BODY, "--header", ANN, "--count-url", f"{url}/count", "--json"
        )
    (finding,) = json.loads(result.stdout)["findings"]
    assert result.exit_code == 1
    assert (finding["id"], finding["severity"]) == ("misuse.body", "error")
    assert "422" in finding["fix"] and "section 2.7" in finding["source"] and finding["rule"]
    assert finding["exchanges"][0]["request"].startswith("POST /orders HTTP/1.1")
    assert finding["exchanges"][1]["answer"].startswith("HTTP/1.1 201")
    assert "Bearer ann" not in result.stdout and "Authorization: •••" in finding["exchanges"][0]["request"]


def test_headers_come_from_the_environment_one_on_each_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAMEKEY_CHECK_HEADER", f"{ANN}\nX-Of: the environment\n")
    monkeypatch.setenv("SAMEKEY_CHECK_OTHER_HEADER", BOB)
    with serving(GlobalKeys()) as url:
        result = samekey_check(f"{url}/orders", "--body", BODY, "--json")
    (finding,) = json.loads(result.stdout)["findings"]
    assert (result.exit_code, finding["id"]) == (1, "isolation.tenant")
    assert "X-Of: " in finding["exchanges"][0]["request"]


def test_what_people_read() -> None:
    with serving(GlobalKeys()) as url:
        result = samekey_check(f"{url}/orders", "--body", BODY, "--header", ANN, "--other-header", BOB)
    assert result.exit_code == 1
    assert "✗ isolation.tenant (error)" in result.stdout and "fix:  Look keys up by tenant" in result.stdout
    assert "? loss.ran-again" in result.stdout and "1 finding;" in result.stdout


def test_an_endpoint_that_is_not_idempotent_at_all_is_one_finding() -> None:
    with serving(IgnoresKeys()) as url:
        result = samekey_check(f"{url}/orders", "--body", BODY, "--header", ANN, "--json")
    report = json.loads(result.stdout)
    assert (result.exit_code, [finding["id"] for finding in report["findings"]]) == (1, ["replay.ran-again"])
    assert {"id": "isolation.tenant", "why": "a plain retry does not get the first answer"} in report[
        "not_proven"
    ]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["http://127.0.0.1:9/x", "--body", "{nonsense"], "The body is no JSON"),
        (["http://127.0.0.1:9/x", "--body", '{"a": NaN}'], "The body is no JSON"),
        (["nonsense", "--body", "{}"], "cannot be asked"),
        (["http://127.0.0.1:99999/x", "--body", "{}"], "is no URL"),
        (["ftp://127.0.0.1/x", "--body", "{}"], "cannot be asked"),
        (["http://127.0.0.1:9/x", "--body", "{}", "--header", "nonsense"], "write 'Name: value'"),
        (["http://127.0.0.1:9/x", "--body", "{}", "--header", "A: b\r\nC: d"], "write 'Name: value'"),
        (["http://127.0.0.1:9/x", "--body", "{}", "--header", "Idempotency-Key: k"], "leave it out"),
        (["http://127.0.0.1:9/x", "--body", "{}", "--profile", "nonsense"], "use ietf, stripe, stripe_v2"),
        (["http://127.0.0.1:9/x", "--body", "{}", "--method", "GET IT"], "no HTTP method"),
        (["http://192.0.2.1/x", "--body", "{}"], "say --mine"),
        (["http://127.0.0.1:9/x", "--body", "{}", "--count-url", "nonsense"], "cannot be asked"),
        ([], "Give the URL of the endpoint"),
        (["http://127.0.0.1:9/x", "--body", "{}", "--format", "nonsense"], "use text, json"),
        (["http://127.0.0.1:9/x", "--plan", "x.toml"], "A plan names its endpoints itself"),
    ],
)
def test_wrong_use_is_a_sentence_and_2(words: list[str], sentence: str) -> None:
    result = samekey_check(*words)
    assert result.exit_code == 2
    assert sentence in result.stderr
    assert not result.stdout


@pytest.mark.parametrize(
    ("path", "body", "sentence"),
    [
        ("/nowhere", BODY, "answered 404"),
        ("/orders", "{}", "answered 400"),
    ],
)
def test_a_request_that_the_endpoint_does_not_accept_is_wrong_use(
    path: str, body: str, sentence: str
) -> None:
    with serving(Server()) as url:
        result = samekey_check(f"{url}{path}", "--body", body, "--header", ANN)
    assert (result.exit_code, sentence in result.stderr) == (2, True)


def test_missing_credentials_are_wrong_use() -> None:
    with serving(Server()) as url:
        result = samekey_check(f"{url}/orders", "--body", BODY)
    assert result.exit_code == 2
    assert "Give credentials with --header" in result.stderr


@pytest.mark.parametrize("count", ["/orders/", "/nothing"])
def test_a_count_url_that_tells_no_number_is_wrong_use(count: str) -> None:
    with serving(Server()) as url:
        result = samekey_check(
            f"{url}/orders", "--body", BODY, "--header", ANN, "--count-url", f"{url}{count}"
        )
    assert result.exit_code == 2
    assert "tells no number" in result.stderr


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_host_that_cannot_be_reached_is_3() -> None:
    result = samekey_check(f"http://127.0.0.1:{unused_port()}/x", "--body", "{}")
    assert (result.exit_code, "cannot be reached" in result.stderr) == (3, True)


def test_a_host_that_has_no_address_is_3() -> None:
    result = samekey_check("http://nowhere.invalid/x", "--body", "{}")
    assert (result.exit_code, "has no address" in result.stderr) == (3, True)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_server_without_tls_is_3() -> None:
    with serving(Server()) as url:
        result = samekey_check(f"{url}/orders".replace("http:", "https:"), "--body", "{}")
    assert (result.exit_code, "No TLS" in result.stderr) == (3, True)


@contextmanager
def listening(certificate: Path | None = None) -> Iterator[int]:
    """Takes connections, and hangs up; with a certificate, after shaking hands."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    if certificate is None:
                        continue
                    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                    context.load_cert_chain(certificate)
                    try:
                        context.wrap_socket(connection, server_side=True).close()
                    except OSError:
                        pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield int(server.getsockname()[1])
        server.shutdown(socket.SHUT_RDWR)
    thread.join()


def test_a_server_that_hangs_up_is_3() -> None:
    with listening() as port:
        result = samekey_check(f"http://127.0.0.1:{port}/x", "--body", "{}")
    assert (result.exit_code, "without an answer" in result.stderr) == (3, True)


def test_a_certificate_that_nobody_knows_is_3(tmp_path: Path) -> None:
    certificate = tmp_path / "own.pem"
    certificate.write_bytes(self_signed())
    with listening(certificate) as port:
        result = samekey_check(f"https://127.0.0.1:{port}/x", "--body", "{}")
    assert result.exit_code == 3
    assert "certificate" in result.stderr.lower() and "SSL_CERT_FILE" in result.stderr


def self_signed() -> bytes:
    from datetime import UTC, datetime, timedelta

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return made.public_bytes(serialization.Encoding.PEM) + private


def test_a_fault_of_the_tool_is_no_finding() -> None:
    deep = "[" * 900 + "]" * 900
    with serving(Server()) as url:
        result = samekey_check(f"{url}/orders", "--body", deep)
    assert result.exit_code in (2, 4) and "Traceback" not in result.stderr


@pytest.mark.parametrize("value", ["inf", "1e20"])
def test_a_time_out_is_a_time(value: str) -> None:
    assert samekey_check("http://127.0.0.1:9/orders", "--timeout", value).exit_code == 2


@pytest.mark.parametrize(
    "line", ["retention = -1", "retention = nan", "body = {due = 2026-01-01}", "body = {x = nan}"]
)
def test_a_plan_that_makes_no_sense_is_wrong_use(line: str, tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(f'[[endpoint]]\nurl = "http://127.0.0.1:9/orders"\n{line}\n')
    assert samekey_check("--plan", str(plan)).exit_code == 2
