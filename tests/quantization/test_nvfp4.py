"""Tests of NVFP4 and MXFP4: published bytes, the definition in float64, hostile tensors, and rounding."""

import json
import re

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from runtime import LLM, SamplingParams
from runtime.errors import ConfigError
from runtime.kernels.nvfp4 import quantize_nvfp4
from runtime.quantization.checkpoint.nvfp4 import CompressedNvfp4, Mxfp4, Nvfp4Scheme
from runtime.quantization.checkpoint.scheme import get_quantization, quantization_of
from runtime.weights.checkpoint import open_checkpoint, resolve_checkpoint
from tests.golden import GOLDEN
from tests.models.paged import load
from tests.quantization.quantized_files import E2M1, LAYOUTS, e4m3_numbers, modelopt, write_both
from tests.quantization.test_checkpoint import logits

TINY = GOLDEN / "llada2_tiny"
CPU = torch.device("cpu")
NAMES = {Nvfp4Scheme: ("weight", "weight_scale_2"), CompressedNvfp4: ("weight_packed", "weight_global_scale")}
ROUNDED = [0.5, 1, 1.5, 2, 3, 4, 6, 3, -0.5, -1, -1.5, -2, -3, -4, -6, -3]
ROW = [0.5, -0.5, 1, -1, 1.5, -1.5, 2, -2, 3, -3, 4, -4, 6, -6, 0, 0]


def read_of(tensors):
    return lambda ending: tensors[ending.removeprefix(".")]


def tensors_of(scheme, codes, scales, factor):
    main, last = NAMES[scheme]
    scales = torch.as_tensor(scales, dtype=torch.uint8).view(torch.float8_e4m3fn)
    return {main: codes, "weight_scale": scales, last: torch.tensor(factor, dtype=torch.float32)}


def packed(text):
    return torch.tensor([list(bytes.fromhex(text))], dtype=torch.uint8)


@pytest.mark.parametrize(
    ("scheme", "text", "scale", "factor", "expected"),
    [
        (CompressedNvfp4, "91a2b3c4d5e6f700", 2.0, [2.0], ROW),
        (CompressedNvfp4, "91a2b3c4d5e6f700", 2.0, [4.0], [value / 2 for value in ROW]),
        (CompressedNvfp4, "1032547698badcfe", 1.0, [1.0], E2M1.tolist()),
        (Nvfp4Scheme, "91a2b3c4d5e6f700", 448.0, 6 / (6 * 448), ROW),
        (Nvfp4Scheme, "21436557a9cbeddf", 384.0, 6 / (6 * 448), [value * 384 / 448 for value in ROUNDED]),
    ],
)  # fmt: skip
def test_published_bytes(scheme, text, scale, factor, expected):
    scales = torch.tensor([[scale]]).to(torch.float8_e4m3fn).view(torch.uint8)
    made = scheme().read_quantized(read_of(tensors_of(scheme, packed(text), scales, factor)), CPU)
    torch.testing.assert_close(made.dequantize(torch.float64)[0], torch.tensor(expected).double(), rtol=1e-7, atol=0)


def test_published_bytes_of_mxfp4():
    tensors = {"weight_packed": packed("1032547698badcfe" * 2), "weight_scale": torch.tensor([[128]]).to(torch.uint8)}
    made = Mxfp4().read_quantized(read_of(tensors), CPU)
    assert made.dequantize(torch.float64)[0].tolist() == [2 * value for value in E2M1.tolist() * 2]


def random_parts(outputs, inputs, group):
    random = np.random.default_rng(outputs)
    codes = random.integers(0, 16, (outputs, inputs))
    stored = torch.from_numpy((codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8))
    return random, codes, stored, (outputs, inputs // group)


@pytest.mark.parametrize(("outputs", "inputs"), [(40, 96), (7, 16), (130, 208)])
@pytest.mark.parametrize(("scheme", "factor"), [
    (Nvfp4Scheme, 1 / 3), (CompressedNvfp4, 2.0**-9), (CompressedNvfp4, 1234.5)])  # fmt: skip
def test_the_definition(scheme, factor, outputs, inputs):
    """Every code and every finite scale, also negative ones, equals the definition in float64."""
    random, codes, stored, shape = random_parts(outputs, inputs, 16)
    scales = random.integers(0, 127, shape)
    signs = random.integers(0, 2, shape)
    tensors = tensors_of(scheme, stored, scales | signs << 7, factor)
    made = scheme().read_quantized(read_of(tensors), CPU)
    numbers = np.repeat(e4m3_numbers()[scales] * (1 - 2 * signs), 16, 1)
    factor = np.float64(np.float32(factor))
    expected = E2M1[codes] * numbers * (factor if scheme is Nvfp4Scheme else 1 / factor)
    found = made.dequantize(torch.float64).numpy()
    if factor == 1234.5:  # the inverse is rounded to float32
        np.testing.assert_allclose(found, expected, rtol=2.0**-24)
    else:
        assert (found == expected).all()
    assert made.shape == (outputs, inputs)


@pytest.mark.parametrize(("low", "high"), [(110, 127), (0, 17), (237, 254)])
def test_the_definition_of_mxfp4(low, high):
    """Scales of one row may differ by 2^17; those of groups of zeros do not count."""
    random, codes, stored, shape = random_parts(30, 96, 32)
    scales = random.integers(low, high + 1, shape)
    stored[3, 16:32], codes[3, 32:64], scales[3, 1] = 0, 0, 254 - low
    stored[4], codes[4] = 0, 0
    tensors = {"weight_packed": stored, "weight_scale": torch.from_numpy(scales.astype(np.uint8))}
    made = Mxfp4().read_quantized(read_of(tensors), CPU)
    expected = E2M1[codes] * 2.0 ** (np.repeat(scales, 32, 1) - 127.0)
    assert (made.dequantize(torch.float64).numpy() == expected).all()


def test_a_part_of_the_inputs():
    weight = quantize_nvfp4(torch.randn(6, 208, generator=torch.Generator().manual_seed(1)))
    full = weight.dequantize(torch.float64)
    for first, last in ((0, 208), (0, 16), (48, 176), (112, 208)):
        part = weight.submatrix(slice(1, 5), range(first, last))
        assert part.shape == (4, last - first)
        assert torch.equal(part.dequantize(torch.float64), full[1:5, first:last])
    with pytest.raises(ConfigError, match="is cut at inputs 0 and 104, but each 16 of them share a scale"):
        weight.submatrix(slice(None), range(104))


def test_numbers_are_rounded_to_the_nearest():
    x = torch.randn(50, 300, generator=torch.Generator().manual_seed(2)) * torch.logspace(-20, 20, 50)[:, None]
    x[7] = 0
    made = quantize_nvfp4(x)
    steps = made.group_scales.double() * made.row_scales.double()[:, None]
    steps = steps.repeat_interleave(16, 1)[:, :300]
    error = (made.dequantize(torch.float64) - x.double()).abs()
    nearest = (x.double()[..., None] - steps[..., None] * torch.from_numpy(E2M1)).abs().amin(-1)
    torch.testing.assert_close(error, nearest, rtol=1e-4, atol=1e-30)
    assert float(steps.max()) > 0
    assert not made.dequantize(torch.float64)[7].any()


def changed(key, value):
    return lambda tensors: tensors.update({key: value})


HOSTILE = [
    (changed("weight", torch.zeros(4, 16, dtype=torch.int8)), "is packed as torch.int8 [4, 16], not as a matrix"),
    (changed("weight", torch.zeros(4, 4, 4, dtype=torch.uint8)), "is packed as torch.uint8 [4, 4, 4], not as"),
    (changed("weight", torch.zeros(4, 20, dtype=torch.uint8)), "has 40 inputs, which is no multiple of 16"),
    (changed("weight_scale", torch.zeros(4, 2)), "has scales of torch.float32 [4, 2], not torch.float8_e4m3fn [4, 2]"),
    (changed("weight_scale", torch.zeros(4, 3).to(torch.float8_e4m3fn)), "[4, 3], not torch.float8_e4m3fn [4, 2]"),
    (lambda t: t["weight_scale"].view(torch.uint8)[1:2].fill_(0x7F), "has scales that are NaN"),
    (lambda t: t["weight_scale"].view(torch.uint8)[3:, 1:].fill_(0xFF), "has scales that are NaN"),
    (changed("weight_scale_2", torch.ones(2)), "has a weight_scale_2 of torch.float32 [2], not one float"),
    (changed("weight_scale_2", torch.tensor(3)), "has a weight_scale_2 of torch.int64 [], not one float"),
    (changed("weight_scale_2", torch.ones(1).to(torch.float8_e4m3fn)), "of torch.float8_e4m3fn [1], not one float"),
    *((changed("weight_scale_2", torch.tensor(bad)), f"has a weight_scale_2 of {bad:g}, which is no scale")
      for bad in (torch.inf, torch.nan, 0.0)),
]  # fmt: skip


@pytest.mark.parametrize(("change", "sentence"), HOSTILE)
def test_hostile_tensors_are_refused_in_one_sentence(change, sentence):
    tensors = tensors_of(Nvfp4Scheme, torch.zeros(4, 16, dtype=torch.uint8), torch.zeros(4, 2), 1.0)
    change(tensors)
    with pytest.raises(ConfigError, match=re.escape(sentence)) as error:
        Nvfp4Scheme().read_quantized(read_of(tensors), CPU)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("bad", [0.0, -0.0, torch.inf, torch.nan, 1e-45])
def test_a_divisor_that_gives_no_numbers_is_refused(bad):
    tensors = tensors_of(CompressedNvfp4, torch.zeros(4, 16, dtype=torch.uint8), torch.zeros(4, 2), [bad])
    with pytest.raises(ConfigError, match=r"has a weight_global_scale of \S+, which is no scale"):
        CompressedNvfp4().read_quantized(read_of(tensors), CPU)


@pytest.mark.parametrize(("scales", "sentence"), [
    ([[255, 1]], "has scales that are NaN"), ([[100, 118]], "differ by more than a factor of 2^17")])  # fmt: skip
def test_hostile_scales_of_mxfp4(scales, sentence):
    tensors = {"weight_packed": torch.full((1, 32), 17, dtype=torch.uint8)}
    tensors["weight_scale"] = torch.tensor(scales, dtype=torch.uint8)
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        Mxfp4().read_quantized(read_of(tensors), CPU)


QKV = "model.layers.1.attention.query_key_value"
FILES = [
    (lambda t: t.pop(f"{QKV}.weight_scale_2"), f"lacks '{QKV}.weight_scale_2'"),
    (changed(f"{QKV}.pre_quant_scale", torch.ones(64)), f"1 unknown: '{QKV}.pre_quant_scale'"),
    (changed(f"{QKV}.weight_zero_point", torch.ones(64)), f"1 unknown: '{QKV}.weight_zero_point'"),
    (changed(f"{QKV}.weight_scale_2", torch.tensor(1e39)), f"tensor '{QKV}.weight' of"),
    (changed(f"{QKV}.weight_scale_2", torch.tensor(1e36)), "holds NaN or infinite values"),
    (changed(f"{QKV}.weight", torch.zeros(128, 24, dtype=torch.uint8)), "is [128, 48], not [128, 64]"),
    (changed(f"{QKV}.weight", torch.zeros((), dtype=torch.uint8)), "is [], not [128, 64]"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "sentence"), FILES)
def test_every_tensor_of_a_file_is_accounted_for(tmp_path, change, sentence):
    quantized, _ = write_both("nvfp4, modelopt", TINY, tmp_path)
    tensors = load_file(quantized / "model.safetensors")
    change(tensors)
    save_file(tensors, quantized / "model.safetensors")
    with pytest.raises(ConfigError, match=re.escape(sentence)) as error:
        load(quantized, torch.float32)
    assert "\n" not in str(error.value)


def has_no_fields(tmp_path):
    """Returns the checkpoint without the quantization in config.json, and that quantization."""
    quantized, plain = write_both("nvfp4, modelopt", TINY, tmp_path, lambda name: "layers.0" in name)
    config = json.loads((quantized / "config.json").read_text())
    stated = config.pop("quantization_config")
    (quantized / "config.json").write_text(json.dumps(config))
    return quantized, plain, config, stated


@pytest.mark.parametrize("where", ["hf_quant_config.json", "both", "both, in parts", "both, without a method"])
def test_the_quantization_is_in_either_file(tmp_path, where):
    quantized, plain, config, stated = has_no_fields(tmp_path)
    fields = {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16, "exclude_modules": ["lm_head"]}
    own = {"producer": {"name": "modelopt", "version": "0.29.0"}, "quantization": fields}
    (quantized / "hf_quant_config.json").write_text(json.dumps(own))
    if where != "hf_quant_config.json":
        stated |= {"quant_algo": None} if "parts" in where else {}
        stated = {name: value for name, value in stated.items() if name != "quant_method" or "method" not in where}
        (quantized / "config.json").write_text(json.dumps(config | {"quantization_config": stated}))
    torch.testing.assert_close(logits(quantized), logits(plain), rtol=1e-4, atol=1e-4)
    assert quantization_of(open_checkpoint(str(quantized)).config, "nvfp4") == "nvfp4"


def test_a_file_without_its_object_is_refused(tmp_path):
    quantized, *_ = has_no_fields(tmp_path)
    (quantized / "hf_quant_config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"hf_quant_config.json has no object quantization; it says"):
        resolve_checkpoint(str(quantized))


def test_scales_of_activations_and_of_the_cache_are_skipped_with_one_line(tmp_path, caplog):
    """The published files have input_scale of each quantized module, and k_scale and v_scale of attention."""
    quantized, plain = write_both("nvfp4, modelopt", TINY, tmp_path)
    tensors = load_file(quantized / "model.safetensors")
    own = sum(name.endswith(".input_scale") for name in tensors)
    for layer in range(3):
        for name in ("k_proj.k_scale", "v_proj.v_scale"):
            tensors[f"model.layers.{layer}.self_attn.{name}"] = torch.tensor(1.0)
    save_file(tensors, quantized / "model.safetensors")
    with caplog.at_level("INFO", "runtime.weights.loader"):
        torch.testing.assert_close(logits(quantized), logits(plain), rtol=1e-4, atol=1e-4)
    (line,) = [record.getMessage() for record in caplog.records if "not used" in record.getMessage()]
    assert line.startswith(f"{own + 6} scales of activations and of the KV cache are not used")


LAYERS = {
    "model.layers.0.mlp.up_proj": {"quant_algo": "FP8"},
    "model.layers.1.mlp.experts": {"quant_algo": "NVFP4", "group_size": 16},
}
MIXED = modelopt("MIXED_PRECISION", quantized_layers=LAYERS, ignore=["lm_head", "*.experts.3*"])


@pytest.mark.parametrize(
    ("config", "module", "expected"),
    [
        (modelopt("NVFP4"), "lm_head", None),
        (modelopt("NVFP4"), "model.layers.0.mlp.up_proj", "nvfp4"),
        (modelopt("NVFP4", ignore=["model.layers.3.self_attn*"]), "model.layers.3.self_attn.q_proj", None),
        (modelopt("NVFP4", ignore=["model.layers.3.self_attn*"]), "model.layers.30.self_attn.q_proj", "nvfp4"),
        (modelopt("NVFP4", ignore=["*.self_attn*", "*router*"]), "model.layers.3.router.proj", None),
        (modelopt("NVFP4", ignore=["model.layers.?.mlp"]), "model.layers.3.mlp", None),
        (modelopt("NVFP4", ignore=["model.layers.?.mlp"]), "model.layers.3.mlp.up_proj", "nvfp4"),
        (modelopt("NVFP4", ignore=None, exclude_modules=["self_attn"]), "model.layers.3.self_attn.q_proj", None),
        (modelopt("NVFP4", ignore=None, exclude_modules=["mlp.gate."]), "model.layers.3.mlp.gate", None),
        (modelopt("NVFP4", ignore=None, exclude_modules=["mlp.gate."]), "model.layers.3.mlp.gate_proj", "nvfp4"),
        (modelopt("NVFP4", ignore=["model.layers.1"]), "model.layers.1.mlp.up_proj", None),
        (modelopt("NVFP4", ignore=["model.layers.1"]), "model.layers.10.mlp.up_proj", "nvfp4"),
        (modelopt("NVFP4", ignore=["a(b", ""]), "model.layers.10.mlp.up_proj", "nvfp4"),
        (modelopt("W4A16_NVFP4"), "x", "nvfp4"),
        (modelopt("FP8_PB_WO"), "x", "fp8_blocks"),
        (MIXED, "model.layers.0.mlp.up_proj", "fp8"),
        (MIXED, "model.layers.1.mlp.experts.2.up_proj", "nvfp4"),
        (MIXED, "model.layers.1.mlp.experts.3.up_proj", None),
        (MIXED, "model.layers.0.mlp.down_proj", None),
    ],
)
def test_the_format_of_a_module(config, module, expected):
    scheme = get_quantization({"quantization_config": config}).stated([module])[module]
    assert (scheme and scheme.format) == expected


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        *((modelopt(algo), f"quant_algo is {algo!r}, which is not supported; supported: NVFP4, W4A16_NVFP4, FP8, ")
          for algo in ("NVFP4_AWQ", "NVFP4_SVD", "W4A8_AWQ", "MXFP8", None, ["FP8"])),
        (modelopt("NVFP4", group_size=32), "group_size is 32, which is not supported; supported: 16, for NVFP4"),
        (modelopt("NVFP4", ignore="lm_head"), "ignore is 'lm_head', which is not supported; supported: a list of"),
        (modelopt("MIXED_PRECISION"), "quantized_layers is None, which is not supported; supported: an object with"),
        (modelopt("MIXED_PRECISION", quantized_layers={"a": "FP8"}), "quantized_layers is {'a': 'FP8'}, which is not"),
        (modelopt("MIXED_PRECISION", quantized_layers={"a": {"quant_algo": "W4A8_AWQ"}}), "quant_algo is 'W4A8_AWQ'"),
    ],
)  # fmt: skip
def test_unsupported_configs_are_refused_in_one_sentence(config, sentence):
    with pytest.raises(ConfigError, match=re.escape(sentence)) as error:
        get_quantization({"quantization_config": config})
    assert "\n" not in str(error.value)


def test_nvfp4_experts_beside_fp8_attention(tmp_path):
    """A file of MIXED_PRECISION: parts of one weight have one format, and both formats are in `quantization`."""
    nvfp4_file, plain = write_both("nvfp4, modelopt", TINY, tmp_path / "a", lambda name: "attention" in name)
    layers = {}
    tensors, values = (load_file(path / "model.safetensors") for path in (nvfp4_file, plain))
    for name in [name for name in tensors if "attention" in name and tensors[name].dim() == 2]:
        parts, values[name] = LAYOUTS["fp8, modelopt"][1](tensors[name].float())
        module = name.removesuffix(".weight")
        tensors |= {f"{module}.{ending}": part for ending, part in parts.items()}
        layers[module] = {"quant_algo": "FP8"}
    for name in tensors:
        if name.endswith(".weight_scale_2"):
            layers[name.removesuffix(".weight_scale_2")] = {"quant_algo": "NVFP4", "group_size": 16}
    save_file(tensors, nvfp4_file / "model.safetensors")
    save_file(values, plain / "model.safetensors")
    config = json.loads((nvfp4_file / "config.json").read_text())
    config["quantization_config"] = modelopt("MIXED_PRECISION", quantized_layers=layers)
    (nvfp4_file / "config.json").write_text(json.dumps(config))
    torch.testing.assert_close(logits(nvfp4_file), logits(plain), rtol=1e-4, atol=1e-4)
    with LLM(model=str(nvfp4_file), device="cpu", skip_tokenizer=True, quantization="nvfp4") as llm:
        assert set(llm.info.quantization.split("+")) == {"fp8", "nvfp4"}
        params = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)
        assert len(llm.generate([[7, 8, 9]], params)[0].token_ids) == 8
