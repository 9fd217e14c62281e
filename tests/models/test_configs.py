"""Tests of config.json of each family: detection, parsed values, defaults, and values that are not supported."""

import logging

import pytest
import torch

from runtime.bench.model_shapes import ARCHITECTURES, architecture, random_model
from runtime.errors import ConfigError
from runtime.kernels.moe_router import RoutingConfig
from runtime.layers.kv_pool import KVShape
from runtime.layers.layer_factory import LayerFactory
from runtime.layers.rotary import Yarn
from runtime.models import llada, llada2
from runtime.models.base import families, resolve_family
from runtime.models.config_reader import UNREAD
from runtime.models.decoder import QueryLengthScaling
from runtime.models.decoder_config import LLAMA_SUPPORTED
from runtime.weights.checkpoint import Checkpoint
from runtime.weights.special_tokens import resolve_token_ids
from tests.oracle.spelling import KINDS, config_of
from tests.oracle.tiny import tiny_config

LLADA2 = {"model_type": "llada2_moe", "architectures": ["LLaDA2MoeModelLM"]}
YARN = config_of("nemotron_diffusion")["rope_parameters"]
LLAMAS = [family for family in KINDS if family != "llada"]  # families with the field names of Llama


def parse(family: str, **changes):
    config = tiny_config(**changes) if family == "llada2" else config_of(family, **changes)
    return resolve_family(family, {}).parse(config)


def check_refused(family, changes, sentence):
    with pytest.raises(ConfigError) as error:
        parse(family, **changes)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("model_type", "architectures", "family"),
    [
        ("llada2_moe", ["LLaDA2MoeModelLM"], "llada2"), ("llada2_moe_veomni", ["LLaDA2MoeModelLM"], "llada2"),
        ("dream", ["DreamModel"], "dream"), ("llama", ["DreamForCausalLM"], "dream_reasoner"),
        ("qwen2", ["Fast_dLLM_QwenForCausalLM"], "fast_dllm_v2"), ("sdar", ["SDARForCausalLM"], "sdar"),
        ("sdar", None, "sdar"), ("sdar_moe", ["SDARMoeForCausalLM"], "sdar_moe"),
        ("Dream", ["DreamForCausalLM"], "dream_reasoner"),
        ("llama", ["StableDiffcoderForCausalLM"], "stable_diffcoder"),
        ("llama", ["SeedDiffcoderForCausalLM"], "stable_diffcoder"),
        (None, ["SeedDiffcoderForCausalLM"], "stable_diffcoder"),
        ("Dream", ["DreamModel"], "dream"),
        ("llada", ["LLaDAModelLM"], "llada"), ("llada", None, "llada"), ("llada", ["LLaDAMoEModelLM"], "llada_moe"),
        ("lladamoe", ["LLaDAMoEModelLM"], "llada_moe"), ("lladamoe", None, "llada_moe"),
        ("illada", ["ILLaDAForCausalLM"], "illada"), ("llama", ["ILLaDAForCausalLM"], "illada"),
        ("Fast_dLLM_Qwen", ["Fast_dLLM_QwenForCausalLM"], "fast_dllm_v2"),
        ("nemotron_labs_diffusion", ["NemotronLabsDiffusionModel"], "nemotron_diffusion"),
        ("a2d-qwen3", ["A2DQwen3LMHeadModel"], "a2d_qwen3"), ("a2d-qwen2", ["A2DQwen2LMHeadModel"], "a2d_qwen2"),
        ("a2d-qwen3", None, "a2d_qwen3"), ("qwen3", ["A2DQwen3LMHeadModel"], "a2d_qwen3"),
        ("rnd1", ["RND1LM"], "rnd1"), ("rnd1", None, "rnd1"), ("qwen3_moe", ["RND1LM"], "rnd1"),
    ],
)  # fmt: skip
def test_detection(model_type, architectures, family):
    assert resolve_family(None, {"model_type": model_type, "architectures": architectures}).key == family


@pytest.mark.parametrize(
    ("model_type", "architectures", "sentence"),
    [
        ("llama", ["LlamaForCausalLM"], "belongs to no known family"),
        ("Dream", None, "belongs to no known family"),
        (None, None, "; name one with --model-name, or load another one with --plugin"),
        ("sdar", ["SDARMoeForCausalLM"], "is ambiguous: it could be sdar or sdar_moe; name the family"),
        ("llada2_moe", ["SeedDiffcoderForCausalLM"], "is ambiguous: it could be llada2 or stable_diffcoder"),
        ("llada2_moe", ["StableDiffcoderForCausalLM"], "is ambiguous: it could be llada2 or stable_diffcoder"),
        ("Dream", ["DreamForCausalLM", "SDARForCausalLM"], "is ambiguous: it could be dream_reasoner or sdar;"),
        ("Dream", ["DreamModel", "DreamForCausalLM"], "is ambiguous: it could be dream or dream_reasoner;"),
        ("a2d-qwen3", ["A2DQwen2LMHeadModel"], "is ambiguous: it could be a2d_qwen2 or a2d_qwen3;"),
        ("llada", ["LLaDAModelLM", "LLaDAMoEModelLM"], "is ambiguous: it could be llada or llada_moe;"),
        ("sdar", ["ILLaDAForCausalLM"], "is ambiguous: it could be illada or sdar;"),
        ("sdar", "SDARForCausalLM", "config.json: architectures must be a list of names"),
        ("sdar", [1], "config.json: architectures must be a list of names"),
    ],
)
def test_ambiguous_configs_are_refused(model_type, architectures, sentence):
    with pytest.raises(ConfigError) as error:
        resolve_family(None, {"model_type": model_type, "architectures": architectures})
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("family", "config"),
    [("sdar", {"model_type": "qwen3"}), ("diffullama", {"model_type": "llama"}), ("diffucoder", config_of("dream")),
     ("llada2", {"model_type": "mine"}), ("llada2", LLADA2)],
)  # fmt: skip
def test_a_named_family_is_used_if_the_config_does_not_contradict(family, config):
    assert resolve_family(family, config).key == family


def test_a_named_family_that_the_config_contradicts_is_refused():
    sentence = (
        r"--model-name 'sdar': config\.json's model_type 'llada2_moe' is that of the family llada2; leave --model-name "
        "out, or give the checkpoint of a sdar model with --model"
    )
    with pytest.raises(ConfigError, match=sentence):
        resolve_family("sdar", LLADA2)


@pytest.mark.parametrize("family", LLAMAS)
@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"num_key_value_heads": 3}, "num_key_value_heads 3"),
        ({"head_dim": None, "num_attention_heads": 6, "num_key_value_heads": 2}, "hidden_size 16 is no multiple"),
        ({"head_dim": 7}, "7 of a head's 7 dimensions are rotary"),
        ({"rope_parameters": {"factor": 4}}, "rope_parameters holds factor, which is not supported"),
        ({"rope_theta": 1e4, "rope_parameters": {"rope_theta": 5.0}},
         "rope_theta 10000.0 contradicts rope_parameters, which says 5.0"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', but only 'silu' is supported"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        ({"layer_types": "full"}, "layer_types must be a list of names"),
        ({"vocab_size": None}, "lacks vocab_size"),
        ({"rope_theta": None, "rope_parameters": {}}, "lacks rope_theta"),
        ({"rms_norm_eps": 0}, "rms_norm_eps"),
        ({"attention_bias": "yes"}, "attention_bias"),
        ({"intermediate_size": 0, "dense_intermediate_size": 0}, "intermediate_size"),
        ({"block_size": 0, "bd_size": 0}, "_size must be a whole number"),
        ({"mask_token_id": -1}, "mask_token_id must be a token id"),
        ({"eos_token_id": "</s>"}, "eos_token_id must be a token id"),
        ({"bos_token_id": [1, 2]}, "bos_token_id must be one token id"),
        ({"max_position_embeddings": "many"}, "max_position_embeddings"),
    ],
)  # fmt: skip
def test_refusals_name_the_field(family, changes, sentence):
    if family in ("sdar_moe", "rnd1"):
        changes = {"decoder_sparse_step": 2} | changes  # adds dense layers
    check_refused(family, changes, sentence)


@pytest.mark.parametrize(
    ("family", "changes", "sentence"),
    [
        ("llada2", {"num_attention_heads": 4, "num_key_value_heads": 3}, "num_key_value_heads 3"),
        ("llada2", {"num_attention_heads": 3, "head_dim": None, "num_key_value_heads": 3},
         "hidden_size 16 is no multiple"),
        ("llada2", {"num_experts": 6, "n_group": 4}, "n_group 4"),
        ("llada2", {"topk_group": 3}, "topk_group 3 is more than n_group 2"),
        ("llada2", {"num_experts_per_tok": 3}, "num_experts_per_tok 3 is more than the 2 experts"),
        ("llada2", {"partial_rotary_factor": 0.4}, "rotary"),
        ("llada2", {"partial_rotary_factor": 2.0}, "rotary"),
        ("llada2", {"rotary_dim": 6}, "rotary_dim 6 contradicts"),
        ("llada2", {"rope_parameters": {"rope_theta": 5e5}}, "rope_theta 10000.0 contradicts rope_parameters"),
        ("llada2", {"hidden_act": "gelu"}, "hidden_act is 'gelu', but only 'silu' is supported"),
        ("llada2", {"use_sliding_window": True}, "use_sliding_window"),
        ("llada2", {"score_function": "softmax"}, "score_function"),
        ("llada2", {"use_qk_norm": False}, "use_qk_norm"),
        ("llada2", {"rms_norm_eps": -1}, "rms_norm_eps"),
        ("llada2", {"rms_norm_eps": float("nan")}, "rms_norm_eps"),
        ("llada2", {"rope_theta": None}, "lacks rope_theta"),
        ("llada2", {"hidden_size": "16"}, "hidden_size"),
        ("llada2", {"num_hidden_layers": 0}, "num_hidden_layers"),
        ("llada2", {"num_hidden_layers": True}, "num_hidden_layers"),
        ("llada2", {"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ("llada2", {"norm_head": "yes"}, "norm_head"),
        ("llada2", {"moe_shared_expert_intermediate_size": 0}, "moe_shared_expert_intermediate_size"),
        ("llada2", {"first_k_dense_replace": -1}, "first_k_dense_replace"),
        ("dream", {"attention_bias": False}, "attention_bias is False, but only True or None is supported"),
        ("diffucoder", {"attention_bias": False}, "attention_bias is False"),
        ("dream", {"use_mrope": True}, "use_mrope is True, but only False or None is supported"),
        ("diffucoder", {"use_mrope": True}, "use_mrope is True, but only False or None is supported"),
        ("fast_dllm_v2", {"attention_bias": False}, "attention_bias is False"),
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
        ("nemotron_diffusion", {"rope_parameters": YARN | {"factor": 0}}, "factor must be a number above 0, not 0"),
        ("nemotron_diffusion", {"rope_parameters": YARN | {"factor": -0.25}}, "factor must be a number above 0"),
        ("nemotron_diffusion", {"rope_parameters": YARN | {"original_max_position_embeddings": None}},
         "lacks original_max_position_embeddings"),
        ("nemotron_diffusion", {"rope_parameters": YARN | {"beta_slow": 64}}, "beta_fast 4 is not more than beta_slow"),
        ("nemotron_diffusion", {"rope_parameters": YARN | {"truncate": False}}, "rope_parameters holds truncate"),
        ("nemotron_diffusion", {"rope_parameters": YARN | {"type": "llama3"}}, "type is 'llama3'"),
        ("nemotron_diffusion", {"rope_parameters": YARN | {"llama_4_scaling_beta": -1}}, "llama_4_scaling_beta"),
        ("a2d_qwen2", {"attention_bias": False}, "attention_bias is False"),
        ("rnd1", {"is_causal": True}, "is_causal is True, but only False or None is supported"),
        ("rnd1", {"num_experts": None}, "lacks num_experts"),
        ("rnd1", {"rope_scaling": True}, "rope_scaling must be an object, not True"),
        ("sdar_moe", {"num_experts": None}, "lacks num_experts"),
        ("sdar_moe", {"num_experts_per_tok": 7}, "num_experts_per_tok 7 is more than num_experts 6"),
        ("sdar_moe", {"moe_intermediate_size": 0}, "moe_intermediate_size"),
        ("sdar_moe", {"norm_topk_prob": "yes"}, "norm_topk_prob"),
        ("sdar_moe", {"mlp_only_layers": [3]}, "mlp_only_layers [3] names a layer beyond the 3"),
        ("sdar_moe", {"mlp_only_layers": ["1"]}, "mlp_only_layers must be a layer"),
        ("sdar_moe", {"decoder_sparse_step": 0}, "decoder_sparse_step"),
    ],
)  # fmt: skip
def test_refusals_of_single_families_name_the_field(family, changes, sentence):
    check_refused(family, changes, sentence)


def test_which_layers_of_sdar_moe_have_experts():
    assert parse("sdar_moe").mixture.layers == {0, 1, 2}
    assert parse("sdar_moe").width == 0, "a dense layer is built"
    assert parse("sdar_moe", mlp_only_layers=[1]).mixture.layers == {0, 2}
    assert parse("sdar_moe", decoder_sparse_step=2).mixture.layers == {1}
    assert parse("sdar_moe", decoder_sparse_step=4).mixture is None
    assert parse("sdar_moe", norm_topk_prob=None).mixture.routing == RoutingConfig(2, 1, 1, False, 1.0, "softmax")


@pytest.mark.parametrize(
    ("family", "block", "limit", "mask", "eos"),
    [
        ("sdar", 4, 32768, 151669, (151643, 151645)), ("sdar_moe", 4, 32768, 151669, (151643, 151645)),
        ("dream_reasoner", 32, 32768, 151669, ()), ("stable_diffcoder", 4, 8192, 5, ()),
        ("dream", 32, 131072, 151666, (151643, 151645)), ("diffucoder", 32, 131072, 151666, (151643, 151645, 151667)),
        ("illada", 32, 8192, 5, (2,)), ("llada", 32, 4096, 126336, (126081, 126348)),
        ("llada_moe", 32, 8192, 156895, (156892,)), ("fast_dllm_v2", 32, 32768, 151665, (151645,)),
        ("nemotron_diffusion", 32, 262144, 100, (11,)), ("rnd1", 32, 40960, 151669, (151645,)),
    ],
)  # fmt: skip
def test_fields_that_a_config_may_omit(family, block, limit, mask, eos, tmp_path):
    config = config_of(family, vocab_size=157184, embedding_size=None, mask_token_id=None, eos_token_id=None)
    for name in ("block_size", "bd_size", "max_position_embeddings", "max_sequence_length", "num_key_value_heads",
                 "n_kv_heads", "attention_bias"):  # fmt: skip
        config.pop(name, None)
    known = resolve_family(family, config)
    arch = known.parse(config)
    facts = known.facts(arch)
    assert (facts.block_size, facts.mask_id, facts.eos_ids) == (block, None, ())
    assert facts.max_positions == limit
    assert (arch.kv_heads, arch.out_bias) == (4, False)
    assert arch.qkv_bias == (KINDS[family].transformers_model == "Qwen2")
    ids = resolve_token_ids(Checkpoint(tmp_path, config, {}), known, facts, skip_tokenizer=True)
    assert (ids.mask, ids.eos) == (mask, eos)


@pytest.mark.parametrize(
    ("family", "sentence"),
    [("diffullama", r"--mask-token-id \(its authors' code uses the tokenizer's mask_token; "),
     ("a2d_qwen3", r"give its id with --mask-token-id$"), ("a2d_qwen2", r"give its id with --mask-token-id$")],
)  # fmt: skip
def test_families_whose_mask_only_the_tokenizer_has(family, sentence, tmp_path):
    config = config_of(family, mask_token_id=None)
    known = resolve_family(family, config)
    facts = known.facts(known.parse(config))
    with pytest.raises(ConfigError, match=sentence):
        resolve_token_ids(Checkpoint(tmp_path, config, {}), known, facts, skip_tokenizer=True)


@pytest.mark.parametrize("family", KINDS)
def test_shift_bos_token_and_length_limit_of_each_family(family):
    known = resolve_family(family, {})
    facts = known.facts(known.parse(config_of(family, bos_token_id=1)))
    assert facts.shift == (family in ("dream", "diffucoder", "diffullama", "fast_dllm_v2", "rnd1"))
    assert (facts.bos_id == 1) == (family in ("diffullama", "llada", "nemotron_diffusion"))
    assert facts.max_model_len == (2048 if family in ("dream", "diffucoder") else None)


def test_the_bos_token_of_llada(tmp_path):
    known = resolve_family("llada", {})
    assert known.facts(known.parse(config_of("llada", vocab_size=126464, embedding_size=None))).bos_id == 126080
    assert known.facts(known.parse(config_of("llada"))).bos_id is None
    config = config_of("llada", bos_token_id=40)
    with pytest.raises(ConfigError, match="bos_token_id 40 is outside the vocabulary"):
        resolve_token_ids(
            Checkpoint(tmp_path, config, {}), known, known.facts(known.parse(config)), skip_tokenizer=True
        )


def test_newer_configs_of_sdar_keep_the_rotation_in_one_object():
    arch = parse("sdar", rope_theta=None, rope_parameters={"rope_type": "default", "rope_theta": 1e6})
    assert arch.rope.theta == 1e6


def test_no_supported_field_counts_as_unread():
    for supported in (LLAMA_SUPPORTED, llada.SUPPORTED, llada2.SUPPORTED):
        assert not supported.keys() & UNREAD


@pytest.mark.parametrize("family", ["llada2", *KINDS])
def test_fields_that_no_family_knows_are_logged(family, caplog):
    with caplog.at_level(logging.WARNING):
        parse(family)
        assert caplog.text == ""
        parse(family, novelty=1)
        assert "novelty" in caplog.text


SDAR_TRAINING = {"attn_implementation": "flex_attention", "debug": False, "ep_size": 1, "micro_forward": False,
                 "skip_checkpoint": False, "use_deepep": False, "fuse_cross_entropy": True}  # fmt: skip
RND1 = {"is_causal": False, "use_cache": False, "rope_scaling": False, "sliding_window": False,
        "attn_implementation": "sdpa", "output_router_logits": False}  # fmt: skip
NEMO_TRAINING = {"ar_loss_weight": 1.0, "dlm_loss_weight": None, "dp_varying_mask_ratio": True}


@pytest.mark.parametrize(
    ("family", "fields"),
    [("sdar", SDAR_TRAINING), ("sdar_moe", SDAR_TRAINING), ("dream", {"use_mrope": False}),
     ("diffucoder", {"use_mrope": None}), ("rnd1", RND1), ("nemotron_diffusion", NEMO_TRAINING)],
)  # fmt: skip
def test_published_fields_that_change_no_computation_are_known(family, fields, caplog):
    assert parse(family, **fields) == parse(family)
    assert caplog.text == ""


@pytest.mark.parametrize("paradigm", ["block_diff", "sbd_block_diff"])
def test_a_fine_tune_of_nemotron_is_served_whatever_mask_it_was_trained_with(paradigm, caplog):
    assert parse("nemotron_diffusion", dlm_paradigm=paradigm) == parse("nemotron_diffusion")
    assert f"dlm_paradigm '{paradigm}' is a mask of training" in caplog.text


def test_experts_are_no_field_of_sdar(caplog):
    with caplog.at_level(logging.WARNING):
        parse("sdar", num_experts=8)
        assert "num_experts" in caplog.text


def test_the_width_of_dense_layers_is_known_if_there_are_none(caplog):
    """LLaDA-MoE's published config has the field, although all layers are sparse."""
    family, config = resolve_family("llada_moe", {}), ARCHITECTURES["llada-moe-7b"]
    assert "dense_intermediate_size" in config
    family.parse(config)
    assert caplog.text == ""
    family.parse(config | {"dense_width": 8})
    assert "dense_width" in caplog.text
    assert "dense_intermediate_size" not in caplog.text


@pytest.mark.parametrize(
    ("family", "field"),
    [
        (family, field)
        for family, module in (("llada", llada), ("llada2", llada2))
        for field in sorted(module.SUPPORTED)
    ],
)
def test_built_values_pass_and_others_do_not(family, field):
    for value in {"llada": llada, "llada2": llada2}[family].SUPPORTED[field]:
        parse(family, **{field: value})
    with pytest.raises(ConfigError, match=field):
        parse(family, **{field: "something else"})


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


@pytest.mark.parametrize("factor", [0.0625, 0.25, 0.75, 1.0, 1.25, 2.0, 16.0])
@pytest.mark.parametrize(
    "fields",
    [{}, {"mscale": 1.0, "mscale_all_dim": 1.0}, {"mscale": 1.0, "mscale_all_dim": 0.5}, {"attention_factor": 1.3},
     {"original_max_position_embeddings": 256, "beta_fast": 4.0, "beta_slow": 2.0}],
    ids=str,
)  # fmt: skip
def test_yarn_of_every_factor_is_that_of_transformers(factor, fields, caplog):
    """The published Nemotron base model has a factor below 1, of which both implementations only warn."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    theta = 1e6
    rope = {"rope_type": "yarn", "rope_theta": theta, "factor": factor, "original_max_position_embeddings": 16384}
    config = {"hidden_size": 128, "num_attention_heads": 1, "head_dim": 128, "rope_parameters": rope | fields}
    expected, magnitude = ROPE_INIT_FUNCTIONS["yarn"](LlamaConfig(**config), "cpu")
    caplog.clear()
    yarn = parse("nemotron_diffusion", **config, num_key_value_heads=1).rope.yarn
    assert ("rope_parameters: factor" in caplog.text) == (factor < 1)
    frequencies = yarn.scale_frequencies(theta ** -(torch.arange(0, 128, 2).double() / 128), theta)
    torch.testing.assert_close(frequencies.float(), expected, rtol=1e-5, atol=0)
    assert yarn.magnitude == pytest.approx(magnitude, rel=1e-12)


def test_defaults_and_alternatives_of_llada2():
    rope = {"rope_type": "default", "rope_theta": 5e5, "partial_rotary_factor": 0.5}
    newer = {"rope_parameters": rope, "rope_theta": None, "partial_rotary_factor": None}
    arch = parse("llada2", num_key_value_heads=0, head_dim=None, **newer)
    assert (arch.kv_heads, arch.head_dim, arch.rope.theta, arch.rope.dim) == (4, 4, 5e5, 2)
    assert parse("llada2", moe_router_enable_expert_bias=False).mixture.router_bias is False
    assert parse("llada2", moe_router_enable_shared_expert=False).mixture.shared_width == 0
    dense = {k: v for k, v in tiny_config(first_k_dense_replace=9).items() if "expert" not in k}
    assert llada2.parse(dense).mixture is None, "a model without experts needs no field of theirs"
    assert parse("llada2", first_k_dense_replace=0).width == 0
    bare = parse("llada2", block_size=None, mask_token_id=None, eos_token_id=None)
    assert (bare.block_size, bare.mask_id, bare.eos_ids) == (32, None, ())


def test_published_shapes_of_llada2():
    mini = llada2.parse(architecture("llada2-mini"))
    assert (mini.rope.dim, mini.mixture.experts, mini.mixture.shared_width) == (64, 256, 512)
    assert mini.mixture.layers == frozenset(range(1, 20))
    assert mini.mixture.routing == RoutingConfig(8, 8, 4, True, 2.5, "sigmoid")
    assert llada2.parse(architecture("llada2-flash")).hidden == 4096


def test_detection_of_llada2():
    assert llada2.detect(tiny_config())
    assert not llada2.detect(tiny_config(expert_capacity=48)), "LLaDA2.2 is another family"
    assert not llada2.detect(tiny_config(model_type="llama"))
    for name in ("llada2", "llada2_mini", "llada2_moe", "llada2_flash", "llada2dot1_mini", "llada2dot1_flash"):
        assert resolve_family(name, {}).key == "llada2"
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
        llada2.parse(config)
    for capacity in (1, 5):
        with pytest.raises(ConfigError, match=f"expert_capacity {capacity} is not from num_experts_per_tok 2 to"):
            family.parse(config | {"expert_capacity": capacity})
    with pytest.raises(ConfigError, match="delete_token_id must be a token id"):
        family.parse(config | {"delete_token_id": "x"})


def test_kv_shapes_of_llada2():
    model = random_model(architecture("llada2-tiny"), LayerFactory.create("cpu", torch.float32))
    assert model.kv_shapes == (KVShape(2, 32, 32),) * 3
