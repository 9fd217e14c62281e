"""Tests of `unmask models`: facts and defaults of the published repositories."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from runtime import LLM, cli
from runtime.bench.model_shapes import architecture
from runtime.commands.models import described
from runtime.models.base import families, resolve_family
from runtime.models.block_size import resolve_block_size
from runtime.models.published import checks, repositories
from tests.golden import GOLDEN

KEYS = {resolve_family(key, {}).key for key in families()}
SOURCES = {"index", "files", "config", "card", "page", "name", "family"}


@pytest.mark.all_entries
def test_every_family_has_a_repository_or_its_name_selects_it_and_says_how_it_was_checked() -> None:
    assert checks().keys() == KEYS
    assert {each.family for each in repositories()} >= KEYS - {"diffucoder", "a2d_qwen2"}
    names = [each.name for each in repositories()]
    assert len(set(names)) == len(names)
    for each in repositories():
        assert {fact.source for fact in (each.weights, each.license, each.format, each.block) if fact} <= SOURCES


@pytest.mark.parametrize("each", [each for each in repositories() if each.family in ("sdar", "sdar_moe")], ids=str)
def test_the_block_size_is_what_the_server_reads_from_the_name(each: Any) -> None:
    family = resolve_family(each.family, {})
    facts = family.facts(family.parse(architecture("sdar-8b" if each.family == "sdar" else "sdar-30b-a3b")))
    own = resolve_block_size(None, family, facts, {}, (each.name,))
    assert own.source.startswith("the name" if each.block.source == "name" else "the sdar")
    assert each.block.value == (own.tokens if each.block.source == "name" else 4)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("LLaDA2.0-mini", "llada2-mini"), ("LLaDA2.1-flash", "llada2-flash"), ("LLaDA-8B-Base", "llada-8b"),
        ("LLaDA-MoE-7B-A1B-Instruct", "llada-moe-7b"), ("Dream-v0-Base-7B", "dream-7b"), ("SDAR-8B-Chat", "sdar-8b"),
        ("SDAR-30B-A3B-Chat-b32", "sdar-30b-a3b"), ("Fast_dLLM_v2_7B", "fast-dllm-v2-7b"),
    ],
)  # fmt: skip
def test_the_size_is_that_of_unmask_fit(tmp_path: Path, capsys: Any, name: str, shape: str) -> None:
    (weights,) = [each.weights for each in repositories() if each.name.partition("/")[2] == name]
    (tmp_path / "config.json").write_text(json.dumps(architecture(shape)))
    assert cli.main(["fit", str(tmp_path), "--device", "1000GB", "--dtype", "bfloat16"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("weights, bfloat16")]
    assert weights is not None
    assert float(line.split()[2]) == round(weights.value, 1)


@pytest.mark.parametrize(
    ("name", "golden", "algorithm"),
    [("inclusionAI/LLaDA2.1-mini", "llada2_tiny", "edit"), ("GSAI-ML/LLaDA-1.5", "llada", "threshold")],
)
def test_defaults_are_those_of_a_server(tmp_path: Path, name: str, golden: str, algorithm: str) -> None:
    path = shutil.copytree(GOLDEN / golden, tmp_path / name.partition("/")[2])
    (row,) = described(name)
    size = row["block"]["value"]
    with LLM(str(path), device="cpu", skip_tokenizer=True, block_size=size, page_size=size) as llm:
        served = llm.info.defaults()
    assert (row["defaults"]["algorithm"], row["defaults"]["decoding"]) == (algorithm, dict(served.values))
    assert served.algorithm == algorithm


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["models"]) == 0
    head, *rows = capsys.readouterr().out.split("\n\n")[0].splitlines()
    assert head.split() == ["repository", "family", "GB", "format", "license", "block", "defaults", "checked"]
    assert [row.split()[0] for row in rows] == [each.name for each in repositories()]
    assert cli.main(["models", "LLADA-1.5", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["weights"], row["license"]) == ({"value": 16.03, "source": "files"}, None)
    assert row["defaults"]["sampling"] is None
    assert row["checked"]["weights"] == "random"
    assert cli.main(["models", "stable_diffcoder"]) == 0
    assert "threshold accept_threshold 0.95, greedy" in capsys.readouterr().out
    assert cli.main(["models", "nothing"]) == 1
    assert capsys.readouterr().err == "error: no repository or family has 'nothing' in its name\n"
