"""Tests of the commit-msg hook, which checks commit subjects."""

import pytest

from tools.commit_subject import main, problem_of, subject_of


@pytest.mark.parametrize(
    "subject",
    [
        "engine: overlap output processing with the next forward", "server/openai: reject unknown fields",
        "tests.layout: check the imports", "a-b_c.9: x", "engine: " + "x" * 64, "Merge branch 'layout'",
        "Merge remote-tracking branch 'origin/main' into layout, whose subject git makes as long as it likes",
        'Revert "Anything that an older commit may be called, however long that was, and with its period."',
        'Reapply "engine: fix the page count"', "fixup! Any older subject.", "squash! engine: fix the page count",
        "amend! engine: fix the page count",
    ],
)  # fmt: skip
def test_accepts(subject):
    assert problem_of(subject) is None


@pytest.mark.parametrize(
    ("subject", "problem"),
    [
        ("", "no subject"), ("Fix the page count", "not `area: imperative summary`"),
        ("Engine: fix the page count", "not `area: imperative summary`"),
        ("engine:fix the page count", "not `area: imperative summary`"),
        ("engine:  fix the page count", "not `area: imperative summary`"),
        ("engine:", "not `area: imperative summary`"), (": fix the page count", "not `area: imperative summary`"),
        ("engine, server: fix the page count", "not `area: imperative summary`"),
        ("Merge the engine", "not `area: imperative summary`"),
        ("Revert engine: fix", "not `area: imperative summary`"), ("engine: fix the page count.", "period"),
        ("engine: " + "x" * 65, "73 characters, at most 72"),
    ],
)  # fmt: skip
def test_rejects_with_the_reason(subject, problem):
    assert problem in problem_of(subject)


@pytest.mark.parametrize(
    ("message", "subject"),
    [
        ("engine: fix\n\nThe why.\n", "engine: fix"), ("\n# comment\nengine: fix \n", "engine: fix"),
        ("# only comments\n", ""), ("# ------------------------ >8 ------------------------\ndiff --git a b\n", ""),
    ],
)  # fmt: skip
def test_the_subject_is_the_first_line_of_text(message, subject):
    assert subject_of(message) == subject


def test_the_hook_fails_on_a_bad_subject_and_prints_the_reason(tmp_path, capsys):
    file = tmp_path / "COMMIT_EDITMSG"
    file.write_text("engine: fix the page count\n")
    assert main([str(file)]) == 0
    file.write_text("Fix the page count.\n")
    assert main([str(file)]) == 1
    assert "area: imperative summary" in capsys.readouterr().err
