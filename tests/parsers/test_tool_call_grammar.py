"""Tests that grammars of tool calls accept calls and nothing else, as llguidance applies them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime.errors import RequestError
from runtime.parsers.chat_output import ChatOutputParser
from runtime.parsers.formats import ReasoningFormat, Tool, reasoning_format, tool_format
from runtime.parsers.tool_call_grammar import CallMode, ToolCallConstraint, grammar, tool_names
from runtime.parsers.tool_call_parser import ToolCallOptions
from runtime.request.engine_messages import StructuredLimits
from runtime.request.structured import grammar_of
from runtime.scheduling.step_plan import UNMASKED, BlockResults
from runtime.scheduling.tool_name_matcher import ToolNameMatcher
from runtime.structured_output.gbnf import translate_grammar
from runtime.structured_output.grammar_cache import GrammarCache, load_llguidance_tokenizer
from runtime.structured_output.grammar_facts import GrammarFacts
from runtime.tokenizer import Tokenizer
from tests.server.checkpoint import EOS, SPECIAL, write_checkpoint

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = (("tools[0]", Tool("weather", parameters=CITY)), ("tools[1]", Tool("clock")))
ROME = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
NOW = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
HERMES, THINK = tool_format("hermes"), reasoning_format("think")

Verdict = Callable[[str, str], tuple[bool, bool]]


@pytest.fixture(scope="module", params=["text", "special", "not special"])
def verdict(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Verdict:
    """Returns a function that checks whether a grammar accepts a text, and whether the text may end there.

    The marks of calls are ordinary text, special tokens, or tokens that are not flagged as special.
    """
    from llguidance import LLMatcher

    tagged = request.param != "text"
    directory = write_checkpoint(tmp_path_factory.mktemp("models") / "tiny", tagged=tagged)
    if request.param == "not special":
        data = json.loads((directory / "tokenizer.json").read_text())
        for token in data["added_tokens"]:
            token["special"] = token["content"] in SPECIAL
        (directory / "tokenizer.json").write_text(json.dumps(data))
    size = 272 if tagged else 264
    vocabulary, library = load_llguidance_tokenizer(directory, size=size, eos=[EOS]), _library(directory)

    def judge(text: str, written: str) -> tuple[bool, bool]:
        matcher = LLMatcher(vocabulary, translate_grammar(text), log_level=0)
        assert not matcher.is_error(), matcher.get_error()
        ids = library.encode(written, add_special_tokens=False).ids
        return matcher.try_consume_tokens(ids) == len(ids), matcher.is_accepting()

    judge.control = Tokenizer(directory).control_id  # type: ignore[attr-defined]
    facts = GrammarFacts.of(vocab_size=size, max_token_id=size - 1, mask_id=None, eos=[EOS])
    judge.grammars = GrammarCache(lambda: vocabulary, facts)  # type: ignore[attr-defined]
    judge.encode = lambda written: library.encode(written, add_special_tokens=False).ids  # type: ignore[attr-defined]
    return judge


def _library(directory: Path) -> Any:
    import tokenizers

    return tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))


def made(
    verdict: Verdict, mode: CallMode | None, *, form: Any = None, thought: ReasoningFormat | None = None,
    single: bool = False,
) -> str:  # fmt: skip
    held = None if mode is None else ToolCallConstraint(HERMES, TOOLS, mode, single)
    asked = "" if form is None else grammar_of({"json": form}, "response_format")
    return grammar(held, asked, thought, verdict.control, "tools")  # type: ignore[attr-defined]


def test_a_grammar_of_only_calls_accepts_calls(verdict: Verdict) -> None:
    only = made(verdict, "only")
    for text in (ROME, NOW, f"{ROME}\n{NOW}\n{ROME}"):
        assert verdict(only, text) == (True, True), text
    for text in ("Hm", " ", f"{ROME} ", ROME.replace("weather", "wind"), ROME.replace("}}", ', "x": 1}}')):
        assert not verdict(only, text)[0], text
    assert verdict(only, "") == (True, False)
    assert verdict(only, ROME[:-1])[1] is False
    assert not verdict(made(verdict, "only", single=True), f"{ROME}\n")[0]


def test_calls_may_begin_anywhere_in_a_text(verdict: Verdict) -> None:
    within = made(verdict, "within")
    for text in ("", "Hm < <tool", f"Look.\n{ROME}", f"{ROME}\n{NOW} done", f"a{ROME}b{NOW}c"):
        assert verdict(within, text) == (True, True), text
    for text in ("<tool_call>x", f"a {ROME[:20]}x", f"{ROME} <tool_call>\n{{}}"):
        assert not verdict(within, text)[0], text


def test_either_calls_or_the_form_are_accepted(verdict: Verdict) -> None:
    either = made(verdict, "or_form", form=CITY)
    assert verdict(either, ROME) == (True, True)
    assert verdict(either, '{"city": "Rome"}') == (True, True)
    assert not verdict(either, "words")[0]
    assert not verdict(either, f'{{"city": "Rome"}}{ROME}')[0]


def test_reasoning_that_the_prompt_opened_precedes_the_rest(verdict: Verdict) -> None:
    form = '{"city": "x"}'
    for mode, end in (("only", ROME), ("within", f"Look.{ROME}"), ("or_form", form), (None, form)):
        text = made(verdict, mode, form=CITY if mode != "only" else None, thought=THINK)  # type: ignore[arg-type]
        assert verdict(text, f'hm {{"}} {end[:3]}\n</think>\n\n{end}') == (True, True)
        assert verdict(text, "hm") == (True, False)
    assert not verdict(made(verdict, "only", thought=THINK), "hm</think>words")[0]


@pytest.mark.parametrize("thought", [None, THINK])
def test_a_model_may_talk_and_call_as_it_wants(verdict: Verdict, thought: ReasoningFormat | None) -> None:
    grammars, encode = verdict.grammars, verdict.encode  # type: ignore[attr-defined]
    begin = "" if thought is None else 'Hm, "so.\n</think>'
    for mode, written in (
        ("within", 'A "plain answer.'), ("within", f"Look.\n{ROME}\n{NOW}\nDone."), ("only", f"{NOW}\n{ROME}"),
        ("or_form", '{"city": "Rome"}'), ("or_form", ROME),
    ):  # fmt: skip
        text = made(verdict, mode, form=CITY if mode == "or_form" else None, thought=thought)  # type: ignore[arg-type]
        answer = grammars.compile(text, "x")
        witness = grammars.witness(text, answer)
        tokens = encode(begin + written)
        for left in (len(tokens), 1000):
            answer = grammars.compile(text, "x")
            answer.end = grammars.output_end(answer, witness, StructuredLimits())
            assert [answer.accept_token(token, left - i) for i, token in enumerate(tokens)] == tokens
            assert answer.matcher.is_accepting()
        cut = grammars.compile(text, "x")
        cut.end = grammars.output_end(cut, witness, StructuredLimits())
        for i, token in enumerate(tokens[: len(tokens) - 1]):
            if cut.finished:
                break
            cut.accept_token(token, len(tokens) - 1 - i)
        assert cut.finished or cut.matcher.is_accepting()


@pytest.mark.parametrize("mode", ["only", "or_form", None])
def test_a_long_thought_is_closed_in_time(verdict: Verdict, mode: CallMode | None) -> None:
    grammars, encode = verdict.grammars, verdict.encode  # type: ignore[attr-defined]
    text = made(verdict, mode, form=None if mode == "only" else CITY, thought=THINK)
    answer = grammars.compile(text, "x")
    answer.end = grammars.output_end(answer, grammars.witness(text, answer), StructuredLimits(max_run=0))
    length = 1500  # more than what surely suffices to end an answer
    for left in range(length, 0, -1):
        answer.accept_token(encode("Hm, ")[left % 4], left)
        if answer.finished:
            break
    assert answer.is_complete
    assert answer.end.reason == "max_tokens"


def test_calls_that_the_grammar_accepts_are_parsed(verdict: Verdict) -> None:
    parts = ChatOutputParser(tools=ToolCallOptions(HERMES, [tool for _, tool in TOOLS], constrained=True))
    for character in f"{ROME}\n{NOW}":
        parts.push(character)
    calls = [(call.name, json.loads(call.arguments)) for call in parts.calls]
    assert calls == [("weather", {"city": "Rome"}), ("clock", {})]
    assert parts.content == ""


N = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
CITY_REF = {"$ref": "#/$defs/city"}
# Schemas of arguments, and the arguments of ARGUMENTS that each accepts.
ARGUMENTS = (
    {}, {"city": "a"}, {"city": "a", "x": 1}, {"n": 1}, {"n": 1, "x": 1}, {"city": "a", "n": 1}, {"x": 1, "n": 1},
)  # fmt: skip
CLOSED: dict[str, tuple[Any, list[int]]] = {
    "plain": (CITY, [1]), "reference": (CITY_REF, [1]), "all of one": ({"allOf": [CITY]}, [1]),
    "all of a reference": ({"allOf": [CITY_REF]}, [1]),
    "all of two": ({"allOf": [CITY, {"properties": {"n": {"type": "integer"}}}]}, [1, 5]),
    "any of two": ({"anyOf": [CITY, N]}, [1, 3]), "any of references": ({"anyOf": [CITY_REF, N]}, [1, 3]),
    "one of two": ({"oneOf": [CITY, N]}, [1, 3]),
    "any of two beside a property": ({"properties": {"x": {"type": "integer"}}, "anyOf": [CITY, N]}, [1, 3, 6]),
    "all of a choice": ({"allOf": [{"anyOf": [CITY, N]}]}, [1, 3, 5]),
    "open": ({**CITY, "additionalProperties": {"type": "integer"}}, [1, 2, 5]),
    "an open alternative": ({"anyOf": [{**CITY, "additionalProperties": {"type": "integer"}}, N]}, [1, 2, 3, 5]),
    "no arguments": ({}, [0]),
}  # fmt: skip


@pytest.mark.parametrize(("parameters", "accepted"), CLOSED.values(), ids=CLOSED)
def test_arguments_that_a_schema_does_not_name_are_excluded(
    verdict: Verdict, parameters: dict[str, Any], accepted: list[int]
) -> None:
    tool = Tool("f", parameters={"$defs": {"city": CITY}, **parameters})
    control = verdict.control  # type: ignore[attr-defined]
    text = grammar(ToolCallConstraint(HERMES, [("tools[0]", tool)], "only", True), "", None, control, "tools")
    calls = [f'<tool_call>\n{{"name": "f", "arguments": {json.dumps(each)}}}\n</tool_call>' for each in ARGUMENTS]
    assert [i for i, call in enumerate(calls) if verdict(text, call)[1]] == accepted


KEPT = {  # text, and how much of it may stay; None: everything
    "a call": (ROME, None),
    "two calls": (f"{ROME}\n{NOW}", None),
    "another name": (f"Look.\n{ROME.replace('weather', 'wind')}", 'Look.\n<tool_call>\n{"name": "w'),
    "the mark twice": (f"<tool_call>{ROME}", "<tool_call>"),
    "a list": ('<tool_call>[{"name": "clock"}]', None),
    "arguments first": ('<tool_call>\n{"arguments": {}, "name": "wind"}', None),
    "another key": ('<tool_call>{"names": "wind"}', None),
    "single quotes": ("<tool_call>{'name': 'wind'}", None),
    "a quoted mark": ("Write <tool_call> and then JSON.", None),
    "a quoted mark before a name": (
        f"`<tool_call>`: {ROME.replace('weather', 'x')}",
        '`<tool_call>`: <tool_call>\n{"name": "',
    ),
}


@pytest.mark.parametrize(("text", "kept"), KEPT.values(), ids=KEPT)
def test_only_the_text_up_to_a_name_is_constrained(verdict: Verdict, text: str, kept: str | None) -> None:
    """In one step, which unmasks everything."""
    control, grammars, encode = verdict.control, verdict.grammars, verdict.encode  # type: ignore[attr-defined]
    names = tool_names(HERMES, ["weather", "clock"], None, control, in_reasoning=False)
    tokens = encode(text)
    size = len(tokens)
    results = BlockResults(
        tokens=np.array([tokens]), state=np.full((1, size), UNMASKED, np.int8), remasked=np.zeros((1, size), np.bool_),
        masks=[0], first_masked=[size], first_eos=[size], num_updated=[size], edits=[0], remasks=[0], forced=[False],
        finished=[True], history={}, soft_tokens={},
    )  # fmt: skip
    start = grammars.compile(names.grammar, "tools")
    reader = ToolNameMatcher(names, start, grammars.load_tokenizer(), first_position=0, mask_id=0)
    constraint = reader.update(0, size, results, 0, None)
    assert results.tokens[0, : results.first_masked[0]].tolist() == encode(text if kept is None else kept)
    assert (constraint is None) == (kept is None)


def test_a_schema_that_is_too_long_is_refused() -> None:
    texts = {"enum": ["y" * 1000 + str(i) for i in range(80)]}
    large = Tool("f", parameters={"type": "object", "properties": {"x": texts}})
    alone = [("tools[0].function.parameters", large)]
    with pytest.raises(RequestError, match=r"tools\[0\]\.function\.parameters: has \d+ characters; at most"):
        grammar(ToolCallConstraint(HERMES, alone, "only", False), "", None, lambda mark: None, "tools")
