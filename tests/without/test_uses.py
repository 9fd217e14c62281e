"""How is known which entries a test uses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.without.entries import Entry
from tests.without.marks import VARIABLE, Used, mark
from tests.without.uses import Test, read_uses, spoken

FAMILY = '''"""A family."""
from __future__ import annotations

def detect(config):
    return True

def parse(config):
    """A docstring stays one."""
    return config

LATER = register(detect=detect, also=lambda: None)
'''
LOOKUP = "def {}(key):\n    if key:\n        return REGISTRY[key]\n    return REGISTRY['x']\n"
GONE = [Entry("samplers", "credit"), Entry("models", "dream")]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for package, lookup in (("models", "resolve_family"), ("strategies", "make_strategy"), ("samplers", "get_rule")):
        (tmp_path / "runtime" / package).mkdir(parents=True)
        (tmp_path / "runtime" / package / "base.py").write_text(LOOKUP.format(lookup))
    (tmp_path / "runtime" / "models" / "dream.py").write_text(FAMILY)
    mark(tmp_path, [GONE[1]])
    return tmp_path


def run(code: str, **names: object) -> list[str]:
    """What the code uses, by its marks."""
    told: list[str] = []
    namespace = {"used": told.append, "register": lambda **given: given, **names}
    exec(code.replace("from tests.without.marks import used", ""), namespace)
    return told


@pytest.mark.parametrize(
    ("line", "tells"),
    [
        ("", False),
        ("assert parse(3) == 3 and parse.__doc__ == 'A docstring stays one.'", True),
        ("assert LATER['also']() is None", True),
        ("assert detect({})", False),  # every family is asked
    ],
)
def test_what_is_called_tells(tree: Path, line: str, tells: bool) -> None:
    said = run((tree / "runtime" / "models" / "dream.py").read_text() + line)
    assert said == ["models.dream"] * tells


def test_who_is_asked_for_tells(tree: Path) -> None:
    family = type("Family", (), {"key": "dream"})
    code = (tree / "runtime" / "models" / "base.py").read_text()
    assert (
        run(code + "\nassert resolve_family('a') and resolve_family('')", REGISTRY={"a": family, "x": family})
        == ["models.dream"] * 2
    )
    code = (tree / "runtime" / "strategies" / "base.py").read_text()
    assert run(code + "\nassert make_strategy('full')", REGISTRY={"full": 1}) == ["strategies.full"]


def test_processes_that_a_test_starts_tell_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "")
    asked = Used()
    asked.listen(tmp_path / "told")
    code = "from tests.without.marks import used; used('models.dream')"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert asked.take() == {"models.dream"}
    assert asked.take() == set()


def test_names_in_a_tests_quotes() -> None:
    def of_a_server(flags: dict[str, str]) -> None:
        """Says nothing of dmax."""
        assert flags["--algorithm"] == "local-leap"  # nor does a comment of fixed

    assert spoken(of_a_server, ["dmax", "local_leap", "fixed", "algorithm"]) == {"local_leap", "algorithm"}


@pytest.mark.parametrize(
    ("test", "own", "concerned"),
    [
        (("tests/x.py::test_x", ("credit",), False, {"samplers.credit"}, set()), True, True),
        (("tests/x.py::test_x", (), True, set(), set()), True, False),
        (("tests/x.py::test_x", (), False, {"samplers.credit"}, set()), False, True),
        (("tests/x.py::test_x", (), False, set(), {"dream"}), False, True),
        (("tests/x.py::test_x", (), False, {"samplers.dmax"}, {"dmax"}), False, False),
        (("tests/config/x.py::test_x", (), False, set(), set()), False, True),
    ],
)
def test_what_runs_again(tmp_path: Path, test: tuple[object, ...], own: bool, concerned: bool) -> None:
    id, fixtures, whole, uses, says = test
    made = Test(id, fixtures, whole, frozenset(uses), frozenset(says))  # type: ignore[arg-type]
    (tmp_path / "uses").write_text(made.line() * 2)
    assert read_uses(tmp_path / "uses") == [made, made]
    assert (made.own(GONE, {"credit", "dream", "dmax"}), made.concerned(GONE)) == (own, concerned)
