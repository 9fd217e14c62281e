"""Tests of the detection of house words in names. `test_baselines.py` compares the code with the baselines."""

import pytest

from tests.layout import vocabulary
from tests.layout.source import parse
from tests.layout.vocabulary import terms_in


def flagged(source: str, path: str = "runtime/engine/example.py") -> list[str]:
    return [finding.key for finding in vocabulary.findings_in(parse(path, source))]


@pytest.mark.parametrize(
    ("name", "terms"),
    [
        ("told_of", ("told",)),
        ("ToldOf", ("told",)),
        ("_untold", ("untold",)),
        ("MOST_ROWS", ("most",)),
        ("HTTPGate2", ("gate",)),
        ("shares", ("share",)),
        ("hatches", ("hatch",)),
        ("placesOfCrew", ("place", "crew")),
        ("shared", ()),
        ("keyboard", ()),
        ("placement", ()),
        ("lines", ()),
    ],
)
def test_names_are_split_at_underscores_and_capitals(name, terms):
    assert terms_in(name) == terms


@pytest.mark.parametrize(
    "source",
    [
        "def told(): pass",
        "async def told(): pass",
        "class Told: pass",
        "def f(told): pass",
        "def f(*told, **kwargs): pass",
        "lambda told: 0",
        "told = 1",
        "told: int = 1",
        "told += 1",
        "a, (b, *told) = c",
        "self.told = 1",
        "for told in x: pass",
        "[x for told in y]",
        "with f() as told: pass",
        "import numpy as told",
        "try: pass\nexcept E as told: pass",
        "if (told := f()): pass",
        "match x:\n    case [*told]: pass",
        "match x:\n    case {'a': told}: pass",
        "match x:\n    case {**told}: pass",
        "match x:\n    case int() as told: pass",
    ],
)
def test_each_way_to_define_a_name_counts(source):
    assert [name.lower() for name in flagged(source)] == ["told"]


@pytest.mark.parametrize(
    "source",
    ["from a import told", "f(told=1)", "x.told()", "print(told)", "'told'", "from told import b", "del x.told"],
)
def test_names_of_others_do_not_count(source):
    assert flagged(source) == []


def test_the_name_of_a_module_and_of_a_package_counts():
    assert flagged("", "runtime/engine/told.py") == ["told"]
    assert flagged("", "runtime/told/__init__.py") == ["told"]
    assert flagged("", "runtime/told/model.py") == []


@pytest.mark.parametrize(
    ("name", "path", "allowed"),
    [
        ("gate", "runtime/models/llada2.py", True),
        ("gate_up", "runtime/server/example.py", True),
        ("gate", "runtime/server/example.py", False),
        ("told_gate", "runtime/models/llada2.py", False),
        ("FIXED", "runtime/request/block.py", True),
        ("Fixed", "runtime/algorithms/fixed.py", True),
        ("fixed", "runtime/kernels/example.py", False),
        ("turn", "runtime/chat.py", True),
        ("chat_turn", "runtime/server/example.py", True),
        ("turn", "runtime/engine/example.py", False),
    ],
)
def test_exceptions_are_names_of_the_field(name, path, allowed):
    assert (flagged(f"{name} = 1", path) == []) == allowed


def test_advice_names_the_terms_to_use():
    assert "`told`: outputs, notified, reported" in vocabulary.advice("told")
