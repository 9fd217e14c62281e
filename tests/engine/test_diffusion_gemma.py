"""Tests of the strategy `diffusion_gemma` in the engine: golden answers, oracle, preemption and batches."""

import json
from dataclasses import replace

import msgspec
import pytest
import torch
from safetensors.torch import load_file

from runtime import LLM, SamplingParams
from runtime.algorithms import logits_ops
from runtime.algorithms.logits_ops import Candidate
from runtime.errors import ConfigError
from runtime.kernels.uniform_numbers import DRAW, RENOISE
from runtime.models.diffusion_gemma import DIFFUSION_GEMMA
from runtime.request.resolve import RequestContext, resolve
from runtime.strategies.diffusion_gemma import Canvas
from tests.engine.canvases import FIELDS, FOLDER, REQUESTS, SETTINGS, asked, load, oracle_answer
from tests.oracle import canvas

CASES = [c for c in json.loads((FOLDER / "cases.json").read_text()) if c["kind"] == "generate"]


def options(settings):
    return {name: settings[name] for name in FIELDS} | {"max_denoising_steps": settings["max_steps"]}


@pytest.fixture(scope="module")
def llm():
    with LLM(str(FOLDER), device="cpu", skip_tokenizer=True) as made:
        yield made


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_golden_answers(llm, case, monkeypatch):
    """The recorded draws replace the random numbers of the request."""
    expected = load_file(FOLDER / "expected.safetensors")
    draws = {name: expected[key] for name, key in case["draws"].items()}

    def initial(self, request, start, size):
        return draws["initial"][(start - request.prompt_len) // self.size].numpy()

    def numbers(own, block, at, stream):
        if stream == DRAW:
            return torch.zeros(len(block), dtype=torch.float64)
        if stream == RENOISE:
            found = draws["renoise"][own[block, 1], at]
        else:
            number = (own[block, 2] - len(case["prompt_ids"])) // 16
            found = draws["initial"][number.clamp(max=len(draws["initial"]) - 1), at]
        return (found + 0.5).double() / 224

    def multinomial(self, probs, uniform):
        token = next(steps)
        return Candidate(token, probs.gather(1, token[:, None])[:, 0])

    monkeypatch.setattr(Canvas, "_noise", initial)
    monkeypatch.setattr(llm.engine.runner.model_step.sampler, "uniform_numbers", numbers)
    monkeypatch.setattr(logits_ops.LogitsOps, "multinomial", multinomial)
    stops = case["finish_reason"] == "stop"
    for ignore_eos in (True, False)[not stops :]:
        steps = iter(draws["sampled"])
        ask = SamplingParams(
            max_tokens=case["settings"]["max_tokens"], ignore_eos=ignore_eos, decoding=options(case["settings"])
        )
        (out,) = llm.generate([case["prompt_ids"]], ask)
        suffix = "_ignore_eos" if ignore_eos else ""
        assert out.token_ids == case[f"ids{suffix}"]
        assert out.nfe == case[f"nfe{suffix}"]
        assert out.finish_reason == ("length" if ignore_eos else case["finish_reason"])


def step_map(answer: canvas.Answer) -> list[int]:
    """Returns the first of the last steps in a row that gave each position the token of the answer."""
    found, number = [], 0
    for steps in answer.steps:
        held: list[tuple[int, int] | None] = [None] * len(steps[0].before)  # a step and its token
        for step, following in zip(steps, [*steps[1:], None], strict=True):
            number += 1
            after = (step.argmax if following is None else following.before).tolist()
            for at, token in enumerate(after):
                accepted = following is None or bool(step.accepted[at])
                if not accepted:
                    held[at] = None
                elif held[at] is None or held[at][1] != token:
                    held[at] = number, token
        found += [each[0] for each in held]
    return found[: len(answer.ids)]


def test_engine_equals_the_oracle_whatever_the_batch():
    """The requests run together: with few pages, so that canvases restart; with chunked prompts; with many pages."""
    model = load()
    expected = [
        oracle_answer(model, asked(n)[0], max_tokens, 40 + n, SETTINGS[number])
        for n, (_, max_tokens, number) in enumerate(REQUESTS)
    ]
    assert len({answer.nfe for answer in expected}) > 1
    for n in (1, 2):
        assert any(len(steps) < SETTINGS[REQUESTS[n][2]].max_steps for steps in expected[n].steps), (
            "no canvas ends before the step limit"
        )
    prompts, params = zip(*(asked(n) for n in range(len(REQUESTS))), strict=True)
    params = [replace(each, return_step_map=True) for each in params]
    for pages, budget, page_size in ((18, 64, 8), (200, 33, 32), (200, 512, 4)):
        config = {"num_pages": pages, "max_num_batched_tokens": budget, "page_size": page_size, "max_model_len": 96}
        with LLM(str(FOLDER), device="cpu", dtype="float64", skip_tokenizer=True, **config) as llm:
            for _ in range(2):  # the second time with prefix cache hits from the first
                for out, answer in zip(llm.generate(list(prompts), list(params)), expected, strict=True):
                    assert out.token_ids == answer.ids
                    assert out.nfe == answer.nfe
                    assert (out.step_map, out.last_step_map) == (step_map(answer), None)
            while llm.engine.has_work():  # commits of answers for the prefix cache
                llm.engine.step()
            stats = llm.engine.stats()
            assert (stats.preemptions > 0) == (pages == 18)
            assert stats.prefix_hit_tokens > 0
            assert stats.pages_used == 0


def test_a_pinned_answer_ends_after_a_preemption():
    """All of its tokens are in the prefix cache, from an equal request."""
    prompt, ask = asked(0)
    ask = replace(ask, max_tokens=32)  # two canvases, all of whose positions are in the answer
    config = {"num_pages": 200, "max_num_batched_tokens": 33, "page_size": 1, "max_model_len": 96}
    with LLM(str(FOLDER), device="cpu", skip_tokenizer=True, **config) as llm:
        engine = llm.engine
        pinned = dict.fromkeys(range(ask.max_tokens), 7)
        for id in ("first", "second"):
            engine.add(resolve(ask, prompt, llm.info, RequestContext(id=id, pinned_tokens=pinned)))
        sent = []
        while "first" not in [output.id for output in sent]:
            sent += engine.step()
        (second,) = (request for request in engine.scheduler.running if not request.finished)
        engine.scheduler._preempt(second)
        while engine.has_work():
            sent += engine.step()
        assert [(output.id, output.new_tokens, output.finish_reason) for output in sent] == [
            (id, list(pinned.values()), "length") for id in ("first", "second")
        ]


@pytest.mark.parametrize("held", [False, True], ids=["written at once", "written while the next runs"])
def test_a_preemption_changes_nothing(llm, held, monkeypatch):
    """All running requests are preempted at once. Their canvases restart, possibly in other slots on the device."""
    engine, sent = llm.engine, []
    if held:
        monkeypatch.setattr(engine, "_on_outputs", lambda: sent.extend(engine.take_outputs()))
    prompts, params = zip(*(asked(n) for n in range(3)), strict=True)
    ids = [f"{n}" for n in range(3)]

    def answers(preempted: int | None = None) -> tuple[dict[str, tuple[list[int], int]], int]:
        """Returns tokens and nfe by request, and the number of steps. Before step `preempted`, all are preempted."""
        for id, prompt, ask in zip(ids, prompts, params, strict=True):
            engine.add(resolve(ask, prompt, llm.info, RequestContext(id=id)))
        sent.clear()
        step = 0
        while engine.has_work():
            if step == preempted:
                for request in [r for r in engine.scheduler.running if not r.finished]:
                    before = request.nfe - sum(block.steps for block in request.blocks)
                    engine.scheduler._preempt(request)
                    assert request.nfe == before
            engine.execute_step()
            if not held:
                sent.extend(engine.take_outputs())
            step += 1
        sent.extend(engine.take_outputs())
        return {out.id: (out.new_tokens, out.nfe) for out in sent}, step

    undisturbed, steps = answers()
    assert steps > 15
    chosen = range(1, steps, 4)
    longer = 0
    for preempted in chosen:
        found, taken = answers(preempted)
        longer += taken > steps
        assert found == undisturbed, preempted
    assert longer > len(chosen) / 2, "the preemption caused no additional step"


def test_a_first_step_that_has_nothing_else_to_forward_is_reported(llm, monkeypatch):
    """The prompt is completely cached. The outputs of a step are processed while the next one runs."""
    _, params = asked(0)
    prompt, sent = list(range(50, 82)), []
    monkeypatch.setattr(llm.engine, "_on_outputs", lambda: sent.extend(llm.engine.take_outputs()))
    for number in range(2):
        llm.engine.add(resolve(replace(params, max_tokens=16), prompt, llm.info, RequestContext(id=f"{number}")))
        while llm.engine.has_work():
            llm.engine.execute_step()
        sent.extend(llm.engine.take_outputs())
    assert [out.cached_tokens for out in sent] == [0, 32]
    assert sent[0].new_tokens == sent[1].new_tokens


def test_exactly_as_many_tokens_as_asked_for_and_no_more_steps(llm):
    for length in (1, 15, 16, 17):
        prompt, params = asked(0)
        (out,) = llm.generate([prompt], replace(params, max_tokens=length))
        assert (len(out.token_ids), out.nfe) == (length, 4 * -(-length // 16))
    (out,) = llm.generate([prompt], replace(params, max_tokens=40, max_nfe=6))
    assert (len(out.token_ids), out.nfe, out.finish_reason) == (16, 6, "max_nfe")
    (out,) = llm.generate([prompt], replace(params, max_tokens=40, max_nfe=3))
    assert (out.token_ids, out.finish_reason) == ([], "max_nfe")


def test_pinned_positions_stay_and_a_pinned_canvas_costs_no_step(llm):
    prompt, params = asked(0)
    pinned = {3: 7, 9: 11} | {offset: offset for offset in range(16, 32)}
    for length, nfe in ((40, 8), (32, 4)):  # the pinned canvas is between two others, or is the last one
        spec = resolve(replace(params, max_tokens=length), prompt, llm.info, RequestContext(id="given"))
        llm.engine.add(msgspec.structs.replace(spec, pinned_tokens=pinned))
        outputs = []
        while llm.engine.has_work():
            outputs += llm.engine.step()
        (out,) = outputs
        assert (len(out.new_tokens), out.nfe, out.finish_reason) == (length, nfe, "length")
        assert {offset: out.new_tokens[offset] for offset in pinned} == pinned


def test_an_end_token_counts_only_when_it_is_committed(llm):
    """The first EOS of the committed tokens ends the answer. Those of earlier steps of a canvas do not."""
    prompt, params = asked(0)
    (full,) = llm.generate([prompt], params)
    end = full.token_ids[20]
    stop = full.token_ids.index(end)
    with LLM(str(FOLDER), device="cpu", skip_tokenizer=True, eos_token_ids=[end]) as other:
        (out,) = other.generate([prompt], replace(params, ignore_eos=False))
    assert (out.token_ids, out.finish_reason) == (full.token_ids[:stop], "stop")
    assert out.nfe == 4 * (stop // 16 + 1)


def test_temperature_scales_the_schedule(llm):
    prompt, params = asked(0)

    def answer(seed=5, temperature=None, **fields):
        decoding = {**params.decoding, **fields}
        ask = replace(params, max_tokens=16, seed=seed, temperature=temperature, decoding=decoding)
        return llm.generate([prompt], ask)[0].token_ids

    assert answer() == answer(temperature=1)
    assert answer(temperature=2) == answer(t_min=0.8, t_max=1.6)
    assert answer(temperature=2) != answer() != answer(seed=6)
    # all positions are accepted in one step: only the initial canvas is random
    greedy = answer(temperature=0, entropy_bound=1000, max_denoising_steps=1)
    assert greedy == answer(temperature=3, entropy_bound=1000, max_denoising_steps=1), "tokens are not the argmax"


def test_every_step_is_reported(llm):
    """A denoise event shows the canvas before the next step. Its positions in `masked` are noise."""
    prompt, params = asked(0)
    spec = resolve(replace(params, max_tokens=16), prompt, llm.info, RequestContext(id="sent", stream_mode="denoise"))
    llm.engine.add(spec)
    outputs = []
    while llm.engine.has_work():
        outputs += llm.engine.step()
    assert [len(out.tokens) for out in outputs] == [16] * 4
    assert all(out.start == len(prompt) for out in outputs)
    assert all(0 < len(out.masked) < 16 for out in outputs[:-1])
    assert outputs[-1].masked == []
    assert outputs[-1].tokens == outputs[-1].new_tokens
    assert sum(len(out.new_tokens) for out in outputs) == 16


def test_defaults_are_those_of_the_checkpoint(llm):
    info = llm.info
    assert (info.strategy, info.block_size, info.mask_token_id, info.temperature) == ("diffusion_gemma", 16, None, 1.0)
    assert [rule.key for rule in info.algorithms] == [info.default_algorithm] == ["noise"]
    published = {
        "max_denoising_steps": 48, "entropy_bound": 0.1, "t_min": 0.4, "t_max": 0.8, "stability_threshold": 1,
        "confidence_threshold": 0.005, "canvas_length": 16, "min_canvas_length": 16, "full_canvas": False,
    }  # fmt: skip
    assert info.defaults().values == published
    with LLM(str(FOLDER), device="cpu", skip_tokenizer=True, diffusion_gemma_t_max=0.7) as other:
        assert other.info.defaults().values == published | {"t_max": 0.7}
    for wrong, sentence in (
        ({"t_max": 0}, "generation_config.json: t_max must be a number above 0"),
        ({"stability_threshold": -1}, "generation_config.json: stability_threshold must be a whole number"),
        ({"sampler_config": 3}, "sampler_config must be an object"),
        ({"sampler_config": {"_cls_name": "Other"}}, "_cls_name is 'Other'"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            DIFFUSION_GEMMA.generation(wrong)


def test_tokens_are_counted_when_they_are_accepted(llm: LLM) -> None:
    """A canvas takes up to 48 steps, which would otherwise be logged without a token."""
    before = llm.engine.stats()
    prompt = list(range(40, 50))
    made = []
    for _ in llm.stream(prompt, SamplingParams(max_tokens=8, ignore_eos=True)):
        made.append(llm.engine.stats().generated_tokens - before.generated_tokens)
    assert made == sorted(made)
    assert len(set(made)) > 1
    assert made[-1] == 8
