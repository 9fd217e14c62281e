"""Checkpoints of every family whose heads can be sharded over two ranks, and requests that use all their features."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from runtime import LLM, SamplingParams
from tests.golden import GOLDEN
from tests.models.tiny import write_random
from tests.oracle.spelling import KINDS

LENT = ("llada2_tiny", "llada2dot2", "dmax", "diffusion_gemma")  # golden checkpoints
FAMILIES = (*LENT, *KINDS)
EXPERTS = (*LENT, "sdar_moe", "llada_moe")
PROMPTS = [[5, 6, 7], [9, 8, 7, 6, 5, 4, 3, 9, 8, 1, 2], [3]]
# A vocabulary of odd size, and one KV head for two ranks.
ODD = {"dream": {"vocab_size": 41, "num_key_value_heads": 1}}
MODES: dict[str, dict[str, str]] = {
    "dmax": {"decoding_strategy": "dmax", "sampling_mode": "edit"},
    "llada2dot2": {"sampling_mode": "edit"},
    "a2d_qwen3": {"decoding_strategy": "multi_bd"},
    "a2d_qwen2": {"decoding_strategy": "full"},
}
MASKS = dict.fromkeys(("a2d_qwen3", "a2d_qwen2", "diffullama", "fast_dllm_v2", "illada", "llada_moe"), 39)


def served(key: str, directory: Path) -> dict[str, Any]:
    """Returns the flags to serve a checkpoint, which is written to `directory` unless it is a golden one."""
    flags: dict[str, Any] = {"device": "cpu", "dtype": "float64", "skip_tokenizer": True, **MODES.get(key, {})}
    if key in LENT:
        return flags | {"model": str(GOLDEN / key)}
    write_random(key, directory, **ODD.get(key, {}))
    if KINDS[key].needs_model_name:
        flags["model_name"] = key
    if key in MASKS:
        flags["mask_token_id"] = MASKS[key]
    return flags | {"model": str(directory), "eos_token_ids": [3]}


def asks(llm: LLM, length: int = 13) -> list[SamplingParams]:
    """Returns parameters for every algorithm with its defaults, for each way of sampling, and for further fields."""
    few = {"max_tokens": length, "ignore_eos": True, "seed": 3}  # DiffusionGemma samples in any case
    found = [SamplingParams(**few, temperature=0, decoding={"algorithm": rule.key}) for rule in llm.info.algorithms]
    found += [
        SamplingParams(**few, temperature=0.9),
        SamplingParams(**few, temperature=1.2, top_k=5),
        SamplingParams(**few, temperature=0.7, top_p=0.8, top_k=9),
        SamplingParams(max_tokens=length, temperature=0, seed=4),
    ]
    fields = {
        field.name for rule in llm.info.algorithms if rule.key == llm.info.default_algorithm for field in rule.fields
    }
    for name, value in (
        ("confidence_metric", "margin"), ("confidence_metric", "neg_entropy"), ("remask_threshold", 0.6),
        ("suppress_eos", "logits"), ("penalty_lambda", 0.3), ("token_merge_top_k", 3),
    ):  # fmt: skip
        if name in fields:
            found.append(SamplingParams(**few, temperature=0, decoding={name: value}))
    return found


def answers(flags: dict[str, Any], **more: Any) -> list[Any]:
    """Returns the answers to all requests of `asks`, in one batch."""
    with LLM(**flags, **more) as llm:
        moves = {rule.key for rule in llm.info.algorithms if rule.reorders_tokens}  # which has no step map
        asked = [
            replace(ask, return_step_map=(ask.decoding or {}).get("algorithm", llm.info.default_algorithm) not in moves)
            for ask in asks(llm)
        ]
        prompts = [PROMPTS[n % len(PROMPTS)] for n in range(len(asked))]
        outs = llm.generate(prompts, asked)
        return [(out.token_ids, out.nfe, out.finish_reason, out.step_map, out.last_step_map) for out in outs]


def logits(flags: dict[str, Any], **more: Any) -> Any:
    with LLM(**flags, **more) as llm:
        return llm.logits([5, 6, 7, 3, 9, 12, 8] * 3)
