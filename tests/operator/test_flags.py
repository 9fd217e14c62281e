"""Tests that the spec's engine section agrees with the runtime's flag table and registries."""

from pathlib import Path
from typing import get_args

import pytest

from runtime.config.config import BY_SPELLING
from tools import strategy_rules
from unmask_operator.api import strategies
from unmask_operator.api.base import flag_argument, flag_field, flag_of, spelling
from unmask_operator.api.engine import RESERVED, Engine


def literals(annotation):
    return {value for part in get_args(annotation) for value in get_args(part)}


def test_enums_are_the_flags_choices_in_camel_case():
    enums = {name: f for name, f in Engine.model_fields.items() if flag_of(f) and literals(f.annotation)}
    assert set(enums) == {"decoding_strategy", "sampling_mode", "attn_impl", "kv_cache_layout", "dtype", "quantization"}
    for field in enums.values():
        values, flag = literals(field.annotation), flag_of(field)
        if flag.name != "decoding-strategy":  # the table leaves its choices to the registry, which the next test covers
            assert {spelling(value) for value in values} == set(flag.choices)
        written = {flag_argument(flag, field, value) for value in values}
        assert written == {f"--{flag.name}={spelling(value)}" for value in values}


@pytest.mark.all_entries
def test_the_generated_modules_of_strategies_are_current():
    from runtime.strategies.registry import strategies as registered
    from tools.strategies import camel, names, rules

    assert Path(strategies.__file__).read_text(encoding="utf-8") == names()
    assert Path(strategy_rules.__file__).read_text(encoding="utf-8") == rules()
    assert all(spelling(camel(name)) == name for name in registered())


@pytest.mark.parametrize("strategy", get_args(strategies.DecodingStrategy), ids=spelling)
def test_the_rows_per_step_are_those_of_the_runtime(strategy):
    from runtime.scheduling.strategy import DecodingContext
    from runtime.strategies.registry import make_strategy

    context = DecodingContext(block_size=64, buffer_size=1, prefix_caching=True, max_model_len=80)
    name = spelling(strategy)
    fewer = make_strategy(name, (name,), context).max_rows() < 2 * 64
    assert fewer == (strategy in strategy_rules.OWN_STEP), (
        "OWN_STEP, which the rule on maxNumBatchedTokens exempts, does not match the runtime"
    )


def test_families_that_need_edit_match_the_rule():
    from runtime.models.base import _FAMILIES

    names = {name for family in _FAMILIES.values() for name in family.needs_edit}
    assert names == {"llada2dot1_mini", "llada2dot1_flash"}


def test_bounds_equal_those_of_the_flags():
    field = flag_field("gpu-memory-utilization")
    assert {type(m).__name__: m for m in field.metadata}["Gt"].gt == 0
    assert {type(m).__name__: m for m in field.metadata}["Le"].le == 1


def test_reserved_names_are_flags():
    assert {name for name in RESERVED if name.replace("-", "_") not in BY_SPELLING} == {"help", "help-all"}
