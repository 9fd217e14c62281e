"""The values in use, for the log at start."""

from __future__ import annotations

from collections.abc import Mapping

from runtime.models.block_size import BlockSize
from runtime.models.published import PublishedDefaults
from runtime.request.engine_messages import EngineInfo
from runtime.request.field_spec import Value


def values_in_use(info: EngineInfo, block_size: BlockSize, published: PublishedDefaults) -> list[str]:
    """Returns lines with the block size, the special tokens, and the values of a request that sets none."""
    mask = "none, blocks are canvases of noise" if info.mask_token_id is None else str(info.mask_token_id)
    eos = ", ".join(map(str, info.eos_token_ids)) or "none"
    defaults = info.defaults()
    origin = f" (with the published settings of {published.repository})" if published.changed_by_name else ""
    return [
        f"block size {block_size.tokens}, from {block_size.source}",
        f"mask {mask}; EOS {eos}",
        f"default sampling: {_listed(info.sampling)}",
        f"default decoding{origin}: algorithm {defaults.algorithm}, {_listed(defaults.values)}",
    ]


def _listed(values: Mapping[str, Value]) -> str:
    return ", ".join(
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in values.items()
    )
