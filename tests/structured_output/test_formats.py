"""Tests that grammars of formats accept what another library accepts, and nothing else."""

import json
import random
import string
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema_rs
import llguidance
import numpy as np
import pytest

from runtime.request.structured import grammar_of
from runtime.structured_output.formats import FORMATS
from runtime.structured_output.gbnf import translate_grammar
from tests.structured_output.client_types import EMAIL, HOSTNAME, IPV4, UUID_4

BYTES = llguidance.LLTokenizer("byte")
ORDINARY = {
    "date": ["2024-02-29", "2023-02-28", "1999-12-31", "2000-02-29", "0001-01-01", "9999-11-30"],
    "time": ["23:59:59Z", "00:00:00.123456+00:00", "12:30:45z", "12:30:45-08:00", "23:59:60Z", "15:59:60.5-08:00"],
    "date-time": ["2024-02-29T12:30:45Z", "1985-04-12t23:20:50.52z", "1990-12-31T15:59:60-08:00",
                  "2023-06-30T08:15:00.000+05:30"],
    "duration": ["P1Y2M3DT4H5M6S", "PT15M", "P1D", "P4W", "P1Y", "PT36H", "P0D", "P3DT12H", "P1YT1S"],
    "email": ["anna@example.com", "a.b+c@d-e.org", "anna_rossi%1@mail.example.co.uk", "root@localhost", "a@[127.0.0.1]",
              "first.middle.last@example.museum", "!#$%&'*+/=?^_`{|}~-@a.b", f"{'a' * 64}@b.de",
              f"{'b' * 31}.{'c' * 32}@b.de", f"a@{'d' * 63}.{'e' * 63}.fr"],
    "hostname": ["example.com", "localhost", "a", "ab", "abc", "a-b.c-d.e", "1.2.3.4",
                 "EC2-203-0-113-25.compute-1.amazonaws.com", "deploy-preview-1--site.netlify.app",
                 "a.b.c.d.e.f.g.h", f"{'a' * 63}.{'b' * 63}.{'c' * 63}.de"],
    "ipv4": ["0.0.0.0", "127.0.0.1", "192.168.100.250", "255.255.255.255", "8.8.4.4"],
    "ipv6": ["::", "::1", "2001:db8::8a2e:370:7334", "fe80::1", "1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7::", "::2:3:4:5:6:7:8",
             "1::8", "::ffff:192.0.2.128", "64:ff9b::10.0.0.1", "1:2:3:4:5:6:1.2.3.4", "ABCD:EF01::", "1::3:4:5:6:7:8"],
    "uuid": ["2EB8AA08-aa98-11ea-b4aa-73b441d16380", "00000000-0000-0000-0000-000000000000"],
    "uri": ["https://example.com/a/b.html?c=d&e=%20f#g", "http://user:pw@host:8080", "mailto:anna@example.com",
            "urn:isbn:1", "http://[2001:db8::1]:80/", "file:///etc/hosts", "tel:+1-816-555-1212", "ftp://10.0.0.1/~a/",
            "a:", "a://", "http://a//b", "http://[v1.a:b]/"],
    "uri-reference": ["https://example.com/a?b#c", "//example.com/a", "/a/b", "a/b:c", "../a", "?a=b", "#a", "",
                      "./a:b"],
    "json-pointer": ["", "/", "/a/b", "/a~1b/m~0n", "/é/0", "//", '/"'],
    "relative-json-pointer": ["0", "1/a", "10#", "2/é~0", "0/"],
}  # fmt: skip
# Texts that llguidance's own expressions accept, or that are nearly valid.
WRONG = {
    "date": ["2023-02-29", "1900-02-29", "2024-04-31", "2024-13-01", "24-01-01", "2024-1-1", "2024-00-10"],
    "time": ["24:00:00Z", "12:30:60Z", "12:30:45", "12:30Z", "22:59:60Z", "23:59:60+01:00", "12:30:45+24:00"],
    "date-time": ["2023-02-29T12:30:45Z", "2024-02-29 12:30:45Z", "1998-12-31T23:58:60Z", "2024-02-29T12:30:45"],
    "duration": ["P", "PT", "P1YT", "P1Y2D", "PT1H2S", "P1W1D", "P1.5D", "p1d"],
    "email": ["a", "a@", ".a@b.c", "a..b@c.d", "a@-b.c", "a@b-.c", "a@b..c", "a@ab--c.de", "a@b.c.", f"{'a' * 65}@b.de",
              f"a@{'b' * 64}.de", f"a@{'.'.join(['b' * 63] * 4)}", "a@[1.2.3]"],
    "hostname": ["", "-a", "a-", "a..b", "a.", "a_b", "ab--cd", "xn--X", f"{'a' * 64}", ".".join(["a" * 63] * 4)],
    "ipv4": ["256.0.0.1", "1.2.3", "01.2.3.4", "1.2.3.4.5"],
    "ipv6": ["1:2:3:4:5:6:7", "1::2:3:4:5:6:7:8", ":::", "1::2::3", "12345::", "::1.2.3.256", "1:2:3:4:5:6:7:1.2.3.4",
             ":1"],
    "uuid": ["2EB8AA08aa9811eab4aa73b441d16380", "2EB8AA08-aa98-11ea-b4aa-73b441d1638", "{0}"],
    "uri": ["a", "//a", "1:a", "http://a b", "http://[::1", "http://[1::2::3]", "a:%2", "http://a:b", "a:<b>",
            "http://[v1.]"],
    "uri-reference": ["a b", "1:a", ":a", "%2", "//[::1", "a#b#c"],
    "json-pointer": ["a", "/~", "/~2", "#/a"],
    "relative-json-pointer": ["", "/a", "01", "-1", "1a", "0##"],
}  # fmt: skip
# These accept less than the other library: leap seconds of other offsets, quoted names and names for display, Punycode.
# jsonschema_rs 0.60.3 also takes 199/-12-31 for a date.
NARROWER = {"date", "time", "date-time", "email", "hostname"}


def matcher_of(schema: dict[str, Any]) -> llguidance.LLMatcher:
    grammar = translate_grammar(grammar_of({"json": json.loads(json.dumps(schema))}, "structured_outputs"))
    matcher = llguidance.LLMatcher(BYTES, grammar)
    assert not matcher.is_error(), matcher.get_error()
    return matcher


def acceptor(schema: dict[str, Any]) -> Callable[[Any], bool]:
    """Returns a function that checks whether the grammar of a schema accepts a value."""
    matcher = matcher_of(schema)

    def accepts(value: Any) -> bool:
        matcher.reset()
        text = json.dumps(value, ensure_ascii=False).encode()
        return matcher.try_consume_tokens(list(text)) == len(text) and matcher.is_accepting()

    return accepts


def checker(schema: dict[str, Any]) -> Callable[[Any], bool]:
    return jsonschema_rs.Draft202012Validator(schema, validate_formats=True).is_valid  # type: ignore[no-any-return]


def walks(matcher: llguidance.LLMatcher, rng: random.Random, count: int) -> Iterator[str]:
    """Yields random texts that the grammar of a string accepts; it ends each where it may, with some probability."""
    while count:
        matcher.reset()
        text = bytearray()
        while not matcher.is_stopped() and len(text) < 400:
            allowed = np.flatnonzero(
                np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
            )
            ends = text and ord('"') in allowed and rng.random() < 0.2
            text.append(ord('"') if ends else int(rng.choice(allowed)))
            assert matcher.consume_token(text[-1])
        if matcher.is_stopped():
            count -= 1
            yield json.loads(text)


def mutations(texts: list[str], rng: random.Random, count: int) -> Iterator[str]:
    """Yields texts in which a few characters are replaced, inserted, deleted, or taken from another text."""
    letters = string.printable.replace("\x0b", "").replace("\x0c", "") + "é"
    for _ in range(count):
        text, other = rng.choice(texts), rng.choice(texts)
        for _ in range(rng.choice((1, 1, 2, 3))):
            at, to = sorted(rng.choices(range(len(text) + 1), k=2))
            inserted = (rng.choice(letters), rng.choice(text or "a"), rng.choice("0129:-./@#[]%~"), other[at:to], "")
            text = text[:at] + rng.choice(inserted) + text[rng.choice((at, at + 1, at + 1, to)) :]
        yield text


@pytest.mark.parametrize("format", FORMATS)
def test_a_grammar_accepts_nothing_that_a_validator_refuses(format: str) -> None:
    rng = random.Random(format)
    schema = {"type": "string", "format": format}
    accepts, is_valid = acceptor(schema), checker(schema)
    assert [text for text in ORDINARY[format] if not accepts(text)] == []
    assert [text for text in WRONG[format] if accepts(text)] == []
    assert [text for text in walks(matcher_of(schema), rng, 1000) if not is_valid(text)] == []
    mutated = list(mutations(ORDINARY[format], rng, 1000))
    accepted, valid = ({text for text in mutated if fits(text)} for fits in (accepts, is_valid))
    assert accepted <= valid
    assert len(accepted) > 20
    if format not in NARROWER:
        assert accepted == valid


DAYS = ["2023-02-28", "2023-02-29", "2024-02-29"]
BESIDE: list[tuple[dict[str, Any], list[Any]]] = [  # a schema with a format, and values of which some fit
    ({"format": "date", "pattern": "^2023"}, [*DAYS, "2023", 1]),
    ({"format": "date", "pattern": "29$", "type": "string"}, DAYS),
    ({"format": "date", "enum": [*DAYS, 1, None]}, [*DAYS, 1, None, 2]),
    ({"format": "date", "const": "2024-02-29"}, DAYS),
    ({"format": "date", "type": ["string", "null"]}, [*DAYS, None, 1]),
    ({"format": "date", "maxLength": 10, "minLength": 10}, DAYS),
    ({"format": "ipv4", "minLength": 9, "type": "string"}, ["1.2.3.4", "10.20.30.40", "10.20.30.400"]),
    ({"format": "ipv4", "maxLength": 8, "type": "string"}, ["1.2.3.4", "10.20.30.40", "1.2.3.400"]),
    ({"format": "ipv4", "pattern": IPV4}, ["1.2.3.4", "1.2.3.256"]),
    ({"format": "uri", "minLength": 1, "maxLength": 2083, "type": "string"}, ["http://a.de", "a:", "a", ""]),
    ({"format": "uri", "pattern": "^https?:"}, ["http://a.de", "ftp://a.de", "http:%"]),
    ({"format": "uuid", "pattern": UUID_4},
     ["2EB8AA08-aa98-11ea-b4aa-73b441d16380", "2EB8AA08-aa98-41ea-b4aa-73b441d16380"]),
    ({"format": "email", "pattern": EMAIL}, ["a.b@c.de", "a!b@c.de", "a@b", "a..b@c.de", f"{'a' * 65}@b.de"]),
    ({"format": "hostname", "pattern": HOSTNAME}, ["a.de", "ab--cd.de", "xn--X.de", "a.de.", ".".join(["a" * 63] * 4)]),
    ({"format": "json-pointer", "pattern": "^/a", "type": "string"}, ["/a", "/b", "/a~", "/a~1"]),
    ({"format": "json-pointer", "enum": ["/a", "/~", "a", 1]}, ["/a", "/~", "a", 1]),
    ({"format": "uri-reference", "const": "a b"}, ["a b", "a"]),
    ({"format": "time", "allOf": [{"pattern": "^12"}]}, ["12:30:45Z", "13:30:45Z", "12:30:61Z"]),
    ({"anyOf": [{"type": "string", "format": "date"}, {"type": "string", "format": "ipv4"}]}, [*DAYS, "1.2.3.4"]),
    ({"oneOf": [{"type": "string", "format": "json-pointer"}, {"type": "integer"}]}, ["/a", "a", 1]),
    ({"oneOf": [{"type": "string", "format": "time", "maxLength": 8}, {"type": "null"}]}, ["12:30:45Z", "12:30", None]),
    ({"type": "array", "items": {"format": "date", "type": "string"}}, [[day] for day in DAYS]),
    ({"$ref": "#/$defs/day", "$defs": {"day": {"type": "string", "format": "date"}}}, DAYS),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "values"), BESIDE, ids=[json.dumps(schema)[:60] for schema, _ in BESIDE])
def test_formats_hold_beside_other_keywords(schema: dict[str, Any], values: list[Any]) -> None:
    is_valid = checker(schema)
    fitting = [value for value in values if is_valid(value)]
    if not fitting:
        with pytest.raises(AssertionError):
            matcher_of(schema)
        return
    accepts = acceptor(schema)
    assert [value for value in values if accepts(value)] == fitting
