"""The fingerprint by example (F1 to F7, T6): what is the same intent, and what is not."""

from __future__ import annotations

import gzip
import hashlib
import json
import time
import zlib
from dataclasses import replace

import pytest

from samekey.core.fingerprint import (
    Fingerprint,
    FingerprintRules,
    Intent,
    RequestParts,
    differing,
)

PLAIN = FingerprintRules()
JSON = b"application/json"
FORM = b"application/x-www-form-urlencoded"

Headers = tuple[tuple[bytes, bytes], ...]


def request(
    body: bytes | None = b"{}",
    content_type: bytes | None = JSON,
    *,
    method: str = "POST",
    path: str = "/payments",
    query: bytes = b"",
    headers: Headers = (),
) -> RequestParts:
    typed: Headers = () if content_type is None else ((b"content-type", content_type),)
    return RequestParts(method, path, query, typed + headers, body)


def digest(parts: RequestParts, rules: FingerprintRules = PLAIN) -> bytes:
    found = Intent(parts, rules).fingerprint()
    assert len(found.digest) == 80
    assert Intent(parts, rules).digest_as(found.version) == found.digest
    return found.digest


def of(
    body: bytes | None,
    content_type: bytes | None = JSON,
    /,
    *,
    include: tuple[str, ...] = (),
    exclude: tuple[str, ...] = (),
) -> bytes:
    rules = FingerprintRules(include=include, exclude=exclude)
    return digest(request(body, content_type), rules)


def all_different(digests: list[bytes]) -> bool:
    return len(set(digests)) == len(digests)


# --- F1: digests and versions --------------------------------------------------------------------


def test_the_algorithm_is_frozen() -> None:
    """A change of these digests would refuse honest retries of stored keys: it needs version 4."""
    parts = request(
        b'{"amount": 12.50, "exact": 9007199254740993, "to": ["\\u00e9"]}',
        b"application/json; charset=UTF-8",
        query=b"a=1&b",
        headers=((b"api-version", b"2"),),
    )
    rules = FingerprintRules(headers=("Api-Version",), secrets=(b"a secret",))
    made = Intent(parts, rules).fingerprint()
    plain = Intent(parts, rules).digest_as("3")
    assert plain is not None
    assert (made.version, made.digest.hex()) == (
        "3:a8484ed6",
        "b43254d80d97585a630c4623cb5f025739e3087a34b06626bef08d2d7c9a989f5d018e79db9d8dc2"
        "f4377b0d3d6903ba12791f04b193b5db1cdf60ff268808a9c43d028129ae0d34a0abab219f37ce95",
    )
    assert plain.hex() == (
        "404ddc395556126af4d2d935e9d38a20c5708442903b4fdfde62d67c0b08451fd1ae404fb30a5135"
        "b378b5a43244074f880758e49c371cd6fa4aa2e8426269d52b7f8e0f653c1146fe32f9598b5c9c44"
    )


def test_plain_and_keyed_versions() -> None:
    parts = request()
    assert Intent(parts, PLAIN).fingerprint().version == "3"
    old, new = b"old secret", b"new secret"
    by_old = Intent(parts, FingerprintRules(secrets=(old,))).fingerprint()
    by_new = Intent(parts, FingerprintRules(secrets=(new, old))).fingerprint()
    algorithm, _, secret_id = by_old.version.partition(":")
    assert algorithm == "3"
    assert len(bytes.fromhex(secret_id)) == 4
    assert by_old.version != by_new.version
    assert all_different([Intent(parts, PLAIN).fingerprint().digest, by_old.digest, by_new.digest])


def test_stored_versions_stay_computable_through_rotation() -> None:
    parts = request(b'{"a":1}')
    stored: list[Fingerprint] = []
    secrets: tuple[bytes, ...] = ()
    for secret in (None, b"first", b"second", b"third"):
        if secret is not None:
            secrets = (secret, *secrets)
        rules = FingerprintRules(secrets=secrets)
        stored.append(Intent(parts, rules).fingerprint())
        for earlier in stored:
            assert Intent(parts, rules).digest_as(earlier.version) == earlier.digest
            other = Intent(request(b'{"a":2}'), rules).digest_as(earlier.version)
            assert other not in (None, earlier.digest)


@pytest.mark.parametrize(
    "version", ["", "0", "1", "2", "3:", "3:00000000", "3 ", " 3", ":", "3:abc:def", "x", "\ud800"]
)
def test_a_version_this_process_cannot_compute(version: str) -> None:
    assert Intent(request(), FingerprintRules(secrets=(b"one",))).digest_as(version) is None


def test_a_lost_secret_cannot_be_computed() -> None:
    made = Intent(request(), FingerprintRules(secrets=(b"lost",))).fingerprint()
    assert Intent(request(), PLAIN).digest_as(made.version) is None
    assert Intent(request(), FingerprintRules(secrets=(b"new",))).digest_as(made.version) is None


def test_secrets_are_not_shown() -> None:
    rules = FingerprintRules(secrets=(b"hush hush",))
    made = Intent(request(), rules).fingerprint()
    assert "hush" not in repr(rules)
    assert made.version.partition(":")[2] not in hashlib.sha256(b"hush hush").hexdigest()


# --- what differs --------------------------------------------------------------------------------

FIRST = request(b'{"a": 1}', query=b"x=1", headers=((b"api-version", b"1"),))
BY_VERSION = FingerprintRules(headers=("Api-Version",))
OTHERS = {
    ("method",): replace(FIRST, method="PATCH"),
    ("path",): replace(FIRST, path="/refunds"),
    ("query",): replace(FIRST, query=b"x=2"),
    ("media type",): request(b'{"a": 1}', b"application/x+json", query=b"x=1", headers=FIRST.headers[1:]),
    ("headers",): request(b'{"a": 1}', query=b"x=1", headers=((b"api-version", b"2"),)),
    ("body",): replace(FIRST, body=b'{"a": 2}'),
    ("path", "body"): replace(FIRST, path="/refunds", body=None),
    (): replace(FIRST, body=b'{ "a": 1.0 }'),
}


@pytest.mark.parametrize("secrets", [(), (b"a secret",)])
@pytest.mark.parametrize("parts", OTHERS)
def test_the_parts_in_which_two_requests_differ_can_be_named(
    parts: tuple[str, ...], secrets: tuple[bytes, ...]
) -> None:
    rules = replace(BY_VERSION, secrets=secrets)
    one, other = Intent(FIRST, rules).fingerprint().digest, Intent(OTHERS[parts], rules).fingerprint().digest
    assert differing(one, other) == differing(other, one) == parts
    assert (one == other) == (parts == ())
    assert one[32:] != Intent(FIRST, BY_VERSION).fingerprint().digest[32:] or not secrets, (
        "the parts are keyed too"
    )


def test_what_is_no_fingerprint_differs_in_nothing_that_has_a_name() -> None:
    good = digest(request())
    for odd in (b"", b"\x01" * 32, good[:-1], good + b"x"):
        assert differing(good, odd) == differing(odd, good) == ()


# --- query parameters that do not count ----------------------------------------------------------


def test_excluded_query_parameters_do_not_count() -> None:
    rules = FingerprintRules(exclude_query=("utm_source", "a b", "é", "f[x]"))
    same = [
        b"",
        b"utm_source=mail",
        b"utm%5Fsource=x&utm_source",
        b"a%20b=1",
        b"%C3%A9=1",
        b"f[x]=1",
        b"f%5Bx%5D=2",
    ]
    assert len({digest(request(query=query), rules) for query in same}) == 1
    assert len({digest(request(query=b"to=1&" + query), rules) for query in same[1:]}) == 1
    different = [b"to=1", b"UTM_SOURCE=mail", b"utm_source2=x", b"utm=source", b"to=1&to=1"]
    assert all_different([digest(request(query=query), rules) for query in (b"", *different)])


@pytest.mark.parametrize("name", ["", "a&b", "a=b", "100%", "\ud800"])
def test_what_cannot_be_the_name_of_a_query_parameter_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="exclude_query"):
        FingerprintRules(exclude_query=(name,))
    with pytest.raises(ValueError, match="must be a tuple"):
        FingerprintRules(exclude_query="utm_source")  # type: ignore[arg-type]


# --- F2: the parts -------------------------------------------------------------------------------


def test_every_part_counts() -> None:
    base = request(b'{"a":1}', query=b"q=1")
    others = [
        request(b'{"a":1}', query=b"q=1", method="PATCH"),
        request(b'{"a":1}', query=b"q=1", path="/payments/"),
        request(b'{"a":1}', query=b"q=1", path="/Payments"),
        request(b'{"a":1}', query=b"q=2"),
        request(b'{"a":1}'),
        request(b'{"a":2}', query=b"q=1"),
        request(b'{"a":1}', b"application/vnd.api+json", query=b"q=1"),
        request(b'{"a":1}', None, query=b"q=1"),
    ]
    assert all_different([digest(base), *map(digest, others)])


def test_parts_do_not_run_into_each_other() -> None:
    assert all_different(
        [
            digest(request(b"c", None, path="/a", query=b"b")),
            digest(request(b"bc", None, path="/a", query=b"")),
            digest(request(b"", None, path="/a", query=b"bc")),
            digest(request(b"c", None, path="/ab", query=b"")),
            digest(request(b"", None, path="/abc")),
            digest(request(b"", None, method="POST/abc", path="")),
        ]
    )


def test_method_is_compared_without_case() -> None:
    assert digest(request(method="post")) == digest(request(method="POST"))
    assert digest(request(method="ß")) != digest(request(method="SS"))


def test_paths_may_hold_anything() -> None:
    paths = ["/é", "/e\u0301", "/\ud800", "/\udcff", "/ÿ", "/\U00010000", "/\ud800\udc00", "", "/\0"]
    assert all_different([digest(request(path=path)) for path in paths])


def test_other_headers_do_not_count() -> None:
    noise = ((b"x-trace", b"1"), (b"idempotency-key", b"k"), (b"content-length", b"2"))
    assert digest(request(headers=noise)) == digest(request())


def test_chosen_headers() -> None:
    rules = FingerprintRules(headers=("Stripe-Version", "x-mode"))
    cases: list[Headers] = [
        (),
        ((b"stripe-version", b""),),
        ((b"stripe-version", b"2024"),),
        ((b"x-mode", b"2024"),),
        ((b"stripe-version", b"2024"), (b"stripe-version", b"2025")),
        ((b"stripe-version", b"2025"), (b"stripe-version", b"2024")),
        ((b"stripe-version", b"2024, 2025"),),
        ((b"stripe-version", b"2024"), (b"x-mode", b"2025")),
    ]
    assert all_different([digest(request(headers=case), rules) for case in cases])
    spaced = request(headers=((b"stripe-version", b" 2024\t"),))
    assert digest(spaced, rules) == digest(request(headers=cases[2]), rules)
    capital = request(headers=((b"Stripe-Version", b"2024"),))
    assert digest(capital, rules) == digest(request(headers=cases[2]), rules)


def test_order_of_rules_does_not_matter() -> None:
    parts = request(b'{"a":1,"b":2,"c":3}', headers=((b"x", b"1"), (b"y", b"2")))
    one = FingerprintRules(headers=("x", "y"), include=("/a", "/b"), exclude=("/c", "/d"))
    two = FingerprintRules(headers=("Y", "x", "y"), include=("/b", "/a"), exclude=("/d", "/c"))
    assert digest(parts, one) == digest(parts, two)


@pytest.mark.parametrize(
    "same",
    [
        [JSON, b"Application/JSON", b" application/json ", b"application/json;"],
        [JSON, b"application/json; charset=utf-8", b'application/json;Charset="UTF-8"'],
        [b"text/plain;charset=UTF-8", b"text/plain; charset=utf-8", b'text/plain ; charset="utf-8"'],
        [b"a/b;x=1;y=2", b'a/b; Y=2; X="1"', b'a/b;y="\\2";;x=1'],
    ],
)
def test_one_media_type_in_several_spellings(same: list[bytes]) -> None:
    assert len({digest(request(b"{}", spelled)) for spelled in same}) == 1


def test_media_types_that_differ() -> None:
    types = [
        None,
        b"",
        JSON,
        b"text/json",
        b"application/json; charset=latin-1",
        b"application/json; version=2",
        b"application/json; version=3",
        b"application/json; version=2; version=3",
        b"application/json; version=3; version=2",
        b"application/json; x",
        b'application/json; x="',
        b"application/json, application/json",
        b"text/plain",
        b"text/plain; charset=utf-8",
        b"nonsense",
    ]
    assert all_different([digest(request(b"{}", one)) for one in types])
    twice = request(b"{}", JSON, headers=((b"content-type", JSON),))
    assert digest(twice) != digest(request(b"{}"))


# --- F2: the query -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "same",
    [
        [b"a=b", b"%61=b", b"a=%62"],
        [b"a=%c3%a9", b"a=%C3%A9", "a=é".encode()],
        [b"a=b/c?d", b"a=b%2Fc%3fd"],
        [b"a=b=c", b"a=b%3Dc"],
        [b"a=\\", b"a=%5C", b"a=%5c"],
    ],
)
def test_one_query_in_several_spellings(same: list[bytes]) -> None:
    assert len({digest(request(query=query)) for query in same}) == 1


def test_queries_that_differ() -> None:
    queries = [
        b"", b"a", b"a=", b"=a", b"=", b"&", b"&&", b"a&", b"&a", b"a=b", b"a=b&", b"a=b&c",
        b"a=b;c", b"a=b%3Bc", b"a=b%26c", b"a%3Db", b"a=b+c", b"a=b%20c", b"a=b%2Bc", b"a=b c%20",
        b"a=1&b=2", b"b=2&a=1", b"a=1&a=1", b"a=%", b"a=%25", b"a=%2", b"a=%252", b"a=%zz",
        b"a=%25zz", b"a=%ff", b"a=\xff", b"a=%25ff", b"a=\\+", b"a=%5C%2B", b"a=+", b"a=\\\\",
        b"a=%00", b"a=%0", b"A=b",
    ]  # fmt: skip
    assert all_different([digest(request(query=query)) for query in queries])


def test_a_query_compared_by_its_bytes_cannot_imitate_pairs() -> None:
    def framed(tag: bytes, payload: bytes) -> bytes:
        return bytes([len(tag)]) + tag + len(payload).to_bytes(8, "big") + payload

    imitation = framed(b"name", b"a") + framed(b"value", b"%zz")
    assert digest(request(query=imitation)) != digest(request(query=b"a=%25zz"))


# --- F3: JSON ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "same",
    [
        [b'{"a":1,"b":[1,2]}', b'\r\n{ "b" : [ 1 ,\t2 ] , "a" : 1 }\n'],
        [b'"\\u00e9\\/\\n"', '"é/\\u000a"'.encode()],
        [b'{"\\u0061":{"c":1,"b":2}}', b'{"a":{"b":2,"c":1}}'],
        [b'"\\ud83d\\ude00"', '"😀"'.encode()],
        [b"1", b"1.0", b"1e0", b"10E-1", b"0.1e+1", b"1.000000000000000000000000", b"100e-2"],
        [b"0", b"-0", b"0.0", b"-0.0", b"0e5", b"0E-999999999999", b"-0e+400"],
        [b"0.1", b"0.10", b"1e-1", b"0.01E1"],
        [b"-12.5", b"-125e-1", b"-0.125E+2"],
        [b"1e21", b"1000000000000000000000", b"1E+21", b"10e20"],
        [b"1e23", b"100000000000000000000000"],
        [b"9007199254740992", b"9007199254740992.0", b"9.007199254740992e15"],
        [b"9007199254740993", b"9007199254740993.0", b"9007199254740993000e-3"],
        [b"1e400", b"10e399", b"0.1e401", b"1" + b"0" * 400],
        [b"1e-400", b"0.1e-399", b"0." + b"0" * 399 + b"1"],
        [b"5e-324", b"0.5e-323"],
        [b"1e1000000000", b"10e999999999", b"0.01E+1000000002"],
        [b"1" + b"0" * 5000, b"1e5000"],
        [b"[12345678901234567890123, 1]", b"[1.2345678901234567890123e22,1.0]"],
    ],
)
def test_one_document_in_several_spellings(same: list[bytes]) -> None:
    assert len({of(body) for body in same}) == 1
    assert of(b"[" + same[0] + b"]") == of(b"[" + same[-1] + b"]")
    assert of(same[0]) != of(b"[" + same[0] + b"]")


def test_documents_that_differ() -> None:
    documents = [
        b"null", b"true", b"false", b"0", b"1", b"-1", b'""', b'"1"', b'"0"', b'"true"', b'"null"',
        b"[]", b"{}", b"[[]]", b"[{}]", b"[1,2]", b"[2,1]", b"[1,2,3]", b"[[1],2]", b'{"a":1}',
        b'{"a":"1"}', b'{"a":null}', b'{"a":[]}', b'{"a":{}}', b'{"A":1}', b'{"a":1,"b":2}',
        b'{"a":2,"b":1}', b'{"a":{"b":1}}', b'{"a":1.5}', b'"a"', b'"A"', b'"\\u00e9"',
        b'"e\\u0301"', b'"\\u0000"', b'"n1e400"', b'"s1"', b'"n9007199254740993e0"',
        b"9007199254740991", b"9007199254740992", b"9007199254740993", b"9007199254740994",
        b"9007199254740992.5", b'"9007199254740993"', b"-9007199254740993", b"90071992547409930",
        b"0.1", b"0.1000000000000000055511151231257827", b"0.10000000000000001", b"0.3",
        b"0.30000000000000004", b"0.300000000000000044", b"1e400", b"1e401", b"-1e400", b"1e-400",
        b"1e-401", b"5e-324", b"4e-324", b"1.7976931348623157e308", b"1.7976931348623159e308",
        b"1e1000000000", b"1e1000000001", b"1e-1000000000", b"333333333.33333329",
        b"333333333.3333333", b"18446744073709551615", b"18446744073709551616", b"1" * 5000,
        b"1" * 5001, b"[1e400]", b'["n1e400"]', b'["1e400"]', b'["sn1e400",1e400]',
        b'["n1e400",1e400]', b'[1e400,"n1e400"]', b'{"a":1e400}', b'{"sa":1e400}', b'{"na":1e400}',
    ]  # fmt: skip
    assert all_different([of(document) for document in documents])


def test_any_json_suffix_is_json() -> None:
    for content_type in (b"application/vnd.api+json", b"application/merge-patch+JSON", b"a/b+json"):
        assert of(b'{"a":1,"b":2}', content_type) == of(b'{"b":2, "a":1}', content_type)
    for content_type in (b"text/plain", b"application/jsonp", b"application/json-seq"):
        assert of(b'{"a":1,"b":2}', content_type) != of(b'{"b":2, "a":1}', content_type)


def test_json_of_another_charset_is_bytes() -> None:
    latin = b"application/json; charset=iso-8859-1"
    assert of(b'{"a": 1}', latin) != of(b'{"a":1}', latin)
    assert of(b'{"a": 1}', latin) == of(b'{"a": 1}', latin)


# --- F4: JSON that is compared by its bytes ------------------------------------------------------

UNSAFE = [
    b'{"a":1,"a":1}',
    b'{"a":1,"a":2}',
    b'{"a":2,"a":1}',
    b'{"a":1,"\\u0061":1}',
    b'[{"x":{"a":1,"b":2,"a":1}}]',
    b'"\\ud800"',
    b'"\\udc00\\ud800"',
    b'{"\\ud800":1}',
    b'{"\\ud800":1e400}',
    b'["\\ud800",1e400]',
    b"NaN",
    b"Infinity",
    b"-Infinity",
    b"[NaN]",
    b'"\xff"',
    b'"\xed\xa0\x80"',
    b"\xef\xbb\xbf{}",
    b"\xef\xbb\xbf",
    b"{",
    b"}",
    b"{]",
    b"]]]]" + b"[" * 100,
    b"{} {}",
    b"{}x",
    b"{'a':1}",
    b'{"a":1,}',
    b"[1,]",
    b"01",
    b"+1",
    b"1.",
    b".5",
    b"1e",
    b"0x10",
    b'"\t"',
    b'"\\x"',
    b'"\\u12"',
    b'"unterminated',
    b'"\\',
    b" ",
    b"\n",
    b"\x00",
    b"nul",
    "１".encode(),
    b'{"a":1}'.decode().encode("utf-16"),
    b"1e" + b"9" * 400,
    b"[" * 65 + b"]" * 65,
    b'{"a":' * 65 + b"1" + b"}" * 65,
    b"[" * 100_000 + b"]" * 100_000,
]


def test_unsafe_json_is_compared_by_its_bytes() -> None:
    digests = [of(body) for body in UNSAFE]
    assert all_different(digests)
    assert [of(body) for body in UNSAFE] == digests
    for body in UNSAFE:
        assert of(b" " + body) != of(body)


def test_bytes_and_canonical_documents_never_meet() -> None:
    """The canonical form of one document is the bytes of another way to be compared."""
    canonical = b'{"a":1}'
    assert of(canonical) != of(canonical, b"application/json; charset=latin-1")
    assert of(canonical) != of(canonical, None)
    assert of(canonical) != of(canonical, b"text/plain")


def test_depth_limit_is_exact_and_configurable() -> None:
    def differs(depth: int, limit: int) -> bool:
        """Whether white space counts, which tells bytes from canonical form."""
        rules = FingerprintRules(max_depth=limit)
        nested, wide = b"[" * depth + b"]" * depth, b"[" * depth + b" " + b"]" * depth
        return digest(request(nested), rules) != digest(request(wide), rules)

    for limit in (1, 2, 64, 128):
        assert not differs(limit, limit)
        assert differs(limit + 1, limit)
    # Siblings and brackets inside strings are not depth.
    siblings = b"[" + b",".join([b'{"a":["[[[{{{\\""]}'] * 200) + b"]"
    assert of(siblings) == of(siblings.replace(b",", b" , "))


def test_hostile_bodies_take_bounded_time() -> None:
    size = 4 * 1024 * 1024
    bodies = [
        b"[" * size,
        b"{" * size,
        b'{"a":' * (size // 5),
        b"[[]," * (size // 4),
        b"1" * size,
        b"-" * size,
        b"0." + b"0" * size + b"1",
        b"1e" + b"9" * size,
        b"1e-" + b"9" * size,
        b'"' * size,
        b'"" ' * (size // 3),
        b'"\\' * (size // 2),
        b"[" * 65 + b'"' + b'\\"' * (size // 2),
        b"[" * 65 + b'"' + b'\\"' * 300_000,
        b'"' + b"\\n" * (size // 2) + b'"',
        b"[" + b"1," * (size // 2) + b"1]",
        b"[" + b"1e400," * 90_000 + b"1]",
        b"[" + b"{}," * 45_000 + b"{}]",
        b"[" + (b"[" * 62 + b"]" * 62 + b",") * 1500 + b"1]",
        json.dumps({str(number): number for number in range(90_000)}).encode(),
    ]
    began = time.perf_counter()
    for body in bodies:
        of(body)
    assert time.perf_counter() - began < 20  # a second or two; quadratic work would take hours


def test_a_document_of_too_many_values_is_compared_by_its_bytes() -> None:
    for body in (
        b"[" + b"1," * 10_000 + b"1]",
        b'"' + b"x" * 262_143 + b'"',
        b"[" + b"1e300," * 100 + b"1]",
        b"[" + b"12345678901234567890," * 100 + b"1]",
        b"[1e300," + b"1," * 100 + b"1]",
        b"[" + '"😀","\uff08",'.encode() * 60 + b"1]",
    ):
        assert of(body) == of(body)
        assert of(body) != of(body + b" ")
    for body in (
        b"[" + b"1," * 9_990 + b"1]",
        b"[" + b"0.25," * 9_990 + b"1]",
        b"[" + b"52.1234567890123," * 99 + b"1," * 9_000 + b"1]",
        b"[" + b"1e300," * 90 + b"1]",
        b"[" + b"12345678901234567890," * 90 + b"1]",
        b"[" + '"😀",'.encode() * 9_000 + b"1]",
    ):
        assert of(body) == of(body + b" " * 1_000)


# --- F5: absent, empty, forms --------------------------------------------------------------------


def test_absent_empty_and_empty_object_are_told_apart() -> None:
    for content_type in (JSON, FORM, b"multipart/form-data; boundary=b", b"text/plain", None):
        bodies = [None, b"", b"{}", b"[]", b"null", b'""', b" ", b"&", b"="]
        assert all_different([of(body, content_type) for body in bodies])


@pytest.mark.parametrize(
    "same",
    [
        [b"a=1&b=x+y", b"a=1&b=x%20y", b"%61=%31&b=x y", b"a=1&&b=x+y&"],
        [b"a=%C3%A9", b"a=%c3%a9", "a=é".encode()],
        [b"a=b;c", b"a=b%3Bc"],
    ],
)
def test_one_form_in_several_spellings(same: list[bytes]) -> None:
    assert len({of(body, FORM) for body in same}) == 1
    assert of(same[0], FORM) == of(same[0], FORM + b"; charset=utf-8")


def test_forms_that_differ() -> None:
    bodies = [
        b"a=1&b=2", b"b=2&a=1", b"a=1", b"a=1&a=1", b"a", b"a=", b"=a", b"a=1%26b=2", b"a%3D1",
        b"a=%2B", b"a=+", b"a=%", b"a=%25", b"a=%zz", b"a=%ff", b"a=\xff", b"A=1", b"a=1&b=2&c",
    ]  # fmt: skip
    assert all_different([of(body, FORM) for body in bodies])
    assert of(b"a=1", FORM) != of(b"a=1", FORM + b"; charset=utf-16")


def test_forms_of_absurd_size_are_compared_by_their_bytes() -> None:
    began = time.perf_counter()
    for body in (b"&" * 4_000_000, b"a&" * 2_000_000, b"a=" + b"%41" * 1_000_000):
        assert of(body, FORM) != of(body + b"&", FORM)
        digest(request(query=body))
    assert time.perf_counter() - began < 10


def multipart(*parts: tuple[bytes, bytes], boundary: bytes = b"bound") -> bytes:
    written = [b"--%b\r\n%b\r\n\r\n%b\r\n" % (boundary, head, content) for head, content in parts]
    return b"".join(written) + b"--%b--\r\n" % boundary


def of_parts(*parts: tuple[bytes, bytes], boundary: bytes = b"bound") -> bytes:
    content_type = b'multipart/form-data; boundary="%b"' % boundary
    return of(multipart(*parts, boundary=boundary), content_type)


TEXT = (b'Content-Disposition: form-data; name="a"', b"1")
FILE = (
    b'Content-Disposition: form-data; name="f"; filename="x.png"\r\nContent-Type: image/png',
    b"\x89PNG\r\n\x00--bound",
)


def test_the_boundary_does_not_count() -> None:
    one = of_parts(TEXT, FILE, boundary=b"----WebKitFormBoundaryAbC123")
    assert one == of_parts(TEXT, FILE, boundary=b"b'()+_,-./:=? x")
    body = multipart(TEXT, FILE, boundary=b"b")
    assert one == of(body, b"Multipart/Form-Data;boundary=b")
    assert one == of(body.removesuffix(b"\r\n"), b"multipart/form-data; charset=utf-8; boundary=b")


def test_spelling_of_part_headers_does_not_count() -> None:
    spelled = (
        b'CONTENT-TYPE:Image/PNG \r\ncontent-disposition: Form-Data;filename="x.png" ; NAME="f"\r\n'
        b"Content-Length: 13"
    )
    assert of_parts((spelled, FILE[1])) == of_parts(FILE)


def test_a_name_without_quotation_marks_is_another_name() -> None:
    """Receivers disagree on what it is, so it must not get the answer of the other."""
    bare = (TEXT[0].replace(b'"', b""), TEXT[1])
    assert of_parts(bare) != of_parts(TEXT)
    assert of_parts((FILE[0].replace(b'"x.png"', b"x.png"), FILE[1])) != of_parts(FILE)


def test_parts_that_differ() -> None:
    name, content = TEXT
    forms: list[list[tuple[bytes, bytes]]] = [
        [],
        [TEXT],
        [FILE],
        [TEXT, FILE],
        [FILE, TEXT],
        [TEXT, TEXT],
        [(name, b"2")],
        [(name, b"")],
        [(name, b"1\r\n")],
        [(name.replace(b'"a"', b'"b"'), content)],
        [(name + b'; filename=""', content)],
        [(name + b'; filename="1"', content)],
        [(name + b"; filename*=UTF-8''1", content)],
        [(name + b'; filename="1"; filename*="1"', content)],
        [(name + b"\r\nContent-Type: text/plain", content)],
        [(name + b"\r\nContent-Type: text/html", content)],
        [(name + b"\r\nContent-Transfer-Encoding: base64", content)],
        [(name + b"\r\nX-Part: 1", content)],
        [(rb'Content-Disposition: form-data; name="a\"b"', content)],
        [(rb'Content-Disposition: form-data; name="a%22b"', content)],
    ]
    assert all_different([of_parts(*form) for form in forms])


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"Content-Disposition: form-data",
        b"Content-Disposition: form-data;",
        b'Content-Disposition: attachment; name="a"',
        b'Content-Disposition: form-data; name="a"; name="b"',
        b'Content-Disposition: form-data; name="a"; size=3',
        b'Content-Disposition: form-data; name="a',
        b'Content-Disposition: form-data; name="a" x',
        b'Content-Disposition: form-data; filename="a"',
        b'Content-Disposition : form-data; name="a"',
        b'Content-Disposition: form-data;\r\n name="a"',
        b'Content-Disposition: form-data; name="a"\r\nContent-Disposition: form-data; name="a"',
        b'Content-Disposition: form-data; name="a"\r\nContent-Type: nonsense',
        b'Content-Disposition: form-data; name="a"\nX: y',
        b"Content-Type: text/plain",
    ],
)
def test_irregular_parts_are_compared_by_bytes_and_boundary(head: bytes) -> None:
    form = (head, b"1")
    assert of_parts(form) == of_parts(form)
    assert of_parts(form) != of_parts(form, boundary=b"other")
    assert of_parts(TEXT, form) != of_parts(TEXT)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"--bound\r\n", b"preamble\r\n--bound\r\n"),
        (b"--bound\r\n", b"\r\n--bound\r\n"),
        (b"--bound\r\n", b"--bound \r\n"),
        (b"--bound--\r\n", b"--bound--\r\nepilogue"),
        (b"--bound--\r\n", b"--bound-- \r\n"),
        (b"--bound--\r\n", b""),
        (b"\r\n", b"\n"),
        (b"\r\n\r\n1", b"\r\n1"),
    ],
)
def test_irregular_multipart_is_compared_by_its_bytes(before: bytes, after: bytes) -> None:
    content_type = b"multipart/form-data; boundary=bound"
    body = multipart(TEXT)
    irregular = body.replace(before, after)
    assert irregular != body
    assert of(irregular, content_type) != of(body, content_type)
    assert of(irregular, content_type) != of(irregular + b"\r\n", content_type)


def test_multipart_needs_a_proper_boundary() -> None:
    types = [
        b"multipart/form-data",
        b'multipart/form-data; boundary=""',
        b"multipart/form-data; boundary=bound",
        b"multipart/form-data; boundary=" + b"b" * 71,
        b'multipart/form-data; boundary="b\x00"',
        b"multipart/form-data; boundary=bound; boundary=bound",
        b"multipart/mixed; boundary=bound",
    ]
    assert all_different([of(multipart(TEXT), content_type) for content_type in types])


def test_multipart_of_absurd_size_is_compared_by_its_bytes() -> None:
    began = time.perf_counter()
    many = multipart(*[TEXT] * 20_000, boundary=b"b")
    content_type = b"multipart/form-data; boundary=b"
    assert of(many, content_type) != of(many.removesuffix(b"\r\n"), content_type)
    of(b"--b\r\n" * 1_000_000, content_type)
    of(b"--b\r\n" + b"a:b\r\n" * 500_000, content_type)
    assert time.perf_counter() - began < 10


# --- F5: compressed bodies -----------------------------------------------------------------------


def encoded(body: bytes, *encodings: bytes, content_type: bytes = JSON) -> RequestParts:
    headers = tuple((b"content-encoding", encoding) for encoding in encodings)
    return request(body, content_type, headers=headers)


def bare_deflate(body: bytes) -> bytes:
    stream = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return stream.compress(body) + stream.flush()


def test_a_compressed_body_counts_as_its_content() -> None:
    body = b'{"a": 1, "b": [true, null]}'
    expected = of(b'{"b":[true,null],"a":1}')
    packed = gzip.compress(body)
    same = [
        encoded(body, b"identity"),
        encoded(body, b""),
        encoded(packed, b"gzip"),
        encoded(packed, b"GZip"),
        encoded(packed, b"x-gzip"),
        encoded(gzip.compress(body, 1, mtime=7), b" gzip , identity"),
        encoded(gzip.compress(body[:9]) + gzip.compress(body[9:]), b"gzip"),
        encoded(zlib.compress(body), b"deflate"),
        encoded(bare_deflate(body), b"deflate"),
    ]
    assert {digest(parts) for parts in same} == {expected}


def test_broken_or_unknown_encodings_count_as_bytes_and_name() -> None:
    body = b'{"a":1}'
    packed = gzip.compress(body, mtime=0)
    cases = [
        encoded(packed),
        encoded(packed, b"br"),
        encoded(packed, b"zstd"),
        encoded(packed, b"gzip, br"),
        encoded(packed, b"br, gzip"),
        encoded(packed, b"gzip, gzip"),
        encoded(packed, b"gzip, gzip, gzip, gzip"),
        encoded(packed, b"deflate"),
        encoded(packed[:-1], b"gzip"),
        encoded(packed + b"x", b"gzip"),
        encoded(packed[:-8] + b"\0" * 8, b"gzip"),
        encoded(zlib.compress(body) + b"x", b"deflate"),
        encoded(bare_deflate(body) + b"x", b"deflate"),
        encoded(body, b"gzip"),
        encoded(body, b"br"),
        encoded(body, b"\xff"),
        encoded(b"", b"gzip"),
        encoded(b"", b"br"),
        encoded(b""),
        encoded(gzip.compress(b"") * 50, b"gzip"),
    ]
    assert all_different([*map(digest, cases), of(body)])


def test_the_cap_on_decompression() -> None:
    body = b'"' + b"x" * 998 + b'"'
    packed = encoded(gzip.compress(body), b"gzip")
    enough, short = FingerprintRules(max_decoded=1000), FingerprintRules(max_decoded=999)
    assert digest(packed, enough) == of(body)
    assert digest(packed, short) != of(body)
    # The sum of several gzip members counts towards it too.
    halves = encoded(gzip.compress(body[:500]) + gzip.compress(body[500:]), b"gzip")
    assert digest(halves, enough) == of(body)
    assert digest(halves, short) != of(body)


def test_a_bomb_is_not_unpacked() -> None:
    bomb = gzip.compress(b"0" * 100_000_000, 9)
    nested = gzip.compress(bomb)
    members = gzip.compress(b"") * 200_000
    began = time.perf_counter()
    digests = [digest(encoded(bomb, b"gzip")), digest(encoded(nested, b"gzip, gzip"))]
    digests += [digest(encoded(members, b"gzip")), digest(encoded(bomb, b"gzip," * 10_000))]
    assert all_different(digests)
    assert time.perf_counter() - began < 10


# --- F6: include and exclude ---------------------------------------------------------------------


def test_exclude_leaves_members_out() -> None:
    exclude = ("/trace", "/meta/sent_at", "/items/0/ref")
    full = b'{"amount":1,"trace":"x","meta":{"sent_at":5,"k":1},"items":[{"ref":1,"n":2}]}'
    same = [
        full,
        b'{"amount":1,"trace":{"any":[1e400]},"meta":{"k":1},"items":[{"n":2}]}',
        b'{"meta":{"k":1,"sent_at":null},"items":[{"n":2,"ref":[]}],"amount":1.0}',
    ]
    assert len({of(body, exclude=exclude) for body in same}) == 1
    others = [
        full.replace(b'"amount":1', b'"amount":2'),
        full.replace(b'"k":1', b'"k":2'),
        full.replace(b'"n":2', b'"n":3'),
        full.replace(b'"trace"', b'"Trace"'),
        full.replace(b'[{"ref"', b'[{},{"ref"'),
    ]
    assert all_different([of(body, exclude=exclude) for body in [full, *others]])


def test_an_excluded_item_keeps_its_place() -> None:
    def left(body: bytes) -> bytes:
        return of(body, exclude=("/ids/0",))

    assert left(b'{"ids":[1,2]}') == left(b'{"ids":[9,2]}')
    bodies = [b'{"ids":[1,2]}', b'{"ids":[2]}', b'{"ids":[1,1,2]}', b'{"ids":[]}', b'{"ids":[1,3]}']
    assert all_different([left(body) for body in bodies])


def test_include_counts_only_those_members() -> None:
    include = ("/amount", "/to/id")
    full = b'{"amount":5,"to":{"id":"x","note":1},"trace":1}'
    assert of(full, include=include) == of(b'{"to":{"id":"x"},"amount":5.0}', include=include)
    others = [
        b'{"amount":6,"to":{"id":"x"}}',
        b'{"amount":5,"to":{"id":"y"}}',
        b'{"amount":5}',
        b'{"to":{"id":"x"}}',
        b'{"amount":"x","to":{"id":5}}',
        b'{"amount":null,"to":{"id":"x"}}',
        b'{"amount":5,"to":{"id":null}}',
        b'{"amount":5e400,"to":{"id":"x"}}',
        b'{"amount":"n5e400","to":{"id":"x"}}',
    ]
    assert all_different([of(body, include=include) for body in [full, *others]])


def test_the_whole_body_counts_where_no_included_member_is_there() -> None:
    bodies = [b'{"a":1}', b'{"a":2}', b'{"b":1}', b"[1]", b"[2]", b"1", b'"x"', b"{}", b"[]", b"x"]
    assert all_different([of(body, include=("/amount",)) for body in [None, b"", *bodies]])
    less = {"include": ("/amount",), "exclude": ("/trace",)}
    assert of(b'{"a":1,"trace":1}', **less) == of(b'{"a":1,"trace":2}', **less)


def test_a_body_of_nothing_but_excluded_members_still_counts() -> None:
    for exclude in (("/a",), ("/a", "/b"), ("/a/b", "/a/c", "/b"), ("/0", "/1", "/a", "/b")):
        bodies = [b'{"a":1}', b'{"a":2}', b'{"a":{"b":1}}', b'{"a":{"b":2}}', b'{"b":1}', b'{"b":2}']
        bodies += [b"[1]", b"[2]", b"[1,2]", b"[2,2]", b"{}", b"[]"]
        assert all_different([of(body, exclude=exclude) for body in [None, b"", *bodies]])


def test_an_included_member_emptied_by_exclusion_is_not_enough() -> None:
    rules = {"include": ("/meta",), "exclude": ("/meta/trace",)}
    # There is more in the body, and that counts; but the trace still does not.
    five, six = b'{"meta":{"trace":1},"n":5}', b'{"meta":{"trace":1},"n":6}'
    assert of(five, **rules) != of(six, **rules)
    assert of(five, **rules) == of(five.replace(b":1", b":2"), **rules)
    # Empty from the start is as it was sent.
    assert of(b'{"meta":{},"n":5}', **rules) == of(b'{"meta":{},"n":6}', **rules)
    # Nothing else is there: the excluded member has to do.
    assert of(b'{"meta":{"trace":1}}', **rules) != of(b'{"meta":{"trace":2}}', **rules)


def test_pointers_follow_rfc_6901() -> None:
    document = b'{"a/b":1,"m~n":2,"":3,"~1":4,"x":[10,20],"01":5,"-":6}'
    for pointer, old, new in [
        ("/a~1b", b":1,", b":9,"),
        ("/m~0n", b":2,", b":9,"),
        ("/", b":3,", b":9,"),
        ("/~01", b":4,", b":9,"),
        ("/x/1", b"20", b"99"),
        ("/01", b":5,", b":9,"),
        ("/-", b":6}", b":9}"),
    ]:
        changed = document.replace(old, new)
        assert changed != document
        assert of(document, exclude=(pointer,)) == of(changed, exclude=(pointer,)), pointer
        assert of(document, exclude=("/y",)) != of(changed, exclude=("/y",))
    for pointer in ("/x/01", "/x/-", "/x/2", "/x/-1", "/x/1/0", "/x/+1", "/x/" + "9" * 5000, "/x/١"):
        assert of(document, exclude=(pointer,)) == of(document)


def test_the_empty_pointer_includes_everything() -> None:
    assert of(b'{"a":1}', include=("",)) != of(b'{"a":2}', include=("",))
    assert of(b'{"a": 1}', include=("",)) == of(b'{"a":1}', include=("",))


def test_unsafe_json_ignores_pointers() -> None:
    for rules in ({"include": ("/a",)}, {"exclude": ("/t",)}):
        assert all_different([of(body, **rules) for body in UNSAFE])
    assert of(b'{"a":1,"t":1,"t":2}', exclude=("/t",)) != of(b'{"a":1,"t":1,"t":3}', exclude=("/t",))


def test_fields_of_a_form() -> None:
    body = b"amount=1&trace=x&trace=y&to=z"
    exclude, include = ("/trace", "/a/b"), ("/amount", "/to")
    assert of(body, FORM, exclude=exclude) == of(b"amount=1&to=z", FORM, exclude=exclude)
    assert of(body, FORM, exclude=exclude) != of(b"amount=2&to=z", FORM, exclude=exclude)
    assert of(body, FORM, include=include) == of(b"amount=1&x=9&to=z", FORM, include=include)
    assert of(body, FORM, include=include) != of(b"to=z&amount=1", FORM, include=include)
    only = [b"trace=1", b"trace=2", b"trace=1&trace=2", b"", b"a=1", b"a=2", b"&"]
    assert all_different([of(one, FORM, exclude=exclude) for one in only])
    assert all_different([of(one, FORM, include=include) for one in only])


def test_fields_of_a_multipart_form() -> None:
    content_type = b"multipart/form-data; boundary=bound"

    def left(*parts: tuple[bytes, bytes], **rules: tuple[str, ...]) -> bytes:
        return of(multipart(*parts), content_type, **rules)

    other = (TEXT[0], b"2")
    assert left(TEXT, FILE, exclude=("/a",)) == left(FILE, exclude=("/a",))
    assert left(TEXT, FILE, exclude=("/a",)) == left(other, FILE, exclude=("/a",))
    assert left(TEXT, FILE, include=("/a",)) == left(TEXT, include=("/a",))
    assert left(TEXT, exclude=("/a",)) != left(other, exclude=("/a",))
    assert left(TEXT, include=("/x",)) != left(other, include=("/x",))
    moved = of(multipart(TEXT, boundary=b"z"), b"multipart/form-data; boundary=z", exclude=("/a",))
    assert moved == left(TEXT, exclude=("/a",))


@pytest.mark.parametrize(
    ("rules", "complaint"),
    [
        ({"include": ("a",)}, "must begin with '/'"),
        ({"exclude": ("a/b",)}, "must begin with '/'"),
        ({"include": ("/a~",)}, "write '~' as '~0'"),
        ({"exclude": ("/a~2b",)}, "write '~' as '~0'"),
        ({"exclude": ("",)}, "the whole body"),
        ({"include": ("/a/b",), "exclude": ("/a",)}, "could never count"),
        ({"include": ("/a",), "exclude": ("/a",)}, "could never count"),
        ({"include": "/a"}, "include must be a tuple"),
        ({"exclude": "/a"}, "exclude must be a tuple"),
        ({"headers": "x"}, "headers must be a tuple"),
        ({"headers": ("",)}, "not the name of a header"),
        ({"headers": ("a b",)}, "not the name of a header"),
        ({"headers": ("é",)}, "not the name of a header"),
        ({"secrets": b"x"}, "secrets must be a tuple"),
        ({"secrets": (b"",)}, "not empty"),
        ({"secrets": ("x",)}, "must be bytes"),
        ({"max_decoded": 0}, "max_decoded"),
        ({"max_depth": 0}, "max_depth"),
        ({"max_depth": 129}, "max_depth"),
    ],
)
def test_rules_that_make_no_sense(rules: dict[str, object], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        FingerprintRules(**rules)  # type: ignore[arg-type]


def test_a_complaint_does_not_show_a_secret() -> None:
    with pytest.raises(ValueError, match="secrets") as caught:
        FingerprintRules(secrets=("hush",))  # type: ignore[arg-type]
    assert "hush" not in str(caught.value)


def test_an_include_beside_an_exclude_is_fine() -> None:
    FingerprintRules(include=("/a", "/ab"), exclude=("/a/b", "/abc"))
