"""Tests of the tables of the model card, which are generated from the figures of a run."""

import json

from training.demo import card


def figures(accuracy: float) -> dict:
    rows = [("story", "long"), ("sort", "short"), ("add", "short")]
    tasks = [{"task": task, "kind": kind, "accuracy": accuracy, "tokens_per_forward": 7.5} for task, kind in rows]
    return {"tasks": tasks, "pooled": {"accuracy": accuracy, "tokens_per_forward": 8.25}}


def test_a_card_has_a_row_per_task_and_the_figures_of_all_evaluations(tmp_path, capsys) -> None:
    for number, name in enumerate(card.COLUMNS):
        (tmp_path / f"{name}.json").write_text(json.dumps(figures(0.91 + number / 100)))
    (tmp_path / "people.json").write_text(json.dumps({"tasks": [{"task": "claimed", "accuracy": 0.965, "count": 200}]}))
    (tmp_path / "plots.json").write_text(json.dumps({"requests": [{"prompt": "A story?", "plots": {"lived": 3}}]}))
    assert card.main([str(tmp_path)]) == 0
    head, rule, *rows, pooled, _, last = capsys.readouterr().out.splitlines()
    assert head.count("|") == rule.count("|") == 13
    assert [row.split(" | ")[0] for row in rows] == ["| add", "| sort", "| story"]
    assert rows[0] == "| add | short | 91.0 | 7.50 | 92.0 | 7.50 | 93.0 | 94.0 | 7.50 | 95.0 | 96.0 | 97.0 |"
    assert pooled.startswith("| pooled |  | 91.0 | 8.25 | 92.0 | 8.25 | 93.0 |")
    assert last == "Right answers: claimed 193 of 200. Plots: 'A story?' 1."
