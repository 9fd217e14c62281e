"""Tests of families with the weight names of Llama and Qwen."""

from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from runtime import LLM, SamplingParams
from runtime.errors import ConfigError
from tests.golden import GOLDEN
from tests.models.golden_answers import GOLDENS, cases, check_answer, llms
from tests.models.paged import load, logits_in_chunks
from tests.oracle.llama_like import TransformersOracle, tensors_of, write
from tests.oracle.spelling import KINDS, config_of, spelt, spelt_name

TOLERANCE = 5e-4  # of golden logits (tests/golden/README.md)
NAMED = {key: key for key, kind in KINDS.items() if kind.needs_model_name}  # families that need --model-name
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "sdar": ("sdar", {}),
    "sdar_biased_tied": ("sdar", {"attention_bias": True, "tie_word_embeddings": True, "num_key_value_heads": 1}),
    "sdar_moe": ("sdar_moe", {"num_experts": 5, "num_experts_per_tok": 3}),
    "sdar_moe_mixed": ("sdar_moe", {"mlp_only_layers": [1], "norm_topk_prob": False, "attention_bias": True}),
    "sdar_moe_sparse": ("sdar_moe", {"decoder_sparse_step": 2, "num_key_value_heads": 4}),
    "sdar_moe_none": ("sdar_moe", {"mlp_only_layers": [0, 1, 2]}),
    "dream_reasoner": ("dream_reasoner", {"num_attention_heads": 3, "num_key_value_heads": 1}),
    "stable_diffcoder": ("stable_diffcoder", {"head_dim": None}),
    "stable_diffcoder_biased": ("stable_diffcoder", {"attention_bias": True, "num_key_value_heads": 4}),
    "dream": ("dream", {"hidden_size": 28, "num_attention_heads": 7, "num_key_value_heads": 1, "head_dim": None}),
    "diffucoder": ("diffucoder", {}),
    "diffullama": ("diffullama", {"num_key_value_heads": 4}),
    "illada": ("illada", {}),
    "illada_biased_untied": ("illada", {"attention_bias": True, "tie_word_embeddings": False}),
    "llada": ("llada", {}),
    "llada_grouped": ("llada", {"n_kv_heads": 2, "embedding_size": 44, "mlp_hidden_size": None, "mlp_ratio": 2}),
    "llada_single": ("llada", {"n_kv_heads": None, "multi_query_attention": True, "weight_tying": True}),
    "llada_biased": ("llada", {"include_qkv_bias": True, "embedding_size": None}),
    "llada_moe": ("llada_moe", {}),
    "llada_moe_shared": ("llada_moe", {"shared_expert_intermediate_size": 12, "moe_router_enable_expert_bias": False}),
    "llada_moe_clipped": ("llada_moe", {"clip_qkv": 0.8, "attention_bias": True, "moe_layer_freq": [1, 1, 1]}),
    "llada_moe_unnormed": ("llada_moe", {"qk_layernorm": False, "clip_qkv": 0.8}),
    "llada_moe_dense": ("llada_moe", {"moe_layer_freq": [0, 0, 0], "num_key_value_heads": 2}),
    "a2d_qwen3": ("a2d_qwen3", {"num_key_value_heads": 1}),
    "a2d_qwen2": ("a2d_qwen2", {"tie_word_embeddings": False}),
    "rnd1": ("rnd1", {"num_key_value_heads": 1, "num_experts_per_tok": 3}),
    "rnd1_mixed": ("rnd1", {"mlp_only_layers": [0], "norm_topk_prob": False}),
    "fast_dllm_v2": ("fast_dllm_v2", {"num_attention_heads": 7, "num_key_value_heads": 1}),
    "fast_dllm_v2_tied": ("fast_dllm_v2", {"tie_word_embeddings": True}),
    "nemotron_diffusion": ("nemotron_diffusion", {"head_dim": 16}),
}


@pytest.mark.parametrize(("folder", "case"), cases("logits"))
def test_golden_logits(folder, case):
    assert case["attention"] in ("block_causal", "prefix_full", "full")
    expected = load_file(GOLDEN / folder / "expected.safetensors")
    ids = expected[case["ids"]].flatten().tolist()
    block = len(ids) if case["attention"] == "full" else case["block_size"]
    model = load(GOLDEN / folder, torch.float32, name=NAMED.get(GOLDENS[folder]))
    for page_size, chunk in ((4, 1), (16, 3)):
        (logits,) = logits_in_chunks(
            model, [ids], block_size=block, page_size=page_size, chunk_blocks=[chunk],
            prompt=case.get("prompt_length", 0),
        )  # fmt: skip
        torch.testing.assert_close(logits, expected[case["logits"]].view_as(logits), rtol=0, atol=TOLERANCE)


@pytest.fixture(scope="module")
def llm_of():
    with llms(device="cpu") as get:
        yield get


@pytest.mark.parametrize(("folder", "case"), cases("decode"))
def test_golden_answers(llm_of, folder, case):
    check_answer(llm_of(folder, case), case)


@pytest.mark.parametrize("shape", SHAPES)
def test_random_models_equal_transformers(tmp_path, shape):
    family, changes = SHAPES[shape]
    config = config_of(family, **changes)
    tensors = tensors_of(family, config, seed=len(shape))
    write(tmp_path / "ours", config, spelt(family, tensors))
    model = load(tmp_path / "ours", torch.float64, name=NAMED.get(family))
    oracle = TransformersOracle(tmp_path / "theirs", family, config, tensors)
    random = torch.Generator().manual_seed(3)
    sequences = [torch.randint(0, 40, (n,), generator=random).tolist() for n in (1, 7, 12, 31, 50)]
    for block, page_size, chunks in ((4, 2, [1, 1, 2, 3, 5]), (64, 16, [1] * 5)):  # blocks, and one canvas per sequence
        results = logits_in_chunks(
            model, sequences, block_size=block, page_size=page_size, chunk_blocks=chunks, dtype=torch.float64
        )
        for ids, logits in zip(sequences, results, strict=True):
            torch.testing.assert_close(logits.float(), oracle.logits(ids, block), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", KINDS)
def test_every_tensor_is_accounted_for(tmp_path, family):
    config = config_of(family)
    tensors = spelt(family, tensors_of(family, config, seed=1))
    for name in tensors:
        write(tmp_path, config, {n: t for n, t in tensors.items() if n != name})
        with pytest.raises(ConfigError, match=f"1 missing: '{name}'"):
            load(tmp_path, torch.float32, name=NAMED.get(family))
    surplus = spelt_name(family, "model.layers.0.self_attn.o_proj.bias")
    write(tmp_path, config, tensors | {surplus: torch.zeros(32)})
    with pytest.raises(ConfigError, match=f"1 unknown: '{surplus}'"):
        load(tmp_path, torch.float32, name=NAMED.get(family))
    write(tmp_path, config, tensors | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4)})
    load(tmp_path, torch.float32, name=NAMED.get(family))


@pytest.mark.parametrize(("family", "field"), [("sdar", "tie_word_embeddings"), ("llada", "weight_tying")])
def test_a_checkpoint_may_contain_a_tied_head(tmp_path, family, field):
    config = config_of(family, **{field: True})
    tensors = tensors_of(family, config, seed=1)
    assert "lm_head.weight" not in tensors
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    write(tmp_path, config, spelt(family, tensors))
    load(tmp_path, torch.float32)


def test_queries_of_nemotron_diffusion_are_scaled_beyond_the_training_length(tmp_path):
    """Checks the scaling of queries against transformers. Up to the training length it has no effect."""
    config = config_of("nemotron_diffusion")
    tensors = tensors_of("nemotron_diffusion", config, seed=3)
    write(tmp_path / "ours", config, spelt("nemotron_diffusion", tensors))
    flat = config | {"rope_parameters": config["rope_parameters"] | {"llama_4_scaling_beta": None}}
    write(tmp_path / "flat", flat, spelt("nemotron_diffusion", tensors))
    ids = torch.randint(0, 40, (24,), generator=torch.Generator().manual_seed(5)).tolist()
    grown, short = (
        logits_in_chunks(load(tmp_path / where, torch.float64), [ids], block_size=1, page_size=4, chunk_blocks=[24],
                         dtype=torch.float64)[0]
        for where in ("ours", "flat")
    )  # fmt: skip
    torch.testing.assert_close(grown[:16], short[:16], rtol=0, atol=0)
    assert not torch.allclose(grown[16:], short[16:])
    oracle = TransformersOracle(tmp_path / "theirs", "nemotron_diffusion", config, tensors)
    expected = oracle.logits(ids, block=1)
    torch.testing.assert_close(grown.float(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("family", "flags", "block", "mask"),
    [
        ("sdar", {}, 4, 217), ("sdar_moe", {}, 4, 217), ("dream_reasoner", {}, 32, 221), ("stable_diffcoder", {}, 4, 5),
        ("stable_diffcoder", {"mask_token_id": 221}, 4, 221),
    ],
)  # fmt: skip
def test_a_checkpoint_alone_answers(family, flags, block, mask):
    with LLM(str(GOLDEN / family), device="cpu", skip_tokenizer=True, **flags) as llm:
        assert (llm.info.family, llm.info.strategy) == (family, "multi_bd")
        assert (llm.info.block_size, llm.info.mask_token_id, llm.info.max_model_len) == (block, mask, 512)
        (out,) = llm.generate([[9, 8, 7]], SamplingParams(max_tokens=21, ignore_eos=True))
        assert len(out.token_ids) == 21
        assert mask not in out.token_ids
