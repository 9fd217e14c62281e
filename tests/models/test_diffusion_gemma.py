"""Tests of DiffusionGemma: golden logits, random weights against transformers, weight coverage, refused configs."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from runtime.errors import ConfigError
from runtime.kernels.fp8_argmax import fp8_lm_head_argmax
from runtime.kernels.nvfp4 import Nvfp4
from runtime.kernels.ops import TRITON
from runtime.layers.layer_factory import LayerFactory
from runtime.models.base import resolve_family
from runtime.models.diffusion_gemma import parse
from runtime.parameters.weight import named_weights
from runtime.weights.checkpoint import open_checkpoint, resolve_checkpoint
from runtime.weights.loader import load_model
from runtime.weights.weight_formats import stored_formats
from tests.golden import GOLDEN
from tests.models.canvas import Driver, Run
from tests.models.paged import load
from tests.oracle import canvas
from tests.oracle.llama_like import write
from tests.quantization import quantized_files

FOLDER = GOLDEN / "diffusion_gemma"
TOLERANCE = 5e-4  # of golden logits (tests/golden/README.md)
CONFIG = json.loads((FOLDER / "config.json").read_text())
CASES = json.loads((FOLDER / "cases.json").read_text())


@pytest.mark.parametrize("case", [c for c in CASES if c["kind"] == "denoiser_logits"], ids=lambda case: case["name"])
def test_golden_logits(case):
    expected = load_file(FOLDER / "expected.safetensors")
    prompt, noise = (expected[case[name]].tolist() for name in ("prompt_ids", "canvas_ids"))
    model = load(FOLDER, torch.float32)
    last_logits = case["self_conditioning_logits"]
    signal = None if last_logits is None else model.compute_self_conditioning(expected[last_logits].softmax(-1))
    for page_size, chunk in ((4, 7), (32, 100)):
        driver = Driver(model, 1, len(prompt) + len(noise), page_size, torch.float32)
        driver.commit(0, prompt, chunk)
        (logits,) = driver.step(Run(0, noise, len(prompt), open=True, signal=signal))
        torch.testing.assert_close(logits, expected[case["logits"]], rtol=0, atol=TOLERANCE)


def config_of(**text):
    return CONFIG | {"text_config": CONFIG["text_config"] | text}


@pytest.fixture(params=["golden_shape", "one_group", "all_full"])
def theirs(request, tmp_path):
    """Returns the published model implementation with random weights, and the folder that it was saved to."""
    transformers = pytest.importorskip("transformers")
    changes = {
        "golden_shape": {},
        "one_group": {"num_attention_heads": 6, "num_key_value_heads": 1, "num_hidden_layers": 4, "sliding_window": 5,
                      "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
                      "per_layer_config": {n: {"head_dim": 24, "num_key_value_heads": 3} for n in "13"},
                      "num_experts": 5, "top_k_experts": 3, "final_logit_softcapping": 7.0},
        "all_full": {"layer_types": ["full_attention"] * 3, "per_layer_config": {n: {"head_dim": 8} for n in "012"}},
    }  # fmt: skip
    torch.manual_seed(5)
    config = transformers.DiffusionGemmaConfig(**json.loads(json.dumps(config_of(**changes[request.param]))))
    model = transformers.DiffusionGemmaForBlockDiffusion(config).eval()
    with torch.no_grad():
        scalars = [tensor for name, tensor in model.named_buffers() if name.endswith("layer_scalar")]
        for tensor in (*model.parameters(), *scalars):
            scales = tensor.dim() == 1  # norms, router scales, layer scalars
            tensor.copy_(1 + 0.3 * torch.randn_like(tensor) if scales else torch.randn_like(tensor) * 0.3)
        assert len(scalars) == 2 * config.text_config.num_hidden_layers
    model.save_pretrained(tmp_path)
    return model, tmp_path


def test_random_models_equal_transformers(theirs):
    """Two requests of different lengths share forwards: one denoises while the other commits, then vice versa."""
    oracle, path = theirs
    model = load(path, torch.float64)
    random = torch.Generator().manual_seed(2)

    def ids(n):
        return torch.randint(0, 220, (n,), generator=random).tolist()  # no image tokens

    prompts, length = [ids(37), ids(6)], 16
    first, second = [ids(length) for _ in prompts], [ids(length) for _ in prompts]
    before = [torch.randn(length, 224, generator=random) * 3 for _ in prompts]

    def expected(seen, noise, logits=None):
        with torch.no_grad():
            out = oracle(
                input_ids=torch.tensor([seen]), decoder_input_ids=torch.tensor([noise]),
                self_conditioning_logits=None if logits is None else logits[None],
            )  # fmt: skip
        return out.logits[0]

    def compare(ours, *theirs):
        torch.testing.assert_close(ours.float(), expected(*theirs), rtol=2e-4, atol=2e-4)

    signals = [model.compute_self_conditioning(logits.double().softmax(-1)) for logits in before]
    driver = Driver(model, 2, 37 + 2 * length, 8, torch.float64)
    driver.commit(0, prompts[0], 11)
    opened, _ = driver.step(Run(0, first[0], 37, open=True), Run(1, prompts[1], 0))
    compare(opened, prompts[0], first[0])
    with_signal, without = driver.step(
        Run(0, first[0], 37, open=True, signal=signals[0]), Run(1, first[1], 6, open=True)
    )
    compare(with_signal, prompts[0], first[0], before[0])
    compare(without, prompts[1], first[1])
    # The first request's canvas is done: it is committed, and the next canvas begins in the next forward.
    driver.step(Run(0, first[0], 37), Run(1, first[1], 6, open=True, signal=signals[1]))
    later, other = driver.step(
        Run(0, second[0], 37 + length, open=True, signal=signals[0]), Run(1, first[1], 6, open=True, signal=signals[1])
    )
    compare(later, prompts[0] + first[0], second[0], before[0])
    compare(other, prompts[1], first[1], before[1])


def test_self_conditioning_accepts_unnormalized_probabilities():
    """Kernels write unnormalized probabilities before they know the sum."""
    model = load(FOLDER, torch.float32)
    random = torch.Generator().manual_seed(3)
    probs = torch.randn(4, 224, generator=random).mul(3).softmax(-1)
    times = torch.tensor([2.0**-60, 0.3, 1.0, 2.0**90])
    torch.testing.assert_close(
        model.compute_self_conditioning(probs * times[:, None], times), model.compute_self_conditioning(probs)
    )


def of_encoder(name):
    """Returns the name in the encoder of a tensor that encoder and decoder share."""
    shared = name.startswith("model.decoder.") and not name.endswith("layer_scalar") and "conditioning" not in name
    return name.replace("model.decoder.", "model.encoder.language_model.") if shared else name


def in_tree(tensors, tree):
    """Returns the tensors with those that are shared in `encoder`, `decoder` or `both`."""
    encoder = {of_encoder(name): tensor.clone() for name, tensor in tensors.items()}
    return {"decoder": tensors, "encoder": encoder, "both": tensors | encoder}[tree]


def test_every_tensor_is_accounted_for(tmp_path):
    tensors = load_file(FOLDER / "model.safetensors")

    def attempt(changed, config=CONFIG):
        write(tmp_path, config, changed)
        return load(tmp_path, torch.float32)

    reference = named_weights(attempt(tensors))
    for name in tensors:
        left = {n: t for n, t in tensors.items() if n != name}
        if "vision" in name:
            attempt(left)
            continue
        missing = {  # without a fused tensor, each expert's is missing
            "down_proj": f"4 missing: '{name.replace('down_proj', '0.down_proj.weight')}'",
            "gate_up_proj": f"8 missing: '{name.replace('gate_up_proj', '0.gate_proj.weight')}'",
        }.get(name.rpartition(".")[2], f"1 missing: '{name}'")
        with pytest.raises(ConfigError, match=missing):
            attempt(left)
    with pytest.raises(ConfigError, match=r"1 unknown: 'model.decoder.layers.2.self_attn.v_proj.weight'"):
        attempt(tensors | {"model.decoder.layers.2.self_attn.v_proj.weight": torch.zeros(32, 64)})

    head = {"lm_head.weight": tensors["model.decoder.embed_tokens.weight"].clone()}
    once, twice = in_tree(tensors, "encoder"), in_tree(tensors, "both") | head
    assert len(once) == len(tensors) < len(twice)
    for spelling in (once, twice):
        for name, weight in named_weights(attempt(spelling)).items():
            assert torch.equal(weight.tensor, reference[name].tensor), name
    head["lm_head.weight"][3, 5] += 1
    with pytest.raises(ConfigError, match=r"'lm_head.weight' of .* and .*embed_tokens.* different values"):
        attempt(twice | head)


def each_expert(tensors):
    """Returns the tensors with a name per expert, as quantized checkpoints of this family have them."""
    split = {}
    for name, tensor in tensors.items():
        before, found, part = name.rpartition(".experts.")
        if not found:
            split[name] = tensor
            continue
        for number, expert in enumerate(tensor):
            parts = {"gate": 0, "up": 1}.items() if part == "gate_up_proj" else {"down": 0}.items()
            halves = expert.chunk(len(parts))
            split |= {f"{before}.experts.{number}.{own}_proj.weight": halves[half].clone() for own, half in parts}
    return split


def golden_logits(path, device="cpu"):
    case = next(case for case in CASES if case["kind"] == "denoiser_logits")
    expected = load_file(FOLDER / "expected.safetensors")
    prompt, noise = (expected[case[name]].tolist() for name in ("prompt_ids", "canvas_ids"))
    driver = Driver(load(path, torch.float32, device), 1, len(prompt) + len(noise), 4, torch.float32, device)
    driver.commit(0, prompt, 7)
    return driver.step(Run(0, noise, len(prompt), open=True))[0].cpu()


@pytest.mark.parametrize("tree", ["decoder", "encoder", "both"])
def test_fused_experts_and_a_tensor_per_expert_are_the_same_model(tmp_path, tree):
    fused = load_file(FOLDER / "model.safetensors")
    split = each_expert(fused)
    assert len(split) > len(fused) + 10
    write(tmp_path, CONFIG, in_tree(split, tree))
    assert torch.equal(golden_logits(tmp_path), golden_logits(FOLDER))


@pytest.mark.parametrize("tree", ["decoder", "encoder", "both"])
@pytest.mark.parametrize("layout", ["fp8, outputs", "fp8, tensors", "int8, outputs"])
def test_a_quantized_checkpoint_names_each_expert(tmp_path, layout, tree):
    """Experts and attention are quantized, the rest not, as in the published FP8 files."""
    write(tmp_path / "split", CONFIG, each_expert(load_file(FOLDER / "model.safetensors")))
    quantized, whole = quantized_files.write_both(
        layout, tmp_path / "split", tmp_path, lambda name: not (".experts." in name or "self_attn." in name)
    )
    config = json.loads((quantized / "config.json").read_text())
    stored = load_file(quantized / "model.safetensors")
    assert sum(name.endswith("_proj.weight_scale") and ".experts." in name for name in stored) == 3 * 4 * 3
    write(quantized, config, in_tree(stored, tree))
    expected = golden_logits(whole)
    largest = float(expected.abs().max())
    torch.testing.assert_close(golden_logits(quantized), expected, rtol=0, atol=1e-5 * largest)
    assert not torch.allclose(expected, golden_logits(FOLDER), atol=1e-3), "quantization changed nothing"


WIDTH = 32  # of experts, a multiple of 16


def quantize_experts(directory, layout, tree):
    """Writes a checkpoint like the published NVFP4 files, and one with the dequantized weights. Returns both paths.

    Only experts are quantized, keys and values have scales, and ModelOpt states the quantization twice.
    """
    fused = load_file(FOLDER / "model.safetensors")
    random = torch.Generator().manual_seed(7)
    for name, tensor in fused.items():
        if ".experts." in name:
            shape = (4, 2 * WIDTH, 64) if name.endswith("gate_up_proj") else (4, 64, WIDTH)
            fused[name] = torch.randn(shape, generator=random) * tensor.std()
    config = config_of(moe_intermediate_size=WIDTH)
    write(directory / "split", config, each_expert(fused))
    quantized, whole = quantized_files.write_both(
        layout, directory / "split", directory, lambda name: ".experts." not in name
    )
    config, stored = json.loads((quantized / "config.json").read_text()), load_file(quantized / "model.safetensors")
    assert sum(name.endswith("_proj.weight_scale") for name in stored) == 3 * 4 * 3
    for layer, name in enumerate(("k_proj.k_scale", "v_proj.v_scale", "k_proj.k_scale")):
        stored[f"model.decoder.layers.{layer}.self_attn.{name}"] = torch.tensor(1.0)
    stated = config["quantization_config"]
    if layout == "nvfp4, modelopt":
        stated["ignore"] = ["model.*.self_attn*", "model.*layers.*.mlp*", "*self_conditioning*", "*router*", "lm_head"]
        fields = {"quant_algo": "NVFP4", "exclude_modules": stated["ignore"], "group_size": 16}
        (quantized / "hf_quant_config.json").write_text(json.dumps({"quantization": fields}))
    else:
        stated["ignore"] = ["re:.*self_attn.*", "re:.*layers[.][0-9]+[.]mlp.*", "re:.*self_conditioning.*", "lm_head"]
    write(quantized, config, in_tree(stored, tree))
    return quantized, whole


@pytest.mark.parametrize("layout", ["nvfp4, modelopt", "nvfp4, compressed", "mxfp4"])
@pytest.mark.parametrize("tree", ["decoder", "encoder", "both"])
def test_quantized_experts_beside_unquantized_weights(tmp_path, layout, tree):
    quantized, whole = quantize_experts(tmp_path, layout, tree)
    held = {name: weight.kernel_arg for name, weight in named_weights(load(quantized, torch.float32)).items()}
    packed = {name for name, kernel_arg in held.items() if isinstance(kernel_arg, Nvfp4)}
    assert packed == {f"layers.{n}.experts.{stack}_proj" for n in range(3) for stack in ("gate_up", "down")}
    expected = golden_logits(whole)
    largest = float(expected.abs().max())
    torch.testing.assert_close(golden_logits(quantized), expected, rtol=0, atol=1e-5 * largest)
    (quantized / "model.safetensors").unlink()
    checkpoint = open_checkpoint(str(quantized), has_weights=False)
    family = resolve_family(None, checkpoint.config)
    formats = stored_formats(checkpoint, family, family.parse(checkpoint.config))
    assert {name for name, format in formats.items() if format == "nvfp4"} == packed


@pytest.mark.gpu
def test_quantized_experts_on_a_gpu(tmp_path):
    quantized, whole = quantize_experts(tmp_path, "nvfp4, modelopt", "decoder")
    torch.testing.assert_close(golden_logits(quantized, "cuda"), golden_logits(whole), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda t: t.pop("model.decoder.layers.1.experts.2.up_proj.weight"),
         "1 missing: 'model.decoder.layers.1.experts.2.up_proj.weight'"),
        (lambda t: t.update({"model.decoder.layers.1.experts.4.up_proj.weight": torch.zeros(24, 64)}),
         "1 unknown: 'model.decoder.layers.1.experts.4.up_proj.weight'"),
        (lambda t: t.update({"model.decoder.layers.1.experts.down_proj": torch.zeros(4, 64, 24)}),
         "unknown: 'model.decoder.layers.1.experts.0.down_proj.weight'"),
        (lambda t: t.update({"model.encoder.language_model.layers.1.experts.0.up_proj.weight": torch.zeros(24, 64)}),
         "have different values"),
    ],
)  # fmt: skip
def test_experts_that_do_not_fit_are_refused_by_name(tmp_path, change, sentence):
    tensors = each_expert(load_file(FOLDER / "model.safetensors"))
    change(tensors)
    write(tmp_path, CONFIG, tensors)
    with pytest.raises(ConfigError) as error:
        load(tmp_path, torch.float32)
    assert sentence in str(error.value)


SCALE, PROJ = (f"model.decoder.layers.1.router.{name}" for name in ("scale", "proj.weight"))


@pytest.mark.parametrize("first", [SCALE, PROJ])
@pytest.mark.parametrize("kind", ["float32", "float64", "in_parts"])
def test_the_routers_scale_is_multiplied_into_its_weight(tmp_path, first, kind):
    """Does not depend on which of the two tensors is in the first file, nor on the format of the loaded weight."""
    tensors, random = load_file(FOLDER / "model.safetensors"), torch.Generator().manual_seed(6)
    for name in (SCALE, PROJ):
        tensors[name] = torch.randn(tensors[name].shape, generator=random)
    files = {name: "a.safetensors" if name == first else "b.safetensors" for name in tensors}
    for file in ("a.safetensors", "b.safetensors"):
        save_file({name: tensor for name, tensor in tensors.items() if files[name] == file}, tmp_path / file)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    checkpoint, family = resolve_checkpoint(str(tmp_path)), resolve_family(None, CONFIG)
    build = LayerFactory.create("cpu", getattr(torch, kind, torch.bfloat16))
    if kind == "in_parts":
        build = replace(build, kernels=TRITON)
    weight = load_model(checkpoint, family, parse(CONFIG), build).layers[1].experts.router.weight
    assert weight.kernel_arg.dim() == (3 if kind == "in_parts" else 2)
    expected = tensors[PROJ].double() * tensors[SCALE].double() * len(tensors[SCALE]) ** -0.5
    torch.testing.assert_close(weight.tensor, expected.to(weight.dtype), rtol=2e-7, atol=0)


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        (SCALE, torch.ones(63), f"{SCALE} is [63], not [64]"),
        (SCALE, torch.ones(64).index_fill(0, torch.tensor([3]), torch.nan), f"tensor '{SCALE}' of "),
        (SCALE, torch.ones(64, dtype=torch.int8), "is torch.int8: quantized"),
        (SCALE.replace("model.decoder.", "model.encoder.language_model."), torch.ones(64) * 9, "name one tensor in"),
    ],
)
def test_invalid_router_scales_are_refused(tmp_path, name, value, sentence):
    write(tmp_path, CONFIG, load_file(FOLDER / "model.safetensors") | {name: value})
    with pytest.raises(ConfigError) as error:
        load(tmp_path, torch.float32)
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"hidden_size": None}, "text_config lacks hidden_size"),
        ({"layer_types": ["full_attention"]}, "layer_types has 1 entries, but num_hidden_layers is 3"),
        ({"layer_types": ["full_attention"] * 2 + ["chunked"]}, "layer_types names 'chunked'"),
        ({"layer_types": ["full_attention"] * 2 + ["sliding_attention"]}, "layer_types ends with 'sliding_attention'"),
        ({"hidden_activation": "silu"}, "hidden_activation is 'silu', but only 'gelu_pytorch_tanh' is supported"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention is 'all'"),
        ({"top_k_experts": 9}, "top_k_experts 9 is more than num_experts 4"),
        ({"num_attention_heads": 5}, "num_attention_heads 5 is no multiple of the 2 key heads of sliding_attention"),
        ({"final_logit_softcapping": 0}, "final_logit_softcapping must be a number above 0"),
        ({"sliding_window": 0}, "sliding_window must be a whole number of at least 1"),
        ({"per_layer_config": {"7": {}}}, "per_layer_config['7'] is none of the 3 layers"),
        ({"per_layer_config": {"0": {"rank": 3}}}, "per_layer_config['0'] may hold head_dim and num_key_value_heads"),
        ({"per_layer_config": {"0": {"head_dim": 32}}}, "gives layer 1 other heads than another sliding_attention"),
        ({"rope_parameters": {"sliding_attention": {"rope_theta": 1.0}}}, "rope_parameters lacks full_attention"),
        ({"rope_parameters": CONFIG["text_config"]["rope_parameters"] | {"full_attention": {"rope_type": "yarn"}}},
         "rope_parameters.full_attention: rope_type is 'yarn'"),
        (
            {"rope_parameters": CONFIG["text_config"]["rope_parameters"]
             | {"sliding_attention": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}},
            "partial_rotary_factor 0.5 is supported only with rope_type 'proportional'",
        ),
        (
            {"rope_parameters": CONFIG["text_config"]["rope_parameters"]
             | {"full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.01}}},
            "partial_rotary_factor rotates 0 of a head's 32 dimensions",
        ),
    ],
)  # fmt: skip
def test_refusals_name_the_field(changes, sentence):
    with pytest.raises(ConfigError) as error:
        parse(config_of(**changes))
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_the_config_around_the_text():
    with pytest.raises(ConfigError, match="lacks text_config"):
        parse(CONFIG | {"text_config": None})
    with pytest.raises(ConfigError, match="text_config must be an object"):
        parse(CONFIG | {"text_config": 3})
    with pytest.raises(ConfigError, match="tie_word_embeddings is False"):
        parse(CONFIG | {"tie_word_embeddings": False})
    assert parse(CONFIG).block_size == 16
    assert parse({name: value for name, value in CONFIG.items() if name != "canvas_length"}).block_size == 256


def test_heads_of_full_layers_by_fields_of_their_own():
    """The larger published configs have these fields. Without them the head dimension of a full layer is 512."""
    own = {"per_layer_config": None, "global_head_dim": 32, "num_global_key_value_heads": 1}
    assert parse(config_of(**own)) == parse(CONFIG)
    sliding, full = parse(config_of(per_layer_config=None)).kinds
    assert (sliding.head_dim, sliding.window, full.head_dim, full.window) == (16, 16, 512, None)
    assert (full.kv_heads, full.rotary_dim, full.theta) == (2, 128, 1e6)
    layers = config_of(num_hidden_layers=12, layer_types=None, per_layer_config=None)
    assert parse(layers).layers == (0, 0, 0, 0, 0, 1) * 2


class Recorded:
    def __init__(self, case):
        expected = load_file(FOLDER / "expected.safetensors")
        self.tensors = {name: expected[key] for name, key in case["draws"].items()}
        self.prompt = len(case["prompt_ids"])

    def initial(self, start, size):
        return self.tensors["initial"][(start - self.prompt) // size]

    def sampled(self, step, probs):
        return self.tensors["sampled"][step]

    def renoise(self, step):
        return self.tensors["renoise"][step]


@pytest.mark.parametrize("case", [c for c in CASES if c["kind"] == "generate"], ids=lambda case: case["name"])
def test_golden_generation(case):
    """Runs the model under the decoding oracle. Each canvas is committed once, in one KV pool."""
    model, prompt, settings = load(FOLDER, torch.float32), case["prompt_ids"], dict(case["settings"])
    max_tokens, length = settings["max_tokens"], case["canvas_length"]
    names = canvas.Settings.__dataclass_fields__
    options = canvas.Settings(**{name: settings[name] for name in names})
    expected = load_file(FOLDER / "expected.safetensors")
    trace = {name: expected[key] for name, key in case["trace"].items()}
    stops = case["finish_reason"] == "stop"  # otherwise the EOS tokens have no effect
    for eos, suffix in ((set(), "_ignore_eos"), (set(case["eos_token_ids"]), ""))[not stops :]:
        driver, committed = Driver(model, 1, len(prompt) + max_tokens, 8, torch.float32), 0

        def denoise(seen, ids, logits, driver=driver):
            nonlocal committed
            if committed < len(seen):
                driver.commit(0, seen[committed:], 12, first=committed)
                committed = len(seen)
            signal = None if logits is None else model.compute_self_conditioning(logits.softmax(-1))
            return driver.step(Run(0, ids, len(seen), open=True, signal=signal))[0]

        answer = canvas.decode(denoise, prompt, max_tokens, options, Recorded(case), eos, lambda left: length)
        assert answer.ids == case[f"ids{suffix}"]
        assert answer.nfe == case[f"nfe{suffix}"]
        assert answer.finish_reason == (case["finish_reason"] if eos else "length")
        if not (eos and stops):
            assert [len(steps) for steps in answer.steps] == case["steps_per_canvas_ignore_eos"]
            assert len(case["ids_ignore_eos"]) == len(case["steps_per_canvas_ignore_eos"]) * length
            steps = [step for steps in answer.steps for step in steps]
            for name in ("before", "accepted", "argmax"):
                assert torch.equal(torch.stack([getattr(step, name) for step in steps]), trace[name]), name
            entropy = torch.stack([step.entropy for step in steps])
            torch.testing.assert_close(entropy, trace["entropy"], rtol=1e-3, atol=1e-3)


def test_an_lm_head_in_eight_bits_is_refused():
    """`--quantized-lm-head` would have no effect."""
    build = LayerFactory.create("meta", torch.bfloat16, quantization="fp8")
    family = resolve_family(None, CONFIG)
    with pytest.raises(ConfigError, match=r"^--quantized-lm-head: no kernel .* soft-capped logits in e4m3; leave it"):
        family.make(parse(CONFIG), replace(build, kernels=replace(TRITON, fp8_lm_head_argmax=fp8_lm_head_argmax)))


def test_a_checkpoint_that_quantizes_queries_alone_is_refused_by_name(tmp_path):
    quantize_fp8, tensors = quantized_files.int4(None), {}
    for name, weight in load_file(FOLDER / "model.safetensors").items():
        if name.endswith("self_attn.q_proj.weight"):
            parts, _ = quantize_fp8(weight.float())
            tensors |= {name.removesuffix("weight") + end: part for end, part in parts.items()}
        else:
            tensors[name] = weight
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, tmp_path / "model.safetensors")
    method = quantized_files.compressed("pack-quantized", num_bits=4, type="int", strategy="channel")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"quantization_config": method}))
    with pytest.raises(
        ConfigError, match=r"holds parts of one weight, layers\.0\.self_attn\.qkv_proj\.weight, in several"
    ):
        load(tmp_path)
