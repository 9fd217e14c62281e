"""Tests of the defaults of published checkpoints: by family, and by the name of the repository."""

import json
import logging
import re
import shutil

import msgspec
import pytest

from runtime import SamplingParams
from runtime.algorithms.base import algorithm_keys, get_algorithm
from runtime.config import EngineConfig
from runtime.engine.setup import load_engine
from runtime.errors import ConfigError, RequestError
from runtime.models.base import families
from runtime.models.published import entries, published_defaults
from runtime.request.decoding import resolve_decoding
from runtime.request.engine_messages import SAMPLING, ToolNames
from runtime.request.resolve import RequestContext, resolve, score_spec
from tests.models.tiny import checkpoint_of

QWEN3 = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "eos_token_id": [106, 105]}
CONTEXT = RequestContext("id")
GREEDY = (0.0, 1.0, 0, 0.0)


@pytest.fixture
def info_of(tmp_path):
    """Returns a function that serves a tiny checkpoint of a family from a directory of this name."""

    def load(family, name, *, generation=None, origin=None, **flags):
        path = tmp_path / name
        shutil.copytree(checkpoint_of(family, tmp_path), path, ignore=shutil.ignore_patterns(name))
        if generation is not None:
            (path / "generation_config.json").write_text(json.dumps(generation))
        if origin is not None:
            config = json.loads((path / "config.json").read_text()) | {"_name_or_path": origin}
            (path / "config.json").write_text(json.dumps(config))
        return load_engine(EngineConfig(model=str(path), device="cpu", skip_tokenizer=True, **flags)).info

    return load


def sampling(info):
    return info.temperature, info.top_p, info.top_k, info.min_p


def values(info, **decoding):
    return resolve_decoding(SamplingParams(decoding=decoding), info, 8, 8).values


@pytest.mark.all_entries
def test_entries_name_families_and_their_fields():
    algorithms = [get_algorithm(key) for key in algorithm_keys()]
    fields = {field.name for algorithm in algorithms for field in algorithm.fields}
    for entry in entries():
        assert entry.family in families()
        assert entry.repository is None or re.compile(entry.repository)
        assert all(each["source"] for each in entry.published)
        for key, value in entry.served.items():
            own = {key: value} if not isinstance(value, dict) else value
            assert own.keys() <= fields | {*SAMPLING, "sampling_mode"}
            assert not isinstance(value, dict) or key in algorithm_keys()


@pytest.mark.parametrize(
    ("names", "mode"),
    [
        (["inclusionAI/LLaDA2.1-mini"], "edit"), (["llada2_1-flash-fp8"], "edit"), (["my-LLaDA-2.1-sft"], "edit"),
        (["model", "inclusionAI/LLaDA2.1-mini"], "edit"), (["llada2dot1_mini", "model"], "edit"),
        (["inclusionAI/LLaDA2.0-mini"], None), (["LLaDA2.0-mini", "inclusionAI/LLaDA2.1-mini"], None),
        (["LLaDA2.1-fans/other"], None), (["LLaDA2.10"], None), (["model"], None), ([], None),
    ],
)  # fmt: skip
def test_the_first_name_that_tells_counts(names, mode):
    assert published_defaults("llada2", names).sampling_mode == mode


@pytest.mark.parametrize("family", ["sdar", "sdar_moe", "fast_dllm_v2", "dream_reasoner", "stable_diffcoder"])
def test_sampling_values_copied_from_an_autoregressive_model_are_not_used(family, info_of, caplog):
    with caplog.at_level(logging.INFO):
        info = info_of(family, "model", generation=QWEN3, mask_token_id=1)
    assert sampling(info) == GREEDY
    assert {105, 106} <= set(info.eos_token_ids)
    (line,) = [line for line in caplog.messages if line.startswith("generation_config.json")]
    assert "temperature 0.6, top_p 0.95, top_k 20 ignored" in line


@pytest.mark.parametrize("generation", [{}, {"do_sample": False, "temperature": 0.6}, {"temperature": 0.0}])
def test_equal_or_absent_values_are_no_line(generation, info_of, caplog):
    with caplog.at_level(logging.INFO):
        assert sampling(info_of("sdar", "model", generation=generation)) == GREEDY
    assert not [line for line in caplog.messages if line.startswith("generation_config.json")]


def test_the_files_of_dream_keep_their_values(info_of):
    generation = {"temperature": 0.2, "top_p": 0.95, "alg": "origin", "steps": 512}
    assert sampling(info_of("dream", "Dream-v0-Instruct-7B", generation=generation)) == (0.2, 0.95, 0, 0.0)


@pytest.mark.parametrize("where", [{"name": "LLaDA2.1-mini"}, {"name": "model", "origin": "inclusionAI/LLaDA2.1-mini"}])
def test_llada2dot1_edits_by_its_name(where, info_of):
    info = info_of("llada2_tiny", **where)
    assert info.default_algorithm == "edit"
    own = values(info)
    assert (own["accept_threshold"], own["edit_threshold"]) == (0.7, 0.5)
    fast = values(info, mode="speed")
    assert (fast["accept_threshold"], fast["edit_threshold"]) == (0.5, 0.0)
    assert values(info, algorithm="threshold")["accept_threshold"] == 0.95


@pytest.mark.parametrize("alias", ["llada2dot1_mini", "llada2dot1_flash"])
def test_the_alias_of_llada2dot1_names_it_whatever_the_directory(alias, info_of):
    info = info_of("llada2_tiny", "model", model_name=alias)
    assert (info.default_algorithm, values(info)["accept_threshold"]) == ("edit", 0.7)
    with pytest.raises(ConfigError, match=f"--model-name {alias} needs --sampling-mode edit"):
        info_of("llada2_tiny", "LLaDA2.1-mini", model_name=alias, sampling_mode="naive")


def test_requests_then_flags_precede_published_defaults(info_of):
    info = info_of("llada2_tiny", "LLaDA2.1-mini", accept_threshold=0.6, edit_threshold=0.4)
    assert (values(info)["accept_threshold"], values(info)["edit_threshold"]) == (0.6, 0.4)
    assert values(info, edit_threshold=0.1)["edit_threshold"] == 0.1
    plain = info_of("llada2_tiny", "LLaDA2.1-flash", sampling_mode="naive")
    assert (plain.default_algorithm, values(plain)["accept_threshold"]) == ("threshold", 0.95)


def test_other_names_of_llada2_do_not_edit(info_of):
    info = info_of("llada2_tiny", "LLaDA2.0-mini")
    assert (info.default_algorithm, values(info)["accept_threshold"]) == ("threshold", 0.95)
    assert values(info, algorithm="edit")["edit_threshold"] == 0.0


def test_stable_diffcoder_accepts_above_its_published_threshold(info_of):
    assert values(info_of("stable_diffcoder", "model"))["accept_threshold"] == 0.95


def test_llada_1_5_suppresses_end_tokens_where_nothing_else_decides_the_end(info_of):
    info = info_of("llada", "LLaDA-1.5")
    assert values(info)["suppress_eos"] == "confidence"
    assert values(info, suppress_eos="none")["suppress_eos"] == "none"
    assert values(info_of("llada", "LLaDA-8B-Instruct"))["suppress_eos"] == "none"

    info = msgspec.structs.replace(info, structured_output_error="")
    grammar = {"structured_outputs": {"regex": "a"}}

    def suppression(context=CONTEXT, **fields):
        return resolve(SamplingParams(max_tokens=8, **fields), [1, 2], info, context).decoding.values["suppress_eos"]

    assert suppression() == "confidence"
    assert suppression(**grammar) == "none", "the client sent no field that it could leave out"
    with pytest.raises(RequestError, match=r"cannot be combined with decoding\.suppress_eos"):
        suppression(**grammar, decoding={"suppress_eos": "confidence"})
    infill = RequestContext("id", pinned_tokens={3: 1})
    assert suppression(infill) == "logits"
    assert suppression(infill, decoding={"suppress_eos": "confidence"}) == "confidence"
    assert score_spec([1, 2, 3], info, CONTEXT, param="x").decoding.values["suppress_eos"] == "none"


def test_grammars_and_names_of_tools_are_kept_where_the_published_setting_supports_none(info_of):
    def spec(info, **fields):
        context = RequestContext("id", tool_names=ToolNames(opens="<a>", grammar="x", special_tokens={}))
        return resolve(SamplingParams(max_tokens=8, **fields), [1, 2], info, context)

    edits, suppresses = (
        msgspec.structs.replace(info_of(*name), structured_output_error="")
        for name in (("llada2_tiny", "LLaDA_2.1-mini"), ("llada", "LLaDA_1.5"))
    )
    grammar = {"structured_outputs": {"regex": "a"}}
    assert spec(edits, **grammar).decoding.algorithm == "threshold"
    assert spec(edits).decoding.algorithm == "edit"
    with pytest.raises(RequestError, match="is supported with threshold"):
        spec(edits, **grammar, decoding={"algorithm": "edit"})
    assert spec(suppresses).tool_names is not None
    assert spec(suppresses).decoding.values["suppress_eos"] == "none"
    own = spec(suppresses, decoding={"suppress_eos": "confidence"})
    assert (own.tool_names, own.decoding.values["suppress_eos"]) == (None, "confidence")
