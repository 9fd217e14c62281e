"""Tests of reads: probabilities at slots behind a prompt equal a full recomputation with an explicit mask."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from runtime import LLM, SamplingParams
from runtime.request.engine_messages import DecodingParams, EngineInfo, EngineOutput, RequestSpec
from runtime.request.read import ReadTemplate, read_spec, slot_capacity
from runtime.request.resolve import RequestContext, resolve
from runtime.scheduling.request import MIN_LOGPROB
from tests.engine.harness import Ask, Run, Setup, decoding_of
from tests.engine.hash_model import HashMemory
from tests.golden import GOLDEN
from tests.models.canvas import Driver
from tests.models.canvas import Run as Rows
from tests.models.paged import load
from tests.models.tiny import checkpoint_of
from tests.oracle.block import Params, banned
from tests.oracle.masks import prefix_causal_ends
from tests.oracle.spelling import KINDS
from tests.request.test_sampling_params import rule_info
from tests.worker.replays import PROMPTS as REPLAYED
from tests.worker.replays import SMALL, pretending

IDS = [2, 5, 7, 11, 2]
SETUPS = [
    Setup(), Setup(block=8, page=4, buffer=3), Setup(block=8, page=16), Setup(strategy="full", budget=64),
    Setup(strategy="full", shift=True, budget=64),
    Setup(strategy="d2f", buffer=2, prefix_caching=False, pages=80),
    Setup(strategy="d2f", shift=True, buffer=2, prefix_caching=False, pages=80),
    Setup(strategy="nemotron_diffusion", pages=80), Setup(strategy="fast_dllm_v2", block=8),
]  # fmt: skip
PROMPTS = ([1], [1, 2, 4], [1, 2, 4, 5], [1, 2, 4, 5, 6, 7, 3, 4, 11, 2, 9], list(range(1, 9)) * 2)


def template(*tokens: int | None) -> ReadTemplate:
    return ReadTemplate(tokens, end=3, pad=0)


def joint_template(capacity: int) -> ReadTemplate:
    """Returns a template of several slots that fits, and begins with a token if there is space for one."""
    return template(*[5, None, 6, None, None, 7][: max(capacity, 1)] if capacity > 1 else [None])


def capacity(engine: Any, prompt: list[int]) -> int:
    return slot_capacity(len(prompt), info_of(engine))


def info_of(engine: Any) -> EngineInfo:
    """Returns the facts of the server, of whose algorithms the harness states a part."""
    return msgspec.structs.replace(engine.info, algorithms=[rule_info("threshold")])


def spec_of(engine: Any, prompt: list[int], read: ReadTemplate, id: str = "r", **more: Any) -> RequestSpec:
    info = info_of(engine)
    spec = read_spec(prompt, read, IDS, info, RequestContext(id=id, **more), param="input")
    width = spec.max_tokens if info.strategy == "full" else info.block_size
    fields = {"cache": "none", "block_length": width, "sub_block_size": info.block_size, "block_cache": False}
    values = decoding_of(Params(max_tokens=1)) | fields
    return msgspec.structs.replace(spec, decoding=DecodingParams(values=values))


def with_best(logprobs: np.ndarray) -> np.ndarray:
    """Returns the log-probabilities of IDS, and the highest one of each row."""
    return np.maximum(np.concatenate([logprobs[:, IDS], logprobs.max(1, keepdims=True)], 1), MIN_LOGPROB)


def expected(setup: Setup, prompt: list[int], read: ReadTemplate) -> np.ndarray:
    """Returns log-probabilities [slots, ids] by one forward over the prompt and the open block."""
    shape, first = setup.oracle, len(prompt)
    origin = first if shape.from_prompt or setup.strategy == "full" else 0
    start = origin + (first - origin) // setup.block * setup.block
    end = first + len(read.tokens) if setup.strategy == "full" else start + setup.block
    answer = [setup.mask if token is None else token for token in read.tokens]
    ids = prompt + answer + [setup.mask] * (end - first - len(answer))
    ends = setup.ends(first, len(ids)) if setup.strategy != "full" else [end] * len(ids)
    if setup.strategy == "nemotron_diffusion":
        ends = prefix_causal_ends(end, start)
    slots = [first + at for at, token in enumerate(read.tokens) if token is None]
    seeded = setup.seeded and slots[0] == start
    if seeded:  # the row before, when the block does not exist yet
        ids, ends, slots = ids[:first], ends[:first], slots[:1]
    rows = banned(HashMemory(setup.vocab).forward(0, ids, ends), shape)[np.array(slots) - max(shape.shift, seeded)]
    rows = rows - rows.max(1, keepdims=True)
    return with_best(rows - np.log(np.exp(rows).sum(1, keepdims=True)))


def finished(engine: Any) -> dict[str, EngineOutput]:
    found = {}
    while engine.has_work():
        found |= {output.id: output for output in engine.step() if output.finish_reason is not None}
    return found


@pytest.mark.parametrize("setup", SETUPS, ids=lambda setup: f"{setup.strategy}-{setup.shift}-{setup.block}")
@pytest.mark.parametrize("replayed", [False, True])
def test_slots_equal_a_recomputation(setup: Setup, replayed: bool) -> None:
    """One engine: later reads find the prompts of earlier ones in the prefix cache, never their slots."""
    run = Run(replace(setup, replayed=replayed))
    for prompt in PROMPTS:
        for read in (template(None), joint_template(capacity(run.engine, prompt))):
            run.engine.add(spec_of(run.engine, prompt, read))
            (output,) = finished(run.engine).values()
            assert (output.new_tokens, output.finish_reason, output.nfe, output.generated) == ([], "stop", 1, 0)
            np.testing.assert_allclose(output.read, expected(setup, prompt, read), atol=1e-9)
    stats = run.engine.stats()
    assert (stats.forwards_read, stats.forwards_denoise, stats.pages_used) == (2 * len(PROMPTS), 0, 0)


@pytest.mark.parametrize("setup", SETUPS, ids=lambda setup: f"{setup.strategy}-{setup.shift}-{setup.block}")
def test_a_batch_with_answers_preemptions_and_an_abort(setup: Setup) -> None:
    long = setup.strategy in ("full", "d2f")  # a prompt has one chunk
    run = Run(replace(setup, pages=max(16, 24 * 4 // setup.page), budget=64 if long else 4 * setup.block))
    answer = run.add(Ask((1, 2, 4, 5, 6), Params(max_tokens=20, ignore_eos=True)))
    reads = {f"q{n}": (p, template(None)) for n, p in enumerate([*PROMPTS, *PROMPTS])}
    for id, (prompt, read) in reads.items():
        run.engine.add(spec_of(run.engine, prompt, read, id, parent_id="a"))
    run.engine.abort("q1")
    found = {}
    for n in range(1000):
        if not run.engine.has_work():
            break
        if n == 2 and run.engine.scheduler.running:
            run.engine.scheduler._preempt(run.engine.scheduler._preemption_victim())
        for output in run.engine.step():
            if output.id == answer:
                run.received[answer].outputs.append(output)
            else:
                found[output.id] = output.read
    assert found.keys() == reads.keys() - {"q1"}
    for id, values in found.items():
        np.testing.assert_allclose(values, expected(setup, *reads[id]), atol=1e-9)
    run.compare()


SHIFTED = ("dream", "diffucoder", "diffullama", "fast_dllm_v2")
UNMASKED = ("diffullama", "fast_dllm_v2", "illada", "llada_moe", "stable_diffcoder")  # no file names the mask
FOLDERS = (
    "llada2_tiny", "llada2dot2", "dmax", "sdar", "sdar_moe", "dream_reasoner", "llada", "dream", "diffucoder",
    "nemotron_diffusion", "diffusion_gemma", *UNMASKED,
)  # fmt: skip
FLAGS = {key: {"mask_token_id": 39} for key in UNMASKED} | {
    "dmax": {"decoding_strategy": "dmax", "sampling_mode": "edit"}
}


def canvas_rows(directory: Path, prompt: list[int], opened: list[int]) -> torch.Tensor:
    """Returns the logits of the last of the causal rows, and of the open rows behind it."""
    driver = Driver(load(directory, torch.float64), 1, len(prompt) + len(opened), 8, torch.float64)
    (causal,) = driver.step(Rows(0, prompt, 0))
    return torch.cat([causal[-1:], *driver.step(Rows(0, opened, len(prompt), open=True))])


def oracle_rows(llm: LLM, key: str, directory: Path, spec: RequestSpec, noise: list[int]) -> torch.Tensor:
    """Returns the logits [slots, vocab] of one forward over everything, without a cache."""
    info, first, size = llm.info, len(spec.prompt), spec.max_tokens
    slots = [at for at in range(size) if at not in spec.pinned_tokens]
    end = size if info.truncate_last_block else info.block_layout.total_len(first, size) - first
    empty = noise or [info.mask_token_id] * end
    opened = [spec.pinned_tokens.get(at, token) for at, token in enumerate(empty)]
    starts_block = info.block_layout.block_start(first, first) == first and slots[0] == 0
    if info.strategy in ("nemotron_diffusion", "diffusion_gemma"):
        rows = canvas_rows(directory, spec.prompt, opened)
        return rows[:1] if starts_block and not noise else rows[1:][slots]
    if info.strategy == "fast_dllm_v2" and starts_block:
        return llm.logits(spec.prompt)[-1:]
    return llm.logits(spec.prompt + opened)[[first + at - (key in SHIFTED) for at in slots]]


PADDED = [("llada2_tiny", True), ("fast_dllm_v2", True), ("diffusion_gemma", True)]  # as a GPU runs captured steps


@pytest.mark.parametrize(("key", "padded"), [*((key, False) for key in FOLDERS), *PADDED])
def test_every_family_in_float64(key: str, padded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pretending(monkeypatch) if padded else nullcontext():
        compare_with_oracle(key, tmp_path)


def compare_with_oracle(key: str, tmp_path: Path) -> None:
    directory = checkpoint_of(key, tmp_path)
    flags: dict[str, Any] = {"model_name": key} if key in KINDS and KINDS[key].needs_model_name else {}
    flags |= {"eos_token_ids": [3], **FLAGS.get(key, {})}
    random = np.random.default_rng(5)
    with LLM(str(directory), device="cpu", dtype="float64", skip_tokenizer=True, max_model_len=128, **flags) as llm:
        info = llm.info
        for length in (1, 2, info.block_size, info.block_size + 1, 41):
            prompt, space = random.integers(0, 30, length).tolist(), slot_capacity(length, info)
            for read in (template(None), joint_template(space)):
                spec = read_spec(prompt, read, IDS, info, RequestContext(id="r"), param="input")
                llm.engine.add(spec)
                noise = []
                if info.mask_token_id is None:
                    request = llm.engine._requests["r"]
                    noise = llm.engine.strategy._noise(request, length, spec.max_tokens).tolist()
                (output,) = finished(llm.engine).values()
                rows = oracle_rows(llm, key, directory, spec, noise)
                special = [info.mask_token_id, info.delete_token_id, info.split_token_id]
                special = [id for id in special if id is not None]
                rows = rows.numpy().copy()
                rows[:, special] = rows[:, info.max_token_id + 1 :] = -np.inf
                values = with_best(torch.from_numpy(rows).log_softmax(1).numpy())
                np.testing.assert_allclose(output.read, values, atol=1e-9)


@pytest.mark.parametrize("padded", [False, True])
def test_a_short_canvas_beside_complete_ones(padded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read of DiffusionGemma has a canvas of its own width, and changes no answer of the same step."""
    params = SamplingParams(max_tokens=20, seed=2, ignore_eos=True)
    with (
        pretending(monkeypatch) if padded else nullcontext(),
        LLM(
            str(GOLDEN / "diffusion_gemma"), device="cpu", dtype="float64", skip_tokenizer=True,
            block_size=32, enforce_eager=not padded, **SMALL,
        ) as llm,
    ):  # fmt: skip
        alone = [llm.generate([prompt], params)[0].token_ids for prompt in REPLAYED]
        read = read_spec(REPLAYED[0], template(None), IDS, llm.info, RequestContext(id="r"), param="input")
        llm.engine.add(read)
        (expected,) = finished(llm.engine).values()
        llm.engine.add(msgspec.structs.replace(read, id="beside"))
        context = RequestContext(id="g")
        for n, prompt in enumerate(REPLAYED):
            llm.engine.add(msgspec.structs.replace(resolve(params, prompt, llm.info, context), id=f"g{n}"))
        found = finished(llm.engine)
    np.testing.assert_allclose(found["beside"].read, expected.read, atol=1e-9)
    assert [found[f"g{n}"].new_tokens for n in range(len(REPLAYED))] == alone
