"""One forward of a whole sequence on a cache of its own: what oracles compare (runtime.md 7, ``LLM.logits``)."""

from __future__ import annotations

import torch

from runtime.engine.engine import Engine
from runtime.engine.model_runner import ModelRunner
from runtime.errors import RequestError
from runtime.fields import integer
from runtime.models.base import ForwardBatch


def sequence_logits(engine: Engine, ids: list[int], block_size: int | None = None) -> torch.Tensor:
    """[len(ids), vocab] on the CPU, under block-causal attention in blocks of `block_size` (default: the engine's)."""
    runner = engine.runner
    if not isinstance(runner, ModelRunner):
        raise TypeError("this engine has no model")
    if not ids:
        raise RequestError("prompt: is empty; give at least one token", param="prompt")
    last = engine.info.vocab_size - 1
    for i, token in enumerate(ids):
        integer(f"prompt[{i}]", token, 0, last)
    block = integer("block_size", block_size, 1, 2**31, default=runner.block_size)
    page = runner.page_size
    pages = -(-len(ids) // page)
    _, layers, _, _, heads, dim = runner.kv_cache.shape
    device = runner.device
    cache = torch.zeros(2, layers, pages, page, heads, dim, dtype=runner.kv_cache.dtype, device=device)
    positions = torch.arange(len(ids), device=device)
    batch = ForwardBatch(
        tokens=torch.tensor(ids, device=device),
        positions=positions,
        slots=positions,
        seq_rows=torch.tensor([0, len(ids)], dtype=torch.int32, device=device),
        cached=torch.zeros(1, dtype=torch.int32, device=device),
        kv_len=torch.tensor([len(ids)], dtype=torch.int32, device=device),
        page_table=torch.arange(pages, dtype=torch.int32, device=device)[None],
        block_size=block,
        page_size=page,
        max_rows=len(ids),
        max_kv=len(ids),
    )
    hidden = runner.model.forward(batch, cache)
    return torch.cat([runner.model.logits(part).cpu() for part in torch.split(hidden, 1024)])
