"""Tests of limits on the work per step that a client can cause."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from runtime.errors import RequestError
from runtime.request.engine_messages import LogitsProcessorParams, RequestSpec
from runtime.request.resolve import MAX_BIASED_IDS, RequestContext, resolve
from runtime.request.sampling_params import (
    MAX_LOGPROBS,
    MAX_STOP_CHARS,
    MAX_STOP_IDS,
    MAX_STOPS,
    SamplingParams,
    stop_strings,
)
from runtime.scheduling.logits_processors import LogitsProcessorState
from tests.request.test_sampling_params import info

LARGE = info(vocab_size=2000, max_token_id=1998, mask_token_id=1999, max_model_len=65_536, num_pages=10_000)
EOS = 1


def spec_of(prompt: list[int], **params: Any) -> RequestSpec:
    return resolve(SamplingParams(**params), prompt, LARGE, RequestContext(id="r"))


@pytest.mark.parametrize(
    ("field", "allowed", "refused"),
    [
        ("stop", ["x" * MAX_STOP_CHARS], ["x" * (MAX_STOP_CHARS + 1)]),
        ("stop", [str(n) for n in range(MAX_STOPS)], [str(n) for n in range(MAX_STOPS + 1)]),
        ("stop_token_ids", list(range(MAX_STOP_IDS)), list(range(MAX_STOP_IDS + 1))),
        ("logprobs", MAX_LOGPROBS, MAX_LOGPROBS + 1),
        ("logit_bias", {str(n): 1.0 for n in range(MAX_BIASED_IDS)}, {str(n): 1.0 for n in range(MAX_BIASED_IDS + 1)}),
    ],
)  # fmt: skip
def test_a_field_that_exceeds_its_limit_is_refused(field: str, allowed: Any, refused: Any) -> None:
    spec_of([1, 2], **{field: allowed})
    with pytest.raises(RequestError) as error:
        spec_of([1, 2], **{field: refused})
    assert error.value.param == field


def test_stop_strings_of_the_python_api_have_the_same_limits() -> None:
    with pytest.raises(RequestError):
        stop_strings([str(n) for n in range(MAX_STOPS + 1)])


def state_of(prompt: list[int], stop_ids: list[int], **params: Any) -> LogitsProcessorState:
    return LogitsProcessorState(
        spec_of(prompt, stop_token_ids=stop_ids), LogitsProcessorParams(**params), LARGE.eos_token_ids
    )


@pytest.mark.parametrize("size", [0, 10, 2000, 20_000])
def test_counts_of_a_history_of_any_length_are_right(size: int) -> None:
    rng = np.random.default_rng(size)
    prompt, output = rng.integers(2, 1000, 3000), rng.integers(0, 1500, size)
    stop_ids = [3, 4, 1990]
    bias = {3: -1.0, 1234: 2.5, 1998: 100.0}
    state = state_of(prompt.tolist(), stop_ids, repetition=1.2, presence=0.5, bias=bias, min_tokens=7)
    found = state.adjustments(output)
    ends = {EOS, *stop_ids}
    produced = Counter(token for token in output.tolist() if token not in ends)
    known = produced + Counter(token for token in prompt.tolist() if token not in ends)
    ids = sorted({*bias, *ends, *known})
    assert found.ids.tolist() == ids
    assert len(ids) <= len(prompt) + len(output) + MAX_BIASED_IDS + MAX_STOP_IDS + len(LARGE.eos_token_ids)
    assert found.output_counts.tolist() == [produced[token] for token in ids]
    assert found.repetition_counts.tolist() == [known[token] for token in ids]
    assert found.bias.tolist() == [bias.get(token, 0.0) for token in ids]
    assert found.min_tokens.tolist() == [7 * (token in ends) for token in ids]


@pytest.mark.parametrize("repetition", [1.0, 1.2])
def test_counts_that_follow_an_output_equal_those_of_the_output_alone(repetition: float) -> None:
    """Positions are unmasked, edited and masked again, and the end moves."""
    rng = np.random.default_rng(5)
    prompt, stop_ids = rng.integers(0, 60, 40).tolist(), [3, 4]

    def new_state() -> LogitsProcessorState:
        bias = {5: 1.5, 70: -2.0}
        return state_of(prompt, stop_ids, repetition=repetition, frequency=0.5, bias=bias, min_tokens=7)

    state, output = new_state(), np.full(50, -1)
    for step in range(200):
        at = rng.integers(0, 50, rng.integers(0, 6))
        output[at] = np.where(rng.random(len(at)) < 0.3, -1, rng.integers(0, 80, len(at)))
        part = output[: rng.integers(0, 51)] if step % 7 == 0 else output
        found = state.adjustments(part)
        before = [values.copy() for values in found]
        expected = new_state().adjustments(part)
        for mine, right in zip(found, expected, strict=True):
            assert mine.dtype == right.dtype
            np.testing.assert_array_equal(mine, right)
        state.adjustments(output)
        for mine, copy in zip(found, before, strict=True):
            np.testing.assert_array_equal(mine, copy)
    assert len(state.adjustments(np.full(50, -1)).ids) == len(new_state().adjustments(np.full(50, -1)).ids)
