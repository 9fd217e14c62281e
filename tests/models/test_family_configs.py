"""Tests of the config.json fields of single families, beyond those that all Llama-like families share."""

import pytest

from runtime.errors import ConfigError
from runtime.kernels.moe_router import RoutingConfig
from runtime.layers.rotary import Yarn
from runtime.models.base import resolve_family
from runtime.models.decoder import QueryLengthScaling
from runtime.models.llada import SUPPORTED
from tests.oracle.spelling import config_of

YARN = config_of("nemotron_diffusion")["rope_parameters"]


def parse(family: str, **changes):
    return resolve_family(family, {}).parse(config_of(family, **changes))


@pytest.mark.parametrize(
    ("family", "changes", "sentence"),
    [
        ("dream", {"attention_bias": False}, "attention_bias is False, but only True or None is supported"),
        ("diffucoder", {"attention_bias": False}, "attention_bias is False"),
        ("fast_dllm_v2", {"attention_bias": False}, "attention_bias is False"),
        ("sdar", {"rope_parameters": {"rope_type": "yarn"}}, "rope_type is 'yarn', but only 'default' is supported"),
        ("illada", {"layer_norm_eps": 1e-5}, "layer_norm_eps is 1e-05, but only None is supported"),
        ("illada", {"tie_word_embeddings": 1}, "tie_word_embeddings"),
        ("llada", {"d_model": None}, "lacks d_model"),
        ("llada", {"d_model": 18}, "d_model 18 is no even multiple of n_heads 4"),
        ("llada", {"n_kv_heads": 3}, "n_heads 4 is no multiple of n_kv_heads 3"),
        ("llada", {"multi_query_attention": True}, "n_kv_heads 4 contradicts multi_query_attention true"),
        ("llada", {"multi_query_attention": False, "n_kv_heads": 2}, "n_kv_heads 2 contradicts multi_query_attention"),
        ("llada", {"embedding_size": 39}, "embedding_size 39 is less than vocab_size 40"),
        ("llada", {"mlp_hidden_size": None, "mlp_ratio": None}, "lacks mlp_hidden_size, or mlp_ratio"),
        ("llada", {"block_type": "sequential"}, "block_type is 'sequential', but only 'llama' is supported"),
        ("llada", {"weight_tying": "no"}, "weight_tying"),
        ("llada", {"rms_norm_eps": None}, "lacks rms_norm_eps"),
        ("llada_moe", {"moe_layer_freq": None}, "lacks moe_layer_freq"),
        ("llada_moe", {"moe_layer_freq": [1, 1]}, "moe_layer_freq has 2 entries, but num_hidden_layers is 3"),
        ("llada_moe", {"moe_layer_freq": ["x"]}, "moe_layer_freq must be a number for a layer"),
        ("llada_moe", {"num_experts_per_tok": 7}, "num_experts_per_tok 7 is more than num_experts 6"),
        ("llada_moe", {"expert_intermediate_size": None}, "lacks expert_intermediate_size"),
        ("llada_moe", {"norm_topk_prob": True}, "norm_topk_prob is True, but only False or None is supported"),
        ("llada_moe", {"routed_scaling_factor": 2.5}, "routed_scaling_factor"),
        ("llada_moe", {"moe_router_score_function": "sigmoid"}, "moe_router_score_function"),
        ("llada_moe", {"router_num_group": 8}, "router_num_group"),
        ("llada_moe", {"clip_qkv": -1}, "clip_qkv must be a number above 0"),
        ("llada_moe", {"qk_layernorm": "yes"}, "qk_layernorm"),
        ("fast_dllm_v2", {"bd_size": "32"}, "bd_size must be a whole number"),
        ("nemotron_diffusion", {"sliding_window": 4096}, "sliding_window is 4096, but only None is supported"),
        ("nemotron_diffusion", {"dlm_paradigm": "autoregressive"}, "dlm_paradigm"),
        ("nemotron_diffusion", {"rope_parameters": YARN | {"factor": None}}, "rope_parameters lacks factor"),
        ("nemotron_diffusion", {"rope_parameters": YARN | {"factor": 0.25}}, "factor 0.25 must be at least 1"),
        (
            "nemotron_diffusion",
            {"rope_parameters": YARN | {"original_max_position_embeddings": None}},
            "lacks original_max_position_embeddings",
        ),
        ("nemotron_diffusion", {"rope_parameters": YARN | {"beta_slow": 64}}, "beta_fast 4 is not more than beta_slow"),
        ("nemotron_diffusion", {"rope_parameters": YARN | {"truncate": False}}, "rope_parameters holds truncate"),
        ("nemotron_diffusion", {"rope_parameters": YARN | {"type": "llama3"}}, "type is 'llama3'"),
        ("nemotron_diffusion", {"rope_parameters": YARN | {"llama_4_scaling_beta": -1}}, "llama_4_scaling_beta"),
    ],
)
def test_refusals_name_the_field(family, changes, sentence):
    with pytest.raises(ConfigError) as error:
        parse(family, **changes)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("field", sorted(SUPPORTED))
def test_built_values_of_llada_pass_and_others_do_not(field):
    for value in SUPPORTED[field]:
        parse("llada", **{field: value})
    with pytest.raises(ConfigError, match=field):
        parse("llada", **{field: "something else"})


def test_llada():
    arch = parse("llada", embedding_size=48, mlp_hidden_size=None, mlp_ratio=4)
    assert (arch.vocab_size, arch.padding, arch.width, arch.head_dim) == (40, 8, 64, 4)
    assert parse("llada", n_kv_heads=None).kv_heads == 4
    assert parse("llada", n_kv_heads=None, multi_query_attention=False).kv_heads == 4


def test_llada_moe():
    arch = parse("llada_moe")
    assert arch.mixture.layers == {0, 2}
    assert arch.mixture.routing == RoutingConfig(2, 1, 1, False, 1.0, "softmax", bias_in_weights=True)
    assert (arch.width, arch.clip, arch.qk_norm) == (24, None, True)
    assert parse("llada_moe", moe_layer_freq=[1, 1, 1]).width == 0
    assert parse("llada_moe", qk_layernorm=None).qk_norm is False
    assert parse("llada_moe", moe_router_enable_expert_bias=None).mixture.router_bias is False


def test_nemotron_diffusion():
    arch = parse("nemotron_diffusion")
    assert (arch.rope.yarn, arch.rope.query_scaling) == (Yarn(8.0, 16, 4.0, 1.0, 1.0), QueryLengthScaling(0.1, 16))
    bare = {name: YARN[name] for name in ("rope_type", "rope_theta", "factor", "original_max_position_embeddings")}
    arch = parse("nemotron_diffusion", rope_parameters=bare)
    assert arch.rope.query_scaling is None
    assert arch.rope.yarn.magnitude == pytest.approx(1.2079441541679836)  # 1 + ln(8)/10
    assert (arch.rope.yarn.beta_fast, arch.rope.yarn.beta_slow) == (32.0, 1.0)
    assert parse("nemotron_diffusion", rope_parameters=bare | {"attention_factor": 1.5}).rope.yarn.magnitude == 1.5
    assert parse("nemotron_diffusion", rope_parameters={"rope_theta": 1e6}).rope.yarn is None
