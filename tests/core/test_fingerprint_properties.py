"""The fingerprint by property: respelling never changes it, any change of meaning always does.

The oracle for the meaning of JSON is independent of the code under test: the standard library's
parser with exact decimals, and every value paired with its type.
"""

from __future__ import annotations

import gzip
import json
import random
import zlib
from decimal import Decimal, localcontext
from typing import Any
from urllib.parse import quote_from_bytes

import rfc8785
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from samekey.core.canonical import NotCanonical, canonical, parse_json
from samekey.core.fingerprint import FingerprintRules, Intent, RequestParts

JSON = b"application/json"
FORM = b"application/x-www-form-urlencoded"
PLAIN = FingerprintRules()


def of(
    body: bytes | None,
    content_type: bytes = JSON,
    rules: FingerprintRules = PLAIN,
    *,
    query: bytes = b"",
    encoding: bytes = b"",
) -> bytes:
    headers = ((b"content-type", content_type), (b"content-encoding", encoding))
    return Intent(RequestParts("POST", "/", query, headers, body), rules).fingerprint().digest


def rewritten(data: bytes, max_depth: int) -> tuple[bytes, bytes]:
    read = parse_json(data, max_depth)
    return canonical(read.value, plain=read.plain)


# --- documents and their spellings ---------------------------------------------------------------

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
numbers = st.one_of(
    st.integers(-20, 20).map(Decimal),
    st.integers(-(2**70), 2**70).map(Decimal),
    st.integers(2**53 - 3, 2**53 + 3).map(Decimal),
    st.floats(allow_nan=False, allow_infinity=False).map(lambda value: Decimal(repr(value))),
    st.floats(allow_nan=False, allow_infinity=False).map(Decimal),
    st.decimals(allow_nan=False, allow_infinity=False, places=2),
    st.builds(
        lambda digits, power: Decimal(f"{digits}e{power}"),
        st.integers(-(10**25), 10**25),
        st.integers(-500, 500),
    ),
)
scalars = st.one_of(st.none(), st.booleans(), texts, numbers)
documents = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
spellers = st.integers(0, 2**32).map(random.Random)


def spell(document: Any, rng: random.Random) -> str:
    """One of the many ways to write a document down."""
    space = rng.choice(["", "", " ", "\n", "\t \r\n"])
    if isinstance(document, dict):
        members = list(document.items())
        rng.shuffle(members)
        written = [f"{spell(name, rng)}:{spell(value, rng)}" for name, value in members]
        return f"{space}{{{space}{','.join(written)}{space}}}{space}"
    if isinstance(document, list):
        return f"{space}[{','.join(spell(value, rng) for value in document)}{space}]{space}"
    if isinstance(document, str):
        return space + '"' + "".join(spell_character(c, rng) for c in document) + '"' + space
    if isinstance(document, Decimal):
        return space + spell_number(document, rng) + space
    return space + json.dumps(document) + space


def spell_character(character: str, rng: random.Random) -> str:
    if character in '"\\' or character < " " or rng.random() < 0.2:
        units = character.encode("utf-16-be").hex()
        escaped = "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
        return escaped.upper().replace("\\U", "\\u") if rng.random() < 0.5 else escaped
    return character


def spell_number(number: Decimal, rng: random.Random) -> str:
    sign, digit_tuple, power = number.as_tuple()
    assert isinstance(power, int)
    digits = "".join(map(str, digit_tuple)).lstrip("0")
    if not digits:
        return rng.choice(["0", "-0", "0.0", "0e7", "-0.00E-7", "0e99999999999"])
    zeros = rng.choice([0, 0, 0, 1, 3, 30])
    digits, power = digits + "0" * zeros, power - zeros
    point = rng.choice([0, 0, 1, len(digits), rng.randrange(len(digits) + 1)])
    whole, fraction = digits[: len(digits) - point] or "0", digits[len(digits) - point :]
    power += point
    text = whole + ("." + fraction if fraction else "")
    if power or rng.random() < 0.3:
        text += rng.choice("eE") + (rng.choice(["", "+", "+0"]) if power >= 0 else "") + str(power)
    return "-" * sign + text


def tagged(document: Any) -> Any:
    """The meaning of a document, as something that is equal only if types are equal too."""
    if isinstance(document, dict):
        return ("object", frozenset((name, tagged(value)) for name, value in document.items()))
    if isinstance(document, list):
        return ("array", tuple(map(tagged, document)))
    return (type(document).__name__, document)


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("repeated")
    return dict(pairs)


def refuse(name: str) -> None:
    raise ValueError(name)


def meaning(body: bytes) -> Any:
    """What a body means; its own bytes if it is not safe to say."""
    try:
        text = body.decode("utf-8")
        document = json.loads(
            text,
            parse_int=Decimal,
            parse_float=Decimal,
            parse_constant=refuse,
            object_pairs_hook=unique,
        )
        json.dumps(document, ensure_ascii=False, default=str).encode("utf-8")  # no lone surrogates
        return tagged(document)
    except ValueError:
        return body


def altered(document: Any, rng: random.Random) -> Any:
    """The document with one value of it replaced by a different one of the same kind."""
    if isinstance(document, (dict, list)) and document and rng.random() < 0.9:
        copy = document.copy()
        key = rng.choice(list(document)) if isinstance(document, dict) else rng.randrange(len(document))
        copy[key] = altered(document[key], rng)
        return copy
    if isinstance(document, Decimal):
        nudge = rng.choice([Decimal(1), Decimal("1e-30"), abs(document) * Decimal("1e-25")])
        with localcontext(prec=3000):  # exact for every number that is generated here
            return document + (nudge or 1)
    if isinstance(document, str):
        return rng.choice([document + "x", "n" + document, "s" + document])
    return rng.choice([Decimal(7), "7", [document], {"": document}])


@settings(deadline=None, max_examples=400)
@given(documents, spellers)
@example(Decimal("0.1"), random.Random(1))
@example({"\U00010000": Decimal(1), "\uffff": Decimal(2)}, random.Random(1))
def test_spelling_never_counts(document: Any, rng: random.Random) -> None:
    one, other = spell(document, rng).encode(), spell(document, rng).encode()
    assert meaning(one) == meaning(other) == tagged(document)
    assert of(one) == of(other)


@settings(deadline=None, max_examples=400)
@given(documents, spellers)
def test_any_changed_value_counts(document: Any, rng: random.Random) -> None:
    other = altered(document, rng)
    assume(tagged(other) != tagged(document))
    assert of(spell(document, rng).encode()) != of(spell(other, rng).encode())


@settings(deadline=None, max_examples=400)
@given(documents, documents, spellers)
def test_same_fingerprint_if_and_only_if_same_meaning(one: Any, two: Any, rng: random.Random) -> None:
    same = of(spell(one, rng).encode()) == of(spell(two, rng).encode())
    assert same == (tagged(one) == tagged(two))


@settings(deadline=None, max_examples=300)
@given(
    st.recursive(
        st.one_of(
            st.none(),
            st.booleans(),
            texts,
            st.integers(-(2**53) + 1, 2**53 - 1),
            st.floats(allow_nan=False, allow_infinity=False),
        ),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
        max_leaves=12,
    )
)
def test_ordinary_documents_are_plain_rfc_8785(document: Any) -> None:
    written = json.dumps(document).encode()
    assert rewritten(written, 64) == (b"json", rfc8785.dumps(document))


@settings(deadline=None, max_examples=500)
@given(documents, spellers)
def test_canonical_form_means_what_was_sent(document: Any, rng: random.Random) -> None:
    form, written = rewritten(spell(document, rng).encode(), 64)
    if form == b"json":
        assert meaning(written) == tagged(document)
    assert rewritten(written, 64) == (b"json", written)


def test_fuzz_of_numbers() -> None:
    """Number texts close to each other: one fingerprint exactly where one value."""
    rng = random.Random(8785)
    seen: dict[bytes, Decimal] = {}
    by_value: dict[Decimal, bytes] = {}
    edges = [str(2**53), str(2**53 - 1), "1" + "0" * 21, "17976931348623157", "5", "9", "1", "123"]
    for _ in range(5_000):
        whole = rng.choice(edges)
        if rng.random() < 0.5:
            whole = str(int(whole) + rng.randrange(-2, 3)).lstrip("-")
        fraction = rng.choice(["", "", ".0", ".5", ".10", ".000000000000000000001", ".3"])
        exponent = rng.choice(["", "", "e0", "E1", "e-1", "e+21", "e-7", "e292", "e308", "e-324"])
        text = rng.choice(["", "-"]) + whole + fraction + exponent
        found, value = of(text.encode()), Decimal(text)
        assert seen.setdefault(found, value) == value, text
        assert by_value.setdefault(value, found) == found, text


def test_fuzz_of_damaged_documents() -> None:
    """Bodies that are nearly JSON: whenever two share a fingerprint, they mean the same."""
    rng = random.Random(6901)
    seeds = [
        b'{"a":1,"b":[true,null,"x\\u0041"],"c":{"d":-1.50e2}}',
        b'[1e400,"n1e400",{"":0.1,"\\ud83d\\ude00":"\\n"}]',
        b'{"a":{"a":{"a":[[[]]]}},"b":9007199254740993}',
        '["é","\\u00e9",NaN,1.0,1]'.encode(),
    ]
    scraps = [b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"0", b"1", b"e", b".", b"-", b" "]
    scraps += [b"\xff", b"\x00", b"\\ud800", b"NaN", b'"a":', b"null", b"\xc3\xa9", b"n", b"s"]
    seen: dict[bytes, Any] = {}
    for _ in range(5_000):
        body = bytearray(rng.choice(seeds))
        for _ in range(rng.randrange(4)):
            at = rng.randrange(len(body) + 1)
            body[at : at + rng.randrange(3)] = rng.choice([*scraps, b""])
        whole = bytes(body)
        assert seen.setdefault(of(whole), meaning(whole)) == meaning(whole)


# --- nothing raises ------------------------------------------------------------------------------

content_types = st.sampled_from(
    [JSON, FORM, b"multipart/form-data; boundary=b", b"text/plain", b"a/b+json", b"", b";", b"a/b;c"]
)
encodings = st.sampled_from([b"", b"gzip", b"deflate", b"gzip, deflate", b"br", b",", b"identity"])
rule_sets = st.sampled_from(
    [
        PLAIN,
        FingerprintRules(include=("/a", "/0", "/a/b")),
        FingerprintRules(exclude=("/a", "/0", "/b/0")),
        FingerprintRules(headers=("x-a",), secrets=(b"1", b"2"), max_decoded=10, max_depth=2),
    ]
)
bodies = st.one_of(
    st.none(),
    st.binary(max_size=60),
    st.binary(max_size=60).map(gzip.compress),
    st.binary(max_size=60).map(zlib.compress),
    st.text(alphabet='{}[]",:\\u0019aeE.-+ntf \n', max_size=40).map(str.encode),
    st.text(alphabet="ab=&%+;0f", max_size=40).map(str.encode),
    documents.map(lambda document: json.dumps(document, default=str).encode()),
)


header_lines = st.tuples(
    st.sampled_from([b"x-a", b"content-type", b"content-encoding"]),
    st.one_of(st.binary(max_size=20), content_types, encodings),
)
requests = st.builds(
    RequestParts,
    method=st.text(max_size=5) | st.sampled_from(["POST", "patch"]),
    path=st.text(max_size=20),
    query=st.binary(max_size=20),
    headers=st.lists(header_lines, max_size=4).map(tuple),
    body=bodies,
)


@settings(deadline=None, max_examples=700)
@given(requests, rule_sets)
def test_no_request_raises(parts: RequestParts, rules: FingerprintRules) -> None:
    made = Intent(parts, rules).fingerprint()
    assert len(made.digest) == 80
    assert Intent(parts, rules).digest_as(made.version) == made.digest
    assert Intent(parts, rules).digest_as("3") is not None


@settings(deadline=None, max_examples=500)
@given(st.binary(max_size=80), st.integers(1, 5))
def test_parsing_json_raises_only_not_canonical(body: bytes, max_depth: int) -> None:
    try:
        rewritten(body, max_depth)
    except NotCanonical:
        pass


@settings(deadline=None, max_examples=300)
@given(bodies, bodies, content_types)
def test_bodies_that_are_neither_json_nor_form_are_equal_only_to_themselves(
    one: bytes | None, two: bytes | None, content_type: bytes
) -> None:
    assert (of(one, b"text/plain") == of(two, b"text/plain")) == (one == two)
    if of(one, content_type) == of(two, content_type):
        assert (one is None) == (two is None)
        assert (one == b"") == (two == b"")


@settings(deadline=None, max_examples=200)
@given(bodies, content_types)
def test_compression_does_not_count(body: bytes | None, content_type: bytes) -> None:
    assume(body is not None)
    assert body is not None
    plain = of(body, content_type)
    assert of(gzip.compress(body), content_type, encoding=b"gzip") == plain
    assert of(zlib.compress(body), content_type, encoding=b"deflate") == plain


# --- forms and queries ---------------------------------------------------------------------------

pairs = st.lists(st.tuples(texts, texts), min_size=1, max_size=5)


def spell_pairs(fields: list[tuple[str, str]], rng: random.Random, space: str) -> bytes:
    def spell_text(text: str) -> str:
        written = ""
        for character in text:
            safe = character.isascii() and (character.isalnum() or character in "-._~/?:@!$'()*,")
            if character == " " and space == "+" and rng.random() < 0.5:
                written += "+"
            elif safe and rng.random() < 0.7:
                written += character
            else:
                escaped = quote_from_bytes(character.encode(), safe="").encode()
                if safe:
                    escaped = b"%%%02x" % ord(character)
                written += (escaped.lower() if rng.random() < 0.5 and safe else escaped).decode()
        return written

    return "&".join(f"{spell_text(name)}={spell_text(value)}" for name, value in fields).encode()


@settings(deadline=None, max_examples=300)
@given(pairs, pairs, spellers)
def test_forms_and_queries_are_their_pairs(
    one: list[tuple[str, str]], two: list[tuple[str, str]], rng: random.Random
) -> None:
    form, again = spell_pairs(one, rng, "+"), spell_pairs(one, rng, "+")
    assert of(form, FORM) == of(again, FORM)
    assert (of(form, FORM) == of(spell_pairs(two, rng, "+"), FORM)) == (one == two)
    query, again = spell_pairs(one, rng, "%20"), spell_pairs(one, rng, "%20")
    assert of(b"", query=query) == of(b"", query=again)
    other = spell_pairs(two, rng, "%20")
    assert (of(b"", query=query) == of(b"", query=other)) == (one == two)


@settings(deadline=None, max_examples=500)
@given(st.text(alphabet="a=&%2bB+;5cC0\\", max_size=10), st.text(alphabet="a=&%2bB+;5cC0\\", max_size=10))
def test_equal_queries_are_read_alike_by_any_reader(one: str, two: str) -> None:
    """Whether a reader splits at semicolons or not, takes a plus for a space or not."""
    if of(b"", query=one.encode()) != of(b"", query=two.encode()):
        return
    for separators in ("&", "&;"):
        for plus in ("+", " "):
            assert read_query(one, separators, plus) == read_query(two, separators, plus)


def read_query(query: str, separators: str, plus: str) -> list[tuple[bytes, bool, bytes]]:
    for separator in separators:
        query = query.replace(separator, "&")
    read = []
    for piece in query.split("&"):
        name, equals, value = piece.replace("+", plus if plus == " " else "%2B").partition("=")
        read.append((percent_decode(name), bool(equals), percent_decode(value)))
    return read


def percent_decode(text: str) -> bytes:
    head, *rest = text.encode().split(b"%")
    decoded = [head]
    for piece in rest:
        try:
            decoded.append(bytes.fromhex(piece[:2].decode()) + piece[2:])
        except ValueError:
            decoded.append(b"%" + piece)
    return b"".join(decoded)


boundaries = st.text(alphabet="abcXYZ0189'()+_,-./:=?", min_size=1, max_size=30).map(str.encode)
part_names = st.text(alphabet="abc é%", max_size=4).map(str.encode)
parts_of_forms = st.lists(st.tuples(part_names, st.none() | part_names, st.binary(max_size=12)), max_size=4)
Parts = list[tuple[bytes, bytes | None, bytes]]


def write_parts(parts: Parts, boundary: bytes) -> bytes:
    written = b""
    for name, filename, content in parts:
        extra = b"" if filename is None else b'; filename="%b"' % filename
        head = b'Content-Disposition: form-data; name="%b"%b' % (name, extra)
        written += b"--%b\r\n%b\r\n\r\n%b\r\n" % (boundary, head, content)
    return written + b"--%b--\r\n" % boundary


def of_parts(parts: Parts, boundary: bytes) -> bytes:
    content_type = b'multipart/form-data; boundary="%b"' % boundary
    return of(write_parts(parts, boundary), content_type)


@settings(deadline=None, max_examples=300)
@given(parts_of_forms, parts_of_forms, boundaries, boundaries)
def test_multipart_is_its_parts(one: Parts, two: Parts, first: bytes, second: bytes) -> None:
    for parts in (one, two):
        assume(all(b"--" not in content for _, _, content in parts))
    assert of_parts(one, first) == of_parts(one, second)
    assert (of_parts(one, first) == of_parts(two, second)) == (one == two)


# --- include and exclude -------------------------------------------------------------------------


@settings(deadline=None, max_examples=150)
@given(st.dictionaries(texts, documents, min_size=1, max_size=4), documents, documents, spellers)
def test_an_excluded_member_never_counts_beside_others(
    document: dict[str, Any], one: Any, two: Any, rng: random.Random
) -> None:
    document = {"n": Decimal(1), **document}
    document.pop("trace", None)
    rules = FingerprintRules(exclude=("/trace",))
    with_one = spell({**document, "trace": one}, rng).encode()
    with_two = spell({**document, "trace": two}, rng).encode()
    without = spell(document, rng).encode()
    assert of(with_one, rules=rules) == of(with_two, rules=rules) == of(without, rules=rules)
    other = spell({**document, "n": Decimal(2), "trace": one}, rng).encode()
    assert (of(other, rules=rules) == of(without, rules=rules)) == (document["n"] == 2)


@settings(deadline=None, max_examples=150)
@given(documents, documents, spellers)
def test_selection_never_collapses(one: Any, two: Any, rng: random.Random) -> None:
    """Rules that match nothing, or everything, still tell different bodies apart."""
    assume(tagged(one) != tagged(two))
    nothing = FingerprintRules(include=("/not there",), exclude=("/nor this",))
    assert of(spell(one, rng).encode(), rules=nothing) != of(spell(two, rng).encode(), rules=nothing)
    only_one, only_two = (spell({"only": value}, rng).encode() for value in (one, two))
    included = FingerprintRules(include=("/only",))
    assert of(only_one, rules=included) != of(only_two, rules=included)
    excluded = FingerprintRules(exclude=("/only",))
    if has_scalar([one, two]):
        assert of(only_one, rules=excluded) != of(only_two, rules=excluded)


def has_scalar(document: Any) -> bool:
    if isinstance(document, dict):
        return any(map(has_scalar, document.values()))
    if isinstance(document, list):
        return any(map(has_scalar, document))
    return True
