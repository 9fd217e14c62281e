"""Tests of the log-probabilities of forced tokens. Random schedules of the engine tests cover those of answers."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.errors import RequestError
from runtime.request.engine_messages import DecodingParams, RequestSpec
from runtime.request.resolve import RequestContext, score_spec
from runtime.scheduling.request import MIN_LOGPROB
from tests.engine.harness import Ask, Run, Setup, decoding_of
from tests.engine.hash_model import HashMemory
from tests.examples import examples
from tests.oracle.block import Params, banned
from tests.request.test_sampling_params import info, rule_info

SETUPS = [
    Setup(), Setup(block=8, page=4, buffer=3), Setup(strategy="full", shift=False, budget=64),
    Setup(strategy="full", shift=True, budget=64),
    Setup(strategy="d2f", shift=False, buffer=2, budget=64, page=4, prefix_caching=False, pages=80),
    Setup(strategy="d2f", shift=True, buffer=2, budget=64, page=4, prefix_caching=False, pages=80),
    Setup(strategy="nemotron_diffusion", pages=80), Setup(strategy="fast_dllm_v2", block=8),
]  # fmt: skip


def spec_of(setup: Setup, text: list[int], first: int, *, id: str, stride: int = 1, top: int = 2) -> RequestSpec:
    others = {"cache": "none", "block_length": setup.block, "sub_block_size": setup.block, "block_cache": False}
    params = Params(max_tokens=len(text) - first)
    return RequestSpec(
        id=id, prompt=text[:first], max_tokens=len(text) - first, ignore_eos=True, logprobs=top,
        forced_token_ids=text[first:], forced_tokens_per_step=stride,
        decoding=DecodingParams(values=decoding_of(params) | others),
    )  # fmt: skip


def expected(setup: Setup, text: list[int], first: int, stride: int = 1) -> list[np.ndarray]:
    """Returns the log-probabilities of all tokens, for each position from `first` on."""
    shape, size = setup.oracle, setup.block
    origin = first if shape.from_prompt or setup.strategy == "full" else 0
    found: list[np.ndarray] = []
    at = first
    while at < len(text):
        start = origin + (at - origin) // size * size
        seeded = setup.seeded and at == start
        group = min(1 if seeded else stride, start + size - at, len(text) - at)
        end = len(text) if setup.strategy == "full" else start + size
        ids = text[:at] + [setup.mask] * (end - at)
        ends = [end] * len(ids)
        if setup.strategy == "nemotron_diffusion":
            ends = [n + 1 if n < start else end for n in range(len(ids))]
        elif setup.strategy != "full":
            ends = setup.ends(first, len(ids))
        if seeded:  # by the row before, when the block does not exist yet
            ids, ends = ids[:at], ends[:at]
        rows = banned(HashMemory(setup.vocab).forward(0, ids, ends), shape)
        for n in range(at, at + group):
            row = rows[n - max(shape.shift, seeded)]
            found.append(row - row.max() - np.log(np.exp(row - row.max()).sum()))
        at += group
    return found


def received(run: Run, *specs: RequestSpec) -> dict[str, list[tuple[int, float]]]:
    """Runs the requests together and returns the tokens and log-probabilities of each."""
    for spec in specs:
        run.engine.add(spec)
    found = {}
    while run.engine.has_work():
        for output in run.engine.step():
            if output.finish_reason is not None and output.logprobs is not None:
                assert output.finish_reason == "length"
                found[output.id] = list(zip(output.new_tokens, output.logprobs.values, strict=True))
    return found


@pytest.mark.parametrize("setup", SETUPS, ids=lambda setup: f"{setup.strategy}-{setup.shift}-{setup.block}")
@pytest.mark.parametrize("replayed", [False, True])
def test_each_token_depends_on_all_before_it(setup: Setup, replayed: bool) -> None:
    setup = replace(setup, replayed=replayed)
    text = [1, 2, 3, 5, 6, 7, 3, 4, 11, 2, 13, 9, 0, 3]
    for first in (1, 4, 6):
        ((_, logprobs),) = received(Run(setup), spec_of(setup, text, first, id="s")).items()
        rows = expected(setup, text, first)
        assert [token for token, _ in logprobs] == text[first:]
        for (token, value), row in zip(logprobs, rows, strict=True):
            np.testing.assert_allclose(value, max(row[token], MIN_LOGPROB), atol=1e-9)


@examples(25)
@given(data=st.data())
def test_logprobs_with_other_requests_and_several_tokens_per_forward(data: st.DataObject) -> None:
    setup = Setup(block=data.draw(st.sampled_from([4, 8])), buffer=2, pages=200, budget=data.draw(st.integers(24, 80)))
    tokens = st.integers(0, setup.max_token - 2)
    specs, rows = [], {}
    for n in range(data.draw(st.integers(1, 4))):
        text = data.draw(st.lists(tokens, min_size=3, max_size=30))
        first, stride = data.draw(st.integers(1, len(text) - 1)), data.draw(st.integers(1, 9))
        specs.append(spec_of(setup, text, first, id=f"s{n}", stride=stride))
        rows[f"s{n}"] = expected(setup, text, first, stride)
    run = Run(setup)
    answer = run.add(Ask((1, 2, 4), Params(max_tokens=20, ignore_eos=True)))
    queue = list(specs)
    logprobs: dict[str, list[tuple[int, float]]] = {}
    while run.engine.has_work() or queue:
        if queue:
            run.engine.add(queue.pop())
        for output in run.engine.step():
            if output.id == answer:
                run.received[answer].outputs.append(output)
            elif output.finish_reason is not None and output.logprobs is not None:
                logprobs[output.id] = list(zip(output.new_tokens, output.logprobs.values, strict=True))
    run.compare()
    for spec in specs:
        assert [token for token, _ in logprobs[spec.id]] == spec.forced_token_ids
        for (token, value), row in zip(logprobs[spec.id], rows[spec.id], strict=True):
            np.testing.assert_allclose(value, max(row[token], MIN_LOGPROB), atol=1e-9)


def test_engine_request_of_a_score() -> None:
    constrained = info(
        algorithms=[replace(rule, supports_grammar=rule.key == "threshold") for rule in info().algorithms]
    )
    spec = score_spec([4, 5, 6], constrained, RequestContext("s"), param="echo", logprobs=3)
    assert (spec.prompt, spec.forced_token_ids, spec.max_tokens, spec.logprobs) == ([4], [5, 6], 2, 3)
    assert spec.decoding.algorithm == "threshold"
    assert spec.decoding.values["remask_threshold"] == 0
    for wrong, message in (
        (info(mask_token_id=None), "cannot be scored by a model without a mask token"),
        (info(algorithms=[rule_info("edit")]), "cannot be scored with --decoding-strategy multi_bd"),
    ):
        with pytest.raises(RequestError, match=message):
            score_spec([4, 5], wrong, RequestContext("s"), param="echo")
    with pytest.raises(RequestError, match="are more than the model's length"):
        score_spec([4] * 300, constrained, RequestContext("s"), param="echo")
