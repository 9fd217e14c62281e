"""Tests of adapters: each answer equals that of the merged weights without other requests, and logits those of PEFT."""

import functools
import json
import random

import pytest
import torch
from safetensors.torch import load_file

from runtime import LLM, SamplingParams
from runtime.errors import ConfigError, RequestError
from runtime.kernels import batch_invariant_torch
from runtime.kernels.lora import LoRABatch
from runtime.scheduling.strategy import max_request_len, max_request_pages
from runtime.worker.candidates import SamplerConfig
from runtime.worker.cuda_graph_runner import CudaGraphRunner, run_eagerly
from runtime.worker.memory import capture_sizes_for
from tests.golden import GOLDEN
from tests.lora.samples import merged_checkpoint, random_adapter
from tests.matrix import marked
from tests.quantization.quantized_files import write_both

LORA = GOLDEN / "lora"
CASES = json.loads((LORA / "cases.json").read_text())
BASE = GOLDEN / "llada2_tiny"
EVERY = r".*layers\.\d+\..*(query_key_value|dense|gate_proj|up_proj|down_proj)"
ATTENTION = r".*(query_key_value|dense)"


def llm(base=BASE, **flags):
    return LLM(str(base), **{"device": "cpu", "skip_tokenizer": True, "dtype": "float64", "block_size": 8, **flags})


@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_logits_of_peft(case, merged):
    """The adapter is named by requests, or merged into the weights at start."""
    expected, adapter = load_file(LORA / "expected.safetensors"), str(LORA / case["adapter"])
    ids = expected[case["ids"]].flatten().tolist()
    flags = {"use_lora": True, "lora_path": adapter, "pre_merge_lora": True} if merged else {"lora": {"one": adapter}}
    with llm(GOLDEN / case["base"], dtype="float32", block_size=case["block_size"], **flags) as engine:
        for name, logits in ((None, "logits"),) if merged else (("one", "logits"), (None, "base_logits")):
            out = engine.logits(ids, adapter=name)
            torch.testing.assert_close(out, expected[case[logits]].reshape(out.shape), rtol=1e-4, atol=5e-4)
    assert (expected[case["logits"]] - expected[case["base_logits"]]).abs().max() > 1e-2


@pytest.fixture(scope="module")
def adapters(tmp_path_factory):
    """Returns eight adapters of several ranks, for attention, for all matrices, or for experts only."""
    directory = tmp_path_factory.mktemp("adapters")
    kinds = (ATTENTION, EVERY, r".*experts.*")
    return {
        f"a{n}": random_adapter(directory / f"a{n}", BASE, kinds[n % 3], n, rank=1 + n % 5, use_rslora=n % 2 == 0)
        for n in range(8)
    }


def prompts(count, seed=0):
    numbers = random.Random(seed)
    return [[numbers.randrange(2, 90) for _ in range(numbers.randrange(3, 40))] for _ in range(count)]


PARAMS = SamplingParams(max_tokens=9, temperature=0.0, ignore_eos=True, decoding={"accept_threshold": 0.05})
NAMES = [None if i % 9 == 8 else f"a{i % 9}" for i in range(18)]


@pytest.fixture(scope="module")
def alone(adapters, tmp_path_factory):
    """Returns a function that returns the answer of an adapter's merged weights, or the base's, to a prompt."""
    directory = tmp_path_factory.mktemp("merged")

    @functools.cache
    def answers(name):
        path = directory / name if name else BASE
        if name:
            merged_checkpoint(path, BASE, adapters[name])
        mine = [i for i, other in enumerate(NAMES) if other == name]
        with llm(path) as engine:
            return {i: engine.generate([prompts(18)[i]], PARAMS)[0].token_ids for i in mine}

    return lambda name, i: answers(name)[i]


@pytest.mark.parametrize("slots", marked([8, 3], quick=[3]))
def test_a_batch_of_eight_and_the_base_equals_each_alone(adapters, alone, slots):
    with llm(lora=adapters, max_loras=slots, max_num_reqs=32) as engine:
        outs = engine.generate(prompts(18), PARAMS, adapter=NAMES)
        evictions = engine.engine.lora_manager.evictions
    assert [out.token_ids for out in outs] == [alone(name, i) for i, name in enumerate(NAMES)]
    assert len({tuple(out.token_ids) for out in outs}) > 8
    assert (evictions > 0) == (slots == 3)


def replayed(engine):
    """Makes the engine pad and replay steps, as on a GPU."""
    inner = engine.engine
    runner, info = inner.runner, engine.info
    sizes = capture_sizes_for(info, inner.strategy, -(-info.max_model_len // info.page_size), inner.lora_manager)
    config = SamplerConfig(
        block_size=sizes.block_size, mask_id=info.mask_token_id, max_token_id=info.max_token_id,
        eos_ids=tuple(info.eos_token_ids), max_num_reqs=info.max_num_reqs,
        max_request_len=max_request_len(inner.strategy, info.max_model_len),
        max_request_pages=max_request_pages(inner.strategy, info.max_model_len, info.page_size),
    )  # fmt: skip
    inner.runner = CudaGraphRunner(runner.model, runner.pool, config, sizes, run_eagerly, capture_after=1)
    return engine


def test_an_adapter_in_the_slot_of_another_replays_its_own_graph(tmp_path):
    """Both requests have the same slots and rows, but the adapters change different modules."""
    kinds = {"attention": ATTENTION, "experts": r".*experts.*"}
    paths = {name: str(random_adapter(tmp_path / name, BASE, kind, 0, rank=2)) for name, kind in kinds.items()}
    params = SamplingParams(max_tokens=8, ignore_eos=True, decoding={"accept_threshold": 0.0})
    answers = []
    for prepare in (lambda engine: engine, replayed):
        with prepare(llm(lora=paths, max_loras=1, max_num_reqs=4, disable_prefix_caching=True)) as engine:
            answers.append(
                [engine.generate([list(range(5, 13))], params, adapter=[name])[0].token_ids for name in paths]
            )
    assert answers[0] == answers[1]


def test_padded_steps_give_the_same_answers(adapters, alone):
    """Steps with adapters of experts run eagerly. Steps without adapters have no LoRA operations."""
    mine = [i for i in range(18) if i % 9 in (0, 3, 8)]  # adapters of attention, and the base
    unmerged = {name: path for name, path in adapters.items() if int(name[1:]) % 3 == 0}
    with replayed(llm(lora=unmerged, max_num_reqs=8)) as engine:
        outs = engine.generate([prompts(18)[i] for i in mine], PARAMS, adapter=[NAMES[i] for i in mine])
        assert [out.token_ids for out in outs] == [alone(NAMES[i], i) for i in mine]
        runner_stats = engine.engine.runner.stats
        assert runner_stats.replayed > 0
        replayed_before = runner_stats.replayed
        engine.load_adapter("experts", str(adapters["a2"]))
        (out,) = engine.generate([prompts(18)[2]], PARAMS, adapter="experts")
        assert out.token_ids == alone("a2", 2)
        assert runner_stats.replayed == replayed_before


def test_a_cached_prefix_is_shared_within_one_adapter_only(adapters):
    prompt, answers = list(range(2, 40)), {}
    with llm(lora=adapters, page_size=8) as engine:
        for name in ("a1", None, "a2"):
            for again in (False, True):
                (out,) = engine.generate([prompt], PARAMS, adapter=name)
                assert answers.setdefault(name, out.token_ids) == out.token_ids
                assert (out.usage["prompt_tokens_details"]["cached_tokens"] > 0) == again


def test_loading_and_unloading(adapters, tmp_path):
    with llm(max_loras=2, max_lora_rank=4) as engine:
        assert engine.engine.lora_manager.available == []
        engine.load_adapter("x", str(adapters["a0"]))
        engine.load_adapter("x", str(adapters["a0"]))  # the same again
        with pytest.raises(ConfigError, match=r"adapter 'x' is loaded with other content"):
            engine.load_adapter("x", str(adapters["a1"]))
        with pytest.raises(ConfigError, match=r"has rank 5, more than --max-lora-rank 4"):
            engine.load_adapter("y", str(adapters["a4"]))
        with pytest.raises(ConfigError, match="is not the name of an adapter"):
            engine.load_adapter("", str(adapters["a0"]))
        with pytest.raises(ConfigError, match="adapter '' is not a directory"):
            engine.load_adapter("y", "")
        assert engine.engine.lora_manager.available == ["x"]
        before = engine.logits([3, 4, 5], adapter="x")
        with pytest.raises(RequestError, match=r"'y' is not loaded; available: x") as error:
            engine.generate([[3, 4]], PARAMS, adapter="y")
        assert error.value.status == 404
        stream = engine.stream([3, 4], SamplingParams(max_tokens=16), adapter="x")
        next(stream)
        with pytest.raises(RequestError, match="requests with 'x' are running"):
            engine.unload_adapter("x")
        assert engine.engine.lora_manager.available == ["x"]
        list(stream)
        engine.unload_adapter("x")
        assert engine.engine.lora_manager.available == []
        engine.load_adapter("x", str(adapters["a1"]))  # other content, now that the name is free
        assert not torch.equal(engine.logits([3, 4, 5], adapter="x"), before)
    with llm() as engine, pytest.raises(ConfigError, match="LoRA is disabled"):
        engine.load_adapter("x", str(adapters["a0"]))


def test_answers_that_still_commit_hold_no_adapter(tmp_path):
    """A request finishes before its last canvas is in the KV cache, and must not hold its adapter until then."""
    base = GOLDEN / "diffusion_gemma"
    some = {f"a{n}": str(random_adapter(tmp_path / f"a{n}", base, r".*self_attn\..*_proj", n)) for n in range(2)}
    with LLM(model=str(base), device="cpu", skip_tokenizer=True, lora=some, max_loras=1) as engine:
        for first, other in ((*some,), (*some,)[::-1]):
            engine.generate([[5, 6, 7]], SamplingParams(max_tokens=4), adapter=first)
            engine.logits([3, 4, 5], adapter=other)
            engine.generate([[5, 6, 7]], SamplingParams(max_tokens=4), adapter=first)
            engine.unload_adapter(first)
            engine.load_adapter(first, some[first])


def test_invalid_flags_are_refused(adapters, tmp_path):
    for flags, message in (
        ({"lora": ["x"]}, "is not of the form NAME=PATH"),
        ({"lora": ["x=a", "x=b"]}, "the name 'x' is given twice"),
        ({"lora": ["x=/nowhere"]}, "'/nowhere' is not a directory"),
        ({"use_lora": True}, "--use-lora and --lora-path go together"),
        ({"pre_merge_lora": True}, "--pre-merge-lora: merges the adapter"),
        ({"max_lora_rank": 4}, "--max-lora-rank: there are no adapters"),
        ({"use_lora": True, "lora_path": "x", "lora": ["x=a"]}, "--lora: with --use-lora all"),
    ):
        with pytest.raises(ConfigError, match=message):
            llm(**flags)
    head = random_adapter(tmp_path / "head", BASE, "lm_head", 0)
    with pytest.raises(ConfigError, match=r"changes 'lm_head.weight', which requests of one batch share; merge it"):
        llm(lora={"x": str(head)})


def test_one_adapter_for_all_requests(adapters, alone):
    with llm(use_lora=True, lora_path=str(adapters["a1"])) as engine:
        outs = engine.generate([prompts(18)[i] for i in (1, 10)], PARAMS)
    assert [out.token_ids for out in outs] == [alone("a1", i) for i in (1, 10)]


@pytest.mark.parametrize("quantization", ["fp8", "int8"])
def test_adapters_on_quantized_weights_and_merged_before_quantization(quantization, tmp_path):
    """An adapter is added to the output of quantized weights, or merged and quantized with them."""
    ids, base = prompts(1)[0], GOLDEN / "llada"
    adapter = str(random_adapter(tmp_path / "a", base, r".*(q_proj|v_proj|attn_out|up_proj)", 0, size=0.1))
    rounded = {"dtype": "float32", "quantization": quantization}
    with llm(base, lora={"a": adapter}, **rounded) as engine:
        adapted, unmerged = engine.logits(ids, adapter="a"), engine.logits(ids)
    with llm(base, use_lora=True, lora_path=adapter, pre_merge_lora=True, **rounded) as engine:
        merged = engine.logits(ids)
    with llm(base, lora={"a": adapter}, dtype="float32") as engine:
        exact, unrounded = engine.logits(ids, adapter="a"), engine.logits(ids)
    rounding = (unmerged - unrounded).norm() / unrounded.norm()
    for made in (adapted, merged):
        assert (made - exact).norm() / exact.norm() < 2 * rounding
        assert (made - exact).norm() < (made - unmerged).norm() / 3


@pytest.mark.parametrize("layout", ["int4, groups of 32", "int8, outputs", "fp8, blocks", "nvfp4, modelopt"])
def test_adapters_on_a_quantized_checkpoint(tmp_path, layout):
    """The shared experts are unquantized."""
    paths = {"one": str(random_adapter(tmp_path / "one", BASE, EVERY, 3))}
    quantized, unquantized = write_both(layout, BASE, tmp_path, lambda name: "shared_experts" in name)
    out = []
    for path in (quantized, unquantized):
        with llm(path, dtype="float64", lora=paths) as engine:
            out.append([engine.logits(list(range(40, 64)), adapter=name) for name in ("one", None)])
    for ours, expected in zip(*out, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-3, atol=1e-3)
    assert not torch.allclose(out[0][0], out[0][1], atol=0.1)


@pytest.mark.parametrize(("layout", "most"), [("int8, outputs", 0.2), ("fp8, blocks", 0.2), ("nvfp4, compressed", 0.5)])
def test_an_adapter_merged_into_quantized_weights(tmp_path, layout, most):
    adapter = str(random_adapter(tmp_path / "one", BASE, EVERY, 3))
    quantized, unquantized = write_both(layout, BASE, tmp_path)
    merged = {"use_lora": True, "lora_path": adapter, "pre_merge_lora": True}
    with llm(quantized, dtype="float64", **merged) as engine, llm(unquantized, dtype="float64", **merged) as reference:
        ours, expected = engine.logits(list(range(40, 64))), reference.logits(list(range(40, 64)))
    assert 1e-4 < float((ours - expected).norm(dim=-1).median() / expected.norm(dim=-1).median()) < most


@pytest.mark.parametrize("family", ["dream", "llada"])
def test_d2f_decodes_with_adapters(family, tmp_path):
    base = GOLDEN / f"d2f_{family}"
    paths = {
        f"a{n}": random_adapter(tmp_path / f"a{n}", base, r".*\d\.(.*\.)?(q_proj|v_proj|up_proj|ff_out)", n)
        for n in range(2)
    }
    case = next(c for c in json.loads((base / "cases.json").read_text()) if c["kind"] == "decode")
    flags = {"decoding_strategy": "d2f", "mask_token_id": case["mask_token_id"]}
    names = ["a0", None, "a1", "a0"]
    short_prompts = [case["prompt_ids"][: 5 + i] for i in range(4)]
    with llm(base, lora=paths, **flags) as engine:
        outs = engine.generate(short_prompts, PARAMS, adapter=names)
    for i, name in enumerate(names):
        path = base if name is None else tmp_path / f"m{i}"
        if name is not None:
            merged_checkpoint(path, base, paths[name])
        with llm(path, **flags) as engine:
            (expected,) = engine.generate([short_prompts[i]], PARAMS)
        assert outs[i].token_ids == expected.token_ids
        assert outs[i].nfe == expected.nfe


def test_deterministic_rows_do_not_depend_on_the_batch(adapters):
    random = torch.Generator().manual_seed(0)
    x, out, lora_a, lora_b = (
        torch.randn(*shape, generator=random) for shape in ((9, 64), (9, 48), (2, 32, 64), (2, 48, 16))
    )
    slots, tiles = torch.tensor([0, 0, -1, 1, 1, 1, 1, -1, 0], dtype=torch.int32), torch.zeros(0, 3, dtype=torch.int32)
    made = out.clone()
    batch_invariant_torch.add_lora(made, x, lora_a, lora_b, (0, 16, 48), LoRABatch(slots, tiles, 9))
    for first, last in ((0, 4), (3, 9), (5, 6)):
        piece = out[first:last].clone()
        batch_invariant_torch.add_lora(
            piece, x[first:last], lora_a, lora_b, (0, 16, 48), LoRABatch(slots[first:last], tiles, 9)
        )
        assert torch.equal(piece, made[first:last])
    assert torch.equal(made[2], out[2])
    assert not torch.equal(made[3], out[3])
    unmerged = {name: adapters[name] for name in ("a0", "a3")}
    with llm(lora=unmerged, dtype="float32", deterministic=True) as engine:
        asked = [prompts(18)[i] for i in (0, 3, 16)]
        first, second, _ = engine.generate(asked, PARAMS, adapter=["a0", "a3", None])
        assert first.token_ids == engine.generate(asked[:1], PARAMS, adapter="a0")[0].token_ids
        assert second.token_ids == engine.generate(asked[1:2], PARAMS, adapter="a3")[0].token_ids
        with pytest.raises(ConfigError, match="of the experts, which --deterministic has no kernel for"):
            engine.load_adapter("x", str(adapters["a2"]))
