"""Computes the logits of a sequence in one forward pass without the KV cache, for ``runtime.llm.LLM.logits``."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from runtime.engine.engine import Engine
from runtime.engine.request import Request
from runtime.engine.step_plan import block_causal_plan
from runtime.errors import RequestError
from runtime.request.engine_messages import RequestSpec
from runtime.request.validation import integer
from runtime.worker.model_runner import SupportsLogits


def sequence_logits(engine: Engine, ids: list[int], block_size: int | None = None, adapter: str = "") -> torch.Tensor:
    """[len(ids), vocab] on the CPU, under block-causal attention in blocks of `block_size`; without it, as the engine's
    strategy lets the rows of a prompt see."""
    runner = engine.runner
    if not isinstance(runner, SupportsLogits):
        raise TypeError("this engine has no model")
    if not ids:
        raise RequestError("prompt: is empty; give at least one token", param="prompt")
    last = engine.info.vocab_size - 1
    for i, token in enumerate(ids):
        integer(f"prompt[{i}]", token, 0, last)
    block = integer("block_size", block_size, 1, 2**31, default=None)
    page_size = engine.info.page_size
    pages = -(-len(ids) // page_size)
    plan = block_causal_plan(
        np.array(ids), np.zeros(1, np.int64), np.array([len(ids)]), np.arange(pages, dtype=np.int32)[None],
        page_size=page_size, block_size=block or 1,
    )  # fmt: skip
    if block is None:
        spec = RequestSpec(id="", prompt=ids, max_tokens=0, decoding=engine.info.defaults())
        mask = engine.info.mask_token_id or 0
        alone = Request(
            spec, size=len(ids), num_final_tokens=len(ids), mask_id=mask, arrival_index=0, get_algorithm=engine.rules
        )
        seen = engine.strategy.visible_end([alone], np.zeros_like(plan.positions), plan.positions)
        settled = np.zeros_like(plan.is_editable)
        plan = replace(plan, visible_end=np.minimum(seen, len(ids)).astype(np.int32), is_editable=settled)
    if adapter:
        engine.settle()
        if not engine.adapters.fits(adapter):
            raise RequestError("adapter: all of --max-loras are in use by answers under way", param="adapter")
        slots = np.full(len(ids), engine.adapters.bring(adapter), dtype=np.int32)
        plan = replace(plan, lora_slots=slots, active_lora_modules=engine.adapters.touched([adapter]))
    return runner.logits(plan, pages)
