"""Steps that find the same each time: which requests a step is made of, and what is put back before the next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from runtime.engine.kv_cache_manager import KVCacheManager
from runtime.engine.request import Request
from runtime.errors import ConfigError
from runtime.strategies.base import Strategy

if TYPE_CHECKING:  # the machines that measure may lack the messages' package
    from runtime.engine.engine import Engine

COLUMNS = (  # of a table of such steps, as far as they have been measured
    *("case", "batch", "context", "loras", "rows", "sampled", "wall_ms", "device_ms", "host_ms", "ratio", "experts"),
    *("replayed", "floor_ms", "of_floor", "chain_floor_ms", "of_chain_floor", "error", "parts_ms", "of_parts"),
    "tokens_per_s",
)
KINDS = {
    "plain": "every request denoises a block",
    "commit": "every request feeds a finished block and a fresh one",
    "mixed": "as plain, beside a chunk of another's prompt",
    "prefill": "prompts with their first blocks, as many as --budget holds",
}
CHUNK = 512  # rows of the prompt in a mixed step
SERVED = 8192  # rows of a server's largest step, unless its flags say otherwise


@dataclass(frozen=True)
class Member:
    """A request of a step: its prompt, and of that how many positions each step finds in the cache. None: all, or what
    an open canvas leaves there."""

    prompt: int
    cached: int | None = None

    def rewind(self, request: Request) -> None:
        if self.cached is not None:
            request.num_computed_tokens = self.cached
            request.reused_kv_spans = []


@dataclass(frozen=True)
class SteadyStep:
    """`rows`: of each step. `places`: requests at a time of the server that it is a step of. `budget`: most rows of a
    step."""

    members: list[Member]
    rows: int
    max_requests: int
    budget: int = SERVED


def steady_step(kind: str, batch: int, context: int, block: int, strategy: Strategy, budget: int) -> SteadyStep:
    """The step `kind` of `batch` requests with `context` tokens before what they denoise; of `prefill`, of prompts that
    are `context` long together with their first blocks. Where nothing of a prompt is ever final, `context` is a
    canvas, the last block of which is open. "chunk" is what "mixed" adds to "plain".

    Raises:
        ConfigError: the strategy has no such step.
    """
    canvas = strategy.initial_final_len(context) == 0
    if canvas and kind in ("commit", "mixed", "chunk"):
        raise ConfigError(f"--cases {kind}: this model sees its whole canvas, of which no part is forwarded by itself")
    member = Member(context - block if canvas else context)
    chunk = Member(3 * CHUNK, CHUNK)
    if kind == "commit":
        return SteadyStep([Member(context + block, context)] * batch, 2 * batch * block, batch)
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
    """Pages that the step's requests take."""
    grain = strategy.block_layout.alignment
    cache = KVCacheManager(num_pages=1, page_size=page_size, block_size=grain, prefix_caching=False)
    page_groups = [cache.page_groups_for(strategy.total_len(member.prompt, block)) for member in step.members]
    return sum(page_groups) * cache.pages_per_group


def begin(engine: Engine, step: SteadyStep) -> Callable[[], None]:
    """Brings the requests of `step`, which `engine` was given in its members' order, to where all of them denoise.
    Returns what has to be done before each step."""
    scheduler = engine.scheduler
    while scheduler.waiting or any(request.prefilling or not request.nfe for request in scheduler.running):
        engine.step()
    back = list(zip(step.members, scheduler.running, strict=True))

    def rewind() -> None:
        for member, request in back:
            member.rewind(request)

    return rewind
