"""Tests of LLaDA2.2, which edits its answers by inserting and deleting tokens."""

import json
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from runtime import LLM, SamplingParams
from runtime.config import EngineConfig
from runtime.engine.setup import load_engine
from runtime.errors import ConfigError
from runtime.request.resolve import RequestContext, resolve
from tests.golden import GOLDEN
from tests.oracle.tiny import write_tiny

PATH = GOLDEN / "llada2dot2"
CASES = [case for case in json.loads((PATH / "cases.json").read_text()) if case["kind"] == "decode_published"]
MASK, DELETE, SPLIT = 223, 16, 47


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(str(PATH), device="cpu", skip_tokenizer=True) as llm:
        yield llm


def states(llm: LLM, prompt: list[int], params: SamplingParams) -> tuple[list[tuple[int, list[int]]], list[int]]:
    """Returns the first open block after each step as (start, ids), and the answer."""
    llm.engine.add(resolve(params, prompt, llm.info, RequestContext(id="states", stream_mode="denoise")))
    shown, answer = [], []
    while llm.engine.has_work():
        for output in llm.engine.step():
            shown.append((output.start, output.tokens[: llm.info.block_size]))
            answer += output.new_tokens
    return shown, answer


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_golden_states_of_insert_delete(llm: LLM, case: dict[str, Any]) -> None:
    """Compares the states of each block with those of the published decoder.

    If the last step changed a block, the published decoder runs one more forward for the block's K/V and then reports
    the block again. Here the first step of the next block computes that K/V, if there is one.
    """
    assert (llm.info.delete_token_id, llm.info.split_token_id) == (case["delete_token_id"], case["split_token_id"])
    names = ("accept_threshold", "edit_threshold", "max_post_edit_steps")
    params = SamplingParams(
        max_tokens=case["settings"]["max_tokens"], temperature=0, ignore_eos=True,
        decoding={name: case["settings"][name] for name in names},
    )  # fmt: skip
    shown, answer = states(llm, case["prompt_ids"], params)
    assert answer == case["ids_ignore_eos"]
    states_by_block = {
        start: [state["ids"] for state in block] for start, block in groupby(case["states"], lambda s: s["start"])
    }
    ours = {start: [ids for _, ids in block] for start, block in groupby(shown, lambda s: s[0])}
    assert list(ours) == list(states_by_block)
    for start, published in states_by_block.items():
        assert len(published) == case["forwards_per_block"][str(start)]
        assert published[-1] == published[-2]
        mine = ours[start]
        assert mine == published[: len(mine)]
        assert len(published) - len(mine) == (len(mine) == 1 or mine[-1] != mine[-2])


@pytest.mark.matrix
def test_defaults_of_the_strategy(llm: LLM) -> None:
    info = llm.info
    assert (info.family, info.strategy, info.default_algorithm) == ("llada2dot2", "multi_bd", "edit")
    values = info.defaults().values
    assert (values["accept_threshold"], values["edit_threshold"], values["max_post_edit_steps"]) == (0.5, 0.0, 16)
    assert [rule.key for rule in info.algorithms] == ["edit"]
    prompt = [SPLIT, 5, DELETE, MASK, 7, 8, 9]
    (out,) = llm.generate([prompt], SamplingParams(max_tokens=30, temperature=0, ignore_eos=True))
    assert len(out.token_ids) == 30
    assert not {DELETE, SPLIT, MASK} & set(out.token_ids)
    mode = SamplingParams(max_tokens=9, decoding={"mode": "quality"})
    assert resolve(mode, prompt, info, RequestContext(id="x")).decoding.values["edit_threshold"] == 0.5
    drawn = SamplingParams(max_tokens=30, temperature=1.0, seed=3, ignore_eos=True)
    assert llm.generate([prompt], drawn)[0].token_ids == llm.generate([prompt] * 2, drawn)[0].token_ids


@pytest.mark.parametrize(
    ("ids", "says"),
    [
        ({"delete_token_id": 7}, "delete_token_id is 7 and split_token_id is None; a model that edits has both"),
        ({"delete_token_id": 7, "split_token_id": 7}, "delete_token_id 7 is also the split_token_id"),
        ({"delete_token_id": 7, "split_token_id": 32}, r"split_token_id 32 is outside the vocabulary \(0 to 31\)"),
    ],
)
def test_invalid_edit_tokens_are_refused(tmp_path: Path, ids: dict[str, int], says: str) -> None:
    write_tiny(tmp_path, seed=1, expert_capacity=3, **ids)
    with pytest.raises(ConfigError, match=says):
        load_engine(EngineConfig(model=str(tmp_path), device="cpu", skip_tokenizer=True))


def test_a_checkpoint_without_edit_tokens_uses_the_edit_algorithm(tmp_path: Path) -> None:
    write_tiny(tmp_path, seed=1, expert_capacity=3)
    with LLM(str(tmp_path), device="cpu", skip_tokenizer=True) as reference:
        assert (reference.info.default_algorithm, reference.info.delete_token_id) == ("edit", None)
        (out,) = reference.generate([[1, 2, 3]], SamplingParams(max_tokens=9, ignore_eos=True))
        assert len(out.token_ids) == 9
