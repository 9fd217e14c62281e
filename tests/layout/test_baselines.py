"""Tests that the baselines list exactly the violations in the code, and tests of `tests.layout.baselines`."""

import pytest

from tests.layout import baselines
from tests.layout.baselines import CHECKS, FOLDER, BaselineError, compare, count, load, lower, save
from tests.layout.check import Check, Finding


@pytest.mark.all_entries  # files of removed entries have violations too
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_violations_are_those_of_the_baselines(check):
    report = compare(check, check.find(), load(FOLDER / check.name)).report()
    if report:
        pytest.fail(report, pytrace=False)


def found(key: str, *lines: int, package: str = "tools") -> list[Finding]:
    return [Finding(package, key, f"{package}/file.py", line) for line in lines]


EXAMPLE = Check("example", lambda: found("told", 3, 5), lambda key: f"Rename {key}.")


@pytest.mark.parametrize(("allowed", "message"), [({}, "not in"), ({"tools": {"told": 1}}, "allows 1")])
def test_growth_names_every_location_and_the_fix(allowed, message):
    comparison = compare(EXAMPLE, EXAMPLE.find(), allowed)
    assert message in comparison.report()
    assert "Rename told.\n  tools/file.py:3\n  tools/file.py:5" in comparison.report()
    assert comparison.shrunk == []


def test_a_long_list_of_locations_is_cut():
    assert "file.py:10\n  and 2 more" in compare(EXAMPLE, found("told", *range(1, 13)), {}).report()


def test_a_smaller_count_names_the_command_that_lowers_it():
    report = compare(EXAMPLE, EXAMPLE.find(), {"tools": {"told": 3}, "e2e": {"said": 1}}).report()
    assert "python -m tests.layout.baselines" in report
    assert "example/tools.txt: told: 3 -> 2" in report
    assert "example/e2e.txt: said: 1 -> 0" in report


def test_a_file_that_moves_within_its_package_changes_nothing():
    moved = [Finding("tools", "told", "tools/other.py", line) for line in (1, 2)]
    assert compare(EXAMPLE, moved, count(EXAMPLE.find())).report() == ""


def test_lowering_never_adds_nor_raises():
    baseline = {"tools": {"told": 3, "said": 1, "heard": 1}, "e2e": {"said": 1}}
    current = count([*found("told", 1, 2), *found("heard", 3, 4), *found("news", 5), *found("said", 1, package="docs")])
    assert lower(baseline, current) == {"tools": {"told": 2, "heard": 1}, "e2e": {}}


def test_saved_baselines_are_sorted_and_load_again(tmp_path):
    counts = {"tools": {"b": 2, "a key of words": 1}, "e2e": {"c": 1}}
    save(tmp_path / "example", counts)
    assert (tmp_path / "example" / "tools.txt").read_text() == "a key of words 1\nb 2\n"
    assert load(tmp_path / "example") == counts
    save(tmp_path / "example", {"tools": {"b": 2}, "e2e": {}})
    assert [file.name for file in (tmp_path / "example").iterdir()] == ["tools.txt"]


@pytest.mark.parametrize("text", ["<<<<<<< HEAD\n", "told\n", "told 0\n", "told -1\n", "told 1\ntold 1\n", "\n"])
def test_a_baseline_that_cannot_be_read_is_refused_with_its_line(tmp_path, text):
    (tmp_path / "tools.txt").write_text(text)
    with pytest.raises(BaselineError, match=r"tools\.txt:\d"):
        load(tmp_path)


@pytest.fixture
def tree(tmp_path, monkeypatch):
    monkeypatch.setattr(baselines, "FOLDER", tmp_path)
    monkeypatch.setattr(baselines, "CHECKS", (EXAMPLE,))
    return tmp_path / "example"


def test_the_command_lowers_counts(tree):
    save(tree, {"tools": {"told": 4, "said": 1}, "e2e": {"said": 1}})
    assert baselines.main([]) == 0
    assert load(tree) == {"tools": {"told": 2}}


def test_the_command_reports_growth_and_keeps_the_baseline(tree, capsys):
    save(tree, {"tools": {"told": 1}})
    assert baselines.main([]) == 1
    assert "tools/file.py:3" in capsys.readouterr().out
    assert load(tree) == {"tools": {"told": 1}}


def test_check_changes_nothing(tree, capsys):
    save(tree, {"tools": {"told": 3}})
    assert baselines.main(["--check"]) == 1
    assert "told: 3 -> 2" in capsys.readouterr().out
    assert load(tree) == {"tools": {"told": 3}}
    assert baselines.main([]) == 0
    assert baselines.main(["--check"]) == 0


def test_write_replaces_unreadable_baselines(tree, capsys):
    tree.mkdir()
    (tree / "tools.txt").write_text("<<<<<<< HEAD\n")
    assert baselines.main([]) == 2
    assert "--write" in capsys.readouterr().err
    assert baselines.main(["--write"]) == 0
    assert load(tree) == {"tools": {"told": 2}}
