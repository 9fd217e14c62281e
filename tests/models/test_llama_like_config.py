"""config.json in the manner of Llama and Qwen: whose it is, what it says, what it may leave out, what is refused."""

import logging

import pytest

from runtime.errors import ConfigError
from runtime.kernels.routing import RoutingRule
from runtime.models import resolve_family
from runtime.models.decoder_config import EXPERTS_HONOURED, LLAMA_BUILT, LLAMA_ELSEWHERE, LLAMA_HONOURED
from runtime.weights import Checkpoint, read_tokens
from tests.oracle.llama_like import SIGNS, config_of


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
        ("sdar", "SDARForCausalLM", "config.json: architectures must be a list of names"),
        ("sdar", [1], "config.json: architectures must be a list of names"),
    ],
)
def test_whose_it_is_must_be_clear(model_type, architectures, sentence):
    with pytest.raises(ConfigError) as error:
        resolve_family(None, {"model_type": model_type, "architectures": architectures})
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_a_family_that_is_named_is_taken_at_its_word():
    assert resolve_family("sdar", {"model_type": "qwen3"}).key == "sdar"


@pytest.mark.parametrize("family", SIGNS)
@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"num_key_value_heads": 3}, "num_key_value_heads 3"),
        ({"head_dim": None, "num_attention_heads": 6}, "hidden_size 16 is no multiple"),
        ({"head_dim": 7}, "7 of a head's 7 dimensions are rotary"),
        ({"rope_scaling": {"type": "yarn", "factor": 4}}, "rope_scaling"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_type is 'yarn'"),
        ({"rope_parameters": {"rope_theta": 5.0}}, "rope_theta 10000.0 contradicts rope_parameters, which says 5.0"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', but only 'silu' is built"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        ({"layer_types": "full"}, "layer_types must be a list of names"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"vocab_size": None}, "lacks vocab_size"),
        ({"rope_theta": None}, "lacks rope_theta"),
        ({"rms_norm_eps": 0}, "rms_norm_eps"),
        ({"attention_bias": 1}, "attention_bias"),
        ({"intermediate_size": 0}, "intermediate_size"),
        ({"block_size": 0}, "block_size"),
        ({"mask_token_id": -1}, "mask_token_id must be a token id"),
        ({"eos_token_id": "</s>"}, "eos_token_id must be a token id"),
        ({"max_position_embeddings": "many"}, "max_position_embeddings"),
    ],
)
def test_refusals_name_the_field(family, changes, sentence):
    if family == "sdar_moe":
        changes = {"decoder_sparse_step": 2} | changes  # so that there are dense layers too
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
def test_refusals_about_experts(changes, sentence):
    with pytest.raises(ConfigError) as error:
        parse("sdar_moe", **changes)
    assert sentence in str(error.value)


def test_which_layers_have_experts():
    assert parse("sdar_moe").mixture.layers == {0, 1, 2}
    assert parse("sdar_moe").width == 0, "nothing dense is built"
    assert parse("sdar_moe", mlp_only_layers=[1]).mixture.layers == {0, 2}
    assert parse("sdar_moe", decoder_sparse_step=2).mixture.layers == {1}
    assert parse("sdar_moe", decoder_sparse_step=4).mixture is None
    assert parse("sdar_moe", norm_topk_prob=None).mixture.rule == RoutingRule(2, 1, 1, False, 1.0, "softmax")


@pytest.mark.parametrize(("family", "block"), [("sdar", 4), ("sdar_moe", 4), ("dream_reasoner", 32),
                                               ("stable_diffcoder", 4)])  # fmt: skip
def test_what_a_config_may_leave_out(family, block, tmp_path):
    """Older checkpoints name no block size, no limit and no mask: these come from the family."""
    config = config_of(family, vocab_size=151936, mask_token_id=None, eos_token_id=None)
    for name in ("block_size", "max_position_embeddings", "num_key_value_heads", "attention_bias"):
        del config[name]
    known = resolve_family(None, config)
    arch = known.parse(config)
    facts = known.facts(arch)
    assert (facts.block_size, facts.mask_id, facts.eos_ids) == (block, None, ())
    assert facts.max_positions == (8192 if family == "stable_diffcoder" else 32768)
    assert (arch.kv_heads, arch.qkv_bias, arch.rotary_dim) == (4, False, 8)
    ids = read_tokens(Checkpoint(tmp_path, config, {}), known, facts, skip_tokenizer=True)
    assert ids.mask == (5 if family == "stable_diffcoder" else 151669)
    assert ids.eos == ((151643, 151645) if family.startswith("sdar") else ())


def test_newer_configs_keep_the_rotation_in_one_object():
    arch = parse("sdar", rope_theta=None, rope_parameters={"rope_type": "default", "rope_theta": 1e6})
    assert arch.rope_theta == 1e6


def test_fields_are_known_once_and_others_are_said_aloud(caplog):
    lists = [set(LLAMA_BUILT), set(LLAMA_ELSEWHERE), set(LLAMA_HONOURED), set(EXPERTS_HONOURED)]
    assert sum(map(len, lists)) == len(set().union(*lists))
    with caplog.at_level(logging.WARNING):
        parse("sdar", novelty=1)
        parse("sdar", num_experts=8)
        assert "novelty" in caplog.text
        assert "num_experts" in caplog.text
        caplog.clear()
        for family in SIGNS:
            parse(family)
        assert not caplog.text
