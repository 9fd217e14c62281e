"""Tests of quantized checkpoints: codes are loaded unchanged, every tensor is used, and other formats are refused."""

import json
import re
from functools import reduce

import pytest
import torch
from safetensors.torch import load_file, save_file

from runtime import LLM, SamplingParams
from runtime.errors import ConfigError
from runtime.models.base import resolve_family
from runtime.parameters.weight import UnquantizedWeight, named_weights
from runtime.quantization.base import QuantizedWeight
from runtime.quantization.checkpoint.scheme import get_quantization, quantization_of
from runtime.weights.checkpoint import resolve_checkpoint
from tests.golden import GOLDEN
from tests.models.paged import load, logits_in_chunks
from tests.oracle.tiny import write_tiny
from tests.quantization.quantized_files import FLOAT, FP8, LAYOUTS, compressed, mixed, write_both

TINY = GOLDEN / "llada2_tiny"
INT4 = "int4, groups of 32"
QKV = "model.layers.1.attention.query_key_value"
ROTATED = {"config_groups": {"u": {"type": "hadamard", "apply": [{"location": "output", "targets": ["Linear"]}]}}}


def packed(**weights):
    return compressed("pack-quantized", **{"num_bits": 4, "type": "int", "strategy": "channel"} | weights)


def logits(path, dtype=torch.float32):
    ids = load_file(TINY / "expected.safetensors")["input_ids"][0].remainder(32).tolist()
    return logits_in_chunks(load(path, dtype), [ids], block_size=8, page_size=8, chunk_blocks=[3], dtype=dtype)[0]


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """Returns a checkpoint with matrices whose sizes are multiples of 128, and with some whose sizes are not."""
    path = tmp_path_factory.mktemp("wide")
    sizes = {
        "hidden_size": 128, "moe_intermediate_size": 128, "intermediate_size": 384, "num_experts": 4, "head_dim": 32,
    }  # fmt: skip
    write_tiny(path, seed=9, vocab=64, **sizes)
    return path


@pytest.mark.parametrize("layout", LAYOUTS)
def test_loaded_codes_are_those_of_the_checkpoint(tmp_path, wide, layout):
    source = wide if "128" in layout or "NF4" in layout else TINY
    quantized, unquantized = write_both(layout, source, tmp_path)
    ours, is_unquantized = (
        named_weights(load(quantized, torch.float32)),
        named_weights(load(unquantized, torch.float32)),
    )
    packed = [name for name, weight in ours.items() if isinstance(weight, QuantizedWeight)]
    assert len(packed) > 8
    assert ours.keys() == is_unquantized.keys()
    for name, weight in ours.items():
        torch.testing.assert_close(weight.tensor, is_unquantized[name].tensor, rtol=1e-6, atol=0)
    assert quantization_of(resolve_checkpoint(str(quantized)).config, None) == LAYOUTS[layout][2]
    torch.testing.assert_close(logits(quantized), logits(unquantized), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("layout", [INT4, "fp8, blocks", "nvfp4, modelopt"])
def test_answers_equal_those_of_the_dequantized_checkpoint(tmp_path, layout):
    prompts, answers = [list(range(40, 61)), list(range(100, 164)), [7]], []
    for path in write_both(layout, TINY, tmp_path):
        with LLM(model=str(path), device="cpu", skip_tokenizer=True) as llm:
            params = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True)
            answers.append([out.token_ids for out in llm.generate(prompts, params)])
            format_name = llm.info.quantization
            assert format_name == (LAYOUTS[layout][2] if path.name == "kept" else None)
    assert answers[0] == answers[1]


def test_unquantized_weights_of_a_checkpoint_stay_unquantized(tmp_path):
    """Shared experts and one attention layer are unquantized, so the shared experts are not fused with the others."""

    def is_unquantized(name):
        return "shared_experts" in name or name.startswith("model.layers.1.attention")

    quantized, unquantized = write_both(INT4, TINY, tmp_path, is_unquantized)
    model = load(quantized, torch.float32)
    held = named_weights(model)
    names = {
        name for name, weight in held.items() if isinstance(weight, UnquantizedWeight) and weight.tensor.dim() == 2
    }
    assert {"layers.1.self_attn.qkv_proj.weight", "layers.2.mlp.shared_experts.gate_up_proj.weight"} <= names
    assert "layers.0.self_attn.qkv_proj.weight" not in names
    torch.testing.assert_close(logits(quantized), logits(unquantized), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("layout", [INT4, "fp8, blocks", "fp8, tensors"])
@pytest.mark.parametrize(
    ("unquantized", "expected"),
    [
        (r".*mlp\.experts\..*", {"gate_up_proj", "down_proj"}),
        (r".*layers\.1\.mlp\.experts\..*", {"gate_up_proj", "down_proj"}),
        (r".*mlp\.experts\..*\.down_proj\..*", {"gate_up_proj", "down_proj"}),
        (r".*mlp\.experts\..*\.(gate|up)_proj\..*", {"gate_up_proj", "down_proj"}),
        (r".*down_proj.*", {"gate_up_proj", "down_proj", "shared_experts.down_proj.weight"}),
        (r".*shared_experts.*", {"shared_experts.gate_up_proj.weight", "shared_experts.down_proj.weight"}),
    ],
)
def test_unquantized_experts(tmp_path, layout, unquantized, expected):
    """A layer's two stacks of experts are unquantized if one of them is."""
    quantized, plain = write_both(layout, TINY, tmp_path, lambda name: re.fullmatch(unquantized, name))
    held = named_weights(load(quantized, torch.float32)).items()
    layer = "layers.1.mlp."
    names = {name.removeprefix(layer) for name, weight in held if isinstance(weight, UnquantizedWeight)}
    assert {name for name in names if name.endswith(("up_proj", "down_proj", "_proj.weight"))} >= expected
    assert any(isinstance(weight, QuantizedWeight) for _, weight in held)
    torch.testing.assert_close(logits(quantized), logits(plain), rtol=1e-3, atol=1e-3)


def test_dequantized_experts_are_named_in_one_line_of_the_log(tmp_path, caplog):
    quantized, _ = write_both(
        INT4, TINY, tmp_path, lambda name: re.fullmatch(r".*mlp\.experts\..*\.down_proj\..*", name)
    )
    LLM(model=str(quantized), device="cpu", skip_tokenizer=True).close()
    (line,) = [record.getMessage() for record in caplog.records if "dequantized" in record.getMessage()]
    assert line.startswith("'layers.1.mlp.gate_up_proj', 'layers.2.mlp.gate_up_proj' dequantized: other weights of")


@pytest.mark.parametrize(
    ("unquantized", "message"),
    [
        (
            r".*layers\.1\..*experts\.3\.up_proj.*",
            r"holds parts of one weight, layers.1.mlp.gate_up_proj, in several formats: .* more as int4_32, and "
            r"'model.layers.1.mlp.experts.3.up_proj.weight' unquantized; quantize all",
        ),
        (
            r".*layers\.2\.mlp\.shared_experts\.gate.*",
            r"holds parts of one weight, layers.2.mlp.shared_experts.gate_up_proj.weight, in several formats: "
            r"'model.layers.2.mlp.shared_experts.gate_proj.weight' unquantized, and "
            r"'model.layers.2.mlp.shared_experts.up_proj.weight' as int4_32; quantize all",
        ),
    ],
)
def test_a_weight_whose_parts_differ_is_refused(tmp_path, unquantized, message):
    quantized, _ = write_both(INT4, TINY, tmp_path, lambda name: re.fullmatch(unquantized, name))
    with pytest.raises(ConfigError, match=message):
        load(quantized, torch.float32)


def test_a_quantized_head_is_dequantized(tmp_path):
    quantized, unquantized = write_both("fp8, outputs", TINY, tmp_path)
    tensors = load_file(quantized / "model.safetensors")
    values = load_file(unquantized / "model.safetensors")["lm_head.weight"]
    tensors |= {"lm_head.weight": values.to(torch.float8_e4m3fn), "lm_head.weight_scale": torch.full((256, 1), 0.5)}
    save_file(tensors, quantized / "model.safetensors")
    expected = values.to(torch.float8_e4m3fn).float() * 0.5
    assert torch.equal(named_weights(load(quantized, torch.float32))["lm_head_weight"].tensor, expected)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda t: t.pop(f"{QKV}.weight_scale"), f"lacks '{QKV}.weight_scale', parts of weights that are quantized"),
        (lambda t: t.update({f"{QKV}.weight_g_idx": torch.zeros(64)}), f"1 unknown: '{QKV}.weight_g_idx'"),
        (lambda t: t.update({f"{QKV}.weight_zero_point": torch.zeros(4)}), f"1 unknown: '{QKV}.weight_zero_point'"),
        (lambda t: t.update({f"{QKV}.weight": torch.zeros(128, 64)}),
         f"holds '{QKV}.weight' both quantized and unquantized"),
        (lambda t: t.update({f"{QKV}.weight_shape": torch.tensor([128, 96])}), "is [128, 8] words, but says"),
        (lambda t: t.update({f"{QKV}.weight_scale": torch.ones(128, 1)}), "has .weight_scale [128, 1], not [128, 2]"),
        (lambda t: t[f"{QKV}.weight_scale"][3:4].fill_(torch.nan), f"tensor '{QKV}.weight' of"),
        (lambda t: [t.pop(f"{QKV}.{e}") for e in ("weight_packed", "weight_scale", "weight_shape")], "1 missing"),
    ],
)  # fmt: skip
def test_every_tensor_is_accounted_for(tmp_path, change, sentence):
    quantized, _ = write_both(INT4, TINY, tmp_path)
    tensors = load_file(quantized / "model.safetensors")
    change(tensors)
    save_file(tensors, quantized / "model.safetensors")
    with pytest.raises(ConfigError) as error:
        load(quantized, torch.float32)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("layout", [INT4, "fp8, blocks", "AWQ", "GPTQ, zero points"])
def test_quantized_files_whose_config_has_no_method_are_refused_by_that_cause(tmp_path, layout):
    quantized, _ = write_both(layout, TINY, tmp_path)
    config = json.loads((quantized / "config.json").read_text())
    del config["quantization_config"]
    (quantized / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=r"are quantized, but config\.json has no quantization_config that says how"):
        load(quantized, torch.float32)


def test_nan_codes_are_refused(tmp_path):
    quantized, _ = write_both("fp8, blocks", TINY, tmp_path)
    tensors = load_file(quantized / "model.safetensors")
    tensors[f"{QKV}.weight"].view(torch.uint8)[5, 5] = 0x7F
    save_file(tensors, quantized / "model.safetensors")
    with pytest.raises(ConfigError, match=rf"tensor '{QKV}.weight' of .* holds NaN or infinite values"):
        load(quantized, torch.float32)


BLOCKS = "which is not supported; supported: blocks of"
NESTED = reduce(lambda inner, _: [inner], range(2000), [])  # as deep as JSON may be, which has no repr
UNSUPPORTED = [
    *((packed(**{field: NESTED}), "nested too deeply") for field in ("num_bits", "type")),
    (compressed(NESTED, strategy="channel", **FLOAT), "nested too deeply, 8 bits float, channel"),
    ({"quant_method": "awq", "bits": 4, "version": NESTED}, "version is 'nested too deeply'"),
    ({"quant_method": "hqq"}, "quant_method is 'hqq', which is not supported; supported: awq, bitsandbytes, comp"),
    ({"bits": 4}, "quant_method is None, which is not supported"),
    ("int4", "quant_method is None, which is not supported"),
    *(({"quant_method": method}, f"quant_method is {method!r}") for method in ([], {}, 8)),
    (FP8 | {"weight_block_size": [64, 64]}, f"weight_block_size is [64, 64], {BLOCKS}"),
    (FP8 | {"fmt": "e5m2"}, "fmt is 'e5m2'"),
    *((compressed("float-quantized", strategy="block", **FLOAT | {"block_structure": block}),
       f"block_structure is {block!r}, {BLOCKS} [N, 128]") for block in ([0, 128], ["x", 128], [128, 64], [128], None)),
    (packed(num_bits=2, strategy="group", group_size=128), "pack-quantized, 2 bits"),
    (packed(strategy="group", group_size=48), "group_size is 48"),
    (packed(actorder="group"), "actorder is 'group'"),
    (compressed("nvfp4-pack-quantized", num_bits=4, strategy="group", type="float"), "nvfp4-pack-quantized, 4 bits"),
    (compressed("nvfp4-pack-quantized", num_bits=4, strategy="tensor_group", type="float", group_size=32),
     "group_size is 32, which is not supported; supported: 16, for nvfp4-pack-quantized"),
    (compressed("mxfp4-pack-quantized", num_bits=4, strategy="group", type="float", group_size=16),
     "group_size is 16, which is not supported; supported: 32, for mxfp4-pack-quantized"),
    (compressed("x") | {"kv_cache_scheme": {"num_bits": 8}}, "kv_cache_scheme is"),
    (compressed("x") | {"sparsity_config": {"format": "sparse-24"}}, "sparsity_config is 'sparse-24'"),
    (compressed("x") | {"sparsity_config": "sparse-24"}, "sparsity_config is 'sparse-24'"),
    (compressed("x") | {"transform_config": ROTATED}, "transform_config is {'config_groups': {'u':"),
    (compressed("x") | {"config_groups": {}}, "has no config_groups"),
    (packed() | {"ignore": "lm_head"}, "ignore is 'lm_head'"),
    (packed() | {"config_groups": {"a": packed()["config_groups"]["group_0"] | {"targets": []}}}, "targets is []"),
    (mixed({"Linear": INT4}) | {"config_groups": {n: mixed({"Linear": x})["config_groups"]["Linear"]
                                                  for n, x in enumerate((INT4, "fp8, outputs"))}},
     "targets is 'Linear', which is not supported; supported: targets whose groups have the same weight format"),
    (compressed("x") | {"config_groups": {"a": {"weights": None}}}, "weights is None"),
]  # fmt: skip


@pytest.mark.parametrize(("stated", "sentence"), UNSUPPORTED)
def test_unsupported_formats_are_refused_in_one_sentence(stated, sentence):
    with pytest.raises(ConfigError) as error:
        get_quantization({"quantization_config": stated})
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


SEVERAL = {"re:.*attention.*": "fp8, outputs", "re:.*shared_experts.*": "int8, outputs", "re:.*": INT4}


def test_groups_of_modules_keep_their_formats(tmp_path):
    """Attention, shared experts and experts have one each; those that are ignored are not quantized."""
    quantized, plain = write_both(SEVERAL, TINY, tmp_path, lambda name: "layers.0" in name)
    held = named_weights(load(quantized, torch.float32))
    formats = {
        name: None if isinstance(weight, UnquantizedWeight) else str(weight.kernel_arg.values.dtype)
        for name, weight in held.items()
    }
    assert formats["layers.1.self_attn.qkv_proj.weight"] == "torch.float8_e4m3fn"
    assert formats["layers.1.mlp.shared_experts.down_proj.weight"] == "torch.int8"
    assert formats["layers.2.mlp.gate_up_proj"] == formats["layers.2.mlp.down_proj"] == "torch.uint8"
    assert formats["layers.0.self_attn.qkv_proj.weight"] is None
    torch.testing.assert_close(logits(quantized), logits(plain), rtol=1e-3, atol=1e-3)
    config = resolve_checkpoint(str(quantized)).config
    assert quantization_of(config, None) == quantization_of(config, "int8") == "fp8+int8+int4_32"


def group(target, layout=INT4):
    return mixed({target: layout})["config_groups"][target]


@pytest.mark.parametrize(
    ("change", "module", "stated"),
    [
        ({"ignore": ["lm_head", "re:.*mlp.*"]}, "model.layers.0.mlp.up_proj", None),
        ({"ignore": ["re:mlp"]}, "model.layers.0.mlp.up_proj", "int4_32"),  # a pattern matches from the first character
        ({"ignore": ["model.layers.1"]}, "model.layers.1.mlp.up_proj", "int4_32"),
        ({"ignore": ["model.layers.1.mlp.up_proj"]}, "model.layers.1.mlp.up_proj", None),
        ({"config_groups": {"a": group("Linear", "fp8, outputs"), "b": group("re:.*experts.*"),
                            "c": group("model.experts.0", "int8, outputs")}}, "model.experts.0", "int8"),
        ({"config_groups": {"a": group("re:.*q_proj")}}, "model.k_proj", None),
        ({"config_groups": {"a": group("re:.*q_proj"), "b": {"targets": ["Attention"], "weights": None}}}, "q_proj",
         "int4_32"),
    ],
)  # fmt: skip
def test_the_format_of_a_module(change, module, stated):
    """A name precedes a pattern, which precedes a class, in any order of the groups."""
    scheme = get_quantization({"quantization_config": LAYOUTS[INT4][0] | change}).stated([module])[module]
    assert (scheme and scheme.format) == stated


def test_a_quantized_module_without_a_format_is_refused(tmp_path):
    quantized, _ = write_both(SEVERAL, TINY, tmp_path)
    config = json.loads((quantized / "config.json").read_text())
    config["quantization_config"]["config_groups"].pop("re:.*")
    (quantized / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="assigns none of its formats, fp8 and int8"):
        load(quantized, torch.float32)


def test_a_requested_format_contradicts_the_checkpoint():
    config = {"quantization_config": LAYOUTS[INT4][0]}
    assert quantization_of(config, "int4") == quantization_of(config, None) == "int4_32"
    assert quantization_of({"quantization_config": FP8 | {"weight_block_size": [128, 128]}}, "fp8") == "fp8_blocks"
    assert quantization_of({}, "int4") == quantization_of({"quantization_config": None}, "int4") == "int4"
    with pytest.raises(ConfigError, match="--quantization fp8: the checkpoint is already quantized as "):
        quantization_of(config, "fp8")


def test_a_config_that_names_unquantized_weights(tmp_path):
    config = json.loads((TINY / "config.json").read_text()) | {"quantization_config": LAYOUTS[INT4][0]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(load_file(TINY / "model.safetensors"), tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match="holds no weight that is quantized, though config"):
        load(tmp_path, torch.float32)


def test_families_leave_the_field_to_the_loader():
    config = json.loads((TINY / "config.json").read_text())
    family = resolve_family(None, config)
    assert family.parse(config | {"quantization_config": FP8}) == family.parse(config)
