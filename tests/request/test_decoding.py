"""Tests of request fields under ``decoding`` and of dlmserve's names for them: precedence, and refusals by path."""

import math
from types import SimpleNamespace

import pytest

from runtime.request.field_spec import Field
from tests.request.test_sampling_params import FIELDS, INFO, info, refused, short, spec

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


@pytest.mark.parametrize("value", [3, [1], "threshold"], ids=short)
def test_a_value_that_is_no_object_is_refused_with_the_fields_of_the_object(value):
    fields = {field.name for rule in INFO.algorithms for field in rule.fields}
    for outer in {name.split(".")[0] for name in fields if "." in name}:
        inner = {name.partition(".")[2] for name in fields if name.startswith(f"{outer}.")}
        message = f" is not an object of fields; there are .*{inner.pop()}"
        refused({"decoding": {outer: value}}, f"decoding.{outer}", message)
    refused({"decoding": value}, "decoding", " is not an object of fields; there are mode, algorithm, ")


def spelt(name: str, value: object) -> dict:
    """Returns a field as in the JSON of a request, where a dotted name is nested."""
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


@pytest.mark.parametrize("rule", [rule.key for rule in INFO.algorithms])
def test_fields_of_an_algorithm_are_checked_as_declared(rule):
    mine = (*INFO.strategy_fields, *INFO.algorithm(rule).fields)
    for field in mine:
        for value in out_of_range(field):
            refused({"decoding": {"algorithm": rule, **spelt(field.name, value)}}, f"decoding.{field.name}")
    others = {field.name: field for other in INFO.algorithms for field in other.fields if field not in mine}
    assert others or len(INFO.algorithms) == 1
    for name, field in others.items():
        value = field.choices[-1] if field.choices else max(field.low, 1)
        message = f"has no meaning with the {rule} algorithm, only with "
        refused({"decoding": {"algorithm": rule, **spelt(name, value)}}, f"decoding.{name}", message)
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
    ids=lambda value: value if isinstance(value, str) else value.get("algorithm", "threshold"),
)
def test_combinations_without_meaning_are_refused(decoding, field):
    refused({"decoding": decoding}, f"decoding.{field}")


def test_errors_list_available_algorithms_and_fields():
    keys = ", ".join(algorithm.key for algorithm in INFO.algorithms)
    message = f"'greedy' is not an unmasking algorithm of this server; available: {keys}$"
    refused({"decoding": {"algorithm": "greedy"}}, "decoding.algorithm", message)
    refused({"decoding": {"x": 1}}, "decoding.x", "there are mode, algorithm")


def test_entries_of_local_leap_are_resolved_to_full_names():
    leap = {"algorithm": "local_leap", "local_leap": {"anchor": 0.5, "radius": 2, "neighbor": None}}
    got = spec(decoding=leap).decoding.values
    assert (got["local_leap.anchor"], got["local_leap.neighbor"], got["local_leap.radius"]) == (0.5, 0.75, 2)


def test_fields_of_fixed_are_resolved():
    assert spec(decoding={"algorithm": "fixed", "confidence_metric": "margin"}).decoding.values["steps"] == 8


def test_values_without_effect_are_dropped_for_edit():
    values = spec(decoding={"algorithm": "edit", "confidence_metric": "max_prob"}).decoding.values
    assert "confidence_metric" not in values


def test_null_equals_a_missing_field():
    assert spec(decoding=dict.fromkeys(FIELDS)).decoding == spec().decoding


def decode(**decoding):
    return SimpleNamespace(**spec(decoding=decoding).decoding.values)


def test_the_order_of_precedence_is_field_mode_server_family():
    assert decode().accept_threshold == 0.95  # the server's default, which is the family's without a flag
    for mode, value in (("speed", 0.7), ("balanced", 0.9), ("quality", 0.97)):
        assert decode(mode=mode).accept_threshold == value
        assert decode(mode=mode, accept_threshold=0.25).accept_threshold == 0.25


def test_precedence_with_edit():
    for mode, (accept, edit) in (("speed", (0.5, 0.0)), ("balanced", (0.6, 0.3)), ("quality", (0.7, 0.5))):
        got = decode(mode=mode, algorithm="edit")
        assert (got.accept_threshold, got.edit_threshold) == (accept, edit)
        got = decode(mode=mode, algorithm="edit", edit_threshold=0.9)
        assert (got.accept_threshold, got.edit_threshold) == (accept, 0.9)
    got = decode(algorithm="edit")
    assert (got.accept_threshold, got.edit_threshold, got.penalty_lambda, got.max_post_edit_steps) == (
        0.95, 0.4, 0.1, 7,
    )  # fmt: skip


def test_the_servers_remasking_does_not_reach_other_algorithms():
    assert spec().decoding.values["remask_threshold"] == 0.2
    assert spec(decoding={"remask_threshold": 0}).decoding.values["remask_threshold"] == 0
    for algorithm in [rule.key for rule in INFO.algorithms if rule.key != "threshold"]:
        assert "remask_threshold" not in spec(decoding={"algorithm": algorithm}).decoding.values
        asked = {"algorithm": algorithm, "remask_threshold": 0}
        assert "remask_threshold" not in spec(decoding=asked).decoding.values


def test_a_server_with_edit_uses_it_by_default():
    editing = info(default_algorithm="edit")
    assert spec(facts=editing).decoding.algorithm == "edit"
    assert spec(facts=editing, decoding={"mode": "balanced"}).decoding.values["edit_threshold"] == 0.3
    decoding = spec(facts=editing, decoding={"algorithm": "threshold", "mode": "speed"}).decoding
    assert decoding.values["accept_threshold"] == 0.7


def test_dlmserve_names():
    assert spec(block_length=8, use_local_leap=False, force_single_batch=False).decoding == spec().decoding
    assert (spec().decoding.total_steps, spec().decoding.force_single_batch) == (None, False)
    assert spec(force_single_batch=True).decoding.force_single_batch
    assert spec(decoding={"force_single_batch": True}).decoding.force_single_batch
    refused({"block_length": 4}, "block_length", "4 is not the server's block size, 8")
    refused({"force_single_batch": True, "decoding": {"force_single_batch": True}}, "force_single_batch", "duplicates")
    for ours, theirs in (("max_prob", "top1_prob"), ("neg_entropy", "entropy_inverse"), ("margin", "margin")):
        assert spec(confidence_metric=theirs).decoding.values["confidence_metric"] == ours
    wrong = {"use_local_leap": True, "decoding": {"algorithm": "threshold"}}
    refused(wrong, "use_local_leap", "has no meaning with decoding.algorithm 'threshold', only with local_leap")
    refused({"confidence_metric": "best"}, "confidence_metric")
    refused(
        {"confidence_metric": "margin", "decoding": {"confidence_metric": "margin"}},
        "confidence_metric",
        "duplicates decoding.confidence_metric; give one",
    )
    refused({"block_schedule": "uniform"}, "block_schedule", "leave it out")
    refused({"target_length": 5}, "target_length", "leave it out")


STEPPED = [rule.key for rule in INFO.algorithms if any(field.name == "steps" for field in rule.fields)]


def test_num_denoising_steps_of_fixed():
    # 3 prompt tokens and 21 more are in blocks 0, 1 and 2, of 8 tokens each
    got = spec(max_tokens=21, num_denoising_steps=13)
    assert (got.decoding.algorithm, got.decoding.total_steps) == ("fixed", 13)
    refused({"max_tokens": 21, "num_denoising_steps": 2}, "num_denoising_steps", "3 blocks")
    refused(
        {"num_denoising_steps": 99, "decoding": {"steps": 3}},
        "num_denoising_steps",
        "duplicates decoding.steps; give one",
    )


@pytest.mark.parametrize("rule", [rule.key for rule in INFO.algorithms])
def test_num_denoising_steps_are_for_algorithms_with_steps(rule):
    asked = {"num_denoising_steps": 99, "decoding": {"algorithm": rule}}
    if rule in STEPPED:
        got = spec(**asked).decoding
        assert (got.algorithm, got.total_steps) == (rule, 99)
    else:
        message = f"has no meaning with the {rule} algorithm(, only with {'(, | and )'.join(STEPPED)})?; leave it out"
        refused(asked, "num_denoising_steps", message)


def test_num_denoising_steps_are_refused_if_no_algorithm_has_steps():
    facts = info(algorithms=[rule for rule in INFO.algorithms if rule.key not in STEPPED])
    message = "has no meaning with the threshold algorithm; leave it out"
    refused({"num_denoising_steps": 99}, "num_denoising_steps", message, facts=facts)


def test_local_leap_under_dlmserves_names():
    got = spec(use_local_leap=True, local_leap_radius=2, local_leap_anchor_threshold=0.5).decoding
    assert (got.algorithm, got.values["local_leap.radius"], got.values["local_leap.anchor"]) == ("local_leap", 2, 0.5)
    assert got.values["local_leap.neighbor"] == 0.75
    refused({"use_local_leap": True, "local_leap_radius": 1.5}, "local_leap_radius")
    refused({"local_leap_radius": 2}, "local_leap_radius", "only with local_leap")
