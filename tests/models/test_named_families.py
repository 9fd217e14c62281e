"""Tests of `--model-name`: a family that config.json contradicts is refused."""

from __future__ import annotations

import pytest

from runtime.errors import ConfigError
from runtime.models.base import resolve_family

LLADA2 = {"model_type": "llada2_moe", "architectures": ["LLaDA2MoeModelLM"]}


def test_a_config_of_llada2_is_refused_under_the_name_of_sdar() -> None:
    sentence = (
        r"--model-name 'sdar': config\.json's model_type 'llada2_moe' is that of the family llada2; leave --model-name "
        "out, or give the checkpoint of a sdar model with --model"
    )
    with pytest.raises(ConfigError, match=sentence):
        resolve_family("sdar", LLADA2)
    assert resolve_family("llada2", LLADA2).key == "llada2"


def test_diffucoder_is_selected_by_name_for_the_config_of_dream() -> None:
    dream = {"model_type": "Dream", "architectures": ["DreamModel"]}
    assert resolve_family("diffucoder", dream).key == "diffucoder"
    assert resolve_family(None, dream).key == "dream"


def test_a_config_that_no_family_recognizes_may_have_any_name() -> None:
    assert resolve_family("llada2", {"model_type": "mine"}).key == "llada2"
