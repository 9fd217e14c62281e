"""Finds house words in the names that the code defines.

`vocabulary.toml` has the words, what to use instead, and the exceptions.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.layout.check import Check, Finding
from tests.layout.source import Module, module, package_of, python_files

FILE = Path(__file__).with_name("vocabulary.toml")
PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


@dataclass(frozen=True)
class Exemption:
    """Names that may contain a word.

    Attributes:
        word: the house word.
        names: expression that the whole name matches.
        paths: expression that the path of the file begins with.
    """

    word: str
    names: re.Pattern[str]
    paths: re.Pattern[str]


@dataclass(frozen=True)
class Rules:
    """Content of vocabulary.toml.

    Attributes:
        replacements: house word -> what to use instead.
        exemptions: the exceptions.
    """

    replacements: dict[str, str]
    exemptions: tuple[Exemption, ...]

    def allows(self, word: str, name: str, path: str) -> bool:
        return any(
            word == exemption.word and exemption.names.fullmatch(name) and exemption.paths.match(path)
            for exemption in self.exemptions
        )


@cache
def rules() -> Rules:
    content = tomllib.loads(FILE.read_text(encoding="utf-8"))
    exemptions = (
        Exemption(entry["word"], re.compile(entry["names"]), re.compile(entry.get("paths", "")))
        for entry in content["exceptions"]
    )
    return Rules(content["replacements"], tuple(exemptions))


@cache
def terms_in(name: str) -> tuple[str, ...]:
    """Returns the house words in a name, in the singular: `RoomsOfCrew` has `room` and `crew`."""
    found = []
    for part in PART.findall(name):
        forms = (part.lower(), part.lower().removesuffix("s"), part.lower().removesuffix("es"))
        found.extend([form for form in forms if form in rules().replacements][:1])
    return tuple(found)


def findings_in(source: Module) -> Iterator[Finding]:
    for name, line in source.bindings:
        if any(not rules().allows(word, name, source.path) for word in terms_in(name)):
            yield Finding(package_of(source.path), name, source.path, line)


def find() -> list[Finding]:
    return [finding for path in python_files() for finding in findings_in(module(path))]


def advice(name: str) -> str:
    instead = "; ".join(f"`{word}`: {rules().replacements[word]}" for word in terms_in(name))
    return f"The name contains a house word. Use the field's term ({instead}). See CONTRIBUTING.md#language."


CHECK = Check("house_words", find, advice)
