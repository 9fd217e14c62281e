"""Tests of the checkpoints and configs that transformers 4 and 5 write: families read both, refuse contradictions."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from runtime import LLM
from runtime.errors import ConfigError
from runtime.models.base import _FAMILIES, resolve_family
from runtime.models.config_reader import ALIASES
from runtime.parameters.weight import named_weights
from tests.golden import GOLDEN
from tests.lora.samples import random_adapter
from tests.models.paged import load
from tests.models.test_shards import near, shared
from tests.models.tiny import checkpoint_of, tiny_logits
from tests.oracle.llama_like import TransformersOracle, tensors_of, write
from tests.oracle.spelling import KINDS, config_of, spelt
from tests.oracle.tiny import tiny_config, tiny_tensors

Config = dict[str, Any]
CONFIGS: dict[str, Config] = {
    **{family: config_of(family) for family in KINDS},
    "llada2": tiny_config(),
    "llada2dot2": json.loads((GOLDEN / "llada2dot2" / "config.json").read_text()),
    "diffusion_gemma": json.loads((GOLDEN / "diffusion_gemma" / "config.json").read_text()),
}
ROTARY = [family for family in CONFIGS if family != "diffusion_gemma"]


def parse(family: str, config: Config) -> Any:
    return resolve_family(family, {}).parse(config)


def part_of(config: Config) -> Config:
    """Returns the part of a config with the fields of the language model."""
    return config.get("text_config", config)


def changed(config: Config, removed: tuple[str, ...] = (), **changes: Any) -> Config:
    part = {name: value for name, value in part_of(config).items() if name not in removed} | changes
    return config | {"text_config": part} if "text_config" in config else part


def test_every_family_is_tried() -> None:
    missing = {family.key for family in _FAMILIES.values()} - set(CONFIGS)
    assert not missing, f"no config of {missing}: add them to KINDS in tests/oracle/spelling.py, or to CONFIGS"


def moved_theta(config: Config) -> Config:
    """Returns the config with rope_theta and partial_rotary_factor in rope_parameters, as transformers 5 writes it."""
    moved = {name: config[name] for name in ("rope_theta", "partial_rotary_factor") if config.get(name) is not None}
    older = config.get("rope_scaling") or config.get("rope_parameters") or {}
    rope = {"rope_type": "default", **older, **moved}
    return changed(config, (*moved, "rope_scaling"), rope_parameters=rope)


def one_per_kind(config: Config) -> Config:
    """Returns the config with rotary parameters per layer type, as transformers 5 writes it if it has layer_types."""
    moved = moved_theta(config)
    layers = moved.get("num_hidden_layers") or moved["n_layers"]
    rope = {"full_attention": moved["rope_parameters"], "sliding_attention": None}
    return moved | {"rope_parameters": rope, "layer_types": ["full_attention"] * layers}


FORMS: dict[str, Callable[[Config], Config]] = {
    "rope_parameters": moved_theta,
    "rope_parameters per kind of layer": one_per_kind,
    "rope_parameters beside rope_theta": lambda config: moved_theta(config) | {
        name: config[name] for name in ("rope_theta", "partial_rotary_factor") if name in config
    },
    "rope_scaling of type default": lambda config: scaled(config, {"type": "default"}),
    "rope_scaling of rope_type default": lambda config: scaled(config, {"rope_type": "default"}),
    "rope_scaling with another theta": lambda config: scaled(config, {"rope_type": "default", "rope_theta": 7.0}),
    "empty rope_scaling": lambda config: scaled(config, {}),
    "rope_scaling by 1": lambda config: scaled(config, {"type": "linear", "factor": 1.0}),
    "rope_scaling of nulls": lambda config: scaled(config, {"rope_type": None, "factor": None}),
    "null rope_scaling": lambda config: scaled(config, None),
    "null rope_parameters": lambda config: {"rope_parameters": None} | config,
}  # fmt: skip


def scaled(config: Config, scaling: Any) -> Config:
    return config if config.get("rope_parameters") else config | {"rope_scaling": scaling}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("family", ROTARY)
def test_rotary_fields_of_both_versions_mean_the_same(family: str, form: str) -> None:
    assert parse(family, FORMS[form](CONFIGS[family])) == parse(family, CONFIGS[family])


def test_scaling_that_a_family_supports_is_read_from_either_field() -> None:
    config = CONFIGS["nemotron_diffusion"]
    rope = dict(config["rope_parameters"])
    theta = rope.pop("rope_theta")
    older = changed(config, ("rope_parameters",), rope_theta=theta, rope_scaling=rope)
    arch = parse("nemotron_diffusion", older)
    assert arch == parse("nemotron_diffusion", config)
    assert arch.rope.yarn is not None
    both = config | {"rope_theta": theta, "rope_scaling": {"type": "yarn", "factor": rope["factor"]}}
    assert parse("nemotron_diffusion", both) == arch
    with pytest.raises(ConfigError, match=r"rope_parameters's factor is 8\.0, but rope_scaling's is 4"):
        parse("nemotron_diffusion", config | {"rope_scaling": {"type": "yarn", "factor": 4}})


SCALING = [
    {"type": "linear", "factor": 2.0}, {"rope_type": "dynamic", "factor": 2.0},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}, {"rope_type": "yarn", "factor": 4.0},
    {"rope_type": "longrope", "short_factor": [1.0]}, {"rope_type": "default", "factor": 4.0}, {"type": "su"}, "linear",
    4.0,
]  # fmt: skip


@pytest.mark.parametrize("scaling", SCALING, ids=str)
@pytest.mark.parametrize("field", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("family", [family for family in ROTARY if family != "nemotron_diffusion"])
def test_scaling_that_is_not_supported_is_refused_by_name(family: str, field: str, scaling: Any) -> None:
    with pytest.raises(ConfigError, match=field) as error:
        parse(family, CONFIGS[family] | {field: scaling})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("family", CONFIGS)
def test_other_names_of_fields_are_read(family: str) -> None:
    expected = parse(family, CONFIGS[family])
    for name, others in ALIASES.items():
        for other in others:
            if name in part_of(CONFIGS[family]):
                value = part_of(CONFIGS[family])[name]
                renamed = changed(CONFIGS[family], (name,), **{other: value})
                assert parse(family, renamed) == expected
                assert parse(family, changed(renamed, **{name: None})) == expected
                assert parse(family, changed(CONFIGS[family], **{other: value})) == expected
                assert parse(family, changed(CONFIGS[family], **{other: None})) == expected


@pytest.mark.parametrize("family", [family for family in CONFIGS if "num_experts" in part_of(CONFIGS[family])])
def test_two_counts_of_experts_are_refused_by_name(family: str) -> None:
    count = part_of(CONFIGS[family])["num_experts"]
    with pytest.raises(ConfigError, match=f"num_local_experts {count + 2} contradicts num_experts {count}"):
        parse(family, changed(CONFIGS[family], num_local_experts=count + 2))


@pytest.mark.parametrize("family", CONFIGS)
def test_two_types_are_refused_by_name(family: str) -> None:
    for equal in ({"dtype": "bfloat16", "torch_dtype": "bfloat16"}, {"dtype": "torch.bfloat16", "torch_dtype": None}):
        parse(family, CONFIGS[family] | equal)
    with pytest.raises(ConfigError, match="torch_dtype 'float16' contradicts dtype 'bfloat16'"):
        parse(family, CONFIGS[family] | {"dtype": "bfloat16", "torch_dtype": "float16"})


KINDS_OF_LAYERS = {
    "sdar_moe": ({"mlp_only_layers": [1]}, ("mlp_only_layers", "decoder_sparse_step")),
    "llada_moe": ({"moe_layer_freq": [1, 0, 1]}, ("moe_layer_freq",)),
    "llada2": ({"num_hidden_layers": 3, "first_k_dense_replace": 1}, ("first_k_dense_replace",)),
    "llada2dot2": ({"num_hidden_layers": 3, "first_k_dense_replace": 1}, ("first_k_dense_replace",)),
}


@pytest.mark.parametrize("family", KINDS_OF_LAYERS)
def test_kinds_of_layers_are_read_from_either_field(family: str) -> None:
    changes, older = KINDS_OF_LAYERS[family]
    config = CONFIGS[family] | changes
    arch = parse(family, config)
    kinds = ["sparse" if layer in arch.mixture.layers else "dense" for layer in range(3)]
    assert set(kinds) == {"sparse", "dense"}
    assert parse(family, config | {"mlp_layer_types": kinds}) == arch
    assert parse(family, changed(config, older, mlp_layer_types=kinds)) == arch
    with pytest.raises(ConfigError, match="mlp_layer_types contradicts"):
        parse(family, config | {"mlp_layer_types": ["dense", "dense", "sparse"]})
    with pytest.raises(ConfigError, match="mlp_layer_types must have 'dense' or 'sparse' for each of the 3 layers"):
        parse(family, config | {"mlp_layer_types": ["sparse"]})


@pytest.mark.parametrize("family", ["llada", "llada2", "llada2dot2"])
def test_layers_that_see_a_window_are_refused_by_name(family: str) -> None:
    with pytest.raises(ConfigError, match="layer_types names a layer"):
        parse(family, CONFIGS[family] | {"layer_types": ["full_attention", "sliding_attention"]})


@pytest.mark.matrix
def test_a_config_that_transformers_5_saves_is_read(tmp_path: Path) -> None:
    from transformers import Qwen3Config, Qwen3MoeConfig

    for family, theirs in (("sdar_moe", Qwen3MoeConfig), ("sdar", Qwen3Config)):
        config = CONFIGS[family]
        own = {"mask_token_id": config["mask_token_id"], "block_size": config["block_size"]}
        names = set(config) - {"model_type", "architectures", "torch_dtype", "rope_scaling"}
        theirs(**{name: config[name] for name in names}, dtype="float32").save_pretrained(tmp_path)
        saved = json.loads((tmp_path / "config.json").read_text())
        assert "rope_theta" not in saved
        assert ("num_local_experts" in saved) == (family == "sdar_moe")
        assert parse(family, saved | own | {"model_type": config["model_type"]}) == parse(family, config)


def same_weights(one: Path, other: Path, **options: Any) -> None:
    first, second = (named_weights(load(path, torch.float32, **options)) for path in (one, other))
    assert first.keys() == second.keys()
    for name, weight in first.items():
        assert torch.equal(weight.tensor, second[name].tensor), name


@pytest.mark.matrix
@pytest.mark.parametrize("family", ["sdar_moe", "llada_moe"])
def test_experts_as_transformers_5_has_them_in_memory_are_read(family: str, tmp_path: Path) -> None:
    config = CONFIGS[family] | {"moe_router_enable_expert_bias": False}
    tensors = tensors_of(family, config, seed=3)
    memory = TransformersOracle(tmp_path / "oracle", family, config, dict(tensors)).model.state_dict()
    assert sum(name.endswith("mlp.experts.gate_up_proj") for name in memory) >= 2
    assert not [name for name in memory if "experts.0." in name]
    write(tmp_path / "each", config, spelt(family, tensors))
    write(tmp_path / "fused", config, spelt(family, {name: tensor.clone() for name, tensor in memory.items()}))
    same_weights(tmp_path / "each", tmp_path / "fused")


def fused(tensors: Mapping[str, Tensor], layers: set[str] | None = None) -> dict[str, Tensor]:
    """Returns the tensors with fused experts: one tensor per layer for gate and up (gate first), one for down."""
    experts: dict[str, dict[tuple[int, str], Tensor]] = {}
    rest = {}
    for name, tensor in tensors.items():
        before, found, after = name.partition(".mlp.experts.")
        if not found or (layers is not None and before not in layers):
            rest[name] = tensor
            continue
        number, part, _ = after.split(".")
        experts.setdefault(before, {})[int(number), part] = tensor
    for layer, parts in experts.items():
        count = 1 + max(number for number, _ in parts)
        pairs = [torch.cat([parts[n, "gate_proj"], parts[n, "up_proj"]]) for n in range(count)]
        rest[f"{layer}.mlp.experts.gate_up_proj"] = torch.stack(pairs)
        rest[f"{layer}.mlp.experts.down_proj"] = torch.stack([parts[n, "down_proj"] for n in range(count)])
    return rest


@pytest.mark.parametrize("key", ["llada2_tiny", "llada2dot2", "sdar_moe", "llada_moe", "dmax"])
def test_fused_experts_of_every_mixture_are_the_same_weights(key: str, tmp_path: Path) -> None:
    path = checkpoint_of(key, tmp_path / "written")
    tensors = load_file(path / "model.safetensors")
    if not any(".mlp.experts.0." in name for name in tensors):
        pytest.skip("its experts are fused in the golden file")
    config = json.loads((path / "config.json").read_text())
    write(tmp_path / "fused", config, fused(tensors))
    same_weights(path, tmp_path / "fused")
    for quantization in ("int8", "fp8"):
        same_weights(path, tmp_path / "fused", quantization=quantization)


@pytest.mark.parametrize("deals", [False, True])
def test_ranks_split_fused_experts(deals: bool, tmp_path: Path) -> None:
    key = "llada2_tiny"
    path = Path(shutil.copytree(GOLDEN / key, tmp_path / "fused"))
    save_file(fused(load_file(path / "model.safetensors")), path / "model.safetensors")
    near(shared(2, key, path, torch.float64, deals=deals), tiny_logits(key, GOLDEN / key, torch.float64), 1e-10)


def test_an_adapter_is_merged_into_fused_experts(tmp_path: Path) -> None:
    base = GOLDEN / "llada2_tiny"
    config = json.loads((base / "config.json").read_text())
    write(tmp_path / "fused", config, fused(load_file(base / "model.safetensors")))
    adapter = random_adapter(tmp_path / "adapter", base, r".*experts.*(gate_proj|up_proj|down_proj)", 1)
    ids = list(range(1, 25))
    results = []
    for path in (base, tmp_path / "fused"):
        with LLM(str(path), device="cpu", skip_tokenizer=True) as llm:
            unmerged = llm.logits(ids)
        flags = {"use_lora": True, "lora_path": str(adapter), "pre_merge_lora": True}
        with LLM(str(path), device="cpu", skip_tokenizer=True, **flags) as llm:
            results.append(llm.logits(ids))
            assert (results[-1] - unmerged).abs().max() > 1e-3
    torch.testing.assert_close(results[0], results[1], rtol=1e-6, atol=1e-6)


LAYER = "model.layers.1.mlp.experts."
BROKEN: dict[str, tuple[Callable[[dict[str, Tensor]], Any], str]] = {
    "gates fused twice": (lambda t: t.update({LAYER + "gate_proj": torch.ones(4, 8, 16)}),
                          f"tensors '{LAYER}gate_up_proj' and '{LAYER}gate_proj' hold the same weights; remove one"),
    "an expert of its own too": (
        lambda t: t.update({LAYER + "2.up_proj.weight": torch.ones(8, 16)}),
        f"1 unknown: '{LAYER}2.up_proj.weight'",
    ),
    "transposed": (
        lambda t: t.update({LAYER + "gate_up_proj": t[LAYER + "gate_up_proj"].transpose(1, 2)[:, :, :12].contiguous()}),
        f"{LAYER}gate_up_proj is [4, 16, 12], not [4, 16, 16]",
    ),
    "no down": (lambda t: t.pop(LAYER + "down_proj"), f"4 missing: '{LAYER}0.down_proj.weight'"),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_fused_experts_that_do_not_fit_are_refused_by_name(case: str, tmp_path: Path) -> None:
    change, sentence = BROKEN[case]
    tensors = fused(tiny_tensors(tiny_config(), 1))
    change(tensors)
    write(tmp_path, tiny_config(), tensors)
    with pytest.raises(ConfigError) as error:
        load(tmp_path, torch.float32)
    assert sentence in str(error.value)
