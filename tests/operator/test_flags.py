"""The spec's engine section and the runtime's flag table and registries say the same."""

from pathlib import Path
from typing import get_args

import pytest

from runtime.config.table import BY_SPELLING
from unmask_operator.api import strategies
from unmask_operator.api.engine import RESERVED, Engine
from unmask_operator.api.flags import camel, choices, flag_argument, flag_field, flag_of


def literals(annotation):
    return {value for part in get_args(annotation) for value in get_args(part)}


def test_enums_are_the_flags_choices_in_camel_case():
    enums = {name: f for name, f in Engine.model_fields.items() if flag_of(f) and literals(f.annotation)}
    assert set(enums) == {"decoding_strategy", "sampling_mode", "attn_impl", "kv_cache_layout", "dtype", "quantization"}
    for field in enums.values():
        values = choices(flag_of(field))
        assert literals(field.annotation) == {camel(value) for value in values}
        written = {flag_argument(flag_of(field), field, camel(value)) for value in values}
        assert written == {f"--{flag_of(field).name}={value}" for value in values}


@pytest.mark.whole_registry
def test_what_is_written_of_the_strategies_is_theirs():
    """`make crds` writes it."""
    from tools.strategies import text

    assert Path(strategies.__file__).read_text(encoding="utf-8") == text()


@pytest.mark.parametrize("name", strategies.NAMES)
def test_a_step_has_as_many_rows_as_the_runtime_says(name):
    from runtime.strategies import DecodingContext, make_strategy

    context = DecodingContext(block_size=64, buffer_size=1, prefix_caching=True, max_model_len=80)
    fewer = make_strategy(name, (name,), context).max_rows() < 2 * 64
    assert fewer == (camel(name) in strategies.OWN_STEP), "the rule on maxNumBatchedTokens leaves these out"


def test_families_that_need_edit_are_those_of_the_rule():
    from runtime.models.base import _FAMILIES

    assert {name for family in _FAMILIES.values() for name in family.needs_edit} == {"llada2dot1_mini"}


def test_a_flag_that_is_not_built_cannot_be_a_field():
    with pytest.raises(ValueError, match="--tensor-parallel-size is not built"):
        flag_field("tensor-parallel-size", "Devices.")


def test_bounds_are_the_flags():
    field = flag_field("gpu-memory-utilization", "A share.")
    assert {type(m).__name__: m for m in field.metadata}["Gt"].gt == 0
    assert {type(m).__name__: m for m in field.metadata}["Le"].le == 1
    assert field.description == "A share. (--gpu-memory-utilization)"


def test_reserved_names_are_flags():
    assert {name for name in RESERVED if name.replace("-", "_") not in BY_SPELLING} == {"help"}
