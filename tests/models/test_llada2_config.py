"""Tests of LLaDA2's config.json: every field has its effect, or is refused if its value is not supported."""

import logging

import pytest
import torch

from runtime.bench.model_shapes import architecture, random_model
from runtime.errors import ConfigError
from runtime.kernels.moe_router import RoutingConfig
from runtime.layers.kv_pool import KVShape
from runtime.layers.layer_factory import LayerFactory
from runtime.models.base import families, resolve_family
from runtime.models.llada2 import SUPPORTED, detect, parse
from tests.oracle.tiny import tiny_config


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"num_attention_heads": 4, "num_key_value_heads": 3}, "num_key_value_heads 3"),
        ({"num_attention_heads": 3, "head_dim": None, "num_key_value_heads": 3}, "hidden_size 16 is no multiple"),
        ({"num_experts": 6, "n_group": 4}, "n_group 4"),
        ({"topk_group": 3}, "topk_group 3 is more than n_group 2"),
        ({"num_experts_per_tok": 3}, "num_experts_per_tok 3 is more than the 2 experts"),
        ({"partial_rotary_factor": 0.4}, "rotary"),
        ({"partial_rotary_factor": 2.0}, "rotary"),
        ({"rotary_dim": 6}, "rotary_dim 6 contradicts"),
        ({"rope_scaling": {"type": "yarn"}}, "rope_scaling"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "rope_type is 'yarn'"),
        ({"rope_parameters": {"factor": 4}}, "factor"),
        ({"rope_parameters": {"rope_theta": 5e5}}, "rope_theta 10000.0 contradicts rope_parameters"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', but only 'silu' is supported"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"score_function": "softmax"}, "score_function"),
        ({"use_qk_norm": False}, "use_qk_norm"),
        ({"rms_norm_eps": -1}, "rms_norm_eps"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
        ({"rope_theta": None}, "lacks rope_theta"),
        ({"hidden_size": "16"}, "hidden_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_hidden_layers": True}, "num_hidden_layers"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"norm_head": "yes"}, "norm_head"),
        ({"moe_shared_expert_intermediate_size": 0}, "moe_shared_expert_intermediate_size"),
        ({"first_k_dense_replace": -1}, "first_k_dense_replace"),
    ],
)
def test_refusals_name_the_field(changes, sentence):
    with pytest.raises(ConfigError) as error:
        parse(tiny_config(**changes))
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("field", sorted(SUPPORTED))
def test_built_values_pass_and_others_do_not(field):
    for value in SUPPORTED[field]:
        parse(tiny_config(**{field: value}))
    with pytest.raises(ConfigError, match=field):
        parse(tiny_config(**{field: "something else"}))


def test_unknown_fields_are_logged(caplog):
    with caplog.at_level(logging.WARNING):
        parse(tiny_config(novelty=1))
    assert "novelty" in caplog.text


def test_defaults_and_alternatives():
    rope = {"rope_type": "default", "rope_theta": 5e5, "partial_rotary_factor": 0.5}
    newer = {"rope_parameters": rope, "rope_theta": None, "partial_rotary_factor": None}
    arch = parse(tiny_config(num_key_value_heads=0, head_dim=None, **newer))
    assert (arch.kv_heads, arch.head_dim, arch.rope.theta, arch.rope.dim) == (4, 4, 5e5, 2)
    assert parse(tiny_config(moe_router_enable_expert_bias=False)).mixture.router_bias is False
    assert parse(tiny_config(moe_router_enable_shared_expert=False)).mixture.shared_width == 0
    dense = {k: v for k, v in tiny_config(first_k_dense_replace=9).items() if "expert" not in k}
    assert parse(dense).mixture is None, "a model without experts needs no field of theirs"
    assert parse(tiny_config(first_k_dense_replace=0)).width == 0
    bare = parse(tiny_config(block_size=None, mask_token_id=None, eos_token_id=None))
    assert (bare.block_size, bare.mask_id, bare.eos_ids) == (32, None, ())


def test_parsed_shapes():
    mini = parse(architecture("llada2-mini"))
    assert (mini.rope.dim, mini.mixture.experts, mini.mixture.shared_width) == (64, 256, 512)
    assert mini.mixture.layers == frozenset(range(1, 20))
    assert mini.mixture.routing == RoutingConfig(8, 8, 4, True, 2.5, "sigmoid")
    assert parse(architecture("llada2-flash")).hidden == 4096


def test_detection():
    assert detect(tiny_config())
    assert not detect(tiny_config(expert_capacity=48)), "LLaDA2.2 is another family"
    assert not detect(tiny_config(model_type="llama"))
    for name in ("llada2", "llada2_mini", "llada2_moe", "llada2_flash", "llada2dot1_mini"):
        assert resolve_family(name, {}).key == "llada2"
    assert "llada2dot1_mini" in resolve_family("llada2", {}).needs_edit
    assert "llada2" in families()


def test_the_pool_of_experts_of_llada2dot2():
    config = tiny_config(expert_capacity=3, delete_token_id=7, split_token_id=8)
    family = resolve_family(None, config)
    assert family.key == "llada2dot2"
    arch = family.parse(config)
    assert arch.mixture.routing == RoutingConfig(2, 1, 1, True, 1.5, capacity=3, block=4)
    facts = family.facts(arch)
    assert (facts.block_size, facts.block_multiple, facts.delete_id, facts.split_id) == (4, 4, 7, 8)
    with pytest.raises(ConfigError, match="expert_capacity is 3, but only None is supported"):
        parse(config)
    for capacity in (1, 5):
        with pytest.raises(ConfigError, match=f"expert_capacity {capacity} is not from num_experts_per_tok 2 to"):
            family.parse(config | {"expert_capacity": capacity})
    with pytest.raises(ConfigError, match="delete_token_id must be a token id"):
        family.parse(config | {"delete_token_id": "x"})


def test_kv_shapes():
    model = random_model(architecture("llada2-tiny"), LayerFactory.create("cpu", torch.float32))
    assert model.kv_shapes == (KVShape(2, 32, 32),) * 3
