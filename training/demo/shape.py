"""Architecture of the demo model: LLaDA2 with a few million parameters.

See docs/models/architecture-notes.md#llada2-layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Shape:
    """Sizes of a LLaDA2 model, named as in its config.json."""

    vocab_size: int = 1024
    hidden_size: int = 256
    intermediate_size: int = 512
    num_hidden_layers: int = 8
    num_attention_heads: int = 8
    num_key_value_heads: int = 4
    head_dim: int = 32
    num_experts: int = 8
    num_shared_experts: int = 1
    num_experts_per_tok: int = 2
    n_group: int = 4
    topk_group: int = 2
    moe_intermediate_size: int = 96
    first_k_dense_replace: int = 1
    max_position_embeddings: int = 4096
    rope_theta: float = 10000.0
    partial_rotary_factor: float = 0.5
    routed_scaling_factor: float = 1.5
    rms_norm_eps: float = 1e-6
    block_size: int = 32

    def config(self, eos: int, mask: int) -> dict[str, Any]:
        """Returns config.json with the family's names."""
        return {
            "model_type": "llada2_moe",
            "architectures": ["LLaDA2MoeModelLM"],
            "torch_dtype": "bfloat16",
            **self.__dict__,
            "hidden_act": "silu",
            "score_function": "sigmoid",
            "moe_router_enable_expert_bias": True,
            "norm_topk_prob": True,
            "use_qk_norm": True,
            "use_bias": False,
            "use_qkv_bias": False,
            "tie_word_embeddings": False,
            "pad_token_id": eos,
            "eos_token_id": eos,
            "mask_token_id": mask,
        }
