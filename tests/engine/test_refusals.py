"""Tests of invalid input of every family, strategy and algorithm.

The error message is one line. It names the field, the value and the valid values.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from runtime import LLM, SamplingParams
from runtime.algorithms.base import algorithm_keys, algorithms_for, get_algorithm
from runtime.config import FLAGS, EngineConfig
from runtime.config.flags import DECODING
from runtime.engine.setup import load_engine
from runtime.errors import ConfigError, RequestError
from runtime.models.base import ModelFamily, families, resolve_family
from runtime.request.decoding import ENGINE_FIELDS
from runtime.request.engine_messages import EngineInfo
from runtime.request.field_spec import Field
from runtime.request.resolve import RequestContext, resolve
from runtime.request.validation import preview
from runtime.strategies.registry import strategies, strategies_supporting
from runtime.weights.checkpoint import Checkpoint
from runtime.weights.special_tokens import resolve_token_ids
from tests.models.tiny import checkpoint_of
from tests.oracle.spelling import KINDS
from tests.request.test_decoding import out_of_range, spelt
from tools.docs.models import fits

FAMILIES: dict[str, ModelFamily[Any]] = {family.key: family for family in map(resolve_family, families(), [{}] * 999)}
PAIRS = {f"{family.key}-{key}": (family, key) for family, _, key in fits()}
FOLDERS = {"llada2": "llada2_tiny"}  # folders of golden data whose name is not that of their family
MASK = 30
VALUES = ("many", -1, 2.5, [], {}, [1, 2], True, None, 0, {"x": 1}, math.nan)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


def flags_of(family: ModelFamily[Any], strategy: str | None, directory: Path) -> dict[str, Any]:
    """Returns flags with which `strategy` decodes the family's tiny checkpoint."""
    folder = FOLDERS.get(family.key, family.key)
    flags: dict[str, Any] = {"device": "cpu", "skip_tokenizer": True, "decoding_strategy": strategy}
    flags["model"] = str(checkpoint_of(folder, directory / folder))
    if family.key in KINDS and KINDS[family.key].needs_model_name:
        flags["model_name"] = family.key
    if family.masks:
        flags["mask_token_id"] = MASK
    if strategy in strategies() and all(rule.edits for rule in algorithms_for(strategy)):
        flags["sampling_mode"] = "edit"
    return flags


def start(flags: dict[str, Any]) -> str:
    """Returns the error message of a server that does not start with these flags."""
    with pytest.raises(ConfigError) as error:
        load_engine(EngineConfig(**flags))
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.fixture(scope="module", params=PAIRS)
def pair(request: pytest.FixtureRequest) -> tuple[ModelFamily[Any], str]:
    return PAIRS[request.param]


@pytest.fixture(scope="module")
def info(pair: tuple[ModelFamily[Any], str], directory: Path) -> EngineInfo:
    family, key = pair
    with LLM(**flags_of(family, key, directory)) as llm:
        assert (llm.info.family, llm.info.strategy) == (family.key, key)
        return llm.info


def refused(info: EngineInfo, param: str, prompt: tuple[int, ...] = (1, 2, 3), **fields: Any) -> str:
    """Returns the message of the error 400 about the field `param`."""
    with pytest.raises(RequestError) as error:
        resolve(SamplingParams(**fields), prompt, info, RequestContext(id="r"))
    assert (error.value.status, error.value.param) == (400, param), error.value.message
    assert "\n" not in error.value.message
    assert error.value.message.startswith(param.split(".")[0])
    return error.value.message


@cache
def every_field() -> dict[str, Field]:
    """Returns all fields that an algorithm or strategy declares, by name."""
    own = [field for key in algorithm_keys() for field in get_algorithm(key).fields]
    return {field.name: field for field in [*own, *(field for _, made, _ in fits() for field in made.fields)]}


@pytest.mark.parametrize("key", FAMILIES)
def test_a_strategy_that_does_not_fit_the_family(key: str, directory: Path) -> None:
    family = FAMILIES[key]
    mine = [name for name in strategies() if name in (*family.strategies, *strategies_supporting(key))]
    for name in [*strategies(), "nonesuch"]:
        if name not in mine:
            message = start(flags_of(family, name, directory))
            assert message == f"--decoding-strategy {name!r} does not fit this model; use one of {', '.join(mine)}"


def test_a_budget_below_a_requests_step(pair: tuple[ModelFamily[Any], str], directory: Path) -> None:
    flags = flags_of(*pair, directory)
    message = start(flags | {"max_num_batched_tokens": 1})
    least = int(message.removeprefix("--max-num-batched-tokens: 1 is less than the ").split()[0])
    assert f"{least - 1} is less than the {least} rows" in start(flags | {"max_num_batched_tokens": least - 1})
    with LLM(**flags, max_num_batched_tokens=least) as llm:
        assert llm.info.max_num_batched_tokens == least


def test_flags_of_fields_that_no_request_has_are_refused(pair: tuple[ModelFamily[Any], str], directory: Path) -> None:
    family, key = pair
    flags = flags_of(family, key, directory)
    with LLM(**flags) as llm:
        read = {field.flag or field.name for field in llm.info.strategy_fields}
        read |= {field.flag or field.name for rule in llm.info.algorithms for field in rule.fields}
    others = {field.flag or field.name for field in every_field().values()} - read
    for flag in [flag for flag in FLAGS if flag.group == DECODING and flag.dest in others]:
        message = start(flags | {flag.dest: flag.choices[0] if flag.choices else flag.type == "bool" or 1})
        assert message.startswith(f"--{flag.name}")
        assert message.endswith("; leave it out")


def test_an_algorithm_that_does_not_fit(info: EngineInfo) -> None:
    there = ", ".join(rule.key for rule in info.algorithms)
    for key in [*algorithm_keys(), "nonesuch"]:
        if info.algorithm(key) is None:
            message = refused(info, "decoding.algorithm", decoding={"algorithm": key})
            assert (
                message
                == f"decoding.algorithm: {key!r} is not an unmasking algorithm of this server; available: {there}"
            )


def test_a_field_that_does_not_fit(info: EngineInfo) -> None:
    own = {field.name for field in info.strategy_fields}
    own |= {field.name for rule in info.algorithms for field in rule.fields}
    outer = {name.split(".")[0] for name in own}
    for name, field in every_field().items():
        if name not in own and name not in ENGINE_FIELDS and name.split(".")[0] not in outer:
            message = refused(info, f"decoding.{name.split('.')[0]}", decoding=spelt(name, field.default))
            assert f"{name.split('.')[0]!r} is no decoding field; there are mode, algorithm" in message


def test_values_out_of_range(info: EngineInfo) -> None:
    for rule in info.algorithms:
        for field in (*info.strategy_fields, *rule.fields):
            for value in out_of_range(field):
                asked = {"algorithm": rule.key, **spelt(field.name, value)}
                message = refused(info, f"decoding.{field.name}", decoding=asked)
                assert message.startswith(f"decoding.{field.name}: {preview(value)} is "), message
        message = refused(info, "decoding.mode", decoding={"algorithm": rule.key, "mode": "nonesuch"})
        assert (
            f"'nonesuch' is not one of {', '.join(rule.modes)}" in message if rule.modes else "leave it out" in message
        )


def test_prompts_and_answers_that_are_too_long(info: EngineInfo) -> None:
    limit = info.max_model_len
    message = refused(info, "prompt", prompt=(1,) * limit)
    expected = f"prompt: has {limit} tokens, and the model's length is {limit}, the answer included; shorten it"
    assert message == expected
    message = refused(info, "max_tokens", prompt=(1,) * 9, max_tokens=limit + 1)
    assert message == f"max_tokens: {limit + 1} is more than the model's length, {limit}; lower it"
    for requested in (limit - 9, limit - 8, limit):  # limited to what the prompt leaves
        assert (
            resolve(SamplingParams(max_tokens=requested), (1,) * 9, info, RequestContext(id="r")).max_tokens
            == limit - 9
        )


@pytest.mark.parametrize("key", [key for key in FAMILIES if key not in KINDS or not KINDS[key].needs_model_name])
def test_a_config_that_two_families_claim(key: str, directory: Path) -> None:
    config = config_of(FAMILIES[key], directory)
    for other in FAMILIES.values():
        for name in set(other.architectures) - set(config.get("architectures", [])):
            with pytest.raises(ConfigError) as error:
                resolve_family(None, config | {"architectures": [*config.get("architectures", []), name]})
            message = str(error.value)
            assert "\n" not in message
            assert message.startswith("config.json's model_type ")
            assert repr(name) in message
            assert "name the family with --model-name" in message
            assert other.key in message
            assert key in message


def config_of(family: ModelFamily[Any], directory: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((Path(flags_of(family, None, directory)["model"]) / "config.json").read_text())
    return config


def wrong_configs(config: dict[str, Any]) -> Iterator[tuple[set[str], object, dict[str, Any]]]:
    """Yields configs in which one field, or one field of an object in it, is absent or has another value.

    Each item has the name of the field, or the names of an object and its fields, the value, and the config. The value
    of an absent field is None.
    """
    for name, entry in config.items():
        names = {name, *(entry if isinstance(entry, dict) else ())}
        others = {other: config[other] for other in config if other != name}
        yield names, None, others
        for value in VALUES:
            yield names, value, others | {name: value}
        for inner, value, other in wrong_configs(entry) if isinstance(entry, dict) else ():
            yield inner, value, config | {name: other}


@pytest.mark.parametrize("key", FAMILIES)
def test_a_config_that_lacks_or_contradicts_a_field(key: str, directory: Path) -> None:
    """With any value of a field, the checkpoint is read, or the error message of one line names the field."""
    family = FAMILIES[key]
    right = config_of(family, directory)
    mask = None if "mask_token_id" in right or not family.masks else MASK
    sentences = []
    for fields, value, config in wrong_configs(right):
        try:
            facts = family.facts(family.parse(config))
            resolve_token_ids(Checkpoint(directory, config, {}), family, facts, mask_token_id=mask, skip_tokenizer=True)
        except ConfigError as error:
            sentences.append((fields, value, str(error).replace("--mask-token-id", "mask_token_id")))
    assert len(sentences) > 100
    unclear = [s for s in sentences if "\n" in s[2] or not any(field in s[2] for field in s[0])]
    assert unclear == []
