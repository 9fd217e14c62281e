"""Tests of the block size of a checkpoint and of its source."""

import json
import logging
import shutil

import pytest

from runtime import LLM
from runtime.models.base import resolve_family
from runtime.models.block_size import resolve_block_size
from tests.golden import GOLDEN
from tests.oracle.spelling import config_of


def resolved(family, names, flag=None, **fields):
    config = config_of(family) | fields
    entry = resolve_family(family, {})
    return resolve_block_size(flag, entry, entry.facts(entry.parse(config)), config, names)


@pytest.mark.parametrize(
    ("names", "size"),
    [
        (["JetLM/SDAR-8B-Chat-b32"], 32), (["JetLM/SDAR-1.7B-Chat-b8"], 8), (["x/SDAR-4B-Chat-B64"], 64),
        (["SDAR-30B-A3B-Chat-b32-FP8"], 32), (["my-sdar-b16"], 16), (["sdar_b16_awq"], 16), (["b16"], 16),
        (["SDAR-b8-run-b16"], 16), (["model", "JetLM/SDAR-8B-Chat-b32"], 32), (["sdar-b16", "x/SDAR-8B-b32"], 16),
        (["JetLM/SDAR-8B-Chat"], 4), (["SDAR-30B-A3B-Sci"], 4), (["org-b32/SDAR-8B-Chat"], 4), (["SDAR-3b32"], 4),
        (["SDAR-8B-Chat-b7"], 4), (["SDAR-8B-Chat-B200"], 4), (["exp-b128-lr1e5"], 4), (["SDAR-1.7B-b32-v1.b8"], 32),
        (["SDAR-b1.5"], 4), (["SDAR-b0"], 4), (["SDAR-b2507"], 4), (["SDAR-b32k"], 4), ([], 4),
    ],
)  # fmt: skip
@pytest.mark.parametrize("family", ["sdar", "sdar_moe"])
@pytest.mark.parametrize("absent", [True, False], ids=["absent", "null"])
def test_sdar_has_the_block_size_of_its_name(family, names, size, absent):
    config = config_of(family) | {"block_size": None}
    if absent:
        del config["block_size"]
    entry = resolve_family(family, {})
    found = resolve_block_size(None, entry, entry.facts(entry.parse(config)), config, names)
    assert found.tokens == size
    assert ("family" in found.source) == (size == 4)


def test_the_flag_then_config_json_precede_the_name():
    names = ["JetLM/SDAR-8B-Chat-b32"]
    assert resolved("sdar", names, block_size=8).tokens == 8
    assert resolved("sdar", names, flag=16, block_size=8).tokens == 16
    assert resolved("sdar", names, flag=16, block_size=None).source == "--block-size"


@pytest.mark.parametrize("family", ["dream", "llada", "stable_diffcoder"])
def test_names_of_other_families_have_no_block_size(family):
    plain = resolved(family, [], block_size=None)
    assert resolved(family, ["org/model-b16"], block_size=None) == plain
    assert plain.source == f"the {family} family, as config.json has none"


@pytest.mark.parametrize(("flags", "size"), [({}, 8), ({"block_size": 16}, 16)])
def test_the_engine_decodes_with_it_and_logs_its_source(flags, size, tmp_path, caplog):
    path = tmp_path / "SDAR-8B-Chat-b8"
    shutil.copytree(GOLDEN / "sdar", path)
    config = json.loads((path / "config.json").read_text()) | {"block_size": None}
    (path / "config.json").write_text(json.dumps(config))
    with caplog.at_level(logging.INFO), LLM(str(path), device="cpu", skip_tokenizer=True, **flags) as llm:
        assert llm.info.block_size == size
    (line,) = [line for line in caplog.messages if line.startswith("block size")]
    assert line.startswith(f"block size {size}, from ")
    assert ("SDAR-8B-Chat-b8" in line) == (not flags)
