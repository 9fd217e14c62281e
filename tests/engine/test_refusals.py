"""Tests of invalid input of every family, strategy and algorithm."""

import json
import math
import re
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
from tests.golden import GOLDEN
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
            says = f"{key!r} is not an unmasking algorithm of this server; available: {there}"
            assert message == f"decoding.algorithm: {says}"


def test_a_field_that_does_not_fit(info: EngineInfo) -> None:
    own = {field.name for field in info.strategy_fields}
    own |= {field.name for rule in info.algorithms for field in rule.fields}
    outer = {name.split(".")[0] for name in own}
    for name, field in every_field().items():
        if name not in own and name not in ENGINE_FIELDS and name.split(".")[0] not in outer:
            message = refused(info, f"decoding.{name.split('.')[0]}", decoding=spelt(name, field.default))
            assert f"{name.split('.')[0]!r} is no decoding field of this server; there are mode, algorithm" in message


def test_values_out_of_range(info: EngineInfo) -> None:
    for rule in info.algorithms:
        for field in (*info.strategy_fields, *rule.fields):
            for value in out_of_range(field):
                asked = {"algorithm": rule.key, **spelt(field.name, value)}
                message = refused(info, f"decoding.{field.name}", decoding=asked)
                assert message.startswith(f"decoding.{field.name}: {preview(value)} is "), message
        message = refused(info, "decoding.mode", decoding={"algorithm": rule.key, "mode": "nonesuch"})
        assert (f"'nonesuch' is not one of {', '.join(rule.modes)}" if rule.modes else "leave it out") in message


def test_prompts_and_answers_that_are_too_long(info: EngineInfo) -> None:
    limit = info.max_model_len
    message = refused(info, "prompt", prompt=(1,) * limit)
    expected = f"prompt: has {limit} tokens, and the model's length is {limit}, the answer included; shorten it"
    assert message == expected
    message = refused(info, "max_tokens", prompt=(1,) * 9, max_tokens=limit + 1)
    assert message == f"max_tokens: {limit + 1} is more than the model's length, {limit}; lower it"
    for requested in (limit - 9, limit - 8, limit):  # limited to what the prompt leaves
        spec = resolve(SamplingParams(max_tokens=requested), (1,) * 9, info, RequestContext(id="r"))
        assert spec.max_tokens == limit - 9


def test_names_of_dlmserve_that_do_not_fit(info: EngineInfo) -> None:
    default = info.algorithm(info.default_algorithm)
    assert default is not None
    for name, value, field in (("confidence_metric", "margin", None), ("num_denoising_steps", 99, "steps")):
        if all(own.name != (field or name) for rule in info.algorithms for own in rule.fields):
            message = refused(info, name, **{name: value})
            assert f"has no meaning with the {default.key} algorithm; leave it out" in message
    if info.algorithm("local_leap") is None:
        assert "'local_leap' is not an unmasking algorithm" in refused(info, "use_local_leap", use_local_leap=True)


DMAX = {"decoding_strategy": "dmax", "sampling_mode": "edit", "block_size": 8}
D2F = {"decoding_strategy": "d2f"}
# flags of a golden checkpoint, and a part of the message
FLAGS_THAT_DO_NOT_FIT: list[tuple[str, dict[str, Any], str]] = [
    ("d2f_dream", D2F | {"max_model_len": 64, "max_num_batched_tokens": 160}, "160 is less than the 161 rows"),
    ("d2f_llada", D2F | {"block_size": 8, "max_model_len": 200, "max_num_batched_tokens": 198},
     "198 is less than the 199 rows .* as prompts are not split, --max-model-len 200"),
    ("diffusion_gemma", {"buffer_size": 2}, "--buffer-size 2: this model's blocks are decoded one at a time"),
    ("diffusion_gemma", {"mask_token_id": 3}, "--mask-token-id 3: the diffusion_gemma family has no mask"),
    ("diffusion_gemma", {"max_num_batched_tokens": 31}, "31 is less than the 32 rows"),
    ("diffusion_gemma", {"sampling_mode": "edit"}, "--sampling-mode edit: the diffusion_gemma family has only naive"),
    ("dmax", {"decoding_strategy": "dmax"}, "--decoding-strategy dmax needs --sampling-mode edit"),
    ("dmax", DMAX | {"token_merge_mode": "topk"}, "--token-merge-mode: 'topk' is not one of"),
    ("dmax", DMAX | {"token_merge_top_k": 65}, "--token-merge-top-k: 65 is not"),
    ("dmax", DMAX | {"token_merge_weight": -1}, "--token-merge-weight: -1 is not"),
    ("fast_dllm_v2", {"block_size": 12, "page_size": 12}, "--block-size 12: must be a multiple of .* sub-blocks of 8"),
    ("llada", {"full_cache": "both"}, "--full-cache: 'both' is not one of prefix, dual, vicinity"),
    ("llada", {"max_num_batched_tokens": 255}, "255 is less than the 256 rows .* --max-model-len 256"),
    ("llada2dot2", {"block_size": 12, "page_size": 12}, "--block-size 12 is no multiple of 8, the positions"),
    ("llada2dot2", {"eos_token_ids": [16]}, "delete_token_id 16 is also the eos_token_id"),
    ("llada2dot2", {"mask_token_id": 47}, "split_token_id 47 is also the mask_token_id"),
    ("llada2dot2", {"max_post_edit_steps": 300}, "--max-post-edit-steps: 300 is out of range"),
    ("llada2dot2", {"sampling_mode": "naive"}, "--sampling-mode naive: the llada2dot2 family has only edit"),
    ("sdar", {"block_size": 24}, "--page-size 32, its default, is neither a multiple nor a divisor"),
    ("sdar", {"block_size": 32, "page_size": 48}, "--page-size 48 is neither a multiple nor a divisor"),
]  # fmt: skip


@pytest.mark.parametrize(("folder", "flags", "says"), FLAGS_THAT_DO_NOT_FIT)
def test_flags_that_do_not_fit_a_checkpoint(folder: str, flags: dict[str, Any], says: str) -> None:
    mask = {"mask_token_id": 225} if folder == "fast_dllm_v2" else {}
    assert re.search(
        says, start({"model": str(GOLDEN / folder), "device": "cpu", "skip_tokenizer": True} | mask | flags)
    )


SMOOTH = {"token_merge_mode": "iter_smooth_topk"}
# flags and fields of a golden checkpoint, the field that the error names, and a part of the message
FIELDS_THAT_DO_NOT_FIT: list[tuple[str, dict[str, Any], dict[str, Any], str, str]] = [
    ("dmax", DMAX, {"decoding": {"token_merge_weight": 0.5}}, "decoding.token_merge_weight",
     "has no meaning with token_merge_mode dmax_topk, only with iter_smooth_topk; leave it out"),
    ("dmax", DMAX, {"decoding": SMOOTH | {"token_merge_renormalize": False}}, "decoding.token_merge_renormalize",
     "has no meaning with token_merge_mode iter_smooth_topk"),
    ("fast_dllm_v2", {"mask_token_id": 225}, {"decoding": {"sub_block_size": 12}}, "decoding.sub_block_size",
     "12 does not divide 32"),
    ("fast_dllm_v2", {"mask_token_id": 225}, {"max_tokens": 61, "num_denoising_steps": 7}, "num_denoising_steps",
     "7 is less than the 8 blocks"),
    ("llada", {"block_size": 8}, {"block_length": 0}, "block_length", "0 is out of range"),
    ("llada", {"block_size": 8}, {"block_length": 1.5}, "block_length", "is not an integer"),
    ("llada", {"block_size": 8}, {"max_tokens": 24, "num_denoising_steps": 2}, "num_denoising_steps", "the 3 blocks"),
    ("llada", {"block_size": 8}, {"max_tokens": 24, "num_denoising_steps": 5, "block_length": 4}, "num_denoising_steps",
     "5 is less than the 6 blocks"),
]  # fmt: skip


@pytest.mark.parametrize(("folder", "flags", "fields", "param", "says"), FIELDS_THAT_DO_NOT_FIT)
def test_fields_that_do_not_fit_a_checkpoint(
    folder: str, flags: dict[str, Any], fields: dict[str, Any], param: str, says: str
) -> None:
    with LLM(str(GOLDEN / folder), device="cpu", skip_tokenizer=True, **flags) as llm:
        assert says in refused(llm.info, param, **fields)


@pytest.mark.parametrize("key", [key for key in FAMILIES if key not in KINDS or not KINDS[key].needs_model_name])
def test_a_config_that_two_families_claim(key: str, directory: Path) -> None:
    config = config_of(FAMILIES[key], directory)
    for other in FAMILIES.values():
        for name in set(other.architectures) - {*config.get("architectures", []), *FAMILIES[key].architectures}:
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
    """Yields configs in which one field, or one field of an object in it, is absent or has another value."""
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
