"""Named model shapes for timing and tests, in the form of config.json, and models of them with random weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import nn

from runtime.errors import ConfigError
from runtime.layers.layer_factory import LayerFactory
from runtime.models.base import Model, resolve_family
from runtime.parameters.sharding import WeightSlice
from runtime.parameters.weight import named_weights

PIECE = 1 << 24  # elements that are drawn at once
_MINI: dict[str, Any] = {
    "model_type": "llada2_moe",
    "vocab_size": 157184,
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "num_hidden_layers": 20,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "use_bias": False,
    "use_qkv_bias": False,
    "num_experts": 256,
    "num_shared_experts": 1,
    "num_experts_per_tok": 8,
    "n_group": 8,
    "topk_group": 4,
    "moe_intermediate_size": 512,
    "first_k_dense_replace": 1,
    "max_position_embeddings": 32768,
    "rope_theta": 600000.0,
    "partial_rotary_factor": 0.5,
    "routed_scaling_factor": 2.5,
    "norm_topk_prob": True,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "mask_token_id": 156895,
    "eos_token_id": 156892,
}

_QWEN: dict[str, Any] = {
    "hidden_act": "silu",
    "num_hidden_layers": 28,
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "max_position_embeddings": 32768,
    "rope_theta": 1e6,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}
_SDAR: dict[str, Any] = _QWEN | {
    "model_type": "sdar",
    "architectures": ["SDARForCausalLM"],
    "num_hidden_layers": 36,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "block_size": 32,
    "mask_token_id": 151669,
    "eos_token_id": 151643,
}

_GEMMA_TEXT: dict[str, Any] = {
    "model_type": "diffusion_gemma_text",
    "vocab_size": 262144,
    "hidden_size": 2816,
    "intermediate_size": 2112,
    "num_hidden_layers": 30,  # every sixth has full attention
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 256,
    "num_global_key_value_heads": 2,
    "global_head_dim": 512,
    "sliding_window": 1024,
    "num_experts": 128,
    "top_k_experts": 8,
    "moe_intermediate_size": 704,
    "max_position_embeddings": 262144,
    "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-6,
    "final_logit_softcapping": 30.0,
    "tie_word_embeddings": True,
    "bos_token_id": 2,
    "eos_token_id": 1,
}
_GEMMA: dict[str, Any] = {
    "model_type": "diffusion_gemma",
    "architectures": ["DiffusionGemmaForBlockDiffusion"],
    "canvas_length": 256,
    "text_config": _GEMMA_TEXT,
}

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llada2-mini": _MINI,
    "llada2-flash": _MINI
    | {
        "hidden_size": 4096,
        "intermediate_size": 9216,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "moe_intermediate_size": 1024,
    },
    "llada2-tiny": _MINI
    | {
        "vocab_size": 1024,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "num_experts": 16,
        "num_experts_per_tok": 4,
        "n_group": 4,
        "topk_group": 2,
        "moe_intermediate_size": 64,
        "max_position_embeddings": 4096,
        "mask_token_id": 1023,
        "eos_token_id": 1022,
    },
    "llada-8b": {
        "model_type": "llada",
        "architectures": ["LLaDAModelLM"],
        "block_type": "llama",
        "activation_type": "silu",
        "layer_norm_type": "rms",
        "rope": True,
        "d_model": 4096,
        "n_layers": 32,
        "n_heads": 32,
        "n_kv_heads": 32,
        "mlp_hidden_size": 12288,
        "vocab_size": 126464,
        "embedding_size": 126464,
        "rope_theta": 500000.0,
        "rms_norm_eps": 1e-5,
        "max_sequence_length": 4096,
        "weight_tying": False,
        "mask_token_id": 126336,
        "eos_token_id": 126081,
    },
    "llada-moe-7b": {
        "model_type": "llada",
        "architectures": ["LLaDAMoEModelLM"],
        "hidden_act": "silu",
        "hidden_size": 2048,
        "num_hidden_layers": 16,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "expert_intermediate_size": 1024,
        "dense_intermediate_size": 8192,
        "shared_expert_intermediate_size": None,
        "moe_layer_freq": [1] * 16,
        "qk_layernorm": True,
        "vocab_size": 157184,
        "rope_theta": 50000.0,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": False,
        "mask_token_id": 156895,
        "eos_token_id": 156892,
    },
    "dream-7b": _QWEN
    | {
        "model_type": "Dream",
        "architectures": ["DreamModel"],
        "max_position_embeddings": 131072,
        "mask_token_id": 151666,
        "eos_token_id": 151643,
    },
    "fast-dllm-v2-7b": _QWEN
    | {
        "model_type": "Fast_dLLM_Qwen",
        "architectures": ["Fast_dLLM_QwenForCausalLM"],
        "bd_size": 32,
        "mask_token_id": 151665,
        "eos_token_id": 151645,
    },
    "sdar-8b": _SDAR,
    "sdar-30b-a3b": _SDAR
    | {
        "model_type": "sdar_moe",
        "architectures": ["SDARMoeForCausalLM"],
        "num_hidden_layers": 48,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_key_value_heads": 4,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
    "diffusiongemma-26b-a4b": _GEMMA,
    "diffusiongemma-tiny": _GEMMA
    | {
        "canvas_length": 16,
        "text_config": _GEMMA_TEXT
        | {
            "vocab_size": 224,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 3,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "num_global_key_value_heads": 1,
            "global_head_dim": 32,
            "sliding_window": 16,
            "num_experts": 4,
            "top_k_experts": 2,
            "moe_intermediate_size": 24,
            "max_position_embeddings": 512,
        },
    },
}


def architecture(name: str) -> Mapping[str, Any]:
    """Returns the config called `name`. Raises ConfigError, which lists the known names, if there is none."""
    if name not in ARCHITECTURES:
        raise ConfigError(f"--arch {name!r} is not known; known: {', '.join(ARCHITECTURES)}")
    return ARCHITECTURES[name]


def random_model(
    config: Mapping[str, Any],
    build: LayerFactory,
    seed: int = 0,
    check: Callable[[Model, LayerFactory], None] | None = None,
) -> Model:
    """Returns a model of the shape of `config` with random weights, drawn on the device.

    They are scaled so that activations stay of order 1 and routing spreads over the experts.

    Args:
        config: content of a config.json.
        build: creates the layers.
        seed: of the weights. Each rank draws its shards of weights with another seed.
        check: called before weights are drawn; raises if they must not be.
    """
    family = resolve_family(None, config)
    model = family.make(family.parse(config), build)
    if check is not None:
        check(model, build)
    replicated, sharded = (torch.Generator(build.device).manual_seed(seed + n) for n in (0, 1 + build.group.rank))
    fill_random(cast(nn.Module, model), replicated, sharded)
    return model


def fill_random(model: nn.Module, generator: torch.Generator, sharded: torch.Generator | None = None) -> None:
    """Fills weights with random numbers, in pieces like those of a checkpoint.

    Matrices are normal with variance 1/inputs (embeddings 1), norm weights near 1, biases near 0.

    Args:
        model: The model.
        generator: Draws weights that are equal in all processes.
        sharded: Draws weights of which this process has a shard; None for `generator`.
    """
    for name, weight in named_weights(model).items():
        first, *others = weight.shape
        draws = generator if weight.shard is None or sharded is None else sharded
        if name.startswith("embed_tokens"):
            mean, spread = 0.0, 1.0
        elif others:
            mean, spread = 0.0, weight.full_shape[-1] ** -0.5
        else:
            mean, spread = 0.0 if name.endswith("bias") else 1.0, 0.1
        step = max(1, PIECE // math.prod(others))
        for start in range(0, first, step):
            stop = min(start + step, first)
            drawn = torch.empty(stop - start, *others, dtype=weight.dtype, device=generator.device)
            part = WeightSlice.of(weight.shape, (slice(start, stop),))
            weight.load_slice(part, drawn.normal_(mean, spread, generator=draws))
