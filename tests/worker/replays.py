"""Compares answers of replayed CUDA graphs with those of eager steps, for every family, strategy and algorithm."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from runtime import LLM, SamplingParams
from runtime.config import EngineConfig
from runtime.engine.setup import load_engine
from runtime.llm import forward_logits
from runtime.request.eager_reason import EagerReason
from runtime.request.engine_messages import RequestSpec
from runtime.worker import memory
from runtime.worker.cuda_graph_runner import CudaGraphRunner, run_eagerly
from runtime.worker.graph_padding import sample_output_nbytes
from runtime.worker.host_buffers import BufferLayout, tensor_specs
from runtime.worker.model_runner import ModelStep
from runtime.worker.warmup import READY_REQUESTS
from tests.golden import GOLDEN
from tests.models.golden_answers import SERVER, cases

SMALL = {
    "max_num_reqs": 4, "max_num_batched_tokens": 128, "num_pages": 256, "max_model_len": 96,
}  # fmt: skip
PROMPTS = [[5, 6, 7], [9, 8, 7, 6, 5, 4, 3, 9, 8], list(range(20, 53))]


@dataclass(frozen=True)
class Served:
    """A checkpoint and the flags that it is served with."""

    folder: str
    flags: tuple[tuple[str, Any], ...] = ()


def served(*, once: bool = False) -> list[Any]:
    """Returns pytest parameters: every checkpoint with every strategy and mode of its golden cases.

    Args:
        once: One checkpoint per way of decoding.
    """
    found: dict[Served, None] = dict.fromkeys(map(Served, ("llada2_tiny", "diffusion_gemma", "llada2dot2")))
    found[Served("llada2_tiny", (("buffer_size", 3),))] = None
    for parameters in cases("decode"):
        folder, case = parameters.values
        flags = {name: case["settings"][name] for name in SERVER if name in case["settings"]}
        if "the mask must be given as a flag" in case.get("notes", ""):
            flags["mask_token_id"] = case["mask_token_id"]
        found[Served(folder, tuple(flags.items()))] = None
    if once:
        found = dict.fromkeys({_manner(each): each for each in found}.values())
    return [pytest.param(each, id="-".join([each.folder, *(str(value) for _, value in each.flags)])) for each in found]


def _manner(each: Served) -> tuple[Any, ...]:
    """Returns what distinguishes ways of decoding: two special families, several blocks at a time, and the flags."""
    names = ("decoding_strategy", "sampling_mode", "full_cache")
    flags = dict(each.flags)
    last_step_flags = [each.folder == folder for folder in ("diffusion_gemma", "llada2dot2")]
    return (*last_step_flags, flags.get("buffer_size", 1) > 1, *(flags.get(name) for name in names))


def questions(llm: LLM, every: bool) -> list[list[SamplingParams]]:
    """Returns the sampling parameters of batches."""
    asked = []
    few = {"max_tokens": 20, "ignore_eos": True}
    keys = [rule.key for rule in llm.info.algorithms]
    for key in keys if every else [llm.info.default_algorithm]:
        ways = ({"seed": 2}, {"seed": 3, "temperature": 1.0}, {"seed": 4, "temperature": 0.7, "top_p": 0.9})
        asked.append([SamplingParams(**few, **way, decoding={"algorithm": key}) for way in ways])
    asked.append([SamplingParams(max_tokens=20, seed=n, decoding={"algorithm": keys[n % len(keys)]}) for n in range(3)])
    return asked


def answers(each: Served, rounds: int = 1, every: bool = True, **flags: Any) -> tuple[list[Any], Any]:
    """Returns the answers and the runner. Checks that the answers are the same in every round."""
    with LLM(str(GOLDEN / each.folder), skip_tokenizer=True, **SMALL, **dict(each.flags), **flags) as llm:
        outputs = []
        for asked in questions(llm, every):
            several = [[(out.token_ids, out.nfe) for out in llm.generate(PROMPTS, asked)] for _ in range(rounds)]
            assert all(other == several[0] for other in several), json.dumps(several)
            outputs.append(several[0])
        return outputs, llm.engine.runner


def check(each: Served, rounds: int, *, every: bool = True, **flags: Any) -> None:
    """Compares answers of captured steps with those of eager steps.

    Args:
        rounds: Repetitions of the same requests. In the first round only the graphs captured at start exist.
        every: With every algorithm that the checkpoint can be decoded with.
    """
    expected, _ = answers(each, 1, every, enforce_eager=True, **flags)
    found, runner = answers(each, rounds, every, **flags)
    assert found == expected
    assert isinstance(runner, CudaGraphRunner)
    assert runner.stats.replayed > runner.stats.eager[EagerReason.NOT_CAPTURED] / 4
    assert set(runner.stats.eager) <= {EagerReason.NOT_CAPTURED, EagerReason.TOO_LARGE}


class Quiet(TorchDispatchMode):
    """Refuses operations that a CUDA graph cannot contain: host syncs, and output sizes that depend on values."""

    REFUSED = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "is_nonzero", "equal")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert name not in self.REFUSED, name
        if name in ("index", "index_put", "index_put_"):
            kinds = [index.dtype for index in args[1] if index is not None]
            assert torch.bool not in kinds, "an index is a boolean mask"
        return func(*args, **(kwargs or {}))


@contextmanager
def pretending(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Makes a CPU run steps like captured ones, with padding. Operations that a graph cannot contain raise an error."""
    monkeypatch.setattr(memory, "_uses_cuda_graphs", lambda config, *_: not config.enforce_eager)
    monkeypatch.setattr(memory, "GraphCapturer", lambda device: run_eagerly)
    sample = ModelStep.sample

    def watched(self: ModelStep, *args: Any, graph_safe: bool = False) -> Any:
        if not graph_safe:
            return sample(self, *args)
        with Quiet():
            found = sample(self, *args, graph_safe=True)
        assert BufferLayout(tensor_specs(found)).nbytes <= sample_output_nbytes(args[0])
        return found

    monkeypatch.setattr(ModelStep, "sample", watched)
    yield


def answers_between(*, captures: bool, **flags: Any) -> dict[str, list[int]]:
    """Returns answers by request id. `captures`: graphs are captured and logits computed between their steps."""
    settings = {"model": str(GOLDEN / "llada2_tiny"), "skip_tokenizer": True, **SMALL, "max_num_reqs": 64}
    engine = load_engine(EngineConfig.from_flags(**settings | {"max_num_batched_tokens": 2048} | flags))
    stats = engine.runner.stats
    graph_bytes, between = stats.graph_bytes, 0
    assert stats.graphs_pending > 0
    tokens: dict[str, list[int]] = {}
    for n in range(2 * READY_REQUESTS):  # more than the first graphs that are captured have blocks
        prompt = PROMPTS[n % len(PROMPTS)]
        engine.add(
            RequestSpec(id=str(n), prompt=prompt, max_tokens=40, ignore_eos=True, decoding=engine.info.defaults())
        )
    while engine.has_work():
        for output in engine.step():
            tokens.setdefault(output.id, []).extend(output.new_tokens)
        if captures:
            pending = stats.graphs_pending
            engine.capture_next()
            between += pending - stats.graphs_pending
            forward_logits(engine, PROMPTS[0])
    # without captures between them, steps capture only graphs that they use often
    assert between if captures else stats.graphs_pending
    while engine.capture_next():
        pass
    assert stats.graphs_pending == 0
    assert stats.graph_bytes >= graph_bytes
    engine.close()
    return tokens
