"""Tests of GPTQ, AWQ, bitsandbytes and asymmetric compressed-tensors as they are published, and of files that lie."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from runtime import LLM
from runtime.errors import ConfigError
from runtime.kernels.ops import TORCH
from runtime.parameters.weight import UnquantizedWeight, named_weights
from runtime.quantization.base import get_format
from runtime.quantization.checkpoint.scheme import get_quantization, quantization_of
from tests.golden import GOLDEN
from tests.models.paged import load
from tests.models.tiny import tiny_logits, write_random
from tests.quantization import packed_integers
from tests.quantization.packed_integers import (
    LLM_INT8,
    LOADED_NF4,
    awq_config,
    gptq,
    gptq_config,
    int8_with_zero_points,
)
from tests.quantization.quantized_files import ACTIVATION_ORDER, FLOAT, FP8, INT, LAYOUTS, compressed, write_both

CPU = torch.device("cpu")
KNOWN = LAYOUTS | ACTIVATION_ORDER
NEW = [name for name in KNOWN if name.startswith(("GPTQ", "AWQ", "bits")) or "packed" in name or "zero points" in name]


def int32(*words: int | list[int]) -> torch.Tensor:
    return torch.from_numpy(np.array(words, np.uint32).view(np.int32))


def read(config: dict, tensors: dict[str, torch.Tensor]):
    scheme = get_quantization({"quantization_config": config}).schemes[0]
    return scheme.read_quantized(lambda ending: tensors[ending.removeprefix(".")], CPU)


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.float16)


PACKED = {"strategy": "channel", **INT}
NF4_TABLE = torch.from_numpy(packed_integers.NF4)


def state(**changes) -> torch.Tensor:
    fields = {"quant_type": "nf4", "blocksize": 64, "dtype": "float32", "shape": [1, 64]} | changes
    return torch.tensor(list(json.dumps(fields).encode()), dtype=torch.uint8)


def nf4_tensors(**changes) -> dict[str, torch.Tensor]:
    parts = {"weight": torch.full((32, 1), 0xF0, dtype=torch.uint8), "weight.absmax": torch.tensor([2.0]),
             "weight.quant_map": NF4_TABLE, "weight.quant_state.bitsandbytes__nf4": state()}  # fmt: skip
    return parts | {f"weight.{name}" if name else "weight": part for name, part in changes.items()}


# Bytes that the formats' own packers write: config, tensors, and the weight.
EXAMPLES = {
    "GPTQ, inputs 0, 2, .. of output 0 and 1, 3, .. of output 1": (
        gptq_config(4, -1, sym=False, checkpoint_format="gptq_v2"),
        {"qweight": int32([0xECA86420, 0xFDB97531, *[0] * 6]), "qzeros": int32([0]), "scales": ones(1, 8)},
        [[0, 2, 4, 6, 8, 10, 12, 14], [1, 3, 5, 7, 9, 11, 13, 15], *[[0] * 8] * 6],
    ),
    "GPTQ v2, zero points 0 to 7": (
        gptq_config(4, -1, sym=False, checkpoint_format="gptq_v2"),
        {"qweight": int32([0] * 8), "qzeros": int32([0x76543210]), "scales": ones(1, 8)},
        [[-zero] * 8 for zero in range(8)],
    ),
    "GPTQ v1, zero points 0 to 7": (
        gptq_config(4, -1, sym=False),
        {"qweight": int32([0] * 8), "qzeros": int32([0x654320FF]), "scales": ones(1, 8)},
        [[-zero] * 8 for zero in range(8)],
    ),
    "GPTQ v1, symmetric": (
        gptq_config(4, -1),
        {"qweight": int32([0x88888888] * 8), "qzeros": int32([0x77777777]), "scales": ones(1, 8)},
        [[0] * 8] * 8,
    ),
    "AWQ, codes 0 to 7 of input 0": (
        awq_config(-1),
        {"qweight": int32([0x75316420]), "qzeros": int32([0]), "scales": ones(1, 8)},
        [[code] for code in range(8)],
    ),
    "AWQ gemv": (
        awq_config(-1, version="gemv"),
        {"qweight": int32([0x76543210]), "qzeros": int32([2]), "scales": ones(1, 8)},
        [[code - 2 for code in range(8)]],
    ),
    "compressed-tensors, int4": (
        compressed("pack-quantized", num_bits=4, **PACKED),
        {"weight_packed": int32([0x76543210, 0xFEDCBA98]), "weight_scale": ones(1, 1),
         "weight_shape": torch.tensor([1, 16])},
        [list(range(-8, 8))],
    ),
    "compressed-tensors, int8": (
        compressed("pack-quantized", num_bits=8, **PACKED),
        {"weight_packed": int32([0x81807F00, 0x000000FF]), "weight_scale": ones(1, 1),
         "weight_shape": torch.tensor([1, 5])},
        [[-128, -1, 0, 1, 127]],
    ),
    "compressed-tensors, zero points of outputs 0 to 7": (
        compressed("pack-quantized", num_bits=4, symmetric=False, **PACKED),
        {"weight_packed": int32(*[[0x88888888]] * 8), "weight_zero_point": int32([0xECA86420]),
         "weight_scale": ones(8, 1), "weight_shape": torch.tensor([8, 8])},
        [[-zero] * 8 for zero in (-8, -6, -4, -2, 0, 2, 4, 6)],
    ),
    "NF4, 1 and -1, times 2": (LOADED_NF4, nf4_tensors(), [[2, -2] * 32]),
}  # fmt: skip


@pytest.mark.parametrize("example", EXAMPLES)
def test_published_bytes(example):
    config, tensors, weight = EXAMPLES[example]
    assert read(config, tensors).dequantize(torch.float64).tolist() == weight


@pytest.mark.parametrize("layout", NEW)
@pytest.mark.parametrize("inputs", [512, 1024])
def test_weights_equal_the_published_definition(layout, inputs):
    """(code - zero point) * scale, in float64, as read and as loaded; loading them changes no number."""
    config, quantize, format = KNOWN[layout]
    tensors, expected = quantize(torch.randn(48, inputs, generator=torch.Generator().manual_seed(inputs)))
    packed = read(config, tensors)
    assert torch.equal(packed.dequantize(torch.float64), expected)
    weight = get_format(format).make((48, inputs), torch.float64, CPU, TORCH, False)
    for rows in (slice(16, 48), slice(0, 16)):
        weight.load_quantized((rows,), packed.submatrix(rows, range(inputs)))
    assert torch.equal(weight.tensor, expected)
    x = torch.randn(3, inputs, dtype=torch.float64)
    torch.testing.assert_close(weight.matmul(x), x @ expected.T)


FOR_EXPERTS = ("GPTQ, zero points", "GPTQ v2, zero points", "GPTQ, 8 bits", "AWQ", "AWQ gemv")
LOGITS = [("llada2_tiny", layout) for layout in FOR_EXPERTS]
LOGITS += [("dream", layout) for layout in (*FOR_EXPERTS, *ACTIVATION_ORDER)]


@pytest.mark.parametrize(("key", "layout"), LOGITS)
def test_logits_equal_those_of_the_dequantized_model(tmp_path, key, layout):
    """A dense model with biases, and one whose experts are named one by one."""
    source = GOLDEN / key
    if key == "dream":
        sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128}
        source = write_random(key, tmp_path / "source", **sizes)
    quantized, plain = write_both(layout, source, tmp_path)
    for ours, expected in zip(*(tiny_logits(key, path, torch.float32) for path in (quantized, plain)), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)
    assert quantization_of(json.loads((quantized / "config.json").read_text()), None) == KNOWN[layout][2]


def test_experts_in_activation_order_are_refused_by_name(tmp_path):
    quantized, _ = write_both("GPTQ, activation order", GOLDEN / "llada2_tiny", tmp_path)
    with pytest.raises(ConfigError, match=r"experts\.\d\..* activation order .* use a checkpoint whose desc_act is"):
        load(quantized)


def test_a_config_in_a_file_of_its_own(tmp_path):
    """Older tools write quantize_config.json and leave config.json as it was."""
    quantized, _ = write_both("GPTQ", GOLDEN / "llada2_tiny", tmp_path)
    config = json.loads((quantized / "config.json").read_text())
    stated = config.pop("quantization_config")
    stated.pop("quant_method")
    (quantized / "config.json").write_text(json.dumps(config))
    (quantized / "quantize_config.json").write_text(json.dumps(stated))
    with LLM(model=str(quantized), device="cpu", skip_tokenizer=True) as llm:
        assert llm.info.quantization == "int4_32"


QKV = "model.layers.1.attention.query_key_value"


def changed(ending, change):
    return lambda tensors: tensors.update({f"{QKV}.{ending}": change(tensors[f"{QKV}.{ending}"])})


def first(value):
    def change(tensor):
        tensor.flatten()[:1] = value
        return tensor

    return change


LIES = [
    ("GPTQ", changed("qweight", lambda t: t.long()), "has .qweight of torch.int64, not torch.int32"),
    ("GPTQ", changed("qweight", lambda t: t[:4]), "is [128, 32], not [128, 64]"),
    ("GPTQ", changed("qweight", lambda t: t.flatten()), "has .qweight of [1024], not a matrix"),
    ("GPTQ", lambda t: t.pop(f"{QKV}.qzeros"), f"lacks '{QKV}.qzeros', parts of weights that are quantized as GPTQ"),
    ("GPTQ", changed("qzeros", lambda t: t[:1]), "has .qzeros [1, 16], not [2, 16]"),
    ("GPTQ", changed("qzeros", first(0x77777770)), "has zero points other than 8, though config.json says it is symm"),
    ("GPTQ", changed("scales", lambda t: t.int()), "has .scales of torch.int32, not torch.float16, torch.bfloat16 or"),
    ("GPTQ", changed("scales", lambda t: t[:, :64]), "has .scales [2, 64], not [2, 128]"),
    ("GPTQ", changed("scales", first(torch.nan)), "holds NaN or infinite values"),
    ("GPTQ", changed("scales", first(torch.inf)), "holds NaN or infinite values"),
    ("GPTQ", changed("g_idx", first(-1)), "has .g_idx that does not give 32 inputs to each of the groups 0 to 1"),
    ("GPTQ", changed("g_idx", first(2)), "has .g_idx that does not give 32 inputs to each of the groups 0 to 1"),
    ("GPTQ", changed("g_idx", first(1)), "has .g_idx that does not give 32 inputs to each of the groups 0 to 1"),
    ("GPTQ", changed("g_idx", lambda t: t[1:]), "has .g_idx [63], not [64]"),
    ("GPTQ", changed("g_idx", lambda t: t.float()), "has .g_idx of torch.float32, not torch.int32"),
    ("GPTQ", lambda t: t.update({f"{QKV}.weight": torch.zeros(128, 64)}), "both quantized and unquantized"),
    ("AWQ", changed("qweight", lambda t: t[:48]), "is [128, 48], not [128, 64]"),
    ("AWQ", changed("qzeros", lambda t: t.float()), "has .qzeros of torch.float32, not torch.int32"),
    ("AWQ", changed("scales", first(torch.nan)), "holds NaN or infinite values"),
    ("AWQ, symmetric", changed("qzeros", first(0)), "has zero points other than 8"),
    ("AWQ gemv", changed("qzeros", lambda t: t[:, :1]), "has .qzeros [128, 1], not [128, 4]"),
    ("AWQ gemv", changed("scales", lambda t: t[:, :2]), "has .scales [128, 2], not [128, 32]"),
    ("int4, zero points", lambda t: t.pop(f"{QKV}.weight_zero_point"), f"lacks '{QKV}.weight_zero_point'"),
    ("int4, zero points", changed("weight_zero_point", lambda t: t[1:]), "has .weight_zero_point [15, 2], not [16, 2]"),
    ("int8, zero points", changed("weight_zero_point", lambda t: t.int()), "has .weight_zero_point of torch.int32, no"),
    ("int8, zero points", changed("weight_zero_point", lambda t: t[:5]), "has .weight_zero_point [5, 1], not [128, 1]"),
    ("bitsandbytes int8", changed("SCB", lambda t: t[None]), "has .SCB [1, 128], not [128]"),
    ("bitsandbytes int8", changed("SCB", first(torch.nan)), "holds NaN or infinite values"),
    ("bitsandbytes int8", changed("weight", lambda t: t.view(torch.uint8)), "is torch.uint8 [128, 64] with .SCB"),
    ("bitsandbytes int8", changed("weight_format", lambda t: t + 2), "has .weight_format [2], not 0 (rows); save it"),
    ("int8, packed", changed("weight_shape", lambda t: t / 0), "has .weight_shape [2] of torch.float32, not two"),
    ("int8, packed", changed("weight_shape", lambda t: t[:1]), "has .weight_shape [1] of torch.int64, not two"),
    ("int8, outputs", changed("weight_scale", lambda t: t.byte()), "has .weight_scale of torch.uint8, not of a float"),
    ("fp8, outputs", changed("weight_scale", lambda t: t.byte()), "has .weight_scale of torch.uint8, not of a float"),
    ("fp8, blocks", changed("weight_scale_inv", lambda t: t.int()), "has .weight_scale_inv of torch.int32, not of a"),
    ("int8, packed", changed("weight_packed", lambda t: t.short()), "has .weight_packed of torch.int16, not torch.int"),
]  # fmt: skip


@pytest.mark.parametrize(("layout", "change", "sentence"), LIES)
def test_inconsistent_tensors_are_refused_in_one_sentence(tmp_path, layout, change, sentence):
    quantized, _ = write_both(layout, GOLDEN / "llada2_tiny", tmp_path)
    tensors = load_file(quantized / "model.safetensors")
    change(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, quantized / "model.safetensors")
    with pytest.raises(ConfigError) as error:
        load(quantized)
    assert sentence in str(error.value)
    assert QKV in str(error.value)
    assert "\n" not in str(error.value)


STATED = "quant_state.bitsandbytes__nf4"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"": torch.zeros(31, 1, dtype=torch.uint8)}, "has .weight [31, 1], not [32, 1]"),
        ({"": torch.zeros(32, 1)}, "has .weight of torch.float32, not torch.uint8"),
        ({"absmax": torch.ones(2)}, "has .weight.absmax [2], not [1]"),
        ({"absmax": torch.ones(1, dtype=torch.uint8)}, "has .weight.absmax of torch.uint8, but lacks .weight.nes"),
        ({"absmax": torch.ones(1, dtype=torch.uint8), "nested_quant_map": NF4_TABLE, "nested_absmax": NF4_TABLE[:1]},
         "has .weight.nested_quant_map [16], not [256]"),
        ({"quant_map": NF4_TABLE.flip(0)}, "has .weight.quant_map [1.0, 0.72"),
        ({STATED: state(quant_type="fp4")}, "has .weight.quant_state.bitsandbytes__nf4 {'quant_type': 'fp4'"),
        *(({STATED: state(blocksize=size)}, "not nf4 in blocks of a multiple") for size in (0, 32, -64, 1.5, True)),
        *(({STATED: state(shape=shape)}, "with two sizes") for shape in ([64], [1, 64, 1], "x", None, [0, 64], [1e9])),
        ({STATED: state(shape=[1, 2**80])}, "with two sizes"),
        ({STATED: state(shape=[2, 32])}, "has 32 inputs, which blocks of 64 do not divide"),
        ({STATED: state(nested_offset=float("nan"))}, "with two sizes"),
        ({STATED: state(nested_offset=10**400)}, "that is no JSON object with quant_type"),
        ({STATED: state(dtype="x" * (1 << 16))}, "that is no JSON object with quant_type"),
        ({STATED: state(quant_type="x" * 5000)}, "..., not nf4 in blocks"),
        ({STATED: torch.tensor(list(b"[" * 5000), dtype=torch.uint8)}, "that is no JSON object with quant_type"),
        ({STATED: torch.tensor(list(b"[1]"), dtype=torch.uint8)}, "that is no JSON object with quant_type"),
        ({STATED: torch.tensor([255], dtype=torch.uint8)}, "that is no JSON object with quant_type"),
        ({STATED: torch.zeros(0)}, "that is no JSON object with quant_type"),
    ],
)  # fmt: skip
def test_nf4_that_contradicts_itself_is_refused(changes, sentence):
    with pytest.raises(ConfigError) as error:
        read(LOADED_NF4, nf4_tensors(**changes))
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_a_block_of_nested_scales_may_be_larger_than_the_weight():
    """Nothing of the stated size is allocated."""
    nested = {"absmax": torch.tensor([255], dtype=torch.uint8), "nested_absmax": torch.tensor([0.5])}
    nested |= {"nested_quant_map": torch.arange(256.0), STATED: state(nested_blocksize=2**31 - 1, nested_offset=2.0)}
    tensors = nf4_tensors(**nested)
    assert read(LOADED_NF4, tensors).scales.tolist() == [[255 * 0.5 + 2.0]]


def test_outputs_that_do_not_fill_a_word():
    tensors, expected = gptq(4, 32, sym=False)(torch.randn(13, 72))
    assert torch.equal(read(gptq_config(4, 32, sym=False), tensors).dequantize(torch.float64), expected)


def test_groups_that_do_not_divide_the_inputs_of_awq_are_refused():
    tensors = {"qweight": torch.zeros(48, 1, dtype=torch.int32)}
    with pytest.raises(ConfigError, match=r"^has 48 inputs, which groups of 32 do not divide$"):
        read(awq_config(32), tensors)


def test_activation_order_without_an_index_is_refused():
    tensors, _ = gptq(4, 32, sym=True, act=True, index=False)(torch.randn(8, 64))
    with pytest.raises(ConfigError, match=r"^lacks \.g_idx, though config.json says desc_act: true$"):
        read(gptq_config(4, 32, desc_act=True), tensors)


UNSUPPORTED = [
    *((gptq_config(bits, 128), f"bits is {bits!r}, which is not supported; supported: 4 and 8")
      for bits in (2, 3, 4.0, "4", True, None)),
    *((gptq_config(4, group), f"group_size is {group!r}") for group in (16, 0, -2, 100, "128", None, [], True)),
    *((gptq_config(4, 128, checkpoint_format=name), f"checkpoint_format is {name!r}, which is not supported; supported")
      for name in ("marlin", "gptq_p", "bitblas", 3, ["gptq"])),
    (gptq_config(4, 128, is_marlin_format=True), "is_marlin_format is True"),
    (gptq_config(4, 128, pack_dtype="int16"), "pack_dtype is 'int16'"),
    (gptq_config(4, 128, sym=1), "sym is 1, which is not supported; supported: true and false"),
    (gptq_config(4, 128, desc_act="yes"), "desc_act is 'yes'"),
    (gptq_config(4, 128, dynamic={".*up_proj": {"bits": 8}}), "dynamic '.*up_proj' is {'bits': 8}"),
    (gptq_config(4, 128, dynamic={"+:.*": {"group_size": 32}}), "dynamic '+:.*' is {'group_size': 32}"),
    (gptq_config(4, 128, dynamic=["-:x"]), "dynamic is ['-:x']"),
    *((gptq_config(4, 128, quant_method=name), f"quant_method is {name!r}")
      for name in ("qqq", "exl3", "paroquant", "gptq_marlin", "gguf", "vptq")),
    *((awq_config(128, version=name), f"version is {name!r}, which is not supported; supported: gemm and gemv")
      for name in ("gemv_fast", "llm-awq", "marlin")),
    (awq_config(128, backend="llm-awq"), "backend is 'llm-awq'"),
    (awq_config(128, bits=8), "bits is 8"),
    (awq_config(96), "group_size is 96"),
    (awq_config(128, zero_point="no"), "zero_point is 'no'"),
    (awq_config(128, modules_to_not_convert="lm_head"), "modules_to_not_convert is 'lm_head'"),
    (LLM_INT8 | {"load_in_8bit": False}, "load_in_4bit is False, which is not supported; supported: true for it"),
    (LLM_INT8 | {"load_in_8bit": "yes"}, "load_in_8bit is 'yes'"),
    (LOADED_NF4 | {"bnb_4bit_quant_type": "fp4"}, "bnb_4bit_quant_type is 'fp4', which is not supported; supp"),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bnb_4bit_quant_type is 'fp4'"),
    (gptq_config(4, 128, pack_dtype="x" * 5000), "xxx..., which is not supported; supported: int32"),
    (LOADED_NF4 | {"bnb_4bit_quant_storage": "bfloat16"}, "bnb_4bit_quant_storage is 'bfloat16'"),
    (LLM_INT8 | {"llm_int8_skip_modules": "lm_head"}, "llm_int8_skip_modules is 'lm_head'"),
    (compressed("float-quantized", strategy="channel", symmetric=False, **FLOAT), "symmetric is False"),
    (compressed("pack-quantized", num_bits=4, symmetric=0, **PACKED), "symmetric is 0"),
    (compressed("pack-quantized", num_bits=3, **PACKED), "pack-quantized, 3 bits int"),
]  # fmt: skip


@pytest.mark.parametrize(("stated", "sentence"), UNSUPPORTED)
def test_unsupported_formats_are_refused_by_name(stated, sentence):
    with pytest.raises(ConfigError) as error:
        get_quantization({"quantization_config": stated})
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("config", "module", "is_quantized"),
    [
        (gptq_config(4, 128, dynamic={"-:.*mlp": {}}), "model.layers.0.mlp.up_proj", False),
        (gptq_config(4, 128, dynamic={"-:mlp": {}}), "model.layers.0.mlp.up_proj", True),  # from the first character on
        (gptq_config(4, 128, dynamic={".*up": {"bits": 4}, "-:.*mlp": {}}), "model.layers.0.mlp.up_proj", True),
        (awq_config(128, modules_to_not_convert=["mlp.gate"]), "model.layers.0.mlp.gate_proj", False),  # a substring
        (awq_config(128, modules_to_not_convert=["visual"]), "model.layers.0.mlp.gate_proj", True),
        (awq_config(128, modules_to_not_convert=None), "lm_head", True),
        (FP8 | {"modules_to_not_convert": ["model.layers.0.mlp"]}, "model.layers.0.mlp.up_proj", False),
        (FP8 | {"modules_to_not_convert": ["mlp.gate"]}, "model.layers.0.mlp.gate_proj", True),  # whole parts of names
    ],
)
def test_modules_that_a_config_excludes(config, module, is_quantized):
    """They decide the size that `unmask fit` states before the weights are on the disk."""
    assert (get_quantization({"quantization_config": config}).stated([module])[module] is not None) == is_quantized


@pytest.mark.parametrize("layout", ["GPTQ, zero points", "AWQ"])
def test_a_quantized_head_is_dequantized(tmp_path, layout):
    source = GOLDEN / "llada2_tiny"
    quantized, _ = write_both(layout, source, tmp_path)
    tensors = load_file(quantized / "model.safetensors")
    parts, expected = KNOWN[layout][1](tensors.pop("lm_head.weight"))
    save_file(tensors | {f"lm_head.{name}": part for name, part in parts.items()}, quantized / "model.safetensors")
    head = named_weights(load(quantized))["lm_head_weight"]
    assert isinstance(head, UnquantizedWeight)
    assert torch.equal(head.tensor, expected.float())


def test_a_tensor_scale_with_a_zero_point():
    weight = torch.randn(8, 16)
    parts, expected = int8_with_zero_points(weight)
    parts = {name: part[:1, 0] if name != "weight" else part for name, part in parts.items()}
    config = compressed("int-quantized", num_bits=8, strategy="tensor", symmetric=False, **INT)
    assert torch.equal(read(config, parts).dequantize(torch.float64)[0], expected[0])
