"""Tests of reading adapters. Refusals name the tensor or field."""

import json
import shutil
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from runtime import untrusted_patterns
from runtime.errors import ConfigError
from runtime.lora import unchanged_weights
from runtime.lora.adapter_checkpoint import BaseModelInfo, LoRAMerge, parse_peft_config, read_adapter
from runtime.models.base import resolve_family
from runtime.weights.checkpoint import resolve_checkpoint
from tests.golden import GOLDEN
from tests.lora.samples import config, random_adapter

QKV = "model.layers.0.attention.query_key_value"


def read_base(path):
    checkpoint = resolve_checkpoint(str(path))
    family = resolve_family(None, checkpoint.config)
    return BaseModelInfo.of(family, family.parse(checkpoint.config), torch.float32, lambda: checkpoint)


@pytest.fixture(scope="module")
def base():
    return read_base(GOLDEN / "llada2_tiny")


@pytest.fixture(scope="module")
def tied(tmp_path_factory):
    """Returns the base model with a tied LM head; its file has another LM head, which is not used."""
    path = shutil.copytree(GOLDEN / "llada2_tiny", tmp_path_factory.mktemp("tied") / "base")
    model_config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(model_config | {"tie_word_embeddings": True}))
    return read_base(path)


@pytest.fixture
def adapter(tmp_path):
    return shutil.copytree(GOLDEN / "lora" / "llada2_qkv", tmp_path / "adapter")


def edit(adapter, change):
    path = adapter / "adapter_model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file({name: tensor.clone() for name, tensor in tensors.items()}, path)


def say(adapter, **fields):
    path = adapter / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


A, B = (f"base_model.model.{QKV}.lora_{half}.weight" for half in "AB")


def test_pairs_rank_and_digest(adapter, base):
    read = read_adapter(adapter, base, 4)
    assert len(read.pairs) == 6
    assert read.rank == 4
    pair = read.pairs[f"{QKV}.weight"]
    assert torch.equal(pair.lora_b, load_file(adapter / "adapter_model.safetensors")[B] * 4)  # alpha 16 over rank 4
    assert read_adapter(adapter, base).digest == read.digest
    say(adapter, lora_alpha=17)
    assert read_adapter(adapter, base).digest != read.digest


def rename(tensors, old, new):
    tensors[new] = tensors.pop(old)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop(B), f"tensor '{B}' is missing"),
        (lambda t: (t.pop(A), t.pop(B)), f"tensor '{A}' is missing, though target_modules names its module"),
        (lambda t: t.update({A: t[A] * float("nan")}), f"tensor '{A}' holds NaN"),
        (lambda t: t.update({A: torch.zeros(5, 64)}), rf"tensor '{A}' is \[5, 64\], not \[4, 64\]"),
        (lambda t: t.update({B: torch.zeros(64, 4)}), rf"tensor '{B}' is \[64, 4\], not \[128, 4\]"),
        (lambda t: t.update({A: t[A].to(torch.int8)}), f"tensor '{A}' is torch.int8"),
        (lambda t: t.update({B: t[B] * 0 + 2e38}), f"tensor '{B}' is too large for its scale"),
        (
            lambda t: [rename(t, name, name.replace("layers.0", "layers.9")) for name in (A, B)],
            r"has no module for '.*layers.9.*lora_A.weight'; is the adapter for another base",
        ),
        (
            lambda t: t.update({"base_model.model.lm_head.weight": t[A]}),
            "'base_model.model.lm_head.weight' is not half",
        ),
        (
            lambda t: t.update({A.replace("lora_A", "lora_magnitude_vector"): t[A]}),
            "lora_magnitude_vector.* is not half",
        ),
        (lambda t: t.update({A.replace("lora_A.", "lora_A.default."): t[A]}), "occurs twice, under"),
    ],
)
def test_invalid_tensors_are_refused_by_name(adapter, base, change, message):
    edit(adapter, change)
    with pytest.raises(ConfigError, match=message) as error:
        read_adapter(adapter, base)
    assert str(adapter) in str(error.value)


def test_a_rank_above_the_limit_is_refused(adapter, base):
    with pytest.raises(ConfigError, match=r"tensor '.*lora_A.weight' has rank 4, more than --max-lora-rank 3"):
        read_adapter(adapter, base, 3)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"peft_type": "LOHA"}, "peft_type is 'LOHA'"),
        ({"use_dora": True}, "use_dora is True: DoRA"),
        ({"modules_to_save": ["lm_head"]}, r"modules_to_save is \['lm_head'\]: .* has no weight of it"),
        ({"modules_to_save": "lm_head"}, "modules_to_save must be a list"),
        ({"bias": "all"}, "bias is 'all'"),
        ({"lora_bias": True}, "lora_bias"),
        ({"target_parameters": ["x"]}, "target_parameters"),
        ({"use_qalora": True}, "use_qalora"),
        ({"something_new": 3}, "something_new is 3: this is not supported"),
        ({"init_lora_weights": "pissa_niter_4"}, "changes the base's weights"),
        ({"r": 0}, "r must be a whole number"),
        ({"lora_alpha": None}, "lora_alpha"),
        ({"rank_pattern": {"x": 0}}, "rank_pattern gives 'x' 0"),
        ({"rank_pattern": {"x": 2.5}}, r"rank_pattern gives 'x' 2\.5"),
        ({"alpha_pattern": ["x"]}, "alpha_pattern must map"),
        ({"target_modules": "("}, "no valid regular expression"),
        ({"rank_pattern": {"(?i)x": 2}}, r"rank_pattern has '\(\?i\)x', which is no valid regular expression"),
        ({"rank_pattern": {"q)|(z": 2}}, "no valid regular expression"),
        ({"layers_to_transform": [1], "layers_pattern": r"layers)\.(\d+)\.|(?:x"}, "no valid regular expression"),
        ({"target_modules": None}, "target_modules must be a list"),
        ({"layers_to_transform": "1"}, "layers_to_transform must be"),
        ({"layers_to_transform": [True]}, "layers_to_transform must be"),
        ({"layers_to_transform": [1], "target_modules": ".*"}, "layers_to_transform goes with a list"),
        ({"layers_to_transform": [], "target_modules": ".*"}, "layers_to_transform goes with a list"),
        ({"layers_pattern": "layers"}, "layers_pattern goes with layers_to_transform"),
        ({"target_modules": ["dense"]}, "target_modules does not name .*query_key_value"),
        ({"layers_to_transform": [99]}, "or layers_to_transform or exclude_modules excludes it"),
    ],
)
def test_invalid_configs_are_refused_by_field(adapter, base, fields, message):
    say(adapter, **fields)
    with pytest.raises(ConfigError, match=message):
        read_adapter(adapter, base)


def test_the_tying_of_modules_that_are_no_targets_is_accepted(adapter, base):
    expected = read_adapter(adapter, base).digest
    say(adapter, ensure_weight_tying=True)
    assert read_adapter(adapter, base).digest == expected
    for name in (A, B):
        edit(adapter, lambda t, name=name: t.update({name.replace(QKV, "model.word_embeddings"): t[name]}))
    with pytest.raises(ConfigError, match="the model has no module for"):
        read_adapter(adapter, base)


EMBEDDING, HEAD, NORM = "model.word_embeddings", "lm_head", "model.norm"
BASE_TENSORS = load_file(GOLDEN / "llada2_tiny" / "model.safetensors")


@pytest.mark.parametrize("piece", [1 << 24, 100])
@pytest.mark.parametrize(
    ("names", "saved", "dtype"),
    [
        ({f"{HEAD}.base_layer.weight": HEAD}, None, torch.float32),
        ({f"{HEAD}.weight": HEAD, f"{EMBEDDING}.weight": EMBEDDING}, None, torch.bfloat16),
        ({f"{HEAD}.weight": HEAD}, ["lm_head"], torch.float16),
        ({f"{NORM}.weight": NORM}, ["norm"], torch.float32),
        (
            {f"{HEAD}.{at}weight": HEAD for at in ("", "original_module.", "modules_to_save.")}
            | {f"{EMBEDDING}.weight": EMBEDDING},
            ["word_embeddings", "lm_head"],
            torch.float32,
        ),
    ],
)
def test_unchanged_weights_beside_the_pairs(adapter, base, monkeypatch, names, saved, dtype, piece):
    """PEFT saves them with an adapted LM head, save_embedding_layers or modules_to_save. Changed ones are refused."""
    monkeypatch.setattr(unchanged_weights, "PIECE", piece)
    expected = read_adapter(adapter, base).digest
    say(adapter, modules_to_save=saved)
    complete = {
        f"base_model.model.{name}": BASE_TENSORS[f"{module}.weight"].to(dtype) for name, module in names.items()
    }
    edit(adapter, lambda t: t.update(complete))
    reserved = []
    assert read_adapter(adapter, base, reserve=reserved.append).digest == expected
    assert sum(reserved) == sum(
        4 * t.numel() for name, t in load_file(adapter / "adapter_model.safetensors").items() if name not in complete
    )
    for name, tensor in complete.items():
        changed = tensor.clone()
        changed.view(-1)[-1] += 1
        edit(adapter, lambda t, name=name, changed=changed: t.update({name: changed}))
        with pytest.raises(ConfigError, match=f"tensor '{name}' is not half of a LoRA pair, and it differs from '.*'"):
            read_adapter(adapter, base)
        longer = torch.cat([tensor, tensor])
        edit(adapter, lambda t, name=name, longer=longer: t.update({name: longer}))
        with pytest.raises(
            ConfigError, match=rf"tensor '{name}' .* it is \[{len(longer)}.*\], but '.*without new tokens"
        ):
            read_adapter(adapter, base)
        edit(adapter, lambda t, name=name, tensor=tensor: t.update({name: tensor}))


def test_the_unchanged_weight_of_an_adapted_lm_head(tmp_path, base):
    path = random_adapter(tmp_path / "a", GOLDEN / "llada2_tiny", "lm_head", 0)
    expected = read_adapter(path, base).pairs["lm_head.weight"]
    edit(path, lambda t: t.update({"base_model.model.lm_head.base_layer.weight": BASE_TENSORS["lm_head.weight"]}))
    assert torch.equal(read_adapter(path, base).pairs["lm_head.weight"].lora_b, expected.lora_b)


def test_a_tied_lm_head_equals_the_embedding(adapter, tied, tmp_path):
    name = "base_model.model.lm_head.weight"
    edit(adapter, lambda t: t.update({name: BASE_TENSORS[f"{EMBEDDING}.weight"]}))
    assert len(read_adapter(adapter, tied).pairs) == 6
    edit(adapter, lambda t: t.update({name: BASE_TENSORS["lm_head.weight"]}))
    with pytest.raises(ConfigError, match=f"'{name}' .* differs from '{EMBEDDING}.weight'"):
        read_adapter(adapter, tied)
    path = random_adapter(tmp_path / "a", GOLDEN / "llada2_tiny", "lm_head", 0)
    with pytest.raises(ConfigError, match=r"has no module for .*lm_head.* it is the token embedding, an LM head that"):
        read_adapter(path, tied)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (f"{EMBEDDING}.lora_embedding_A", "adapts the token embedding"),
        (f"{QKV}.base_layer.bias", "is not half of a LoRA pair, and the base model has no such weight"),
        ("model.layers.9.norm.weight", "is not half of a LoRA pair, and the base model has no such weight"),
        (f"{EMBEDDING}.token_adapter.trainable_tokens_delta", "is not half of a LoRA pair; only LoRA"),
    ],
)
def test_tensors_that_are_neither_pairs_nor_weights(adapter, base, name, message):
    edit(adapter, lambda t: t.update({f"base_model.model.{name}": t[A]}))
    with pytest.raises(ConfigError, match=f"'base_model.model.{name}' {message}"):
        read_adapter(adapter, base)


def test_files_that_are_missing(adapter, base):
    (adapter / "adapter_model.safetensors").rename(adapter / "adapter_model.bin")
    with pytest.raises(ConfigError, match=r"there is no adapter_model\.safetensors"):
        read_adapter(adapter, base)
    (adapter / "adapter_config.json").unlink()
    with pytest.raises(ConfigError, match=r"there is no adapter_config\.json"):
        read_adapter(adapter, base)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("target_modules", "(x+)+y"), ("exclude_modules", "(x+)+y"), ("rank_pattern", {"(x+)+y": 1}),
        ("alpha_pattern", {"(x+)+y": 1}), ("layers_pattern", "(x+)+y"),
    ],
)  # fmt: skip
def test_no_regular_expression_of_an_adapter_runs_in_this_process(adapter, base, monkeypatch, field, value):
    """The process that matches them has a limit of its CPU time, and ends here at once."""
    monkeypatch.setattr(untrusted_patterns, "COMMAND", (sys.executable, "-c", "raise SystemExit(1)"))
    say(adapter, **{field: value}, **({"layers_to_transform": [0]} if field == "layers_pattern" else {}))
    with pytest.raises(ConfigError, match=rf"adapter_config\.json: {field}: the regular expressions could not be"):
        read_adapter(adapter, base)


def test_rank_alpha_and_module_patterns():
    read = parse_peft_config(
        config(rank_pattern={"q_proj": 8}, alpha_pattern={r".*\.1\..*": 4}, target_modules=["q_proj", "k_proj"],
               exclude_modules=["0.k_proj"], layers_to_transform=[0, 1])
    )  # fmt: skip
    layers = [f"m.layers.{n}.{name}" for n in range(3) for name in ("q_proj", "k_proj", "v_proj")]
    found = read.of(layers)
    assert [found[name].rank for name in layers[:2]] == [8, 4]
    assert [found[name].scale for name in (layers[0], layers[4])] == [1, 1]
    assert [name for name in layers if found[name].targeted] == [layers[0], layers[3], layers[4]]
    assert parse_peft_config(config(use_rslora=True)).of(["x"])["x"].scale == 4
    assert parse_peft_config(config(rank_pattern={"x": 8.0})).of(["x"])["x"].rank == 8


EXPERTS = [f"m.layers.{layer}.experts.{expert}.up" for layer in range(2) for expert in range(3)]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"layers_to_transform": [1]}, EXPERTS[3:]),
        ({"layers_to_transform": 0}, EXPERTS[:3]),
        ({"layers_to_transform": [2]}, []),
        ({"layers_to_transform": []}, EXPERTS),
        ({"layers_to_transform": [], "layers_pattern": "h"}, EXPERTS),
        ({"layers_to_transform": [1], "layers_pattern": ""}, EXPERTS[3:]),
        ({"layers_to_transform": [1], "layers_pattern": "layers"}, EXPERTS[3:]),
        ({"layers_to_transform": [1], "layers_pattern": "layers|h"}, EXPERTS[3:]),
        ({"layers_to_transform": [1], "layers_pattern": "(lay(ers))"}, EXPERTS[3:]),
        ({"layers_to_transform": [1], "layers_pattern": ["(x)", "layers"]}, EXPERTS[3:]),
        ({"layers_to_transform": [1], "layers_pattern": ["layers", "experts"]}, EXPERTS[3:]),
        ({"layers_to_transform": [1], "layers_pattern": "experts"}, [EXPERTS[1], EXPERTS[4]]),
        ({"layers_to_transform": [1], "layers_pattern": "h"}, []),
        ({"layers_to_transform": [1], "target_modules": ["up", EXPERTS[0]]}, [EXPERTS[0], *EXPERTS[3:]]),
        ({"layers_to_transform": [1], "exclude_modules": ["1.up"]}, [EXPERTS[3], EXPERTS[5]]),
        ({"layers_to_transform": 1, "exclude_modules": r".*\.(0|1)\.up"}, [EXPERTS[5]]),
        ({"exclude_modules": "all-linear"}, EXPERTS),
    ],
)
def test_layers_to_transform(fields, expected):
    """The expected modules are those of PEFT 0.21.2, whose patterns of layers have no alternatives, however."""
    read = parse_peft_config(config(**({"target_modules": ["up"]} | fields)))
    assert [module for module, own in read.of(EXPERTS).items() if own.targeted] == expected


def test_experts_may_be_missing_together_but_not_one(base, tmp_path):
    """A model with fused experts has no module for each expert, so its adapters lack all of them."""
    checkpoint = GOLDEN / "llada2_tiny"
    every = r".*\.(query_key_value|gate_proj|up_proj|down_proj)"
    fields = {"target_modules": ["query_key_value", "gate_proj", "up_proj", "down_proj"]}
    path = random_adapter(tmp_path / "a", checkpoint, rf"(?!.*experts\.\d).*{every}", 0, **fields)
    assert len(read_adapter(path, base).pairs) > 3
    path = random_adapter(tmp_path / "b", checkpoint, rf"(?!.*experts\.3).*{every}", 0, **fields)
    with pytest.raises(ConfigError, match=r"experts.3.down_proj.lora_A.weight' is missing"):
        read_adapter(path, base)


def test_fused_experts_are_merged_one_by_one(base, tmp_path):
    path = random_adapter(tmp_path / "a", GOLDEN / "llada2_tiny", r".*layers.1.*experts\.\d+\.gate_proj", 0)
    adapter = read_adapter(path, base)
    merge = LoRAMerge.of(adapter, base.weights, torch.device("cpu"))
    name = "model.layers.1.mlp.experts.gate_proj"
    stack = torch.randn(8, 32, 64)
    made = merge(name, stack)
    for i, part in enumerate(base.weights.fused[name].parts):
        one = merge(part, stack[i])
        torch.testing.assert_close(made[i], one)
        assert not torch.equal(one, stack[i])
