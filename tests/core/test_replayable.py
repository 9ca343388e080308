"""Which headers are kept and sent again (X8): every forbidden family, in any case; the rest in order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samekey.core.policy import ietf
from samekey.core.record import Answer, Headers
from samekey.core.replayable import replayable, replayable_headers
from samekey.errors import ConfigurationError

FORBIDDEN = {
    "cookies": ["Set-Cookie", "Set-Cookie2", "Cookie"],
    "credentials": [
        "Authorization",
        "WWW-Authenticate",
        "Proxy-Authenticate",
        "Proxy-Authorization",
        "Authentication-Info",
        "Proxy-Authentication-Info",
        "X-CSRF-Token",
        "X-CSRFToken",
        "X-XSRF-TOKEN",
        "X-Auth-Token",
        "X-Access-Token",
        "X-Refresh-Token",
        "DPoP-Nonce",
        "Clear-Site-Data",
    ],
    "hop-by-hop": [
        "Connection",
        "Keep-Alive",
        "Proxy-Connection",
        "TE",
        "Trailer",
        "Transfer-Encoding",
        "Upgrade",
        "Alt-Svc",
    ],
    "one moment": ["Date", "Age", "Server", "Server-Timing", "Retry-After"],
    "rate limits": [
        "RateLimit",
        "RateLimit-Policy",
        "RateLimit-Remaining",
        "Rate-Limit-Remaining",
        "X-RateLimit-Limit",
        "X-RateLimit-Reset",
        "X-Rate-Limit-Remaining",
    ],
    "our own marks": ["Idempotent-Replayed", "Idempotency-Key-Expires"],
}
CREDENTIALS = [
    *("X-Session-Token", "Access-Token", "X-Session-Id", "Session", "X-SessionId", "Sid", "X-Sid"),
    *("Id-Token", "X-Id-Token", "Refresh-Token", "X-Amz-Security-Token", "X-Vault-Token", "Token"),
    *("X-Goog-Iap-Jwt-Assertion", "JWT", "X-Jwt", "Bearer", "X-Bearer", "X-Auth", "Auth", "X-Authy"),
    *("X-Authorization", "X-Forwarded-Authorization", "X-Auth-Key", "X-API-Key", "Api-Key", "Apikey"),
    *("X_API_KEY", "x-apikey", "X-Access-Key", "X-Secret", "Client-Secret", "X-Client-Secret", "Secret"),
    *("X-Credential", "X-Credentials", "Password", "X-Password", "X-Passwd", "X-New-Password", "X-Pwd"),
    *("X-One-Time-Password", "X-Otp", "OTP", "X-TOTP-Code", "X-Mfa", "X-2fa", "X-Tan", "X-Pin", "PIN"),
    *("X-CSRF", "CSRF-Token", "X-Xsrf", "Xsrf-Token", "X-Cookie", "Nonce", "X-Nonce", "Replay-Nonce"),
    *("X-Signature", "Signature", "Signature-Input", "X-Hub-Signature-256", "X-Saml-Response", "X-Ticket"),
    *("X-Impersonate-User", "X-Sso", "X-Private-Key", "Private-Key", "X-Signing-Key", "X-Encryption-Key"),
    *("Ocp-Apim-Subscription-Key", "X-Master-Key", "X-Passphrase", "X-Magic-Link", "X-Login-Ticket"),
    *("Authenticate", "X-Authenticated-User", "Accept-Signature", "X-Captcha", "X-Cvc", "X-Oauth-Scopes"),
]
KEPT = [
    "Content-Type",
    "Content-Length",
    "Content-Encoding",
    "Content-Language",
    "Location",
    "ETag",
    "Last-Modified",
    "Cache-Control",
    "Vary",
    "Link",
    "X-Request-Id",
    "Access-Control-Allow-Origin",
    "X-Serverless",
    "Dated",
    "Ages",
    "Tea",
    "X-Author",
    "X-Pinned",
    "X-Keyboard",
    "X-Tandem",
    "Keywords",
    "X-Side",
    "Public-Key-Pins",
    "X-Total-Count",
    "X-Correlation-Id",
    "Sunset",
    "Deprecation",
    "X-Option",
    "Access-Control-Allow-Credentials",
    "Idempotency-Key",
]
NAMES = [name for names in FORBIDDEN.values() for name in names]
KEEP: Headers = ((b"content-type", b"text/plain"),)


@pytest.mark.parametrize("spell", [str, str.lower, str.upper, str.swapcase])
@pytest.mark.parametrize("name", NAMES)
def test_a_forbidden_header_is_dropped_however_it_is_spelled(name: str, spell: type[str]) -> None:
    headers = ((spell(name).encode(), b"secret"), *KEEP, (spell(name).encode(), b"again"))
    assert replayable_headers(headers) == KEEP


def test_what_looks_like_a_credential_is_dropped() -> None:
    found = [(name.encode(), b"secret") for name in CREDENTIALS]
    assert replayable_headers((*found, *KEEP)) == KEEP


@pytest.mark.parametrize("name", KEPT)
def test_everything_else_is_kept_as_it_was_spelled(name: str) -> None:
    headers = ((name.encode(), b"value"),)
    assert replayable_headers(headers) == headers


@pytest.mark.parametrize("line", [b"close, X-Trace", b"x-trace", b" X-TRACE ,keep-alive", b",,x-Trace,"])
def test_a_header_that_connection_names_is_hop_by_hop(line: bytes) -> None:
    headers = ((b"X-Trace", b"1"), *KEEP, (b"CONNECTION", line), (b"x-trace", b"2"))
    assert replayable_headers(headers) == KEEP


def test_every_connection_line_counts() -> None:
    headers = ((b"connection", b"a"), (b"Connection", b"B"), (b"A", b"1"), (b"b", b"2"), (b"c", b"3"))
    assert replayable_headers(headers) == ((b"c", b"3"),)


def test_repeated_headers_and_their_order_are_preserved() -> None:
    headers = ((b"Link", b"1"), (b"vary", b"a"), (b"link", b"2"), (b"Link", b"1"), (b"Vary", b"b"))
    assert replayable_headers(headers) == headers


def test_only_the_headers_of_an_answer_change() -> None:
    answer = Answer(402, ((b"Date", b"today"), *KEEP), b"\x00body")
    assert replayable(answer) == Answer(402, KEEP, b"\x00body")


def test_a_setting_keeps_more_or_less() -> None:
    headers = ((b"X-Session-Token", b"1"), (b"x-plain", b"2"), (b"Server-Timing", b"3"), *KEEP)
    assert replayable_headers(headers, keep={"x-session-TOKEN"}, drop={"X-Plain"}) == (headers[0], *KEEP)
    assert replayable_headers(headers, keep={"Server-Timing", "X-Plain"}, drop={"X-Plain"}) == headers[2:]


def test_no_setting_keeps_a_cookie() -> None:
    assert replayable_headers(((b"Set-Cookie", b"1"), *KEEP), keep={"Set-Cookie"}) == KEEP
    with pytest.raises(ConfigurationError, match="keep_headers holds 'Set-Cookie'"):
        ietf(keep_headers={"Set-Cookie"})
    with pytest.raises(ConfigurationError, match="not the name of a header"):
        ietf(drop_headers={"X Plain"})
    assert ietf(keep_headers=["X-Session-Token"]).keep_headers == frozenset({"X-Session-Token"})


names = st.sampled_from([*NAMES, *KEPT, "X-Named", "X-Other"]).map(str.encode)
values = st.binary(max_size=12) | st.sampled_from([b"close", b"x-named", b"X-Named, te"])


@given(st.lists(st.tuples(names, values), max_size=12).map(tuple))
def test_what_is_left_is_in_order_and_stays_as_it_is(headers: Headers) -> None:
    kept = replayable_headers(headers)
    rest = iter(headers)
    assert all(pair in rest for pair in kept)  # a subsequence
    assert replayable_headers(kept) == kept
    assert not {name.lower() for name, _ in kept} & {name.lower().encode() for name in NAMES}
