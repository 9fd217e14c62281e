"""The values in use, for the log at start."""

from __future__ import annotations

from collections.abc import Mapping

from runtime.engine.model_plan import ModelPlan
from runtime.request.engine_messages import EngineInfo
from runtime.request.field_spec import Value


def values_in_use(info: EngineInfo, plan: ModelPlan) -> list[str]:
    """Returns lines with block size, length, special tokens, and the values of a request that sets none."""
    block_size, published = plan.block_size, plan.defaults.published
    mask = "none, blocks are canvases of noise" if info.mask_token_id is None else str(info.mask_token_id)
    eos = ", ".join(map(str, info.eos_token_ids)) or "none"
    defaults = info.defaults()
    origin = f" (with the published settings of {published.repository})" if published.changed_by_name else ""
    return [
        f"block size {block_size.tokens}, from {block_size.source}",
        f"max_model_len {info.max_model_len}, {plan.length_source}",
        f"mask {mask}; EOS {eos}",
        f"default sampling: {_listed(info.sampling)}",
        f"default decoding{origin}: algorithm {defaults.algorithm}, {_listed(defaults.values)}",
    ]


def _listed(values: Mapping[str, Value]) -> str:
    return ", ".join(
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in values.items()
    )
