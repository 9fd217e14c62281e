"""Tests of config.json of families like Llama and Qwen: detection, parsed values, defaults and refusals."""

import logging

import pytest

from runtime.bench.model_shapes import ARCHITECTURES
from runtime.errors import ConfigError
from runtime.kernels.moe_router import RoutingConfig
from runtime.models import llada, llada2
from runtime.models.base import resolve_family
from runtime.models.config_reader import UNREAD
from runtime.models.decoder_config import LLAMA_SUPPORTED
from runtime.weights.checkpoint import Checkpoint
from runtime.weights.special_tokens import resolve_token_ids
from tests.oracle.spelling import KINDS, config_of

LLAMAS = [family for family in KINDS if family != "llada"]  # families with the field names of Llama


def parse(family: str, **changes):
    return resolve_family(family, {}).parse(config_of(family, **changes))


@pytest.mark.parametrize(
    ("model_type", "architectures", "family"),
    [
        ("llada2_moe", ["LLaDA2MoeModelLM"], "llada2"),
        ("sdar", ["SDARForCausalLM"], "sdar"),
        ("sdar", None, "sdar"),
        ("sdar_moe", ["SDARMoeForCausalLM"], "sdar_moe"),
        ("Dream", ["DreamForCausalLM"], "dream_reasoner"),
        ("llama", ["StableDiffcoderForCausalLM"], "stable_diffcoder"),
        ("Dream", ["DreamModel"], "dream"),
        ("llada", ["LLaDAModelLM"], "llada"),
        ("llada", None, "llada"),
        ("llada", ["LLaDAMoEModelLM"], "llada_moe"),
        ("lladamoe", ["LLaDAMoEModelLM"], "llada_moe"),
        ("lladamoe", None, "llada_moe"),
        ("illada", ["ILLaDAForCausalLM"], "illada"),
        ("llama", ["ILLaDAForCausalLM"], "illada"),
        ("Fast_dLLM_Qwen", ["Fast_dLLM_QwenForCausalLM"], "fast_dllm_v2"),
        ("nemotron_labs_diffusion", ["NemotronLabsDiffusionModel"], "nemotron_diffusion"),
    ],
)
def test_detection(model_type, architectures, family):
    assert resolve_family(None, {"model_type": model_type, "architectures": architectures}).key == family


@pytest.mark.parametrize(
    ("model_type", "architectures", "sentence"),
    [
        ("llama", ["LlamaForCausalLM"], "belongs to no known family"),
        ("Dream", None, "belongs to no known family"),
        (None, None, "belongs to no known family"),
        ("sdar", ["SDARMoeForCausalLM"], "is ambiguous: it could be sdar or sdar_moe; name the family"),
        ("llama", ["DreamForCausalLM"], "is ambiguous: it could be dream_reasoner; name the family"),
        ("llada2_moe", ["StableDiffcoderForCausalLM"], "is ambiguous: it could be llada2 or stable_diffcoder"),
        ("Dream", ["DreamForCausalLM", "SDARForCausalLM"], "is ambiguous: it could be dream_reasoner or sdar;"),
        ("Dream", ["DreamModel", "DreamForCausalLM"], "is ambiguous: it could be dream or dream_reasoner;"),
        ("llada", ["LLaDAModelLM", "LLaDAMoEModelLM"], "is ambiguous: it could be llada or llada_moe;"),
        ("qwen2", ["Fast_dLLM_QwenForCausalLM"], "is ambiguous: it could be fast_dllm_v2;"),
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
    [("sdar", {"model_type": "qwen3"}), ("diffullama", {"model_type": "llama"}), ("diffucoder", config_of("dream"))],
)
def test_a_named_family_is_used_if_the_config_does_not_contradict(family, config):
    assert resolve_family(family, config).key == family


@pytest.mark.parametrize("family", LLAMAS)
@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"num_key_value_heads": 3}, "num_key_value_heads 3"),
        ({"head_dim": None, "num_attention_heads": 6, "num_key_value_heads": 2}, "hidden_size 16 is no multiple"),
        ({"head_dim": 7}, "7 of a head's 7 dimensions are rotary"),
        ({"rope_scaling": {"type": "yarn", "factor": 4}}, "rope_scaling"),
        ({"rope_parameters": {"rope_type": "llama3"}}, "rope_parameters: rope_type is 'llama3'"),
        ({"rope_parameters": {"factor": 4}}, "rope_parameters holds factor, which is not supported"),
        (
            {"rope_theta": 1e4, "rope_parameters": {"rope_theta": 5.0}},
            "rope_theta 10000.0 contradicts rope_parameters, which says 5.0",
        ),
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
)
def test_refusals_name_the_field(family, changes, sentence):
    if family == "sdar_moe":
        changes = {"decoder_sparse_step": 2} | changes  # adds dense layers
    with pytest.raises(ConfigError) as error:
        parse(family, **changes)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"num_experts": None}, "lacks num_experts"),
        ({"num_experts_per_tok": 7}, "num_experts_per_tok 7 is more than num_experts 6"),
        ({"moe_intermediate_size": 0}, "moe_intermediate_size"),
        ({"norm_topk_prob": "yes"}, "norm_topk_prob"),
        ({"mlp_only_layers": [3]}, "mlp_only_layers [3] names a layer beyond the 3"),
        ({"mlp_only_layers": ["1"]}, "mlp_only_layers must be a layer"),
        ({"decoder_sparse_step": 0}, "decoder_sparse_step"),
    ],
)
def test_refusals_about_experts_of_sdar_moe(changes, sentence):
    with pytest.raises(ConfigError) as error:
        parse("sdar_moe", **changes)
    assert sentence in str(error.value)


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
        ("sdar", 4, 32768, 151669, (151643, 151645)),
        ("sdar_moe", 4, 32768, 151669, (151643, 151645)),
        ("dream_reasoner", 32, 32768, 151669, ()),
        ("stable_diffcoder", 4, 8192, 5, ()),
        ("dream", 32, 131072, 151666, (151643, 151645)),
        ("diffucoder", 32, 131072, 151666, (151643, 151645, 151667)),
        ("illada", 32, 8192, 5, (2,)),
        ("llada", 32, 4096, 126336, (126081, 126348)),
        ("llada_moe", 32, 8192, 156895, (156892,)),
        ("fast_dllm_v2", 32, 32768, 151665, (151645,)),
        ("nemotron_diffusion", 32, 262144, 100, (11,)),
    ],
)
def test_fields_that_a_config_may_omit(family, block, limit, mask, eos, tmp_path):
    """Some checkpoints have no block size, no length limit and no mask token. The family then supplies them."""
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


def test_diffullama_has_its_tokenizers_mask(tmp_path):
    config = config_of("diffullama", mask_token_id=None)
    known = resolve_family("diffullama", config)
    facts = known.facts(known.parse(config))
    with pytest.raises(ConfigError, match="--mask-token-id"):
        resolve_token_ids(Checkpoint(tmp_path, config, {}), known, facts, skip_tokenizer=True)


@pytest.mark.parametrize("family", KINDS)
def test_shift_bos_token_and_length_limit_of_each_family(family):
    """Checks which families shift logits by one position, begin prompts with a BOS token, or have another limit."""
    known = resolve_family(family, {})
    facts = known.facts(known.parse(config_of(family, bos_token_id=1)))
    assert facts.shift == (family in ("dream", "diffucoder", "diffullama", "fast_dllm_v2"))
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


@pytest.mark.parametrize("family", KINDS)
def test_fields_that_no_family_knows_are_logged(family, caplog):
    with caplog.at_level(logging.WARNING):
        parse(family)
        assert caplog.text == ""
        parse(family, novelty=1)
        assert "novelty" in caplog.text


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
