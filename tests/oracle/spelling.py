"""Fields of config.json and tensor names per model family, and the config of transformers for the same model."""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Kind:
    """A family whose model transformers computes too, under other names."""

    model_type: dict[str, Any]  # the fields of config.json by which the family is recognized
    transformers_model: str  # the model of transformers that computes the same: "Llama" for LlamaForCausalLM
    qk_norm: bool = False
    # Fields that only the family has, or has with another value. None: the family has no such field.
    config_fields: dict[str, Any] = field(default_factory=dict)
    tensor_names: tuple[tuple[str, str], ...] = ()  # parts of Llama's and the family's, in the order of replacement
    needs_model_name: bool = False  # only --model-name selects the family
    golden: bool = True  # tests/golden has a folder with its name


def _model_type(model_type: str, architecture: str) -> dict[str, Any]:
    return {"model_type": model_type, "architectures": [architecture]}


_BARE = {"block_size": None, "attention_bias": None}
_EXPERTS = {
    "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "norm_topk_prob": True,
    "mlp_only_layers": [], "decoder_sparse_step": 1,
}  # fmt: skip
_LLADA = {
    "d_model": 16, "n_heads": 4, "n_kv_heads": 4, "n_layers": 3, "mlp_ratio": 4, "mlp_hidden_size": 24,
    "activation_type": "silu", "block_type": "llama", "block_group_size": 1, "alibi": False, "rope": True,
    "rope_full_precision": True, "rope_theta": 10000.0, "attention_layer_norm": False, "input_emb_norm": False,
    "layer_norm_type": "rms", "layer_norm_with_affine": True, "bias_for_layer_norm": False, "rms_norm_eps": 1e-5,
    "multi_query_attention": None, "max_sequence_length": 256, "include_bias": False, "include_qkv_bias": False,
    "scale_logits": False, "vocab_size": 40, "embedding_size": 40, "weight_tying": False, "mask_token_id": 39,
    "eos_token_id": 3,
}  # fmt: skip
_LLADA_MOE = {
    "intermediate_size": None, "block_size": None, "head_dim": None, "mask_token_id": None, "num_key_value_heads": 4,
    "dense_intermediate_size": 24, "expert_intermediate_size": 8, "shared_expert_intermediate_size": None,
    "moe_layer_freq": [1, 0, 1], "num_experts": 6, "num_experts_per_tok": 2, "moe_router_enable_expert_bias": True,
    "moe_router_score_function": "softmax", "norm_topk_prob": None, "routed_scaling_factor": 1,
    "router_num_group": None, "router_topk_group": None, "qk_layernorm": True, "clip_qkv": None,
    "partial_rotary_factor": 1,
}  # fmt: skip
_NEMOTRON = {
    "rope_theta": None,
    "rope_scaling": None,
    "bos_token_id": 1,
    "sliding_window": None,
    "mlp_bias": False,
    "dlm_paradigm": "bidirectional",
    "attn_implementation": "sdpa",
    "rope_parameters": {"rope_type": "yarn", "type": "yarn", "rope_theta": 10000.0, "factor": 8.0,
                        "original_max_position_embeddings": 16, "beta_fast": 4.0, "beta_slow": 1.0, "mscale": 1.0,
                        "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1},
}  # fmt: skip
_LLADA_NAMES = (
    ("model.embed_tokens", "model.transformer.wte"), ("model.layers.", "model.transformer.blocks."),
    ("model.norm", "model.transformer.ln_f"), ("lm_head", "model.transformer.ff_out"), ("self_attn.o_proj", "attn_out"),
    ("self_attn.", ""), ("input_layernorm", "attn_norm"), ("post_attention_layernorm", "ff_norm"),
    ("mlp.gate_proj", "ff_proj"), ("mlp.up_proj", "up_proj"), ("mlp.down_proj", "ff_out"),
)  # fmt: skip
_DREAM = Kind(_model_type("Dream", "DreamModel"), "Qwen2", config_fields=_BARE)
KINDS: dict[str, Kind] = {
    "sdar": Kind(_model_type("sdar", "SDARForCausalLM"), "Qwen3", qk_norm=True),
    "sdar_moe": Kind(_model_type("sdar_moe", "SDARMoeForCausalLM"), "Qwen3Moe", qk_norm=True, config_fields=_EXPERTS),
    "dream_reasoner": Kind(_model_type("Dream", "DreamForCausalLM"), "Qwen3", qk_norm=True),
    "stable_diffcoder": Kind(_model_type("llama", "StableDiffcoderForCausalLM"), "Llama"),
    "dream": _DREAM,
    "diffucoder": Kind(_DREAM.model_type, "Qwen2", config_fields=_BARE, needs_model_name=True),
    "diffullama": Kind(_model_type("llama", "LlamaForCausalLM"), "Llama",
                       config_fields={"block_size": None, "bos_token_id": 1}, needs_model_name=True),
    "illada": Kind(
        _model_type("illada", "ILLaDAForCausalLM"), "Llama", golden=False,
        config_fields={"tie_word_embeddings": True, "layer_norm_eps": None, "block_size": None, "mask_token_id": None},
    ),
    "llada": Kind(_model_type("llada", "LLaDAModelLM"), "Llama", tensor_names=_LLADA_NAMES),
    "llada_moe": Kind(_model_type("llada", "LLaDAMoEModelLM"), "Qwen3Moe", qk_norm=True, config_fields=_LLADA_MOE),
    "rnd1": Kind(_model_type("rnd1", "RND1LM"), "Qwen3Moe", qk_norm=True, golden=False,
                 config_fields=_EXPERTS | {"block_size": None, "num_diffusion_steps": 256, "moe_backend": "hf"}),
    "a2d_qwen3": Kind(_model_type("a2d-qwen3", "A2DQwen3LMHeadModel"), "Qwen3", qk_norm=True, golden=False,
                      config_fields={"tie_word_embeddings": True, "block_size": None, "mask_token_id": None}),
    "a2d_qwen2": Kind(_model_type("a2d-qwen2", "A2DQwen2LMHeadModel"), "Qwen2", golden=False,
                      config_fields=_BARE | {"tie_word_embeddings": True, "mask_token_id": None}),
    "fast_dllm_v2": Kind(_model_type("Fast_dLLM_Qwen", "Fast_dLLM_QwenForCausalLM"), "Qwen2",
                         config_fields=_BARE | {"bd_size": 4, "mask_token_id": None}),
    "nemotron_diffusion": Kind(_model_type("nemotron_labs_diffusion", "NemotronLabsDiffusionModel"), "Ministral3",
                               golden=False, config_fields=_NEMOTRON,
                               tensor_names=(("lm_head", "diffusion_head"), ("model.", "encoder."))),
}  # fmt: skip
MODEL_TYPES = {
    "Llama": "llama", "Qwen2": "qwen2", "Qwen3": "qwen3", "Qwen3Moe": "qwen3_moe", "Ministral3": "ministral3",
}  # fmt: skip


def config_of(family: str, **changes: Any) -> dict[str, Any]:
    """Returns a config.json of a tiny model of the family. The mask id is 39, even if no field has it."""
    kind = KINDS[family]
    if family == "llada":
        return kind.model_type | _LLADA | changes
    config: dict[str, Any] = kind.model_type | {
        "torch_dtype": "float32", "vocab_size": 40, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "attention_bias": False,
        "hidden_act": "silu", "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_scaling": None,
        "rope_theta": 10000.0, "tie_word_embeddings": False, "block_size": 4, "mask_token_id": 39, "eos_token_id": 3,
    }  # fmt: skip
    absent = {name for name, value in kind.config_fields.items() if value is None and name in config}
    return {name: value for name, value in (config | kind.config_fields).items() if name not in absent} | changes


def for_transformers(family: str, config: dict[str, Any]) -> dict[str, Any]:
    """Returns the config.json of the model in transformers for the family's `config`."""
    model = KINDS[family].transformers_model
    if family == "llada":
        model = "Qwen2" if config["include_qkv_bias"] else "Llama"
        kv_heads = {None: config["n_kv_heads"], True: 1, False: config["n_heads"]}[config["multi_query_attention"]]
        config = {
            "vocab_size": config["embedding_size"] or config["vocab_size"], "hidden_size": config["d_model"],
            "intermediate_size": config["mlp_hidden_size"] or config["mlp_ratio"] * config["d_model"],
            "num_hidden_layers": config["n_layers"], "num_attention_heads": config["n_heads"],
            "num_key_value_heads": kv_heads or config["n_heads"], "hidden_act": "silu",
            "max_position_embeddings": config["max_sequence_length"], "rms_norm_eps": config["rms_norm_eps"],
            "rope_theta": config["rope_theta"], "tie_word_embeddings": config["weight_tying"],
        }  # fmt: skip
    elif family == "llada_moe":
        config = config | {
            "intermediate_size": config["dense_intermediate_size"],
            "moe_intermediate_size": config["expert_intermediate_size"],
            "mlp_only_layers": [n for n, kind in enumerate(config["moe_layer_freq"]) if kind == 0],
            "decoder_sparse_step": 1,
            "norm_topk_prob": False,
            "head_dim": config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"],
        }
    if config.get("head_dim", 0) is None:
        config = {name: value for name, value in config.items() if name != "head_dim"}
    return config | _model_type(MODEL_TYPES[model], f"{model}ForCausalLM")


def spelt(family: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns tensors with Llama's names under the family's names."""
    return {spelt_name(family, name): tensor for name, tensor in tensors.items()}


def spelt_name(family: str, name: str) -> str:
    for llama_name, own_name in KINDS[family].tensor_names:
        name = name.replace(llama_name, own_name)
    return name
