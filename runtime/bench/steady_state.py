"""Steady-state steps: the requests of a step, and how the next one gets the same input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from runtime.errors import ConfigError
from runtime.scheduling.kv_cache_manager import KVCacheManager
from runtime.scheduling.request import Request
from runtime.scheduling.strategy import Strategy

if TYPE_CHECKING:  # machines that measure may lack msgspec
    from runtime.engine.engine import Engine

COLUMNS = (  # of a table of such steps; those that no row has are left out
    *("case", "batch", "context", "loras", "rows", "sampled", "wall_ms", "device_ms", "gap_ms", "host_ms", "ratio"),
    *("experts", "replayed", "floor_ms", "of_floor", "chain_floor_ms", "of_chain_floor", "error", "parts_ms"),
    *("of_parts", "tokens_per_s"),
)
KINDS = {
    "plain": "every request denoises a block",
    "commit": "every request forwards a finished block and a new one",
    "some": "one request in eight as in commit, the others as in plain",
    "mixed": "as plain, plus a prefill chunk of another request",
    "prefill": "prompts with their first blocks, as many as --budget holds",
}
TIMED_STEPS = 12  # steps with the same requests, if some of their blocks end
WARMUP_STEPS = 12  # steps before the timed ones
# A value of a parameter of the algorithm with which any step ends a block, and one with which none does.
ENDING = {"accept_threshold": (0.0, 1.0), "max_denoising_steps": (1.0, 4096.0)}
CHUNK = 512  # rows of the prompt in a mixed step
SERVED = 8192  # maximum number of rows of a server's step, by default


@dataclass(frozen=True)
class Member:
    """A request of a step.

    Attributes:
        prompt: number of prompt tokens.
        cached: prompt tokens that are cached before each step. None: all, or those that an open canvas leaves cached.
        ends: each step ends its block, so that the next one commits it. Its context grows by a block per step.
    """

    prompt: int
    cached: int | None = None
    ends: bool = False

    def rewind(self, request: Request) -> None:
        if self.cached is not None:
            request.num_computed_tokens = self.cached
            request.kv.reused_spans = []

    def max_tokens(self, block: int) -> int:
        return (WARMUP_STEPS + TIMED_STEPS + 2) * block if self.ends else block


@dataclass(frozen=True)
class SteadyStep:
    """A step whose input is reset before each run.

    Attributes:
        members: its requests.
        rows: number of rows of each run.
        max_requests: maximum number of running requests of the engine that runs it.
        budget: maximum number of rows of a step of that engine.
        rewinds: the state of its requests is reset before each run, which no early launch can know.
    """

    members: list[Member]
    rows: int
    max_requests: int
    budget: int = SERVED

    @property
    def rewinds(self) -> bool:
        return any(member.cached is not None for member in self.members)


def steady_step(kind: str, batch: int, context: int, block: int, strategy: Strategy, budget: int) -> SteadyStep:
    """Returns the step `kind` of `batch` requests.

    Args:
        kind: one of `KINDS`, or "chunk", which is the part that "mixed" adds to "plain".
        batch: number of requests; not used for "prefill", whose number follows from `budget`.
        context: number of tokens before the denoised block. For "prefill", length of a prompt with its first block. If
            prompt tokens are never final, length of the canvas, whose last block is open.
        block: block size.
        strategy: decoding strategy of the model.
        budget: maximum number of rows of "prefill". One prompt may exceed it.

    Raises:
        ConfigError: the strategy has no such step.
    """
    canvas = strategy.initial_final_len(context) == 0
    if canvas and kind in ("commit", "some", "mixed", "chunk"):
        raise ConfigError(f"--cases {kind}: is not supported for models that attend to a complete canvas")
    member = Member(context - block if canvas else context)
    chunk = Member(3 * CHUNK, CHUNK)
    if kind in ("commit", "some"):
        ending = batch if kind == "commit" else -(-batch // 8)
        members = [Member(context, ends=True)] * ending + [member] * (batch - ending)
        return SteadyStep(members, (batch + ending) * block, batch)
    if kind == "mixed":
        rows = batch * block + CHUNK
        return SteadyStep([*[member] * batch, chunk], rows, batch + 1, rows)
    if kind == "chunk":
        return SteadyStep([chunk], CHUNK, batch + 1, CHUNK)
    if kind == "prefill":
        if context <= block:
            raise ConfigError(f"--prompt {context} leaves no prompt before its first block of {block}")
        count = max(1, budget // context)
        return SteadyStep([Member(context - block, 0)] * count, count * context, count, max(budget, context))
    return SteadyStep([member] * batch, batch * block, batch)


def pages_of(step: SteadyStep, strategy: Strategy, block: int, page_size: int) -> int:
    """Returns the number of KV pages of the step's requests."""
    grain = strategy.block_layout.alignment
    cache = KVCacheManager(num_pages=1, page_size=page_size, block_size=grain, prefix_caching=False)
    totals = [strategy.total_len(member.prompt, member.max_tokens(block)) for member in step.members]
    page_groups = [cache.page_groups_for(total) for total in totals]
    return sum(page_groups) * cache.pages_per_group


def begin(engine: Engine, step: SteadyStep) -> Callable[[], None]:
    """Runs steps until all requests of `step` denoise. They were added to `engine` in the order of its members.

    Returns:
        A function to call before each further step. It resets the requests.
    """
    scheduler = engine.scheduler
    while scheduler.waiting or any(request.prefilling or not request.nfe for request in scheduler.running):
        engine.step()
    back = list(zip(step.members, scheduler.running, strict=True))
    for member, request in back:
        set_ending(request, ends=member.ends)

    def rewind() -> None:
        for member, request in back:
            member.rewind(request)

    return rewind


def set_ending(request: Request, *, ends: bool) -> None:
    """Lets every step end a block of the request, or none."""
    for name, values in ENDING.items():
        if name in request.algorithm.columns:
            request.params[request.algorithm.columns[name]] = values[not ends]
