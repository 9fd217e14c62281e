"""Tests of the examples in docs/developer/extending.md. Each adds one file and one import."""

import copy
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from runtime import LLM, SamplingParams
from runtime.algorithms import base as algorithms
from runtime.bench import __main__ as bench
from runtime.errors import ConfigError, RequestError
from runtime.models import base as models
from runtime.parsers import formats
from runtime.parsers.chat_output import ChatOutputParser
from runtime.parsers.formats import reasoning_format, tool_format
from runtime.parsers.tool_call_parser import ToolCallOptions
from runtime.strategies import registry as strategies
from runtime.weights.checkpoint import resolve_checkpoint
from tests.algorithms import test_rules
from tests.golden import GOLDEN
from tests.oracle import rules

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "developer" / "extending.md").read_text(encoding="utf-8")
EXAMPLES = [
    "runtime/strategies/single_bd.py", "runtime/strategies/counted_bd.py", "runtime/algorithms/best_few.py",
    "runtime/models/twin.py", "runtime/parsers/bracketed.py",
]  # fmt: skip
PROMPTS = [list(range(40, 61)), list(range(100, 132)), [7]]  # the second ends at the end of a block


def example(path: str) -> str:
    """Returns the source of an example, which the page shows as the file `path`."""
    (found,) = re.findall(rf'```python title="{re.escape(path)}"\n(.*?)```', TEXT, re.DOTALL)
    return found


@pytest.fixture
def run(monkeypatch):
    """Returns a function that executes an example as an import would. The registries are restored after the test."""
    for module, name in (
        (models, "_FAMILIES"),
        (algorithms, "_ALGORITHMS"),
        (strategies, "_STRATEGIES"),
        (formats, "_TOOLS"),
        (formats, "_REASONING"),
    ):
        monkeypatch.setattr(module, name, copy.copy(getattr(module, name)))

    def execute(path: str) -> None:
        exec(compile(example(path), path, "exec"), {"__name__": path})

    return execute


def answers(params: SamplingParams, model: str = str(GOLDEN / "llada2_tiny"), **flags):
    with LLM(model, device="cpu", dtype="float64", skip_tokenizer=True, max_model_len=256, **flags) as llm:
        return llm.generate(PROMPTS, params)


@pytest.mark.parametrize("path", EXAMPLES)
def test_ruff_accepts_the_examples(path):
    for command in (["check"], ["format", "--diff"]):
        arguments = [sys.executable, "-m", "ruff", *command, "--no-cache", "--stdin-filename", path, "-"]
        found = subprocess.run(arguments, input=example(path), capture_output=True, text=True, cwd=ROOT)
        assert found.returncode == 0, found.stdout + found.stderr


def test_the_tutorial_has_the_same_algorithm():
    page = (ROOT / "docs" / "research" / "experiments.md").read_text(encoding="utf-8")
    assert re.findall(r'```python title="best_few.py"\n(.*?)```', page, re.DOTALL) == [
        example("runtime/algorithms/best_few.py")
    ]


def test_the_naive_function_of_the_example_matches_the_algorithm(run, monkeypatch):
    run("runtime/algorithms/best_few.py")
    found: dict = {}
    exec(example("tests/oracle/rules.py"), found)
    monkeypatch.setitem(rules.NAIVE_ALGORITHMS, "best_few", found["best_few"])
    test_rules.test_a_rule_decides_as_the_oracle("best_few")
    monkeypatch.setitem(rules.NAIVE_ALGORITHMS, "best_few", rules.NAIVE_ALGORITHMS["threshold"])
    with pytest.raises(AssertionError):
        test_rules.test_a_rule_decides_as_the_oracle("best_few")


def test_a_strategy(run):
    params = SamplingParams(max_tokens=36, ignore_eos=True, decoding={"accept_threshold": 0.02})
    with pytest.raises(ConfigError, match="--decoding-strategy 'single_bd'"):
        answers(params, decoding_strategy="single_bd")
    run("runtime/strategies/single_bd.py")
    new = answers(params, decoding_strategy="single_bd", buffer_size=4)
    assert new == answers(params, buffer_size=1)
    assert new != answers(params, buffer_size=4)


def test_a_strategy_that_changes_one_rule(run):
    run("runtime/strategies/counted_bd.py")

    def decode(decoding_strategy, **decoding):
        params = SamplingParams(max_tokens=36, ignore_eos=True, decoding={"accept_threshold": 0.02, **decoding})
        return answers(params, decoding_strategy=decoding_strategy, buffer_size=4)

    assert decode("counted_bd", opens_after=1) == decode("multi_bd", add_block_threshold=0.001)
    assert decode("counted_bd", opens_after=64) == decode("multi_bd", add_block_threshold=1.0)
    assert decode("counted_bd", opens_after=64) != decode("counted_bd", opens_after=1)


def test_an_unmasking_algorithm(run, tmp_path):
    run("runtime/algorithms/best_few.py")
    least = SamplingParams(max_tokens=32, ignore_eos=True, decoding={"accept_threshold": 1.0})  # only the best per step
    for few in (1, 2):
        params = SamplingParams(max_tokens=32, ignore_eos=True, decoding={"algorithm": "best_few", "few": few})
        new = answers(params, buffer_size=1)
        assert [o.nfe for o in new][1] == 32 // few
        assert all(o.nfe >= 32 // few for o in new)
        assert (new == answers(least, buffer_size=1)) == (few == 1)
    with pytest.raises(RequestError, match="few: 0 is out of range; it must be at least 1"):
        answers(SamplingParams(decoding={"algorithm": "best_few", "few": 0}))
    with pytest.raises(RequestError, match="few: has no meaning with the threshold algorithm, only with best_few"):
        answers(SamplingParams(decoding={"few": 2}))
    file = tmp_path / "sweep.json"
    arguments = ["--device", "cpu", "--tasks", "add", "--n", "1", "--algorithm", "best_few", "--json", str(file)]
    assert bench.main(["sweep", *arguments]) == 0
    (swept,) = json.loads(file.read_text())["algorithms"]
    assert [(point["value"], point["tasks"][0]["nfe"] >= 1) for point in swept["points"]] == [
        (few, True) for few in (1, 2, 4, 8)
    ]


def test_a_family(run, tmp_path):
    shutil.copytree(resolve_checkpoint(None).path, tmp_path / "twin")
    config = json.loads((tmp_path / "twin" / "config.json").read_text())
    (tmp_path / "twin" / "config.json").write_text(json.dumps(config | {"model_type": "twin_moe", "architectures": []}))
    params = SamplingParams(max_tokens=40)
    with pytest.raises(ConfigError, match="twin_moe"):
        answers(params, model=str(tmp_path / "twin"))
    run("runtime/models/twin.py")
    with LLM(str(tmp_path / "twin"), device="cpu", max_model_len=256) as llm:
        assert llm.info.family == "twin"
        assert llm.info.defaults().values["accept_threshold"] == 0.9
        assert llm.generate([PROMPTS[0]], params)[0].token_ids is not None


def test_a_format(run):
    assert tool_format("bracketed") is None
    run("runtime/parsers/bracketed.py")
    made = tool_format("bracketed")
    parts = ChatOutputParser(tools=ToolCallOptions(made, [formats.Tool("f")]), reasoning=reasoning_format("bracketed"))
    for character in '[R]hm[/R]Look: [CALL]{"name": "f", "arguments": {"x": 1}}[/CALL]':
        parts.push(character)
    assert (parts.reasoning, parts.content) == ("hm", "Look:")
    assert [(call.name, call.arguments) for call in parts.calls] == [("f", '{"x": 1}')]
