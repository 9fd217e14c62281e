"""Text in which special tokens are marks, with the string methods and functions that templates use.

A mark stands for a special token that the template itself wrote. A template that searches, splits or cuts text has to
see the special tokens as text, as in transformers. What it takes out of the text has to keep its marks.
"""

from __future__ import annotations

import bisect
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

_FIRST = "\ue000"  # first character of each mark, so that text without marks is found quickly
_LENGTH = 12  # characters of a mark, of which all but the first are random: about 139 bits
_MARK = re.compile(rf"{_FIRST}[\ue001-\uf8ff]{{{_LENGTH - 1}}}")  # what may be one
# Tangut ideographs, which stand for the characters of special tokens during a call. They have no cases, `repr` prints
# them, and conversations rarely have them.
_STAND_INS = range(0x17000, 0x187F8)
_STAND_IN = re.compile(f"[{chr(_STAND_INS[0])}-{chr(_STAND_INS[-1])}]")
# Methods of a text that tell something about it, or convert it to something else.
_QUERIES = frozenset(
    {
        "startswith",
        "endswith",
        "find",
        "rfind",
        "index",
        "rindex",
        "count",
        "isalnum",
        "isalpha",
        "isascii",
        "isdecimal",
    }
    | {"isdigit", "isidentifier", "islower", "isnumeric", "isprintable", "isspace", "istitle", "isupper", "encode"}
)
_CASES = frozenset({"lower", "upper", "capitalize", "title", "swapcase", "casefold"})
_STRIPS = frozenset({"strip", "lstrip", "rstrip", "removeprefix", "removesuffix"})
_SPLITS = frozenset({"split", "rsplit", "splitlines", "partition", "rpartition"})
METHODS = _QUERIES | _CASES | _STRIPS | _SPLITS | {"replace"}


def new_mark() -> str:
    """Returns a mark that is drawn at random."""
    return _FIRST + "".join(chr(0xE001 + secrets.randbelow(0x18FF)) for _ in range(_LENGTH - 1))


class Marks:
    """The marks of special tokens.

    Attributes:
        of_tokens: Text of each special token -> its mark.
        tokens: Mark -> text of its special token.
    """

    def __init__(self, of_tokens: Mapping[str, str]) -> None:
        self.of_tokens = dict(of_tokens)
        self.tokens = {mark: text for text, mark in of_tokens.items()}
        self._token_pattern = _any_of(self.of_tokens)

    def marked(self, text: str) -> str:
        """Replaces special tokens in `text` by their marks."""
        return self._token_pattern.sub(lambda found: self.of_tokens[found[0]], text)

    def unmarked(self, text: str) -> str:
        """Replaces marks in `text` by the text of their special tokens."""
        return _MARK.sub(lambda found: self.tokens.get(found[0], found[0]), text) if _FIRST in text else text

    def plain(self, value: Any) -> Any:
        """Returns a value to compare with: a text, or a list of values, without marks; any other value as it is."""
        if isinstance(value, str) or (isinstance(value, list | tuple) and self.any_in(*value)):
            return _mapped(value, self.unmarked)
        return value

    def any_in(self, *values: Any) -> bool:
        """Returns whether one of the values is a text with marks."""
        return any(isinstance(value, str) and _FIRST in value for value in values)

    def item(self, text: str, key: int | slice) -> str:
        """Returns ``text[key]``, in which a special token is marked if it is complete."""
        return _Marked(text, self).item(key)

    def call(self, text: str, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Calls one of `METHODS` of a text. The arguments may have marks; they are compared without them.

        Raises:
            TypeError: The method does not take the arguments.
            ValueError: As the method.
        """
        if method == "replace":
            return _Marked(text, self).replace(*args, **kwargs)
        args, kwargs = [self.plain(arg) for arg in args], {name: self.plain(arg) for name, arg in kwargs.items()}
        return _Marked(text, self).call(method, args, kwargs)

    def apply(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls a function with texts without marks, and marks their special tokens that are complete in the result.

        To find them, the function is called again with other characters instead of special tokens, as many as these
        have. If it treats both texts alike, the results have them in the same places. Otherwise all of the result is
        ordinary text. Texts may be in lists, tuples and dictionaries.
        """
        texts = list(_texts(args, kwargs))
        marks = {mark: self.tokens[mark] for text in texts for mark in _marks_in(text) if mark in self.tokens}
        if not marks:
            return function(*args, **kwargs)
        plain = _settled(function(*_mapped(args, self.unmarked), **_mapped(kwargs, self.unmarked)))
        used = {character for text in texts for character in _STAND_IN.findall(text)}
        if sum(map(len, marks.values())) + len(used) > len(_STAND_INS):
            return plain
        spare = (character for character in map(chr, _STAND_INS) if character not in used)
        stand_ins = {mark: "".join(islice(spare, len(token))) for mark, token in marks.items()}
        characters = str.maketrans("".join(stand_ins.values()), "".join(marks.values()))

        def replaced(text: str) -> str:
            return _MARK.sub(lambda found: stand_ins.get(found[0], found[0]), text)

        def restored(text: str) -> str:
            for mark, stand_in in stand_ins.items():
                text = text.replace(stand_in, mark)
            return text.translate(characters)

        try:
            result = _settled(function(*_mapped(args, replaced), **_mapped(kwargs, replaced)))
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            return plain
        alike = _mapped(result, lambda text: text.translate(characters)) == plain
        return _mapped(result, restored) if alike else plain


class _Marked:
    """A text and the positions of the special tokens in it that were marks.

    Attributes:
        plain: The text with special tokens instead of marks.
    """

    def __init__(self, text: str, marks: Marks) -> None:
        self._marks = marks
        self._tokens: list[tuple[int, str]] = []  # offset in `plain`, and the special token
        pieces: list[str] = []
        at = length = 0
        for found in _MARK.finditer(text):
            if found[0] not in marks.tokens:
                continue  # text of a message
            pieces += [text[at : found.start()], marks.tokens[found[0]]]
            length += len(pieces[-2])
            self._tokens.append((length, pieces[-1]))
            length += len(pieces[-1])
            at = found.end()
        self.plain = "".join([*pieces, text[at:]])

    def part(self, begin: int, end: int) -> str:
        """Returns a part of the text, with marks for the special tokens that are in it."""
        return self._written(self.plain[begin:end], begin)

    def _written(self, text: str, begin: int) -> str:
        """Marks the special tokens in a text of which character 0 is at `begin`, where they are unchanged."""
        pieces: list[str] = []
        at = 0
        for number in range(bisect.bisect_left(self._tokens, (begin,)), len(self._tokens)):
            offset, token = self._tokens[number]
            start = offset - begin
            if start >= len(text):
                break
            if text.startswith(token, start):
                pieces += [text[at:start], self._marks.of_tokens[token]]
                at = start + len(token)
        return "".join([*pieces, text[at:]])

    def item(self, key: int | slice) -> str:
        begin, end, step = (key, key + 1 or None, 1) if isinstance(key, int) else (key.start, key.stop, key.step)
        found = self.plain[key]
        if step not in (None, 1):
            return found
        begin, end, _ = slice(begin, end).indices(len(self.plain))
        return self.part(begin, max(begin, end))

    def call(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        result = getattr(self.plain, method)(*args, **kwargs)
        if method in _CASES:
            return self._written(result, 0) if len(result) == len(self.plain) else result
        if method in _STRIPS:
            begin = 0
            if method in ("lstrip", "removeprefix"):
                begin = len(self.plain) - len(result)
            elif method == "strip":
                begin = len(self.plain) - len(self.plain.lstrip(*args))
            return self.part(begin, begin + len(result))
        if method in _SPLITS:
            parts = [
                self.part(begin, begin + len(piece)) for begin, piece in self._located(method, result, args, kwargs)
            ]
            return tuple(parts) if isinstance(result, tuple) else parts
        return result

    def _located(
        self, method: str, pieces: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Iterator[tuple[int, str]]:
        """Yields the pieces of a split, each with its offset."""
        separator = kwargs.get("sep", args[0] if args else None) if method in ("split", "rsplit") else ""
        lines = self.plain.splitlines(keepends=True) if method == "splitlines" else ()
        at = 0
        for number, piece in enumerate(pieces):
            if separator is None:  # white space is between the pieces
                at = self.plain.find(piece, at)
            yield at, piece
            at += len(lines[number]) if lines else len(piece) + len(separator or "")

    def replace(self, old: Any, new: Any, count: Any = -1) -> str:
        """Replaces `old` by `new`, which may have marks. A special token of which a part is replaced becomes text."""
        old = self._marks.plain(old)
        pieces: list[str] = []
        at = searched = 0
        while count and (found := self.plain.find(old, searched)) >= 0:
            pieces += [self.part(at, found), new]
            at = found + len(old)
            searched = at if old else at + 1  # an empty text is between all characters
            count -= 1
        return "".join([*pieces, self.part(at, len(self.plain))])


def _any_of(texts: Mapping[str, str]) -> re.Pattern[str]:
    """Returns a pattern that matches any of `texts`, the longest first; it matches nothing if there are none."""
    return re.compile("|".join(re.escape(t) for t in sorted(texts, key=len, reverse=True)) or r"(?!)")


def _texts(*values: Any) -> Iterator[str]:
    """Yields the texts in the values, and in lists, tuples and dictionaries among them."""
    pending = list(values)
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            yield value
        elif type(value) is dict:
            pending += [*value, *value.values()]
        elif type(value) in (list, tuple):
            pending += value


def _marks_in(text: str) -> list[str]:
    return _MARK.findall(text) if _FIRST in text else []


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    """Changes the texts that `_texts` yields."""
    if isinstance(value, str):
        text = change(value)
        return text if type(value) is str else type(value)(text)
    if type(value) is dict:
        return {_mapped(name, change): _mapped(item, change) for name, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_mapped(item, change) for item in value)
    return value


def _settled(value: Any) -> Any:
    """Returns the items of an iterator as a list; any other value as it is."""
    return list(value) if isinstance(value, Iterator) else value
