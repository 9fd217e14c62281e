"""Tests that schemas of agents' tools compile, and that their masks stay far below the limits."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from runtime.request.engine_messages import EngineInfo
from runtime.request.structured import grammar_of
from runtime.structured_output import grammar_cache as module
from runtime.structured_output.grammar_cache import GrammarCache, create_grammar_cache
from tests.structured_output import forms
from tests.structured_output.client_types import EVERY
from tests.structured_output.tool_schemas import TOOLS

MARGIN = 4  # minimum ratio of the limits to the work of these schemas


@pytest.fixture
def tight(facts: tuple[Path, EngineInfo], monkeypatch: pytest.MonkeyPatch) -> GrammarCache:
    """Returns a grammar cache whose limits of work per token are divided by `MARGIN`."""
    for name in ("step_max_items", "step_lexer_fuel", "max_items_in_row"):
        monkeypatch.setitem(module.LIMITS, name, module.LIMITS[name] // MARGIN)
    return create_grammar_cache(*facts)


def check(grammars: GrammarCache, schemas: list[dict[str, Any]]) -> None:
    for schema in schemas:
        _, why = grammars.try_compile(grammar_of({"json": json.loads(json.dumps(schema))}, "x"), thorough=True)
        assert why == "", (schema, why)


@pytest.mark.matrix
def test_schemas_of_tools_take_a_fraction_of_the_limits(tight: GrammarCache) -> None:
    check(tight, TOOLS)


def test_schemas_of_client_types_take_a_fraction_of_the_limits(tight: GrammarCache) -> None:
    check(tight, list(EVERY.values()))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_random_schemas_take_a_fraction_of_the_limits(tight: GrammarCache, part: int) -> None:
    rng = random.Random(part)
    check(tight, [forms.schema(rng) for _ in range(200)])
