"""What is taken out, what goes with it, and which tests are its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime.models import resolve_family
from runtime.weights import resolve_checkpoint
from tests.without.__main__ import ROOT, main
from tests.without.entries import DEMO, Entry, chosen, entries, named, take_out, with_dependents

EVERY = entries(ROOT)
NAMES = {entry.name for entry in EVERY}


def without(*names: str) -> list[str]:
    return [str(entry) for entry in with_dependents(ROOT, chosen(ROOT, names))]


def test_every_entry_is_a_file_of_its_package() -> None:
    assert all(entry.file(ROOT).exists() for entry in EVERY)
    assert set(DEMO) <= set(map(str, EVERY))


def test_the_demo_is_served_with_what_cannot_be_taken_out() -> None:
    family = resolve_family(None, resolve_checkpoint(None).config)
    assert (f"models.{family.key}", f"strategies.{family.strategies[0]}") == DEMO[:2]
    assert family.sampling_modes[0] == "naive", "whose default rule is threshold"


@pytest.mark.parametrize(
    ("out", "with_it"),
    [
        ("models.dream", "models.diffucoder"),  # whose file imports it
        ("samplers.dmax", "strategies.dmax"),  # which goes with no other rule
        ("strategies.full", "models.illada"),  # which no other strategy decodes
        ("samplers.edit", "models.llada2dot2"),  # nor another rule
    ],
)
def test_who_needs_what_is_out_goes_too(out: str, with_it: str) -> None:
    assert {out, with_it} <= set(without(out))
    assert without(with_it) == [with_it]


def test_llada_stays_without_full() -> None:
    assert "models.llada" not in without("strategies.full"), "d2f decodes it"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nonesuch", "'nonesuch' is no entry; there are: models."),
        ("models.full", "is no entry"),
        ("dmax", "'dmax' is ambiguous; name one of: strategies.dmax, samplers.dmax"),
        ("threshold", "samplers.threshold serves the demo checkpoint"),
    ],
)
def test_what_cannot_be_taken_out(name: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([name])
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("test", "found"),
    [
        ("tests/models/test_llada2.py::test_x", {"llada2"}),
        ("tests/models/test_x.py::test_x[llada_moe-4]", {"llada_moe"}),
        ("tests/models/test_x.py::test_x[d2f_llada-unaligned]", {"d2f", "llada"}),
        ("tests/bench/test_x.py::test_x[fast-dllm-v2-7b]", {"fast_dllm_v2"}),
        ("tests/x/test_credits.py::test_fully", set()),
    ],
)
def test_a_test_is_of_those_that_its_id_names(test: str, found: set[str]) -> None:
    assert named(test, NAMES) == found


def test_an_entry_is_out_of_the_copy_alone(tmp_path: Path) -> None:
    package = tmp_path / "runtime" / "samplers"
    package.mkdir(parents=True)
    for name in ("models", "strategies"):
        (package.parent / name).mkdir()
        (package.parent / name / "__init__.py").touch()
    (package / "__init__.py").write_text(
        '"""Rules."""\nfrom runtime.samplers import one, two\nfrom runtime.samplers.base import f\n'
        '__all__ = ["f", "one", "two"]\n'
    )
    for name in ("one", "two"):
        (package / f"{name}.py").touch()
    take_out(tmp_path, [Entry("samplers", "one")])
    assert entries(tmp_path) == [Entry("samplers", "two")]
    assert "one" not in (package / "__init__.py").read_text()
    assert "ImportError" in (package / "one.py").read_text()
    assert not (package / "two.py").read_text()


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="copies what git tracks: this tree is such a copy itself")
def test_failures_without_credit_are_told_apart(capfd: pytest.CaptureFixture[str]) -> None:
    """A rule out of the real tree: its own tests fail, of the same file others pass."""
    tests = "tests/test_docs.py::test_a_rules_paragraph_names_its_fields"
    assert main(["credit", "--", tests]) == 0
    said = capfd.readouterr().out
    assert f"own:     {tests}[credit]" in said
    assert "1 failures are of what was taken out, 0 are not" in said
