"""Tests of processed log-probabilities with grammars, and of replays of answers by their step maps.

Random schedules of the engine tests cover processed log-probabilities and candidates without grammars.
"""

import math
from collections.abc import Iterator
from typing import Any

import pytest

from runtime import LLM, SamplingParams
from runtime.errors import RequestError
from tests.golden import GOLDEN
from tests.oracle.model import OracleModel


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(device="cpu", dtype="float64") as made:
        yield made


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_tokens_that_a_grammar_forbids_have_no_probability(llm: LLM, temperature: float) -> None:
    fields: dict[str, Any] = {"max_tokens": 8, "temperature": temperature, "seed": 3, "logprobs": 20}
    form = {"regex": "[ab]{2}-(yes|no)"}
    ask = SamplingParams(**fields, structured_outputs=form, logprobs_mode="processed")
    raw = SamplingParams(**fields, structured_outputs=form)
    one, other = llm.generate(["Anna", "Anna"], [ask, raw])
    assert one.token_ids == other.token_ids
    assert one.logprobs is not None
    assert other.logprobs is not None
    assert one.logprobs != other.logprobs
    for found, plain in zip(one.logprobs, other.logprobs, strict=True):
        assert found.logprob is not None
        assert plain.logprob is not None
        assert found.logprob >= plain.logprob - 1e-9 or temperature
        assert sum(math.exp(value) for _, value in found.top) == pytest.approx(1, abs=1e-9)
        assert dict(found.top)[found.id] == pytest.approx(found.logprob, abs=1e-9)
    forced = [found for found in one.logprobs if len(found.top) == 1]
    assert [found.logprob for found in forced] == pytest.approx([0.0] * len(forced), abs=1e-9)
    assert 0 < len(forced) < len(one.logprobs)


def test_raw_logprobs_do_not_change_with_the_mode_of_another_request(llm: LLM) -> None:
    fields: dict[str, Any] = {"max_tokens": 12, "temperature": 1.0, "top_k": 4, "seed": 9, "logprobs": 3}
    raw, processed = SamplingParams(**fields), SamplingParams(**fields, logprobs_mode="processed")
    alone, _ = llm.generate(["Anna lives"] * 2, [raw, raw])
    beside, other = llm.generate(["Anna lives"] * 2, [raw, processed])
    assert beside.logprobs == alone.logprobs
    assert beside.token_ids == other.token_ids
    assert [found.logprob for found in other.logprobs or ()] != [found.logprob for found in alone.logprobs or ()]


def test_rollouts_of_a_group_differ_and_repeat_with_their_seed(llm: LLM) -> None:
    params = SamplingParams(max_tokens=12, temperature=1.0, n=16, seed=5, ignore_eos=True, return_step_map=True)
    first, second = ([(one.token_ids, one.step_map) for one in llm.generate(["Anna"], params)[0].choices] for _ in "ab")
    assert first == second
    assert len({tuple(ids) for ids, _ in first}) == 16


@pytest.mark.parametrize("buffer", [1, 3])
def test_an_answer_can_be_replayed_by_its_step_map(buffer: int) -> None:
    """In a naive model: each token is the argmax, and has its log-probability, where earlier steps are unmasked."""
    directory = GOLDEN / "llada2_tiny"
    model = OracleModel.load(directory)
    prompt = [5, 6, 7, 1, 2]
    params = SamplingParams(max_tokens=27, temperature=0, ignore_eos=True, logprobs=0, return_step_map=True)
    with LLM(str(directory), device="cpu", dtype="float64", skip_tokenizer=True, buffer_size=buffer) as llm:
        (out,) = llm.generate([prompt], params)
        mask = llm.info.mask_token_id
    assert out.step_map is not None
    assert out.logprobs is not None
    assert set(out.step_map) <= set(range(1, out.nfe + 1))
    end = (len(prompt) + len(out.token_ids)) // model.block * model.block  # of the blocks of which all is known
    for step in sorted(set(out.step_map)):
        pairs = zip(out.token_ids, out.step_map, strict=True)
        ids = prompt + [token if written < step else mask for token, written in pairs]
        logits = model.logits(ids[:end]).clone()
        logits[:, mask] = -math.inf
        for at, written in enumerate(out.step_map):
            if written == step and len(prompt) + at < end:
                row = logits[len(prompt) + at]
                assert int(row.argmax()) == out.token_ids[at]
                assert float(row.log_softmax(0)[out.token_ids[at]]) == pytest.approx(out.logprobs[at].logprob, abs=1e-5)


def test_candidates_of_a_stream(llm: LLM) -> None:
    """The steps of `sequential` take the best candidate of the first masked position."""
    params = SamplingParams(
        max_tokens=6, temperature=0, ignore_eos=True, stream_candidates=2, decoding={"algorithm": "sequential"}
    )
    *events, final = llm.stream("Anna lives", params)
    for event in events:
        assert len(event["candidates"]) == len(event["confidence"]) == len(event["masked"])
        for ids, values in zip(event["candidates"], event["confidence"], strict=True):
            assert len(ids) == len(values) == 2
            assert 1 >= values[0] >= values[1] >= 0
    assert "candidates" not in final
    with pytest.raises(RequestError, match="stream_candidates: is only for streams with stream_mode denoise"):
        llm.generate(["Anna"], params)
    with pytest.raises(RequestError, match="logprobs_mode: processed has no effect without logprobs"):
        llm.generate(["Anna"], SamplingParams(logprobs_mode="processed"))


def test_positions_that_a_grammar_has_not_reached_have_no_candidates(llm: LLM) -> None:
    few: dict[str, Any] = {"max_tokens": 6, "stream_candidates": 2, "decoding": {"accept_threshold": 1.0}}
    events = list(llm.stream("Anna", SamplingParams(**few, structured_outputs={"regex": "[ab]{4}"})))[:-1]
    assert any(event["masked"] for event in events)
    assert all(event["candidates"] == event["confidence"] == [[]] * len(event["masked"]) for event in events)
