"""Tests of `unmask verify`: what it finds equal, what it finds different, and its exit codes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

from runtime import cli
from runtime.commands import authors_logits, verify
from tests.matrix import marked
from tests.models.tiny import write_random
from tests.tokenizer.conftest import byte_level, save
from tests.wait import TIMEOUT

MASK, VOCAB = 329, 330  # of a checkpoint with the tokenizer of the tests
CPU = ("--device", "cpu")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a file with the answers of the demo model."""
    path = tmp_path_factory.mktemp("answers") / "answers.json"
    assert cli.main(["verify", "--record", str(path), *CPU]) == 0
    return path


def test_equal_and_different_answers(recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verify", "--answers", str(recorded), *CPU]) == 0
    assert capsys.readouterr().out == "10 of 10 answers are equal\n"
    document = json.loads(recorded.read_text())
    assert (document["family"], document["dtype"], len(document["answers"])) == ("llada2", "float32", 10)
    answers = document["answers"]
    answers[0]["ids"][3] += 1
    answers[1]["ids"].append(5)
    answers[2]["prompt_ids"][2] += 1
    del answers[3]["prompt_ids"]  # as of a program that has no such ids
    changed = tmp_path / "changed.json"
    changed.write_text(json.dumps({"answers": answers}))
    assert verify.report(verify.read_answers(recorded), verify.read_answers(changed)) == 1
    first, second, third, total = capsys.readouterr().out.splitlines()
    assert first == f"answer 1 differs from position 3: {answers[0]['ids'][3] - 1}, not {answers[0]['ids'][3]}"
    count = len(answers[1]["ids"])
    assert second == f"answer 2 differs in length: {count - 1}, not {count} tokens"
    assert third.startswith("prompt 3: its ids differ from position 2")
    assert total == "7 of 10 answers are equal"


def test_without_a_file_the_answers_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verify", *CPU]) == 0
    output = capsys.readouterr().out
    assert [line.removeprefix("> ") for line in output.splitlines() if line.startswith("> ")] == list(verify.PROMPTS)


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--answers", "nothing.json"], "--answers nothing.json: cannot be read"),
        (["--answers", "wrong.json"], "--answers wrong.json: answers[1] differ from what --record writes"),
        (["--answers", "deep.json"], "--answers deep.json: cannot be read (RecursionError("),
        (["--answers", "short.json"], "--answers short.json: the prompts differ from what --record writes"),
        (["--record", "no/such/place.json"], "--record no/such/place.json: its directory does not exist"),
        (["--record", "."], "--record .: is a directory; name a file"),
        (["--against", "transformers"], "no model with the layers and tensors of the family llada2"),
        (["--against", "nothing.json"], "--against nothing.json: cannot be read"),
        (["--against", "short.json"], "--against short.json: cannot be read (Object missing required field"),
        (["--against", "uneven.json"], "--against uneven.json: cannot be read (prompts[0] has rows of different len"),
        (["--against", "negative.json"], "--against negative.json: cannot be read (Expected `float` >= 0"),
        (["--quantisation", "int4"], "no such flag"),
    ],
)  # fmt: skip
def test_what_cannot_be_compared_is_said_before_the_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], argv: list[str], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(verify, "_load", lambda engine: pytest.fail("it was loaded"))
    Path("wrong.json").write_text('{"answers": [{"ids": []}, {"ids": ["a"]}]}')
    Path("deep.json").write_text('{"answers": ' + "[" * 100_000)
    Path("short.json").write_text('{"answers": [{"ids": []}]}')
    uneven = {"prompt_ids": [1, 2], "ids": [[1], [2]], "logits": [[1.0]], "std": [1.0, 1.0]}
    about = {"family": "sdar", "strategy": "multi_bd", "block_size": 4}
    Path("uneven.json").write_text(json.dumps({**about, "prompts": [uneven]}))
    negative = uneven | {"logits": [[1.0], [1.0]], "std": [1.0, -1.0]}
    Path("negative.json").write_text(json.dumps({**about, "prompts": [negative]}))
    assert cli.main(["verify", *argv, *CPU]) == 2
    assert says in capsys.readouterr().err.splitlines()[-1]


def against(directory: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, str]:
    code = cli.main(["verify", str(directory), "--against", "transformers", *CPU, *flags])
    captured = capsys.readouterr()
    return code, (captured.out or captured.err).splitlines()[-1]


def checkpoint(directory: Path, family: str, **changes: Any) -> Path:
    write_random(family, directory, **{"vocab_size": VOCAB, "mask_token_id": MASK} | changes)
    save(byte_level(), directory)
    return directory


@pytest.mark.parametrize("family", verify.TRANSFORMERS)
def test_the_forward_of_a_family_is_that_of_transformers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], family: str
) -> None:
    directory = checkpoint(tmp_path / "model-bd3lm", family)  # a2d reads the strategy from the name
    name = ["--model-name", family] if family in ("diffucoder", "diffullama") else []
    code, last = against(directory, capsys, *name)
    assert code == 0
    assert last.startswith("float32 on cpu: the same token at ")
    assert last.endswith(", others 0")


def test_another_forward_and_other_tensors_are_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = checkpoint(tmp_path / "sdar", "sdar")
    logits = verify.Reference.logits
    monkeypatch.setattr(verify.Reference, "logits", lambda self, ids, block: logits(self, ids, 1))  # causal attention
    code, last = against(directory, capsys)
    assert code == 1
    assert not last.endswith(", others 0")
    monkeypatch.setitem(verify.TRANSFORMERS, "sdar", "qwen2")
    code, last = against(directory, capsys)
    assert code == 2
    assert "its qwen2 model and" in last
    assert against(directory, capsys, "--quantization", "int8")[0] == 2
    (directory / "model.safetensors").rename(directory / "weights.safetensors")
    code, last = against(directory, capsys)
    assert code == 2
    assert "cannot read" in last


# The code of a repository: a model of transformers whose attention is bidirectional, or as a mask of 1 and 0 says.
CODE = """
import torch
from transformers import {0}Config, {0}ForCausalLM

class OwnConfig({0}Config):
    model_type = "own"

class OwnModel({0}ForCausalLM):
    config_class = OwnConfig

    def forward(self, input_ids, attention_mask=None, position_ids=None):
        size = input_ids.shape[1]
        mask = torch.ones(1, 1, size, size) if attention_mask is None else attention_mask
        return super().forward(input_ids, attention_mask=mask.log(), position_ids=position_ids, use_cache=False)
"""


@pytest.mark.processes
@pytest.mark.parametrize(("family", "kind"), marked([("sdar", "Qwen3"), ("dream", "Qwen2")], quick=[("sdar", "Qwen3")]))
def test_the_forward_is_that_of_the_repository_s_own_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], family: str, kind: str
) -> None:
    directory, files = checkpoint(tmp_path / "model", family), [tmp_path / f"{n}.json" for n in range(2)]
    assert cli.main(["verify", str(directory), "--record", str(files[0]), *CPU]) == 0
    capsys.readouterr()
    assert cli.main(["verify", "--print-script"]) == 0
    (tmp_path / "script.py").write_text(capsys.readouterr().out)
    repository = shutil.copytree(directory, tmp_path / "repository")
    (repository / "own.py").write_text(CODE.format(kind))
    config = json.loads((directory / "config.json").read_text())
    own = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}
    (repository / "config.json").write_text(json.dumps(config | {"model_type": "own", "auto_map": own}))
    command = [sys.executable, "-I", "script.py", str(repository), *map(str, files)]
    environ = os.environ | {"HF_HOME": str(tmp_path / "home")}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 0, done.stderr
    flags = ["verify", str(directory), "--against", str(files[1]), *CPU]
    assert cli.main(flags) == 0
    output = capsys.readouterr().out.splitlines()[-1]
    assert output.startswith("float32 on cpu: the same token at ")
    assert output.endswith(", others 0")

    write_random(family, directory, seed=7, vocab_size=VOCAB, mask_token_id=MASK)  # other weights
    assert cli.main(flags) == 1
    assert cli.main([*flags, "--block-size", "16"]) == 2
    assert "block_size" in capsys.readouterr().err


def test_masks_of_the_authors_code() -> None:
    """LLaDA2's code adds the mask to the scores. SDAR's takes 1 for what a position attends to."""

    def mask(family: str, strategy: str) -> torch.Tensor | None:
        model = MagicMock(device="cpu", dtype=torch.float32)
        authors_logits.forward(model, [1, 2, 3], family, strategy, 2)
        found: torch.Tensor | None = model.call_args.kwargs.get("attention_mask")
        return found

    visible = torch.tensor([[[[1.0, 1, 0], [1, 1, 0], [1, 1, 1]]]])
    assert torch.equal(mask("sdar", "multi_bd"), visible)
    assert torch.equal(mask("llada2", "multi_bd"), visible.log())
    assert mask("llada", "full") is None
    with pytest.raises(SystemExit, match=r"nemotron_diffusion is called is not known; change forward\(\)"):
        mask("nemotron_diffusion", "nemotron_diffusion")


@pytest.mark.parametrize(
    ("reference", "deviation", "own", "expected"),
    [
        pytest.param([0.0, 1.0], 0.7, [0.0, 9.0], (1, 0, 0), id="the same token"),
        pytest.param([0.9, 1.0], 1.0, [9.0, 0.0], (0, 1, 0), id="a near tie"),
        pytest.param([0.0, 1.0], 0.7, [9.0, 0.0], (0, 0, 1), id="another token"),
        pytest.param([1.0, 1.0], 0.0, [1.0, 1.0], (1, 0, 0), id="equal logits"),
        pytest.param([1.0, -torch.inf], torch.nan, [1.0, -torch.inf], (1, 0, 0), id="an id of which there is no logit"),
        pytest.param([torch.nan, 1.0], torch.nan, [1.0, 0.0], (0, 0, 1), id="a reference that is no number"),
        pytest.param([1.0, 0.9], 1.0, [0.0, torch.nan], (0, 0, 1), id="a logit that is no number"),
    ],
)
def test_every_position_counts_once(
    reference: list[float], deviation: float, own: list[float], expected: tuple[int, int, int]
) -> None:
    found = verify.compare(torch.tensor([reference]), torch.tensor([deviation]), torch.tensor([own]), 0.25)
    assert found == (1, *expected)
