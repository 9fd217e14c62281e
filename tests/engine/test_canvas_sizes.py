"""Canvases that are shorter than those of the server: equal to the naive decoder with canvases of these sizes."""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from itertools import accumulate
from typing import Any

import pytest

from runtime import LLM, SamplingParams
from runtime.errors import RequestError
from runtime.request.resolve import RequestContext, resolve
from runtime.scheduling.strategy import DecodingContext, max_request_len
from runtime.strategies.registry import make_strategy
from tests.engine.canvases import FOLDER, REQUESTS, SETTINGS, asked, load, oracle_answer
from tests.oracle import canvas
from tests.worker.replays import pretending

SERVED = 80  # positions of the server's canvases
STEPS = 3  # at most, per canvas
# Tokens, fields of a request, and the sizes of its canvases.
CASES = [
    (1, {}, [64]),
    (64, {}, [64]),
    (65, {}, [80]),
    (81, {}, [80, 64]),
    (15, {"min_canvas_length": 16}, [16]),
    (33, {"min_canvas_length": 16}, [48]),
    (90, {"min_canvas_length": 16}, [80, 16]),
    (40, {"canvas_length": 16}, [16, 16, 16]),
    (63, {"canvas_length": 48}, [48, 48]),
    (17, {"full_canvas": True}, [80]),
    (40, {"canvas_length": 32, "full_canvas": True}, [32, 32]),
]


def ask_for(n: int) -> tuple[list[int], SamplingParams]:
    """Returns prompt and parameters of case `n`."""
    tokens, fields, _ = CASES[n]
    prompt, ask = asked(n % len(REQUESTS))
    return prompt, replace(
        ask, max_tokens=tokens, seed=n, return_step_map=True,
        decoding={**(ask.decoding or {}), "max_denoising_steps": STEPS, **fields},
    )  # fmt: skip


@pytest.fixture(scope="module")
def expected() -> list[canvas.Answer]:
    model, answers = load(), []
    for n, (tokens, _, sizes) in enumerate(CASES):
        settings = replace(SETTINGS[REQUESTS[n % len(REQUESTS)][2]], max_steps=STEPS)
        size_at = {tokens - sum(sizes[:i]): size for i, size in enumerate(sizes)}
        answers.append(oracle_answer(model, ask_for(n)[0], tokens, n, settings, size_at.__getitem__))
    return answers


@pytest.mark.parametrize(
    ("graphs", "pages"),
    [
        pytest.param(False, 400, id="eager"),
        pytest.param(True, 400, id="graphs", marks=pytest.mark.matrix),
        pytest.param(True, 40, id="few pages", marks=pytest.mark.matrix),
    ],
)
def test_answers_equal_the_oracle_in_one_batch(
    expected: list[canvas.Answer], graphs: bool, pages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Canvases of all sizes are in the same steps. With few pages some restart."""
    flags = {"block_size": SERVED, "max_model_len": 220, "page_size": 8, "max_num_batched_tokens": 256}
    prompts, params = zip(*map(ask_for, range(len(CASES))), strict=True)
    with (
        pretending(monkeypatch) if graphs else nullcontext(),
        LLM(str(FOLDER), device="cpu", dtype="float64", skip_tokenizer=True, num_pages=pages, **flags) as llm,
    ):
        answers = llm.generate(list(prompts), list(params))
        stats = llm.engine.stats()
    assert [(out.token_ids, out.nfe) for out in answers] == [(answer.ids, answer.nfe) for answer in expected]
    for out, (tokens, _, sizes) in zip(answers, CASES, strict=True):
        assert out.block_starts == [0, *accumulate(sizes[:-1])], "the answer has blocks of other sizes"
        assert len(out.step_map) == tokens
    assert (stats.preemptions > 0) == (pages == 40)


def test_a_request_has_only_the_positions_of_its_canvases() -> None:
    strategy = make_strategy("diffusion_gemma", ("diffusion_gemma",), DecodingContext(SERVED, None, True, 220))
    defaults = {field.name: field.default for field in strategy.fields}
    for tokens, fields, sizes in CASES:
        positions = strategy.total_len(10, tokens, {**defaults, **fields})
        assert positions == 10 + sum(sizes)
        assert positions <= max_request_len(strategy, 10 + tokens)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"canvas_length": 15}, "canvas_length: 15 is out of range; it must be at least 16"),
        ({"canvas_length": 24}, "canvas_length: 24 is no multiple of 16"),
        ({"canvas_length": 96}, "canvas_length: 96 is out of range; it must be at most 80"),
        ({"min_canvas_length": 40}, "min_canvas_length: 40 is no multiple of 16"),
        ({"full_canvas": 1}, "full_canvas: 1 is not true or false"),
    ],
)
def test_refused_sizes(llm: LLM, fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RequestError, match=sentence):
        resolve(SamplingParams(decoding=fields), [1], llm.info, RequestContext(id="refused"))


def test_the_flag_and_the_size_of_a_small_server() -> None:
    with LLM(str(FOLDER), device="cpu", skip_tokenizer=True, block_size=8, full_canvas=True) as llm:
        values = llm.info.defaults().values
    assert (values["canvas_length"], values["min_canvas_length"], values["full_canvas"]) == (8, 8, True)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(str(FOLDER), device="cpu", skip_tokenizer=True, block_size=SERVED, max_model_len=220) as made:
        yield made
