"""The spec's engine section and the runtime's flag table and registries say the same."""

from typing import get_args

import pytest

from runtime.config.table import BY_SPELLING
from unmask_operator.api.engine import _ANY_PAGE, RESERVED, Engine
from unmask_operator.api.flags import STRATEGIES, camel, choices, flag_argument, flag_field, flag_of


def literals(annotation):
    return {value for part in get_args(annotation) for value in get_args(part)}


def test_enums_are_the_flags_choices_in_camel_case():
    enums = {name: f for name, f in Engine.model_fields.items() if flag_of(f) and literals(f.annotation)}
    assert set(enums) == {"decoding_strategy", "sampling_mode", "attn_impl", "kv_cache_layout", "dtype"}
    for field in enums.values():
        values = choices(flag_of(field))
        assert literals(field.annotation) == {camel(value) for value in values}
        written = {flag_argument(flag_of(field), field, camel(value)) for value in values}
        assert written == {f"--{flag_of(field).name}={value}" for value in values}


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_of_the_enum_is_the_runtimes(name):
    """With the rules about its blocks and steps."""
    from runtime.config.config import ANY_PAGE
    from runtime.strategies import DecodingContext, make_strategy

    context = DecodingContext(block_size=64, buffer_size=1, prefix_caching=True, max_model_len=80)
    strategy = make_strategy(name, (name,), context)
    assert strategy.tiling.from_prompt == (name in ANY_PAGE) == (camel(name) in _ANY_PAGE)
    engine = {"blockSize": 64, "maxNumBatchedTokens": 127, "decodingStrategy": camel(name)}  # 1 less than 2 * 64 rows
    if strategy.max_rows() < 128:
        Engine.model_validate(engine)
    else:
        with pytest.raises(ValueError, match=r"\(bufferSize \+ 1\) \* blockSize"):
            Engine.model_validate(engine)


def test_every_strategy_of_the_runtime_is_in_the_enum():
    from runtime.config.config import ANY_PAGE
    from runtime.strategies import strategies

    assert set(strategies()) <= set(STRATEGIES)
    assert literals(Engine.model_fields["decoding_strategy"].annotation) == {camel(name) for name in STRATEGIES}
    assert set(ANY_PAGE) <= set(STRATEGIES)
    assert len(_ANY_PAGE) == len(ANY_PAGE)


def test_families_that_need_edit_are_those_of_the_rule():
    from runtime.models.base import _FAMILIES

    assert {name for family in _FAMILIES.values() for name in family.needs_edit} == {"llada2dot1_mini"}


def test_a_flag_that_is_not_built_cannot_be_a_field():
    with pytest.raises(ValueError, match="--quantization is not built"):
        flag_field("quantization", "Format.")


def test_bounds_are_the_flags():
    field = flag_field("gpu-memory-utilization", "A share.")
    assert {type(m).__name__: m for m in field.metadata}["Gt"].gt == 0
    assert {type(m).__name__: m for m in field.metadata}["Le"].le == 1
    assert field.description == "A share. (--gpu-memory-utilization)"


def test_reserved_names_are_flags():
    assert {name for name in RESERVED if name.replace("-", "_") not in BY_SPELLING} == {"help"}
