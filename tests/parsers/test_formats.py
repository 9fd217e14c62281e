"""Tests that every model family names existing formats, and that the page of tools lists all formats."""

from pathlib import Path

import pytest

from runtime.config import BY_DEST
from runtime.models.base import families, resolve_family
from runtime.parsers.formats import (
    ReasoningFormat,
    ToolFormat,
    reasoning_format,
    reasoning_formats,
    register_reasoning_format,
    register_tool_format,
    tool_format,
    tool_formats,
)
from runtime.parsers.hermes import HermesToolParser

PAGE = (Path(__file__).parents[2] / "docs/guide/tools.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("family", families())
def test_families_name_existing_formats(family: str) -> None:
    made = resolve_family(family, {})
    assert tool_format(made.tool_calls) is not None
    assert not made.reasoning or reasoning_format(made.reasoning) is not None


def test_flags_and_the_page_name_all_formats() -> None:
    for keys, flag in ((tool_formats(), "tool_call_parser"), (reasoning_formats(), "reasoning_parser")):
        for key in keys:
            assert key in BY_DEST[flag].help
            assert f"| `{key}` |" in PAGE


def test_a_name_can_be_registered_only_once() -> None:
    with pytest.raises(ValueError, match="'hermes' is registered twice"):
        register_tool_format(ToolFormat(key="hermes", opens="<a>", closes="</a>", parser=HermesToolParser))
    with pytest.raises(ValueError, match="'think' is registered twice"):
        register_reasoning_format(ReasoningFormat(key="think", opens="<a>", closes="</a>"))
