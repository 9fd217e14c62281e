"""Requests: every value checked, every precedence of decoding.md 3.1 and 3.2 kept."""

import json
import math
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.decoding import field_names
from runtime.engine.description import Field, RuleInfo, with_defaults
from runtime.engine.io import EngineInfo, RequestSpec
from runtime.errors import RequestError
from runtime.params import SamplingParams, choices, resolve, stop_strings
from runtime.samplers import get_rule, rules
from runtime.strategies.multi_bd import MultiBlock

SERVER = {"accept_threshold": 0.95, "remask_threshold": 0.2, "edit_threshold": 0.4, "penalty_lambda": 0.1,
          "max_post_edit_steps": 7}  # fmt: skip


def rule_info(key: str, **defaults) -> RuleInfo:
    rule = get_rule(key)
    return RuleInfo(key=key, fields=with_defaults(rule.fields, 8, defaults), modes=rule.modes)


def info(**changes) -> EngineInfo:
    facts = {
        "family": "llada2", "strategy": "multi_bd", "device": "cpu", "dtype": "float32", "vocab_size": 100,
        "max_token_id": 90, "mask_token_id": 95, "eos_token_ids": [1], "block_size": 8, "buffer_size": 2,
        "page_size": 16, "num_pages": 100, "max_model_len": 256, "max_num_reqs": 4, "max_num_batched_tokens": 512,
        "prefix_caching": True, "strategy_fields": list(with_defaults(MultiBlock.fields, 8)),
        "rules": [rule_info(key, **SERVER) for key in rules()], "default_rule": "threshold",
    }  # fmt: skip
    return EngineInfo(**(facts | changes))


INFO = info()
FIELDS = list(dict.fromkeys(name.split(".")[0] for name in field_names(INFO)))
MODES = ("speed", "balanced", "quality")


def refused(params: dict, param: str, words: str | None = None, prompt=(1, 2, 3), facts=INFO) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        resolve(SamplingParams(**params), prompt, facts, id="r")
    error = caught.value
    assert (error.param, error.status) == (param, 400)
    assert param.split("[")[0].split(".")[0] in error.message
    assert len(error.message) < 400


def spec(prompt=(1, 2, 3), facts=INFO, **params) -> RequestSpec:
    return resolve(SamplingParams(**params), prompt, facts, id="r")


def test_defaults():
    s = spec()
    assert (s.max_tokens, s.temperature, s.top_p, s.top_k) == (253, 0.0, 1.0, 0)
    assert (s.max_nfe, s.max_repetition_run, s.ignore_eos, s.report) == (None, None, False, "final")
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


def test_default_max_tokens_gives_way_to_the_models_length():
    for length, expected in ((3, 50), (250, 6)):
        s = resolve(SamplingParams(), [1] * length, INFO, id="r", default_max_tokens=50)
        assert s.max_tokens == expected
    assert spec(max_tokens=253).max_tokens == 253
    refused({"max_tokens": 254}, "max_tokens", "253 tokens")


def short(value) -> str:
    return value if isinstance(value, str) and len(value) < 30 else type(value).__name__


BAD = [
    ("max_tokens", [0, -1, 254, 2**80, 1.0, "7", True, math.nan]),
    ("temperature", [-0.1, math.nan, math.inf, 101, "hot", True, [1]]),
    ("top_p", [0, -1, 1.01, math.nan, "1", False]),
    ("top_k", [-2, 1.5, 2**40, "3", True]),
    ("seed", [2**64, -(2**63) - 1, 1.5, "a"]),
    ("stop", ["", ["a", ""], [1], 7, ["x"] * 1000, "x" * 5000, {"a": 1}]),
    ("ignore_eos", [1, "true"]),
    ("max_nfe", [0, -3, 1.5, "2"]),
    ("max_repetition_run", [0, True]),
    ("n", [0, 129, 1.0]),
    ("cache_salt", [7, "x" * 300]),
    ("decoding", [[], "speed", 3]),
    ("num_denoising_steps", [0, 10, -1, 2.5]),
    ("block_length", [16, 0, "8"]),
    ("use_local_leap", [1, "yes"]),
    ("force_single_batch", [1, "no"]),
]


@pytest.mark.parametrize(
    ("field", "value"),
    [(f, v) for f, vs in BAD for v in vs],
    ids=short,
)
def test_bad_fields_are_refused_by_path(field, value):
    refused({field: value}, field)


BAD_DECODING = [
    *[(t, v) for t in ("accept_threshold", "remask_threshold", "add_block_threshold", "semi_complete_threshold",
                       "token_stability_threshold") for v in (-0.01, 1.01, math.nan, "0.5", True)],
    ("mode", "fast"), ("mode", 3), ("mode", ["speed"]),
    ("algorithm", "greedy"), ("algorithm", 3), ("algorithm", ["edit"]), ("algorithm", "x" * 10000),
    ("max_steps_per_block", 0), ("steps", 4), ("edit_threshold", 0.5), ("max_post_edit_steps", 3),
    ("penalty_lambda", 0.5), ("confidence_metric", "entropy"), ("confidence_metric", 3),
    ("local_leap", 0.9), ("local_leap", [1]),
    ("factor", 1.0), ("low_threshold", 0.4),
    ("force_single_batch", 1), ("block_length", 4), ("thresold", 0.5),
    ("suppress_eos", "always"), ("suppress_eos", True), ("credit", 3),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value"), BAD_DECODING, ids=short)
def test_bad_decoding_fields_are_refused_by_path(field, value):
    refused({"decoding": {field: value}}, f"decoding.{field}")


def spelt(name: str, value: object) -> dict:
    """A field as a request has it."""
    outer, _, inner = name.rpartition(".")
    return {outer: {inner: value}} if outer else {name: value}


def out_of_range(field: Field) -> list:
    if field.kind == "choice":
        return ["no such word", 1, True]
    if field.kind == "flag":
        return [1, "true"]
    beyond = (
        [field.low - 1] + ([field.low] if field.above_low else []) + ([] if field.high is None else [field.high + 1])
    )
    return [*beyond, "1", True, [1]] + ([1.5] if field.kind == "integer" else [math.nan, math.inf])


@pytest.mark.parametrize("rule", rules())
def test_a_rules_fields_are_checked_as_it_declares_them(rule):
    mine = (*INFO.strategy_fields, *INFO.rule(rule).fields)
    for field in mine:
        for value in out_of_range(field):
            refused({"decoding": {"algorithm": rule, **spelt(field.name, value)}}, f"decoding.{field.name}")
    others = {field.name: field for other in INFO.rules for field in other.fields if field not in mine}
    assert others
    for name, field in others.items():
        value = field.choices[-1] if field.choices else max(field.low, 1)
        words = f"has no meaning with the {rule} algorithm, only with "
        refused({"decoding": {"algorithm": rule, **spelt(name, value)}}, f"decoding.{name}", words)
        if field.neutral is not None:
            assert name not in spec(decoding={"algorithm": rule, **spelt(name, field.neutral)}).decoding.values


@pytest.mark.parametrize(
    ("decoding", "field"),
    [
        ({"algorithm": "fixed", "remask_threshold": 0.1}, "remask_threshold"),
        ({"algorithm": "edit", "remask_threshold": 0.1}, "remask_threshold"),
        ({"algorithm": "fixed", "mode": "speed"}, "mode"),
        ({"algorithm": "fixed", "remask_threshold": False}, "remask_threshold"),
        ({"local_leap": {"anchor": 0.9}}, "local_leap.anchor"),
        ({"algorithm": "local_leap", "local_leap": {"radius": {"x": 1}}}, "local_leap.radius"),
        ({"algorithm": "local_leap", "local_leap": {"reach": 1}}, "local_leap.reach"),
    ],
)
def test_combinations_that_mean_nothing_are_refused(decoding, field):
    refused({"decoding": decoding}, f"decoding.{field}")


def test_what_is_built_is_listed():
    words = "'greedy' is no acceptance rule of this server; there are credit, dynamic"
    refused({"decoding": {"algorithm": "greedy"}}, "decoding.algorithm", words)
    refused({"decoding": {"x": 1}}, "decoding.x", "there are mode, algorithm")


def test_fields_of_a_rule_reach_it_and_entries_of_an_object_by_their_full_names():
    leap = {"algorithm": "local_leap", "local_leap": {"anchor": 0.5, "radius": 2, "neighbor": None}}
    got = spec(decoding=leap).decoding.values
    assert (got["local_leap.anchor"], got["local_leap.neighbor"], got["local_leap.radius"]) == (0.5, 0.75, 2)
    assert spec(decoding={"algorithm": "fixed", "confidence_metric": "margin"}).decoding.values["steps"] == 8
    assert (
        "confidence_metric" not in spec(decoding={"algorithm": "edit", "confidence_metric": "max_prob"}).decoding.values
    )


def test_null_is_the_same_as_left_out():
    assert spec(decoding=dict.fromkeys(FIELDS)).decoding == spec().decoding


def test_precedence_field_mode_server_family():
    def decode(**decoding):
        return SimpleNamespace(**spec(decoding=decoding).decoding.values)

    assert decode().accept_threshold == 0.95  # the server's, which is the family's without a flag
    for mode, value in (("speed", 0.7), ("balanced", 0.9), ("quality", 0.97)):
        assert decode(mode=mode).accept_threshold == value
        assert decode(mode=mode, accept_threshold=0.25).accept_threshold == 0.25
    for mode, (accept, edit) in (("speed", (0.5, 0.0)), ("balanced", (0.6, 0.3)), ("quality", (0.7, 0.5))):
        got = decode(mode=mode, algorithm="edit")
        assert (got.accept_threshold, got.edit_threshold) == (accept, edit)
        got = decode(mode=mode, algorithm="edit", edit_threshold=0.9)
        assert (got.accept_threshold, got.edit_threshold) == (accept, 0.9)
    got = decode(algorithm="edit")
    assert (got.accept_threshold, got.edit_threshold, got.penalty_lambda, got.max_post_edit_steps) == (
        0.95,
        0.4,
        0.1,
        7,
    )


def test_the_servers_remasking_does_not_reach_other_algorithms():
    assert spec().decoding.values["remask_threshold"] == 0.2
    assert spec(decoding={"remask_threshold": 0}).decoding.values["remask_threshold"] == 0
    for algorithm in ("fixed", "edit"):
        assert "remask_threshold" not in spec(decoding={"algorithm": algorithm}).decoding.values
        asked = {"algorithm": algorithm, "remask_threshold": 0}
        assert "remask_threshold" not in spec(decoding=asked).decoding.values


def test_an_editing_server_edits_by_default():
    editing = info(default_rule="edit")
    assert spec(facts=editing).decoding.algorithm == "edit"
    assert spec(facts=editing, decoding={"mode": "balanced"}).decoding.values["edit_threshold"] == 0.3
    plain = spec(facts=editing, decoding={"algorithm": "threshold", "mode": "speed"}).decoding
    assert plain.values["accept_threshold"] == 0.7


def test_dlmserve_names():
    # 3 prompt tokens and 21 more touch blocks 0, 1 and 2 of 8
    got = spec(max_tokens=21, num_denoising_steps=13, block_length=8, use_local_leap=False, force_single_batch=False)
    assert (got.decoding.algorithm, got.decoding.total_steps) == ("fixed", 13)
    assert (spec().decoding.total_steps, spec().decoding.force_single_batch) == (None, False)
    assert spec(force_single_batch=True).decoding.force_single_batch
    assert spec(decoding={"force_single_batch": True}).decoding.force_single_batch
    refused({"block_length": 4}, "block_length", "4 is not the server's block size, 8")
    refused({"force_single_batch": True, "decoding": {"force_single_batch": True}}, "force_single_batch", "same")
    for algorithm in ("dynamic", "sequential"):
        got = spec(num_denoising_steps=99, decoding={"algorithm": algorithm}).decoding
        assert (got.algorithm, got.total_steps) == (algorithm, 99)
    refused({"max_tokens": 21, "num_denoising_steps": 2}, "num_denoising_steps", "3 blocks")
    refused({"num_denoising_steps": 99, "decoding": {"steps": 3}}, "num_denoising_steps", "says the same")
    refused({"num_denoising_steps": 99, "decoding": {"algorithm": "threshold"}}, "num_denoising_steps")
    refused({"num_denoising_steps": 99, "use_local_leap": True}, "num_denoising_steps", "dynamic, fixed and sequential")
    got = spec(use_local_leap=True, local_leap_radius=2, local_leap_anchor_threshold=0.5).decoding
    assert (got.algorithm, got.values["local_leap.radius"], got.values["local_leap.anchor"]) == ("local_leap", 2, 0.5)
    assert got.values["local_leap.neighbor"] == 0.75
    for ours, theirs in (("max_prob", "top1_prob"), ("neg_entropy", "entropy_inverse"), ("margin", "margin")):
        assert spec(confidence_metric=theirs).decoding.values["confidence_metric"] == ours
    refused({"use_local_leap": True, "decoding": {"algorithm": "edit"}}, "use_local_leap", "only with local_leap")
    refused({"use_local_leap": True, "local_leap_radius": 1.5}, "local_leap_radius")
    refused({"local_leap_radius": 2}, "local_leap_radius", "only with local_leap")
    refused({"confidence_metric": "best"}, "confidence_metric")
    refused({"confidence_metric": "margin", "decoding": {"confidence_metric": "margin"}}, "confidence_metric", "same")
    refused({"block_schedule": "uniform"}, "block_schedule", "leave it out")
    refused({"target_length": 5}, "target_length", "leave it out")


def test_prompts():
    for prompt, param in (
        ([], "prompt"),
        ([1] * 256, "prompt"),
        ("text", "prompt"),
        (7, "prompt"),
        ([1, -1], "prompt[1]"),
        ([1, 91], "prompt[1]"),
        ([1, 2, 2**70], "prompt[2]"),
        ([1.0], "prompt[0]"),
        ([True], "prompt[0]"),
        (["1"], "prompt[0]"),
        ([[1]], "prompt[0]"),
        ([None], "prompt[0]"),
    ):
        refused({}, param, prompt=prompt)
    assert spec(prompt=[95, 90, 0]).prompt == [95, 90, 0]  # the mask's id is an ordinary id here
    assert len(spec(prompt=[1] * 255).prompt) == 255


def test_paths_are_the_clients():
    names = {"prompt": "messages", "max_tokens": "max_completion_tokens"}
    for params, prompt, param in (({}, [], "messages"), ({"max_tokens": 0}, [1], "max_completion_tokens")):
        with pytest.raises(RequestError) as caught:
            resolve(SamplingParams(**params), prompt, INFO, id="r", names=names)
        assert caught.value.param == param
        assert caught.value.message.startswith(param)


def test_a_request_that_can_never_fit_is_refused():
    small = info(num_pages=4)  # 64 positions
    assert spec(facts=small, max_tokens=61).max_tokens == 61
    refused({"max_tokens": 62}, "max_tokens", "need 5 cache pages", facts=small)
    refused({}, "max_tokens", "cache pages", facts=small)


def test_choices_count_up_the_seed():
    s = spec(seed=2**64 - 1)
    assert choices(s, 1) == [s]
    assert [(c.id, c.seed) for c in choices(s, 3)] == [("r-0", 2**64 - 1), ("r-1", 0), ("r-2", 1)]
    assert spec(seed=-1).seed == 2**64 - 1
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
plausible = st.one_of(json_values, st.floats(0, 1), st.integers(0, 40), st.sampled_from([*MODES, *rules(), "margin"]))
bodies = st.fixed_dictionaries(
    {},
    optional={
        name: st.dictionaries(st.sampled_from(FIELDS), plausible, max_size=4) | json_values
        if name == "decoding"
        else plausible
        for name in SamplingParams.__dataclass_fields__
    },
)


@settings(max_examples=400, deadline=None)
@given(bodies, st.one_of(json_values, st.lists(st.integers(0, 95), max_size=300)))
def test_any_request_is_resolved_or_refused(body, prompt):
    try:
        s = resolve(SamplingParams(**body), prompt, INFO, id="r")
    except RequestError as refusal:
        s, error = None, refusal
    if s is None:
        assert error.status == 400
        assert error.param
        assert len(error.message) < 500
        return
    assert 1 <= s.max_tokens <= INFO.max_model_len - len(s.prompt)
    assert 0 <= s.temperature <= 100
    assert 0 < s.top_p <= 1
    assert 0 <= s.top_k <= INFO.vocab_size
    assert 0 <= s.seed < 2**64
    d = s.decoding
    rule = INFO.rule(d.algorithm)
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
    assert json.loads(msgspec.json.encode(s))["decoding"]["algorithm"] == d.algorithm
