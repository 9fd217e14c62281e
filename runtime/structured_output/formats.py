r"""Regular expressions of the formats of JSON Schema, for values and property names.

llguidance's own expressions accept the 29th of February in any year, host names of any length, and times whose leap
second is no leap second. The expressions here match no text that a validator refuses. They leave out what no
regular expression can tell: Punycode (``xn--``), and quoted parts of e-mail addresses.

They mean the same in ECMAScript's syntax and in that of Rust's ``regex`` crate, except that negated classes exclude
U+0000 (`runtime.structured_output.patterns`).
"""

from __future__ import annotations

# RFC 3339
_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
_DATE = (
    "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    f"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP_YEAR}-02-29)"
)
_HOUR = "(?:[01][0-9]|2[0-3])"
_FRACTION = r"(?:\.[0-9]+)?"
# A leap second is the last one of a day in UTC. Of the offsets, only those of whole hours are listed.
_LEAP_SECONDS = "|".join(
    f"{hour:02}:59:60{_FRACTION}(?:[+]{(hour + 1) % 24:02}|-{23 - hour:02}):00" for hour in range(24)
)
_TIME = (
    f"(?:{_HOUR}:[0-5][0-9]:[0-5][0-9]{_FRACTION}(?:[Zz]|[+-]{_HOUR}:[0-5][0-9])"
    f"|23:59:60{_FRACTION}[Zz]|{_LEAP_SECONDS})"
)
_CLOCK_PART = "T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)"
_DAY_PART = "(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)"

# RFC 4291, as Python and Rust read it: `::` stands for one group or more.
_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"(?:{_OCTET}\.){{3}}{_OCTET}"
_GROUP = "[0-9A-Fa-f]{1,4}"
_BEFORE_LAST_TWO = "|".join(
    (
        f"(?:{_GROUP}:){{6}}",
        f"::(?:{_GROUP}:){{5}}",
        *(f"(?:(?:{_GROUP}:){{0,{n}}}{_GROUP})?::(?:{_GROUP}:){{{4 - n}}}" for n in range(5)),
    )
)
_IPV6 = (
    f"(?:(?:{_BEFORE_LAST_TWO})(?:{_GROUP}:{_GROUP}|{_IPV4})"
    f"|(?:(?:{_GROUP}:){{0,5}}{_GROUP})?::{_GROUP}|(?:(?:{_GROUP}:){{0,6}}{_GROUP})?::)"
)


def _label(longest: int) -> str:
    """Returns the expression of a label of a host name; two hyphens at its third and fourth place are reserved."""
    end, inner = "[A-Za-z0-9]", "[A-Za-z0-9-]"
    return f"{end}(?:{inner}?{end}|{inner}{{2}}{end}|{inner}(?:{end}{inner}|-{end}){inner}{{0,{longest - 5}}}{end})?"


# RFC 1123: labels have at most 63 characters, and a name 253. Only a large expression counts both. Here a name has five
# labels, of which three may be long, or eight of medium length.
_HOST = rf"(?:{_label(63)}(?:\.{_label(63)}){{0,2}}(?:\.{_label(30)}){{0,2}}|{_label(30)}(?:\.{_label(30)}){{0,7}})"
# RFC 5321: a local part has at most 64 characters. Here one with several dots has at most 32 others.
_ATOM = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]"
_LOCAL_PART = rf"(?:{_ATOM}{{1,64}}|{_ATOM}{{1,31}}\.{_ATOM}{{1,32}}|{_ATOM}(?:\.?{_ATOM}){{0,31}})"


def _characters(more: str) -> str:
    """Returns the expression of one character of a URI: unreserved, a sub-delimiter, escaped, or one of `more`."""
    return f"(?:[A-Za-z0-9._~!$&'()*+,;={more}-]|%[0-9A-Fa-f]{{2}})"


# RFC 3986
_NAMED = _characters(":@")
_PATH = f"(?:/{_NAMED}*)*"
_AUTHORITY = (
    rf"//(?:{_characters(':')}*@)?"
    rf"(?:\[(?:{_IPV6}|[Vv][0-9A-Fa-f]+\.[A-Za-z0-9._~!$&'()*+,;=:-]+)\]|{_characters('')}*)(?::[0-9]*)?"
)
_QUERY = f"(?:[?]{_characters(':@/?')}*)?(?:#{_characters(':@/?')}*)?"
_SCHEME = "[A-Za-z][A-Za-z0-9+.-]*:"
_ROOTED = f"{_AUTHORITY}{_PATH}|/{_NAMED}+{_PATH}|/?"

_POINTER = r"(?:/(?:[^~/\x00]|~[01])*)*"  # RFC 6901

FORMATS = {
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}[Tt]{_TIME}$",
    "duration": f"^P(?:[0-9]+W|{_DAY_PART}(?:{_CLOCK_PART})?|{_CLOCK_PART})$",
    "email": rf"^{_LOCAL_PART}@(?:{_HOST}|\[{_IPV4}\])$",
    "hostname": f"^{_HOST}$",
    "ipv4": f"^{_IPV4}$",
    "ipv6": f"^{_IPV6}$",
    "uuid": "^[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}$",
    "uri": f"^{_SCHEME}(?:{_ROOTED}|{_NAMED}+{_PATH}){_QUERY}$",
    "uri-reference": f"^(?:(?:{_SCHEME})?(?:{_ROOTED})|(?:{_SCHEME}{_NAMED}+|{_characters('@')}+){_PATH}){_QUERY}$",
    "json-pointer": f"^{_POINTER}$",
    "relative-json-pointer": f"^(?:0|[1-9][0-9]*)(?:#|{_POINTER})$",
}
# A property name has one expression. That of its e-mail addresses matches no text that the expression of zod refuses.
_NAME_ATOM = "[A-Za-z0-9_+-]{1,20}"
_NAME_LABEL = "[A-Za-z0-9](?:-?[A-Za-z0-9]){0,29}"
NAME_FORMATS = FORMATS | {
    "email": rf"^{_NAME_ATOM}(?:\.{_NAME_ATOM}){{0,2}}@(?:{_NAME_LABEL}\.){{1,3}}[A-Za-z]{{2,20}}$"
}
