"""Tests that the parts of an answer do not depend on how its text is split, and that malformed calls are text."""

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.parsers.chat_output import ChatOutputParser
from runtime.parsers.formats import (
    MAX_DEPTH,
    Arguments,
    CallStart,
    Delta,
    Reasoning,
    Text,
    Tool,
    reasoning_format,
    tool_format,
    tool_formats,
)
from runtime.parsers.tool_call_parser import MAX_FAILED_CALLS, ToolCallOptions
from tests.examples import examples

WEATHER = Tool(
    "weather",
    parameters={"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
)
ADD = Tool("add", parameters={"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "array"}}})
RUN = Tool(
    "run",
    parameters={
        "properties": {"text": {"type": "string"}, "optional": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                       "count": {"type": "integer"}, "flag": {"type": "boolean"}, "list": {"type": "array"}}
    },
)  # fmt: skip
OFFERED = (WEATHER, ADD, RUN, Tool("deep", parameters={}), Tool("f", parameters={}))


def hermes(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"


def gemma4(name: str, **arguments: Any) -> str:
    def value(argument: Any) -> str:
        if isinstance(argument, str):
            return f'<|"|>{argument}<|"|>'
        if isinstance(argument, dict):
            return "{" + ",".join(f"{key}:{value(v)}" for key, v in argument.items()) + "}"
        if isinstance(argument, list):
            return "[" + ",".join(map(value, argument)) + "]"
        return json.dumps(argument)

    return f"<|tool_call>call:{name}{value(arguments)}<tool_call|>"


def qwen3_coder(name: str, **arguments: Any) -> str:
    def text(argument: Any) -> str:
        return argument if isinstance(argument, str) else json.dumps(argument)

    inner = "".join(f"<parameter={key}>\n{text(v)}\n</parameter>\n" for key, v in arguments.items())
    return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"


WRITERS = {"hermes": hermes, "gemma4": gemma4, "qwen3_coder": qwen3_coder}
TOOL_FORMATS = {key: made for key in WRITERS if (made := tool_format(key)) is not None}
THINKING = {"hermes": "think", "gemma4": "gemma4", "qwen3_coder": "think"}


def parts(key: str = "hermes", **more: Any) -> ChatOutputParser:
    own = {"reasoning": reasoning_format(THINKING[key])}
    own |= {name: more.pop(name) for name in ("reasoning", "opened", "tools") if name in more}
    return ChatOutputParser(**{"tools": ToolCallOptions(TOOL_FORMATS[key], OFFERED, **more), **own})


def joined(deltas: list[Delta]) -> dict[str, Any]:
    """Returns the message that a client assembles from the deltas."""
    made: dict[str, Any] = {"reasoning": "", "content": "", "calls": []}
    for delta in deltas:
        if isinstance(delta, Reasoning):
            made["reasoning"] += delta.text
        elif isinstance(delta, Text):
            made["content"] += delta.text
        elif isinstance(delta, CallStart):
            assert delta.index == len(made["calls"])
            made["calls"].append([delta.name, ""])
        else:
            assert isinstance(delta, Arguments)
            assert delta.index == len(made["calls"]) - 1
            made["calls"][delta.index][1] += delta.text
    return made


def read(text: str, cuts: list[int], key: str = "hermes", cut: bool = False, **more: Any) -> dict[str, Any]:
    """Parses the text in pieces that end at `cuts`, and returns the assembled message."""
    one = parts(key, **more)
    deltas: list[Delta] = []
    for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        deltas += one.push(text[begin:end])
    deltas += one.finish(cut)
    made = joined(deltas)
    assert made == {
        "reasoning": one.reasoning,
        "content": one.content,
        "calls": [[call.name, call.arguments] for call in one.calls],
    }
    assert all(delta.text for delta in deltas if not isinstance(delta, CallStart))
    assert len({call.id for call in one.calls}) == len(one.calls)
    return made


def corpus(key: str) -> list[str]:
    """Returns valid and malformed texts of models with this format."""
    call, mark = WRITERS[key], tool_format(key)
    opens, closes = mark.opens, mark.closes
    thinking = reasoning_format(THINKING[key])
    one = call("weather", city="São Paulo", days=3)
    two = call("add", a=-1.5, b=[1, {"x": [True, None]}, "y"])
    return [
        "", "plain words", " \n spaced \n", one, f"Let me look.\n\n{one}", f"{one}\n{two}", f"{one}{two}\n\n",
        f"{one}\nDone: < and <tool and <|.", f"a {opens} b", opens, f"{opens}{closes}", f"{opens}\n\n{closes}after",
        f"{opens}{opens}{one[len(opens):]}", f"{one[: len(one) // 2]}", f"{one[: len(one) // 2]}\n{two}",
        f"{one} and\n\n{two} more", call("weather"), call("nobody", x=1),
        call("weather", city=f'quote " brace }} tag {closes if key == "hermes" else "<x>"} back \\ nl \n é 😀'),
        f"{thinking.opens}\nhm, {{}}\n{thinking.closes}\n\n{one}", f"{thinking.opens}{thinking.closes}words",
        f"\n{thinking.opens}never closed {opens[:4]}", f"words {thinking.opens} later{thinking.closes}",
        f"{thinking.opens}a{thinking.closes}b{thinking.opens}c{thinking.closes}",
    ]  # fmt: skip


@pytest.mark.parametrize("key", tool_formats())
def test_every_cut_gives_the_same_parts(key: str) -> None:
    for text in corpus(key):
        call_text = read(text, [], key)
        for at in range(1, len(text)):
            assert read(text, [at], key) == call_text, (text, at)
        assert read(text, list(range(1, len(text))), key) == call_text, text


@pytest.mark.parametrize("key", tool_formats())
@examples(300)
@given(seed=st.integers(0, 2**32))
def test_random_texts_in_random_cuts_give_the_same_parts(key: str, seed: int) -> None:
    rng = random.Random(seed)
    pieces = corpus(key)
    text = "".join(rng.choice(pieces)[rng.randrange(3) :][: rng.choice([5, 30, 400])] for _ in range(rng.randint(1, 5)))
    cuts = sorted(rng.sample(range(1, len(text)), min(len(text) - 1, rng.randint(0, 12)))) if len(text) > 1 else []
    for cut in (False, True):
        for single in (False, True):
            call_text = read(text, [], key, cut, single_call=single)
            assert read(text, cuts, key, cut, single_call=single) == call_text
            assert read(text, list(range(1, len(text))), key, cut, single_call=single) == call_text
            for _, arguments in call_text["calls"]:
                assert isinstance(json.loads(arguments), dict)
            empty = not (call_text["content"] or call_text["calls"] or call_text["reasoning"])
            assert not empty or cut or not text.strip() or "think" in text or "channel" in text


@pytest.mark.parametrize("constrained", [False, True])
@pytest.mark.parametrize("key", tool_formats())
def test_marks_repeated_after_a_call_are_no_text(key: str, constrained: bool) -> None:
    mark = tool_format(key)
    call = WRITERS[key]("weather")
    two = WRITERS[key]("add", a=1)
    ends = [mark.closes, *mark.strays]
    for end in ends:
        for text, content, calls in (
            (f"{call}{end}", "", 1),
            (f"{call}\n{end}\n", "", 1),
            (f"{call}{end}{end} {end}", "", 1),
            (f"{call}{end}{two}\n{end}\n{end}", "", 2),
            (f"{call}\n{end}\nDone.", "Done.", 1),
            (f"So:\n{call}{''.join(ends)}{two}", "So:", 2),
        ):
            for cuts in ([], *([at] for at in range(1, len(text))), list(range(1, len(text)))):
                made = read(text, cuts, key, constrained=constrained)
                assert made["content"] == content, (text, cuts)
                assert len(made["calls"]) == calls
            for length in range(len(call), len(text) if calls == 1 else 0):
                made = read(text[:length], [], key, cut=True, constrained=constrained)
                assert content.startswith(made["content"]), text[:length]


@pytest.mark.parametrize("key", tool_formats())
def test_marks_that_follow_no_call_stay_text(key: str) -> None:
    mark = tool_format(key)
    call = WRITERS[key]("weather")
    for end in (mark.closes, *mark.strays):
        assert read(end, [], key)["content"] == end
        assert read(f"a {end} b", [], key)["content"] == f"a {end} b"
        assert read(f"{call}\nDone {end}", [], key)["content"] == f"Done {end}"
        assert read(f"{call}{end}", [], key, tools=None)["content"] == f"{call}{end}"


@pytest.mark.parametrize("key", tool_formats())
def test_calls_are_read(key: str) -> None:
    call = WRITERS[key]
    arguments = {"city": "São Paulo", "days": 3}
    more = {"a": -1.5, "b": [1, {"x": [True, None]}, "y"]}
    made = read(f"Look:\n\n{call('weather', **arguments)}\n{call('add', **more)}\n", [], key)
    assert made["content"] == "Look:"
    assert [(name, json.loads(text)) for name, text in made["calls"]] == [("weather", arguments), ("add", more)]
    assert read(call("weather"), [], key)["calls"] == [["weather", "{}"]]


MALFORMED = {
    "hermes": [
        "<tool_call></tool_call>", "<tool_call>\nweather\n</tool_call>", '<tool_call>{"name": "weather"',
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}\n</tool_call>',
        '<tool_call>\n{"name": 1, "arguments": {}}\n</tool_call>',
        '<tool_call>\n{"name": "weather", "arguments": [1]}\n</tool_call>',
        '<tool_call>\n{"name": "weather", "arguments": {"x": NaN}}\n</tool_call>',
        '<tool_call>\n{"name": "weather", "arguments": {"x": 1e999}}\n</tool_call>',
        "<tool_call>\n{'name': 'nobody'}\n</tool_call>",
    ],
    "gemma4": [
        "<|tool_call>call:weather{city:<tool_call|>", "<|tool_call>weather{}<tool_call|>",
        "<|tool_call>call:f{a:1}}<tool_call|>", '<|tool_call>call:f{a:<|"|>open}<tool_call|>',
        "<|tool_call>call:f{a:" + "[" * 500 + "]" * 500 + "}<tool_call|>", "<|tool_call>call:f{a:1e999}<tool_call|>",

    ],
}  # fmt: skip


@pytest.mark.parametrize(("key", "text"), [(key, text) for key, texts in MALFORMED.items() for text in texts])
def test_malformed_calls_are_text(key: str, text: str) -> None:
    assert read(text, [], key) == {"reasoning": "", "content": text, "calls": []}


DEEP_CALLS = {  # text of a call before and after an argument that is not in quotes
    "hermes": ('<tool_call>\n{"name": "deep", "arguments": {"x": ', "}}\n</tool_call>"),
    "gemma4": ("<|tool_call>call:deep{x:", "}<tool_call|>"),
    "qwen3_coder": ("<tool_call>\n<function=deep>\n<parameter=x>\n", "\n</parameter>\n</function>\n</tool_call>"),
}


@pytest.mark.parametrize("key", tool_formats())
@pytest.mark.parametrize("brackets", [('{"x":', "}"), ("[", "]")], ids=["objects", "lists"])
@pytest.mark.parametrize("innermost", ["1", ""], ids=["value", "empty"])
@pytest.mark.parametrize("levels", [MAX_DEPTH - 1, MAX_DEPTH, MAX_DEPTH + 1, 2000, 200_000])
def test_a_call_whose_arguments_are_nested_too_deeply_is_text(
    key: str, brackets: tuple[str, str], innermost: str, levels: int
) -> None:
    opening, closing = brackets
    opening = opening if key != "gemma4" else opening.replace('"', "")
    inner = levels - 1  # the arguments are the first level
    value = (
        opening * inner + "1" + closing * inner if innermost else opening * (inner - 1) + "[]" + closing * (inner - 1)
    )
    before, after = DEEP_CALLS[key]
    text = before + value + after
    found = read(text, [], key)
    if levels > MAX_DEPTH:
        assert (found["content"], found["calls"]) == (text, [])
    else:
        ((name, arguments),) = found["calls"]
        assert (found["content"], name) == ("", "deep")
        assert json.loads(arguments) == {"x": json.loads(value.replace("{x:", '{"x":'))}


def test_arguments_in_quotes_have_the_same_levels() -> None:
    for levels, called in ((MAX_DEPTH, True), (MAX_DEPTH + 1, False), (200_000, False)):
        arguments = '{"x":' * levels + "1" + "}" * levels
        text = f"<tool_call>{json.dumps({'name': 'deep', 'arguments': arguments})}</tool_call>"
        assert len(read(text, [])["calls"]) == called


def qwen3_run(body: str, name: str = "run") -> str:
    return f"<tool_call>\n<function={name}>\n{body}\n</function>\n</tool_call>"


TEXT_IS_A = "<parameter=text>\na\n</parameter>"
UNMARKED = f"<function=run>\n{TEXT_IS_A}\n</function>"
OBJECT = json.dumps({"name": "run", "arguments": {"text": "a"}})
RUN_A = f"<tool_call>{OBJECT}"
UNENDED = '<|tool_call>call:run{text:<|"|>a<|"|>}'
A = {"text": "a"}
# What a model wrote, the arguments of the calls of `run` in it, and the text beside them.
RECOVERED: dict[str, list[tuple[str, list[dict[str, Any]], str]]] = {
    "hermes": [
        ('<tool_call>{"name": "run", "arguments": "{\\"text\\": \\"a\\"}"}</tool_call>', [A], ""),
        ('<tool_call>{"name": "run", "parameters": {"text": "a"}}', [A], ""),
        ('<tool_call>{"arguments": {"text": "\\ud800"}, "name": "run"}</tool_call>', [{"text": "\ud800"}], ""),
        # Python's notation
        ('<tool_call>{"name": "run", "arguments": {"text": "a\n\tb"}}</tool_call>', [{"text": "a\n\tb"}], ""),
        ("<tool_call>{'name': 'run', 'arguments': {'text': 'it\\'s \"a\"', 'flag': True,},}</tool_call>",
         [{"text": 'it\'s "a"', "flag": True}], ""),
        # several calls between one pair of markers
        (f"{RUN_A}\n{OBJECT}\n</tool_call>", [A, A], ""), (f"{RUN_A}{OBJECT}</tool_call>b", [A, A], "b"),
        (f"<tool_call>[{OBJECT}, {OBJECT}]</tool_call>", [A, A], ""),
        # pieces of the end marker
        (f"{RUN_A}}}\n</tool_call>", [A], ""), (f"{RUN_A}</tool}}}}\n", [A], ""),
        (f"{RUN_A}\n<}}}}_call/\nDone.", [A], "Done."), (f"{RUN_A}\n}}}}>\n{RUN_A}</tool_call>", [A, A], ""),
        (f"{RUN_A}</tool_call>\n> quoted", [A], "> quoted"), (f"{RUN_A}</tool_call>\n<b>bold</b>", [A], "<b>bold</b>"),
        (f"{RUN_A}</tool_call> call me", [A], "call me"),
        (f'{RUN_A}</tool_call>\n{{"text": "a"}}', [A], '{"text": "a"}'),
        (f'{RUN_A}\n{{"name": "other", "arguments": {{}}}}', [A], '{"name": "other", "arguments": {}}'),
    ],
    "qwen3_coder": [
        (qwen3_run("<parameter=text>\na </tool_call> b\n</parameter>"), [{"text": "a </tool_call> b"}], ""),
        (qwen3_run("<parameter=text>\na </function>\n</tool_call> b\n</parameter>"),
         [{"text": "a </function>\n</tool_call> b"}], ""),
        (qwen3_run("<parameter=text>\n<parameter=other> <tool_call>\n</parameter>"),
         [{"text": "<parameter=other> <tool_call>"}], ""),
        (qwen3_run("<parameter=text>\na <parameter=b</parameter>"), [{"text": "a <parameter=b"}], ""),
        (qwen3_run("<parameter=count>\n1e400\n</parameter>"), [{"count": "1e400"}], ""),
        # without the start marker, or one of the end tags
        (f"{UNMARKED}\n</tool_call>", [A], ""),
        (f"So:\n{UNMARKED}\n</tool_call>\nDone.", [A], "So:Done."),
        (f"<tool_call>\n{UNMARKED}", [A], ""),
        (f"<tool_call>\n{UNMARKED}\n{UNMARKED}\n</tool_call>", [A, A], ""),
        (qwen3_run("<parameter=text>\na\n<parameter=count>\n3\n</parameter>"), [{"text": "a", "count": 3}], ""),
        (qwen3_run("<parameter=text>\na"), [A], ""),
        (qwen3_run("<parameter=text>\na").removesuffix("\n</tool_call>"), [A], ""),
        (qwen3_run("<parameter=text>\na") + "\n" + qwen3_run(TEXT_IS_A), [A, A], ""),
        (f"<tool_call>\n<function=run>\n<parameter=text>\na\n</function>\n{UNMARKED}</tool_call>", [A, A], ""),
    ],
    "gemma4": [
        ('<|tool_call>call:run{text:"a b"}<tool_call|>', [{"text": "a b"}], ""),
        ("<|tool_call>call:run{text:'a b'}<tool_call|>", [{"text": "a b"}], ""),
        ('<|tool_call>call:run(text="a", count=3)<tool_call|>', [{"text": "a", "count": 3}], ""),
        ("<|tool_call>call:run(text=f(x))<tool_call|>", [{"text": "f(x)"}], ""),
        ("<|tool_call>call:run{text:https://a.b/c?d=e,count:3}<tool_call|>",
         [{"text": "https://a.b/c?d=e", "count": 3}], ""),
        ("<|tool_call>call:run{text: a, b, count: 3}<tool_call|>", [{"text": "a, b", "count": 3}], ""),
        ("<|tool_call>call:run{flag:True,optional:None,list:[a, True]}<tool_call|>",
         [{"flag": True, "optional": None, "list": ["a", True]}], ""),
        ("<|tool_call>call:run{text:123}<tool_call|>", [{"text": "123"}], ""),
        (UNENDED, [A], ""),
        (f"{UNENDED}<|tool_call>call:run{{count:3}}<tool_call|>", [A, {"count": 3}], ""),
        ("<|tool_call>call:run{count: 3}<tool_call|>|>\n<tool\nDone.", [{"count": 3}], "Done."),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("key", "text", "arguments", "content"), [(key, *case) for key, cases in RECOVERED.items() for case in cases]
)
def test_calls_with_unambiguous_mistakes_are_read(
    key: str, text: str, arguments: list[dict[str, Any]], content: str
) -> None:
    for cuts in ([], *([at] for at in range(1, len(text))), list(range(1, len(text)))):
        made = read(text, cuts, key)
        assert [(name, json.loads(found)) for name, found in made["calls"]] == [("run", each) for each in arguments]
        assert made["content"] == content


@pytest.mark.parametrize(
    ("key", "text"),
    [
        *((key, write("other", text="a")) for key, write in WRITERS.items()),
        ("hermes", '<tool_call>{"name": "run", "arguments": {}, "name": "other"}</tool_call>'),
        ("hermes", '<tool_call>{"name": "other", "arguments": {"text": "a\nb"}}</tool_call>'),
        ("hermes", "<tool_call>{'name': 'other', 'arguments': {}}</tool_call>"),
        ("qwen3_coder", f"{UNMARKED.replace('run', 'other')}\n</tool_call>"),
        ("qwen3_coder", "<function=run> is written before the arguments"),
        ("qwen3_coder", f"{UNMARKED.removesuffix('</function>')}</parameter>"),
        ("qwen3_coder", "<tool_call>\n<function=run>\n<parameter=text>\na"),
        ("gemma4", '<|tool_call>call:other{text:"a"}<tool_call|>'),
        ("gemma4", "<|tool_call>call:other(text=a)<tool_call|>"),
        ("gemma4", "<|tool_call>call:run(text=a<tool_call|>"),
        ("gemma4", f"{UNENDED}}}<tool_call|>"),
    ],
)
def test_calls_of_tools_that_were_not_offered_and_incomplete_calls_are_text(key: str, text: str) -> None:
    for cuts in ([], list(range(1, len(text)))):
        assert read(text, cuts, key) == {"reasoning": "", "content": text, "calls": []}


def test_words_without_quotes_are_text() -> None:
    assert read("<|tool_call>call:weather{city: Rome, days: 3}<tool_call|>", [], "gemma4")["calls"] == [
        ["weather", '{"city": "Rome", "days": 3}']
    ]


def test_a_schema_gives_the_types_of_text_arguments() -> None:
    made = read(qwen3_coder("weather", city="12", days="3"), [], "qwen3_coder")
    assert json.loads(made["calls"][0][1]) == {"city": "12", "days": 3}


def test_a_call_that_is_cut_off_is_neither_half_a_call_nor_text() -> None:
    call_text = hermes("weather", city="Rome", days=3)
    first = hermes("add") + "\n"
    for end in range(len("<tool_call>"), len(call_text) - len("}\n</tool_call>")):
        begun = call_text[:end]
        for more in ({"constrained": False}, {"constrained": True, "stream_arguments": False}):
            for cuts in ([], list(range(1, end))):
                assert read(begun, cuts, cut=True, **more) == {"reasoning": "", "content": "", "calls": []}
            assert read(first + begun, [], cut=True, **more)["calls"] == [["add", "{}"]]
        assert read("Look. " + begun, [], cut=True)["content"].strip() == "Look."
    assert read(begun, [])["content"] == begun  # the model ended the answer itself


def test_constrained_calls_are_cut_off_where_the_text_ends() -> None:
    call_text = hermes("weather", city="Rome", days=3)
    begun = call_text[: call_text.index("Rome") + 2]
    expected = {"reasoning": "", "content": "", "calls": [["weather", '{"city": "Ro']]}
    assert read(begun, [], cut=True, constrained=True) == expected
    assert read(begun, list(range(1, len(begun))), cut=True, constrained=True) == expected


def test_nothing_of_a_required_call_is_text() -> None:
    call_text = hermes("weather", city="Rome", days=3)
    for end in range(1, len(call_text)):
        for cut in (False, True):  # ended by a stop string, or by the token limit
            assert read(call_text[:end], [], cut=cut, required=True)["content"] == ""
    assert read(call_text, [], required=True)["calls"] == [["weather", '{"city": "Rome", "days": 3}']]


def test_constrained_calls_are_streamed_as_they_are_generated() -> None:
    one = parts(constrained=True)
    deltas = [one.push(character) for character in hermes("weather", city="Rome}", days=3) + "\n" + hermes("add")]
    in_order = [delta for some in deltas for delta in some]
    assert isinstance(in_order[0], CallStart)
    assert len(in_order) > 20
    assert joined(in_order)["calls"] == [["weather", '{"city": "Rome}", "days": 3}'], ["add", "{}"]]
    assert one.finish(False) == []


def test_a_single_call_ends_the_answer() -> None:
    one = parts(single_call=True)
    assert not one.ended
    made = joined(one.push("a" + hermes("add") + "\n" + hermes("weather") + "b"))
    assert one.ended
    assert made == {"reasoning": "", "content": "a", "calls": [["add", "{}"]]}
    assert one.push("more") == one.finish(False) == []


def test_reasoning_that_the_prompt_opened_is_read_even_if_unclosed() -> None:
    assert read("hm\n</think>\n\nyes", [], opened=True) == {"reasoning": "hm", "content": "yes", "calls": []}
    assert read("hm", [], opened=True) == {"reasoning": "hm", "content": "", "calls": []}
    call = hermes("add", a=1)
    within = read(f"I call\n{call}", [], opened=True)
    assert within["calls"] == [["add", '{"a": 1}']]
    assert within["reasoning"] == f"I call\n{call}"
    assert read(f"I call\n{call}</think>no", [], opened=True)["calls"] == []


def test_without_tools_nothing_is_a_call() -> None:
    text = " " + hermes("add") + " "
    assert read(text, [], tools=None) == {"reasoning": "", "content": text, "calls": []}
    assert read("<think>x</think>", [], tools=None, reasoning=None)["content"] == "<think>x</think>"


def test_text_that_cannot_begin_a_mark_is_not_delayed() -> None:
    one = parts()
    assert one.push("a") == [Text("a")]
    assert one.push(" <tool") == []
    assert one.push("box>") == [Text(" <toolbox>")]
    assert one.push("<tool_call>") == []
    assert one.push(" x") == [Text("<tool_call> x")]


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_after_many_malformed_calls_the_rest_is_text(size: int) -> None:
    call = hermes("add", a=1)
    for wrong, calls in ((MAX_FAILED_CALLS - 1, 1), (MAX_FAILED_CALLS, 0)):
        text = "<tool_call>no" * wrong + call
        made = read(text, list(range(size, len(text), size)))
        assert len(made["calls"]) == calls
        assert made["content"] == (text.removesuffix(call) if calls else text)
