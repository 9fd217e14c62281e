"""Tests of request values: checks, and the precedence in docs/research/decoding-rules.md#values-of-fields."""

import math
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.algorithms.base import algorithm_keys, algorithms_for, get_algorithm
from runtime.errors import RequestError
from runtime.request.block_layout import BlockLayout
from runtime.request.decoding import field_names
from runtime.request.engine_messages import EngineInfo, LogitsProcessorParams, RequestSpec
from runtime.request.field_spec import AlgorithmInfo, with_defaults
from runtime.request.resolve import RequestContext, expand_choices, resolve
from runtime.request.sampling_params import SamplingParams, stop_strings
from runtime.strategies.full import FullCanvas
from runtime.strategies.multi_bd import MultiBlock
from tests.examples import examples

SERVER = {"accept_threshold": 0.95, "remask_threshold": 0.2, "edit_threshold": 0.4, "penalty_lambda": 0.1,
          "max_post_edit_steps": 7}  # fmt: skip


def rule_info(key: str, **defaults) -> AlgorithmInfo:
    rule = get_algorithm(key)
    return AlgorithmInfo(key=key, fields=with_defaults(rule.fields, 8, defaults), modes=rule.modes)


def info(**changes) -> EngineInfo:
    facts = {
        "family": "llada2", "strategy": "multi_bd", "device": "cpu", "dtype": "float32", "vocab_size": 100,
        "max_token_id": 90, "mask_token_id": 95, "eos_token_ids": [1], "block_size": 8, "buffer_size": 2,
        "page_size": 16, "num_pages": 100, "max_model_len": 256, "max_num_reqs": 4, "max_num_batched_tokens": 512,
        "prefix_caching": True, "strategy_fields": list(with_defaults(MultiBlock.fields, 8)),
        "algorithms": [rule_info(rule.key, **SERVER) for rule in algorithms_for("multi_bd")],
        "default_algorithm": "threshold",
    }  # fmt: skip
    return EngineInfo(**(facts | changes))


INFO = info()
FIELDS = list(dict.fromkeys(name.split(".")[0] for name in field_names(INFO)))
MODES = ("speed", "balanced", "quality")


def refused(params: dict, param: str, message: str | None = None, prompt=(1, 2, 3), facts=INFO) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        resolve(SamplingParams(**params), prompt, facts, RequestContext(id="r"))
    error = caught.value
    assert (error.param, error.status) == (param, 400)
    assert param.split("[")[0].split(".")[0] in error.message
    listed = sum(len(name) + 2 for name in FIELDS if name in error.message)
    assert len(error.message) - listed < 200  # a long value is shortened; known fields may be listed


def spec(prompt=(1, 2, 3), facts=INFO, **params) -> RequestSpec:
    return resolve(SamplingParams(**params), prompt, facts, RequestContext(id="r"))


def test_defaults():
    s = spec()
    assert (s.max_tokens, s.temperature, s.top_p, s.top_k) == (253, 0.0, 1.0, 0)
    assert (s.max_nfe, s.max_repetition_run, s.ignore_eos, s.stream_mode) == (None, None, False, "final")
    assert s.decoding == INFO.defaults()
    values = {"accept_threshold": 0.95, "remask_threshold": 0.2, "confidence_metric": "max_prob"}
    values |= {"max_steps_per_block": 16, "suppress_eos": "none"}
    strategy = {"add_block_threshold": 0.1, "semi_complete_threshold": 0.9, "token_stability_threshold": 0.0}
    assert (s.decoding.algorithm, s.decoding.values) == ("threshold", values | strategy)
    assert spec().seed != spec().seed
    checkpoint = info(temperature=0.7, top_p=0.9, top_k=20)
    s = spec(facts=checkpoint)
    assert (s.temperature, s.top_p, s.top_k) == (0.7, 0.9, 20)
    assert spec(facts=checkpoint, top_k=0).top_k == spec(facts=checkpoint, top_k=-1).top_k == 0
    assert spec(facts=checkpoint, temperature=0, top_p=1).temperature == 0.0


def test_default_max_tokens_are_limited_by_the_models_length():
    for length, expected in ((3, 50), (250, 6)):
        s = resolve(SamplingParams(), [1] * length, INFO, RequestContext(id="r", default_max_tokens=50))
        assert s.max_tokens == expected
    for max_tokens in (253, 254, 256):
        assert spec(max_tokens=max_tokens).max_tokens == 253
    refused({"max_tokens": 257}, "max_tokens", "model's length, 256")


def short(value) -> str:
    return value if isinstance(value, str) and len(value) < 30 else type(value).__name__


BAD = [
    ("max_tokens", [0, -1, 257, 2**80, 1.0, "7", True, math.nan]),
    ("temperature", [-0.1, math.nan, math.inf, 101, "hot", True, [1]]),
    ("top_p", [-1e-9, -1, 1.01, math.nan, "1", False]), ("top_k", [-2, 1.5, 2**40, "3", True]),
    ("seed", [2**64, -(2**63) - 1, 1.5, "a"]), ("stop", [["a", ""], [1], 7, ["x"] * 1000, "x" * 5000, {"a": 1}]),
    ("ignore_eos", [1, "true"]), ("min_p", [-0.1, 1.1, True, math.nan]),
    ("stop_token_ids", [5, "5", [True], [1.0], [1] * 200]), ("min_tokens", [-1, 1.5, True]),
    ("logit_bias", [[], "x", {"a": 1}, {-1: 1}, {91: 1}, {"91": 1}, {1.0: 1}, {True: 1}, {"1" * 9000: 1}]),
    ("repetition_penalty", [0, -1, 101, math.inf]), ("presence_penalty", [-2.1, 2.1, False]),
    ("frequency_penalty", [-2.1, 2.1, math.nan]), ("max_nfe", [0, -3, 1.5, "2"]), ("max_repetition_run", [0, True]),
    ("n", [0, 129, 1.0]), ("cache_salt", [7, "x" * 300]), ("decoding", [[], "speed", 3]),
    ("num_denoising_steps", [0, 10, -1, 2.5]), ("block_length", [16, 0, "8"]), ("use_local_leap", [1, "yes"]),
    ("force_single_batch", [1, "no"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("field", "value"),
    [(f, v) for f, vs in BAD for v in vs],
    ids=short,
)
def test_bad_fields_are_refused_by_path(field, value):
    refused({field: value}, field)


def test_fields_of_logits_processors_are_resolved():
    fields = {"logit_bias": {"5": 3, 7: -100.0, "9": 0}, "repetition_penalty": 1.2, "min_tokens": 4}
    s = spec(**fields, stop_token_ids=[8, 9, 8], min_p=0.1)
    assert s.logits_processors == LogitsProcessorParams(bias={5: 3.0, 7: -100.0}, repetition=1.2, min_tokens=4)
    assert (s.stop_ids, s.min_p) == ([8, 9], 0.1)
    neutral = {"logit_bias": {"5": 0}, "repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": -0.0}
    for asked in ({}, {**neutral, "min_tokens": 0, "min_p": 0, "stop_token_ids": []}):
        assert (spec(**asked).logits_processors, spec(**asked).stop_ids, spec(**asked).min_p) == (None, [], 0.0)


def test_unsupported_fields_of_logits_processors_are_refused():
    refused({"stop_token_ids": [1, 91]}, "stop_token_ids[1]", "is not a token id of this model")
    refused({"logit_bias": {"5": 101}}, "logit_bias[5]")
    more = "is more than the 8 tokens of this output; lower it, or set a larger max_tokens"
    refused({"min_tokens": 9, "max_tokens": 8}, "min_tokens", f"9 {more}")
    refused({"min_tokens": 9}, "min_tokens", f"9 {more}", facts=info(default_max_tokens=8))
    refused({"min_tokens": 9, "max_tokens": 11}, "min_tokens", f"9 {more}", facts=info(max_model_len=11))
    noise = info(mask_token_id=None)
    for field, value in (("logit_bias", {1: 1}), ("presence_penalty", 1), ("min_tokens", 2)):
        refused({field: value}, field, "has no effect for models that denoise noise", facts=noise)
    moving = info(algorithms=[replace(INFO.algorithms[0], key="edit", reorders_tokens=True)], default_algorithm="edit")
    refused({"min_tokens": 2}, "min_tokens", "is not supported with edit", facts=moving)
    grammatical = info(
        structured_output_error="", algorithms=[replace(rule, supports_grammar=True) for rule in INFO.algorithms]
    )
    refused({"min_tokens": 2, "structured_outputs": {"regex": "a"}}, "min_tokens", "grammar", facts=grammatical)
    with pytest.raises(RequestError, match="has no effect for infill; leave it out"):
        resolve(SamplingParams(min_tokens=2), [1], INFO, RequestContext(id="r", pinned_tokens={3: 4}))


def test_prompts_are_checked():
    cases: list[tuple[Any, str]] = [
        ([], "prompt"), ([1] * 256, "prompt"), ("text", "prompt"), (7, "prompt"), ([1, -1], "prompt[1]"),
        ([1, 91], "prompt[1]"), ([1, 2, 2**70], "prompt[2]"), ([1.0], "prompt[0]"), ([True], "prompt[0]"),
        (["1"], "prompt[0]"), ([[1]], "prompt[0]"), ([None], "prompt[0]"),
    ]  # fmt: skip
    for prompt, param in cases:
        refused({}, param, prompt=prompt)
    assert spec(prompt=[95, 90, 0]).prompt == [95, 90, 0]  # the mask's id is an ordinary id here
    assert len(spec(prompt=[1] * 255).prompt) == 255


def test_errors_use_the_clients_names_of_fields():
    names = {"prompt": "messages", "max_tokens": "max_completion_tokens"}
    for params, prompt, param in (({}, [], "messages"), ({"max_tokens": 0}, [1], "max_completion_tokens")):
        with pytest.raises(RequestError) as caught:
            resolve(SamplingParams(**params), prompt, INFO, RequestContext(id="r", names=names))
        assert caught.value.param == param
        assert caught.value.message.startswith(param)


def test_a_request_that_can_never_fit_is_refused():
    small = info(num_pages=4)  # 64 positions
    assert spec(facts=small, max_tokens=61).max_tokens == 61
    refused({"max_tokens": 62}, "max_tokens", "need 5 cache pages", facts=small)
    refused({}, "max_tokens", "cache pages", facts=small)


def test_each_choice_increments_the_seed():
    s = spec(seed=2**64 - 1)
    assert expand_choices(s, 1) == [s]
    assert [(c.id, c.seed) for c in expand_choices(s, 3)] == [("r-0", 2**64 - 1), ("r-1", 0), ("r-2", 1)]
    assert spec(seed=-2).seed == 2**64 - 2
    assert spec(seed=0).seed == 0


def test_a_number_too_long_to_print_is_refused():
    refused({"seed": 10**5000}, "seed")
    refused({"max_tokens": 10**5000}, "max_tokens")
    refused({}, "prompt[0]", prompt=[10**5000])


def test_stop_strings():
    assert stop_strings(None) == ()
    assert stop_strings("ab") == ("ab",)
    assert stop_strings(["b", "a", "b"]) == ("b", "a")


def test_greedy_and_limits():
    assert spec(temperature=9e-7).temperature == 0
    assert spec(temperature=1e-6).temperature == 1e-6
    assert spec(top_k=-1).top_k == 0
    assert spec(top_k=10**6).top_k == 100


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
plausible = st.one_of(
    json_values, st.floats(0, 1), st.integers(0, 40), st.sampled_from([*MODES, *algorithm_keys(), "margin"])
)
bodies = st.fixed_dictionaries(
    {},
    optional={
        name: st.dictionaries(st.sampled_from(FIELDS), plausible, max_size=4) | json_values
        if name == "decoding"
        else plausible
        for name in SamplingParams.__dataclass_fields__
    },
)


@examples(300)
@given(bodies, st.one_of(json_values, st.lists(st.integers(0, 95), max_size=300)))
def test_any_request_is_resolved_or_refused(body, prompt):
    try:
        s = resolve(SamplingParams(**body), prompt, INFO, RequestContext(id="r"))
    except RequestError as refusal:
        s, error = None, refusal
    if s is None:
        assert error.status == 400
        assert error.param
        assert len(error.message) < 500
        return
    assert 1 <= s.max_tokens <= INFO.max_model_len - len(s.prompt)
    assert 0 <= s.temperature <= 100
    assert 0 <= s.top_p <= 1
    assert 0 <= s.top_k <= INFO.vocab_size
    assert 0 <= s.seed < 2**64
    d = s.decoding
    rule = INFO.algorithm(d.algorithm)
    assert set(d.values) == {field.name for field in (*INFO.strategy_fields, *rule.fields)}
    for field in (*INFO.strategy_fields, *rule.fields):
        value = d.values[field.name]
        if field.kind == "choice":
            assert value in field.choices
            continue
        assert type(value) is (int if field.kind == "integer" else float)
        assert field.low <= value <= (math.inf if field.high is None else field.high)
        assert math.isfinite(value)
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(s), type=RequestSpec)
    assert again == s
    assert msgspec.json.decode(msgspec.json.encode(s), type=RequestSpec) == s


def test_a_step_map_has_the_blocks_of_the_request():
    assert spec().step_map is None
    assert spec(return_step_map=True).step_map == BlockLayout(8)
    canvas = info(
        blocks_from_prompt=True, truncate_last_block=True,
        strategy_fields=[replace(each, default=8) for each in FullCanvas.fields if each.name == "block_length"],
    )  # fmt: skip
    fixed = {"decoding": {"block_length": 4}, "max_tokens": 16}
    assert spec(facts=canvas, return_step_map=True, **fixed).step_map == BlockLayout(4, True, True)
    moving = info(algorithms=[replace(rule, reorders_tokens=rule.key == "edit") for rule in INFO.algorithms])
    refused(
        {"return_step_map": True, "decoding": {"algorithm": "edit"}}, "return_step_map", "moves tokens", facts=moving
    )
