"""Tests of checkpoints that look like those of a family: they are refused, or a warning names the flag."""

import json
import logging
import shutil

import pytest

from runtime import LLM
from runtime.errors import ConfigError
from runtime.models.look_alikes import check_look_alikes
from tests.golden import GOLDEN

SDAR = {"model_type": "sdar", "architectures": ["SDARForCausalLM"]}
LLADA2 = {"model_type": "llada2_moe", "vocab_size": 157184}


@pytest.mark.parametrize(
    ("names", "fields"),
    [
        (["org/I-DLM-8B"], {}), (["i-dlm-32b-fp8"], {}), (["my_IDLM"], {}), (["model", "x/I-DLM-8B"], {}),
        (["I-DLM/8B"], {"block_size": 4}), (["model"], {"block_size": 3}), ([], {"block_size": 5.0}),
        (["JetLM/SDAR-8B-Chat-b32"], {"block_size": 1}),
    ],
)  # fmt: skip
def test_i_dlm_is_refused(names, fields):
    with pytest.raises(ConfigError, match=r"I-DLM model, which decodes causally .* is not supported yet; give"):
        check_look_alikes(SDAR | fields, names, None)


@pytest.mark.parametrize(
    ("config", "names"),
    [
        (SDAR, ["JetLM/SDAR-8B-Chat"]), (SDAR | {"block_size": 4}, ["model"]), (SDAR | {"block_size": None}, []),
        (SDAR, ["multi-dlm", "i-dlms", "sidlm"]), (LLADA2 | {"block_size": 3}, ["I-DLM", "LLaDA2.0-mini"]),
        (LLADA2, ["LLaDA2.0-flash"]), (LLADA2, ["model", "inclusionAI/LLaDA2.1-mini"]), (LLADA2, ["llada2dot1_mini"]),
        (LLADA2, ["MBD-LLaDA2-Mini"]), (LLADA2 | {"expert_capacity": 48}, ["model"]),
        ({"model_type": "llada2_moe", "vocab_size": 1024}, ["my-demo"]), ({"model_type": ["sdar"]}, ["I-DLM"]),
        ({}, []),
    ],
)  # fmt: skip
def test_others_are_neither_refused_nor_warned_about(config, names, caplog):
    check_look_alikes(config, names, None)
    assert not caplog.messages


@pytest.mark.parametrize("mode", [None, "naive", "edit"])
def test_llada2_without_a_version_is_warned_about_until_the_flag_says_it(mode, caplog):
    check_look_alikes(LLADA2, ["model"], mode)
    assert [("--model-name llada2dot1_mini" in line) for line in caplog.messages] == ([True] if mode is None else [])


@pytest.mark.parametrize("model_name", [None, "sdar"])
def test_it_is_refused_before_weights_are_read(model_name, tmp_path, caplog):
    path = tmp_path / "model"
    shutil.copytree(GOLDEN / "sdar", path)
    config = json.loads((path / "config.json").read_text()) | {"block_size": 3}
    (path / "config.json").write_text(json.dumps(config))
    (path / "model.safetensors").write_bytes(b"unreadable")
    with caplog.at_level(logging.INFO), pytest.raises(ConfigError, match="I-DLM"):
        LLM(str(path), device="cpu", skip_tokenizer=True, model_name=model_name)
