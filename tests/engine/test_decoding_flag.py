"""Tests of --decoding: it sets the defaults of decoding fields, and a wrong field or value ends the start."""

import pytest

from runtime import LLM, SamplingParams
from runtime.config import EngineConfig
from runtime.engine.request_defaults import with_decoding_flag
from runtime.engine.setup import load_engine
from runtime.errors import ConfigError
from runtime.request.decoding import resolve_decoding
from tests.golden import GOLDEN


@pytest.fixture(scope="module")
def demo():
    return load_engine(EngineConfig(device="cpu", skip_tokenizer=True)).info


@pytest.fixture(scope="module")
def full():
    config = EngineConfig(model=str(GOLDEN / "llada"), device="cpu", skip_tokenizer=True)
    return load_engine(config).info


def asked(info, **decoding):
    return resolve_decoding(SamplingParams(decoding=decoding or None), info, 8, 8)


@pytest.mark.parametrize(
    ("decoding", "request_fields", "algorithm", "expected"),
    [
        ({"algorithm": "fixed", "steps": 4}, {}, "fixed", {"steps": 4}),
        ({"algorithm": "fixed", "steps": 4.0, "confidence_metric": None}, {}, "fixed", {"steps": 4}),
        ({"algorithm": "fixed", "steps": 4}, {"steps": 2}, "fixed", {"steps": 2}),
        ({"algorithm": "fixed", "steps": 4}, {"algorithm": "dynamic"}, "dynamic", {"steps": 4}),
        ({"algorithm": "fixed", "steps": 4}, {"algorithm": "threshold"}, "threshold", {"accept_threshold": 0.95}),
        ({"accept_threshold": 0.6}, {"mode": "quality"}, "threshold", {"accept_threshold": 0.97}),
        ({"accept_threshold": 0.6}, {"algorithm": "edit"}, "edit", {"accept_threshold": 0.6}),
        ({"mode": "speed"}, {}, "threshold", {"accept_threshold": 0.7}),
        ({"mode": "speed"}, {"algorithm": "dynamic"}, "dynamic", {"accept_threshold": 0.95}),
        ({"algorithm": "edit", "mode": "quality"}, {}, "edit", {"accept_threshold": 0.7, "edit_threshold": 0.5}),
        ({"algorithm": "credit", "credit": {"decay": 0.5}}, {}, "credit", {"credit.decay": 0.5, "credit.power": 0.2}),
        ({"suppress_eos": "logits"}, {"algorithm": "credit"}, "credit", {"suppress_eos": "logits"}),
        ({"semi_complete_threshold": 0.5}, {}, "threshold", {"semi_complete_threshold": 0.5}),
        ({"block_length": 32}, {}, "threshold", {"accept_threshold": 0.95}),
        ({}, {}, "threshold", {"accept_threshold": 0.95}),
    ],
)
def test_its_fields_are_the_defaults_of_requests(decoding, request_fields, algorithm, expected, demo):
    info = with_decoding_flag(EngineConfig(decoding=decoding), demo)
    found = asked(info, **request_fields)
    assert found.algorithm == algorithm
    assert {name: found.values[name] for name in expected} == expected


def test_exclusive_batches_may_be_the_default(demo):
    info = with_decoding_flag(EngineConfig(decoding={"force_single_batch": True}), demo)
    assert asked(info).force_single_batch
    assert asked(info, steps=None, algorithm="fixed").force_single_batch
    assert not asked(info, force_single_batch=False).force_single_batch
    assert not asked(demo, algorithm="fixed").force_single_batch


def test_defaults_per_block_follow_the_block_length(full):
    """They do as for a request that sets the length, unless the flag sets them."""
    info = with_decoding_flag(EngineConfig(decoding={"block_length": 8}), full)
    assert asked(info) == asked(full, block_length=8)
    assert asked(info, block_length=16) == asked(full, block_length=16)
    steps = with_decoding_flag(EngineConfig(decoding={"algorithm": "fixed", "block_length": 8, "steps": 2}), full)
    assert asked(steps, block_length=16).values["steps"] == 2
    assert asked(steps, block_length=16).values["max_steps_per_block"] == 32


@pytest.mark.parametrize(
    ("decoding", "sentence"),
    [
        ({"stepz": 4}, "--decoding: 'stepz' is no decoding field of this server; there are mode, algorithm,"),
        ({"steps": 4}, "--decoding.steps: has no meaning with the threshold algorithm, only with dynamic, fixed and"),
        ({"algorithm": "fixed", "steps": 0}, "--decoding.steps: 0 is out of range; it must be at least 1"),
        ({"algorithm": "fixed", "steps": "x"}, "--decoding.steps: 'x' is not an integer, such as 1; correct it, or"),
        ({"algorithm": "best"}, "--decoding.algorithm: 'best' is not an unmasking algorithm of this server; available"),
        ({"mode": "fast"}, "--decoding.mode: 'fast' is not one of speed, balanced, quality; correct it, or leave"),
        ({"accept_threshold": float("nan")}, "--decoding.accept_threshold: nan is out of range"),
        ({"block_length": 8}, "--decoding.block_length: 8 is not the server's block size, 32; leave it out"),
        ({"force_single_batch": 1}, "--decoding.force_single_batch: 1 is not true or false; correct it"),
        ({"credit": 3}, "--decoding.credit: 3 is not an object of fields; there are weight, decay"),
    ],
)
def test_a_wrong_field_ends_the_start_with_one_sentence(decoding, sentence, demo):
    with pytest.raises(ConfigError) as error:
        with_decoding_flag(EngineConfig(decoding=decoding), demo)
    assert str(error.value).startswith(sentence)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("decoding", "flags", "pair"),
    [
        ({"accept_threshold": 0.5}, {"accept_threshold": 0.5}, "accept_threshold is also set by --accept-threshold"),
        ({"mode": "speed"}, {"accept_threshold": 0.5}, "accept_threshold is also set by --accept-threshold"),
        ({"cache": "dual"}, {"full_cache": "prefix"}, "cache is also set by --full-cache"),
    ],
)
def test_a_field_with_a_flag_of_its_own_is_set_once(decoding, flags, pair, demo, full):
    with pytest.raises(ConfigError, match=f"--decoding: {pair}; give one of them"):
        with_decoding_flag(EngineConfig(decoding=decoding, **flags), full if "cache" in decoding else demo)


@pytest.mark.parametrize(
    "value", ["", "{", "[1]", "4", "null", '{"steps": 4, "steps": 5}', [1], 4, "[" * 100_000, {"steps": {1, 2}}]
)
def test_anything_but_an_object_is_refused(value):
    with pytest.raises(ConfigError, match="--decoding: ") as error:
        EngineConfig(decoding=value)
    assert "\n" not in str(error.value)


def test_requests_are_decoded_with_it():
    params = SamplingParams(max_tokens=32, ignore_eos=True)
    with LLM(device="cpu", decoding={"algorithm": "fixed", "steps": 2}) as llm:
        assert llm.generate(["1 + 1"], params)[0].nfe <= 4
    with pytest.raises(ConfigError, match=r"--decoding\.steps: 0 is out of range"):
        LLM(device="cpu", decoding='{"algorithm": "fixed", "steps": 0}')
