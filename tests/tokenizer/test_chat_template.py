"""Tests that chat templates render as in transformers, with all arguments of its filters, and of their limits."""

import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.errors import ConfigError, RequestError
from runtime.parsers import formats
from runtime.tokenizer import Tokenizer, template_sandbox
from runtime.tokenizer.chat_template import ChatTemplate
from runtime.tokenizer.marked_text import Marks, new_mark
from tests.examples import examples
from tests.tokenizer.conftest import byte_level, save, specials_in
from tests.tokenizer.templates import (
    CHANGING,
    CHATS,
    KEEPING,
    OWN_TEXT,
    TEMPLATES,
    VARIABLES,
    WITH_CALLS,
    rendered_by_transformers,
)

NAMED = {"bos_token": "<s>", "eos_token": "</s>"}
USER = [{"role": "user", "content": "hi"}]
PARTS = (
    "{% for m in messages %}{{ m.role }}:{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}{% endif %}"
    "{% endfor %};{% endfor %}"
)


@pytest.fixture(scope="module")
def expected() -> dict[tuple[str, int, int], str | None]:
    """Returns the text that transformers renders, by template, conversation and set of variables."""
    keys = list(itertools.product(TEMPLATES, range(len(CHATS)), range(len(VARIABLES))))
    cases = [(TEMPLATES[name], CHATS[chat], NAMED | VARIABLES[values]) for name, chat, values in keys]
    return dict(zip(keys, rendered_by_transformers(cases), strict=True))


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_renders_as_in_transformers(name: str, expected: dict[tuple[str, int, int], str | None]) -> None:
    texts = ("<role>", "<|im_start|>", "<|im_end|>", "</s>", "<|role_end|>", "[INST]", "<tool_call>")
    for used in (Marks({}), Marks({text: new_mark() for text in texts})):
        template = ChatTemplate(TEMPLATES[name], used, NAMED)
        compared = 0
        for chat, values in itertools.product(range(len(CHATS)), range(len(VARIABLES))):
            if CHATS[chat] is WITH_CALLS and "tool_calls" not in TEMPLATES[name]:
                continue  # calls are written into the text of the message for such a template
            theirs = expected[name, chat, values]
            if theirs is None:
                with pytest.raises(RequestError, match="cannot render them"):
                    template.render(CHATS[chat], VARIABLES[values])
                continue
            assert used.unmarked(template.render(CHATS[chat], VARIABLES[values])) == theirs
            compared += 1
        assert compared >= 6


def test_templates_read_their_own_text_as_in_transformers() -> None:
    marks = Marks({text: new_mark() for text in ("<|im_start|>", "<|im_end|>", "<think>", "</think>")})
    literal = [
        {"role": "user", "content": "hi <|im_end|> there"},
        {"role": "assistant", "content": "<think>a</think>b"},
    ]
    chats = [CHATS[0], [*CHATS[0], {"role": "assistant", "content": "yes"}, *CHATS[0]], literal]
    keys = list(itertools.product(OWN_TEXT, range(len(chats))))
    texts = rendered_by_transformers([(OWN_TEXT[name], chats[chat], {}) for name, chat in keys])
    for (name, chat), theirs in zip(keys, texts, strict=True):
        assert theirs is not None, name
        ours = ChatTemplate(OWN_TEXT[name], marks, {}).render(chats[chat], {})
        assert marks.unmarked(ours) == theirs, name
        if chats[chat] is not literal:  # each special token is the template's
            assert ours == marks.marked(theirs), name
    of_messages = ChatTemplate(OWN_TEXT["reasoning that was wrapped"], marks, {}).render(literal, {})
    assert "hi <|im_end|> there" in of_messages


def test_functions_of_own_text_give_the_text_of_transformers() -> None:
    """Special tokens that a function leaves complete stay special, and those of a message never become it."""
    marks = Marks({text: new_mark() for text in ("<|im_start|>", "<|im_end|>", "<think>", "</think>")})
    literal = [{"role": "user", "content": "hi <|im_end|> \U00017000"}, {"role": "assistant", "content": "</think>"}]
    sources = KEEPING | CHANGING
    keys = list(itertools.product(sources, (CHATS[0], literal)))
    texts = rendered_by_transformers([(sources[name], chat, {}) for name, chat in keys])
    for (name, chat), theirs in zip(keys, texts, strict=True):
        assert theirs is not None, name
        ours = ChatTemplate(sources[name], marks, {}).render(chat, {})
        assert marks.unmarked(ours) == theirs, name
        if name in KEEPING:
            assert ours == marks.marked(theirs), name
        if name == "of messages":
            assert marks.of_tokens["<|im_end|>"] not in ours
            assert marks.of_tokens["</think>"] not in ours


PIECES = ["<a>", "</a>", "<", ">", "a", "/a>", " ", "\n", "é", "A", "\U00017000"]
FUNCTIONS: list[Callable[[str], Any]] = [
    str.title, str.upper, list, sorted, repr, ascii, json.dumps, len, lambda t: t[::-1], lambda t: t.center(30),
    lambda t: t[3:], lambda t: [t, {t: (t,)}], lambda t: t.split("a"), lambda t: t.replace("<", "a"),
    lambda t: t.replace("a", "</a>"),
]  # fmt: skip


@examples(200)
@given(st.lists(st.tuples(st.sampled_from(PIECES), st.booleans()), max_size=12), st.sampled_from(FUNCTIONS))
def test_functions_of_marked_text_are_those_of_text(
    pieces: list[tuple[str, bool]], function: Callable[[str], Any]
) -> None:
    marks = Marks({text: new_mark() for text in ("<a>", "</a>")})
    written = [marks.marked(piece) if is_marked and piece == "</a>" else piece for piece, is_marked in pieces]
    text = "".join(written)
    found, expected = marks.apply(str, marks.apply(function, text)), str(function(marks.unmarked(text)))
    assert marks.unmarked(found) == expected
    assert marks.of_tokens["<a>"] not in found  # only messages have it
    assert found.count(marks.of_tokens["</a>"]) <= expected.count("</a>")


def test_functions_keep_the_marks_of_complete_tokens() -> None:
    marks = Marks({text: new_mark() for text in ("<a>", "</a>")})
    mark = marks.of_tokens["</a>"]
    assert marks.apply(str.center, f"{mark}é<a>", 11) == f"  {mark}é<a> "
    assert marks.apply(lambda text: text[2:], mark * 2) == f"a>{mark}"
    assert marks.apply(lambda text: [text, {text: (text, 1)}], mark) == [mark, {mark: (mark, 1)}]
    assert marks.apply(str.upper, mark) == "</A>"
    for text in (
        "\U00017000\U00017001",
        "".join(map(chr, range(0x17000, 0x187F6))),
    ):  # what stands for a token during a call
        assert marks.apply(lambda text: text[:4], f"{mark}{text}") == (mark if len(text) == 2 else "</a>")


@examples(200)
@given(
    st.lists(st.tuples(st.sampled_from(PIECES), st.booleans()), max_size=12),
    st.sampled_from(PIECES),
    st.integers(-9, 9),
)
def test_methods_of_marked_text_are_those_of_text(pieces: list[tuple[str, bool]], other: str, number: int) -> None:
    """A special token that is complete in the result is marked there, if it was marked in the text."""
    marks = Marks({text: new_mark() for text in ("<a>", "</a>")})
    text = "".join(marks.marked(piece) if is_marked else piece for piece, is_marked in pieces)
    plain = marks.unmarked(text)
    arguments: dict[str, list[tuple[Any, ...]]] = {
        "replace": [(other, "x"), (other, "", number)], "split": [(), (None, number), (other,), (other, number)],
        "rsplit": [(), (None, number), (other, number)], "splitlines": [(), (True,)], "strip": [(), (other,)],
        "lstrip": [(), (other,)], "rstrip": [(), (other,)], "partition": [(other,)], "rpartition": [(other,)],
        "removeprefix": [(other,)], "removesuffix": [(other,)], "count": [(other,)], "find": [(other, number)],
        "startswith": [(other,)], "endswith": [((other, "x"),)], "upper": [()], "lower": [()], "title": [()],
    }  # fmt: skip
    for method, each in arguments.items():
        for args in each:
            found = marks.call(text, method, [marks.marked(arg) if arg == other else arg for arg in args], {})
            expected = getattr(plain, method)(*args)
            as_text = [marks.unmarked(part) for part in found] if isinstance(found, list | tuple) else found
            as_text = marks.unmarked(found) if isinstance(found, str) else as_text
            assert as_text == (list(expected) if isinstance(expected, tuple) else expected), (method, args)
    for key in (number, slice(number), slice(number, None), slice(None, None, 2), slice(number, number + 4)):
        if not isinstance(key, int) or -len(plain) <= key < len(plain):
            assert marks.unmarked(marks.item(text, key)) == plain[key]
    assert marks.item(text, slice(None)) == marks.call(text, "strip", ["x"], {}) == text
    assert "".join(marks.call(text, "partition", ["é"], {})) == text
    assert "é".join(marks.call(text, "split", ["é"], {})) == text


def test_tojson_takes_the_arguments_of_transformers_in_its_order() -> None:
    message = {"role": "user", "content": "é", "b": [1, {"é": None}], "a": "<&>"}
    arguments = (
        "", "(true)", "(false, 3)", "(false, none, ['; ', ' = '])", "(true, 1, none, true)", "(indent='\t')",
        "(separators=[',', ':'], sort_keys=true)", "(ensure_ascii=true, indent=0)",
        "(indent=2, separators=(',', ': '), sort_keys=true)",
    )  # fmt: skip
    sources = [f"{{{{ messages[0] | tojson{each} }}}}" for each in arguments]
    expected = rendered_by_transformers([(source, [message], {}) for source in sources])
    assert [ChatTemplate(source, Marks({}), {}).render([message], {}) for source in sources] == expected
    assert len(set(expected)) == len(sources)


HUGE = 3_000_000_000
ALLOCATING = [
    "{{ messages | tojson(indent=n) }}", "{{ messages | tojson(indent=3000000000) }}",
    "{{ messages | tojson(separators=['x' * 9000 * 2, ':']) }}", "{{ 'x' | center(n) }}", "{{ 'x'.center(n) }}",
    "{{ 'x'.ljust(n) }}", "{{ '7'.zfill(n) }}", "{{ '\t'.expandtabs(n) }}", "{{ 'a\nb' | indent(n) }}",
    "{{ '%3000000000d' | format(1) }}", "{{ '%3000000000d' % 1 }}", "{{ '%.3000000000f' % 1 }}", "{{ '%*d' % (n, 1) }}",
    "{{ '%(a)3000000000d' % {'a': 1} }}", "{{ '{:3000000000}'.format(1) }}", "{{ '{:{}}'.format(1, n) }}",
    "{{ '{a:{b}}'.format(a=1, b=n) }}", "{{ '{a:3000000000}'.format_map({'a': 1}) }}",
    "{{ ('a' * 9999) | replace('a', 'b' * 9999) }}", "{{ ('a' * 9999).replace('a', 'b' * 9999) }}",
]  # fmt: skip


@pytest.mark.parametrize("source", ALLOCATING)
def test_no_filter_or_method_makes_a_huge_text_in_one_step(source: str) -> None:
    with pytest.raises(
        RequestError, match=r"cannot render them: (a text is padded|a format|a replacement makes|nothing is rep)"
    ):
        ChatTemplate(source, Marks({}), {}).render(USER, {"n": HUGE})


def test_numbers_outside_of_a_width_are_no_width() -> None:
    source = "{{ '%s of 20260101' % 5 }} {{ '20260101 % 99999 {}'.format(123456789) }} {{ '%d' | format(987654321) }}"
    text = ChatTemplate(source, Marks({}), {}).render(USER, {})
    assert text == "5 of 20260101 20260101 % 99999 123456789 987654321"


def test_indented_json_is_limited_as_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_sandbox, "MAX_CHARS", 1000)
    with pytest.raises(RequestError, match="writes more than 1000 characters"):
        ChatTemplate("{% set x = values | tojson(indent=50) %}", Marks({}), {}).render(USER, {"values": [[1]] * 20})


@pytest.mark.parametrize(
    "expression",
    [
        "messages[1].tool_calls[0].function.arguments | tojson",
        "messages[1].tool_calls[0].function.arguments | string", "messages[1].tool_calls[0] | tojson",
        "messages[1].tool_calls | tojson", "messages[1] | tojson", "messages | tojson", "messages",
    ],
)  # fmt: skip
@pytest.mark.parametrize("innermost", [1, "a", [], {}])
def test_calls_with_the_deepest_arguments_can_be_sent_back(expression: str, innermost: Any) -> None:
    has_brackets = isinstance(innermost, list | dict)
    arguments: Any = innermost
    for _ in range(formats.MAX_DEPTH - has_brackets):
        arguments = {"x": arguments}
    function = {"name": "deep", "arguments": json.loads(formats.dump_json(arguments))}
    call = {"id": "call_1", "type": "function", "function": function}
    messages = [*USER, {"role": "assistant", "content": "", "tool_calls": [call]}]
    text = ChatTemplate("{# writes tool_calls #}{{ " + expression + " }}", Marks({}), {}).render(messages, {})
    assert len(re.findall("['\"]x['\"]:", text)) == formats.MAX_DEPTH - has_brackets


@pytest.fixture
def make(tmp_path: Path) -> Any:
    """Returns a function that writes a tokenizer_config.json with these fields, and returns the directory."""

    def write(**config: Any) -> Path:
        save(byte_level(), tmp_path, template=None)
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        return tmp_path

    return write


def text_of(directory: Path, **values: Any) -> str:
    tokenizer = Tokenizer(directory)
    return tokenizer.decode(tokenizer.encode_chat(USER, **values))


FORMS = {
    "a text": "D",
    "an object": {"default": "D", "tool_use": "T"},
    "a list": [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}],
    "an object with another name": {"default": "D", "rag": "R"},
}


@pytest.mark.parametrize("name", ["tokenizer_config.json", "chat_template.json", "processor_config.json"])
@pytest.mark.parametrize("form", FORMS)
def test_named_templates_are_selected_as_in_transformers(name: str, form: str, make: Any) -> None:
    directory = make(chat_template=None)
    (directory / name).write_text(json.dumps({"chat_template": FORMS[form], "processor_class": "X"}))
    assert Tokenizer(directory).has_template
    assert text_of(directory) == text_of(directory, tools=[]) == "D"
    assert text_of(directory, tools=[{"a": 1}]) == ("T" if "tool_use" in json.dumps(FORMS[form]) else "D")


def test_files_take_precedence_over_the_config(make: Any) -> None:
    directory = make(chat_template={"default": "D", "tool_use": "T"})
    (directory / "chat_template.jinja").write_text("\ufefffile")
    assert text_of(directory, tools=[{"a": 1}]) == "file"
    (directory / "additional_chat_templates").mkdir()
    (directory / "additional_chat_templates" / "tool_use.jinja").write_text("{{ tools | length }} tools")
    assert text_of(directory, tools=[{"a": 1}]) == "1 tools"
    assert Tokenizer(directory).supports_tools
    assert text_of(directory) == "file"


def test_templates_of_processors_come_after_those_of_the_tokenizer(make: Any) -> None:
    directory = make()
    (directory / "processor_config.json").write_text(json.dumps({"chat_template": "older"}))
    assert text_of(directory) == "older"
    (directory / "chat_template.json").write_text(json.dumps({"chat_template": "processor"}))
    assert text_of(directory) == "processor"
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": "tokenizer"}))
    assert text_of(directory) == "tokenizer"
    (directory / "chat_template.jinja").write_text("file")
    assert text_of(directory) == "file"
    (directory / "other.jinja").write_text("named")
    assert Tokenizer(directory, directory / "other.jinja").chat_template == "named"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "is not readable JSON"),
        ('"D"', "must hold a JSON object"),
        ('{"chat_template": 7}', "chat_template must be a text, an object or a list; use --chat-template or fix it"),
    ],
)
def test_a_file_of_a_processor_that_holds_no_template_is_named(content: str, reason: str, make: Any) -> None:
    directory = make()
    (directory / "chat_template.json").write_text(content)
    with pytest.raises(ConfigError, match=rf"chat_template\.json:? {reason}"):
        Tokenizer(directory)


@pytest.mark.parametrize("value", [7, True, {"default": 7}, {"default": None}, [7], [{"name": "default"}], [["a"]]])
def test_a_template_of_another_type_is_refused_by_name(value: Any, make: Any) -> None:
    with pytest.raises(ConfigError, match=r"tokenizer_config\.json: chat_template must"):
        Tokenizer(make(chat_template=value))


def test_templates_without_a_default_are_reported(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = Tokenizer(make(chat_template={"rag": "R"}))
    assert not tokenizer.has_template
    assert "no chat template is called 'default', only 'rag'" in caplog.text
    with pytest.raises(RequestError, match="no chat template"):
        tokenizer.encode_chat(USER)


def test_special_tokens_are_read_from_all_files_that_name_them(make: Any) -> None:
    directory = make(
        chat_template="{{ eos_token }}|{{ image_token }}|{{ pad_token }}|{{ own_token }}|{{ bos_token }}",
        pad_token="<|mask|>", bos_token=None, extra_special_tokens={"own_token": "</role>"},
    )  # fmt: skip
    named = {"eos_token": {"content": "<|end|>", "special": True}, "image_token": "<role>", "pad_token": "not this"}
    (directory / "special_tokens_map.json").write_text(json.dumps(named))
    tokenizer = Tokenizer(directory)
    ids = tokenizer.encode_chat(USER)
    assert tokenizer.decode(ids) == "<|end|>|<role>|<|mask|>|</role>|"
    assert specials_in(tokenizer, ids) == ["<|end|>", "<role>", "<|mask|>", "</role>"]


def test_a_named_token_that_no_list_of_added_tokens_has_is_special(tmp_path: Path) -> None:
    library = byte_level()
    library.save(str(tmp_path / "tokenizer.json"))
    data = json.loads((tmp_path / "tokenizer.json").read_text())
    number = len(data["model"]["vocab"])
    data["model"]["vocab"]["<stop>"] = number
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"eos_token": "<stop>"}))
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}{{ eos_token }}")
    tokenizer = Tokenizer(tmp_path)
    ids = tokenizer.encode_chat([{"role": "user", "content": "a<stop>"}])
    assert ids.count(number) == 1
    assert ids[-1] == number


@pytest.mark.parametrize("file", ["special_tokens_map.json", "tokenizer_config.json"])
@pytest.mark.parametrize("field", ["eos_token", "additional_special_tokens", "extra_special_tokens"])
def test_a_token_that_a_file_declares_special_is_not_in_text(file: str, field: str, tmp_path: Path) -> None:
    save(byte_level(), tmp_path, template=None, special=False)
    (tmp_path / "tokenizer_config.json").write_text("{}")
    value = "<|end|>" if field == "eos_token" else ["<role>", {"content": "<|end|>"}]
    (tmp_path / file).write_text(json.dumps({field: value}))
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}")
    tokenizer = Tokenizer(tmp_path)
    assert tokenizer.control_id("<|end|>") is not None
    assert tokenizer.control_id("<|end|>") not in tokenizer.encode("a<|end|>")
    assert tokenizer.token_id("<|mask|>") not in tokenizer.special


def test_ordinary_text_that_is_named_as_a_token_stays_encodable(tmp_path: Path) -> None:
    save(byte_level(), tmp_path, template=None)
    expected = Tokenizer(tmp_path).encode("the fox! the end!")
    library = json.loads((tmp_path / "tokenizer.json").read_text())
    merged = "".join(library["model"]["merges"][-1])
    named = {"pad_token": "!", "unk_token": merged, "eos_token": "<|end|>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(named))
    tokenizer = Tokenizer(tmp_path)
    assert tokenizer.encode("the fox! the end!") == expected
    assert tokenizer.named_tokens["pad_token"] == "!"


@pytest.mark.parametrize("decoder", [None, {}, []])
def test_an_empty_added_tokens_decoder_is_accepted(decoder: Any, make: Any) -> None:
    assert Tokenizer(make(added_tokens_decoder=decoder)).encode("a")


MALFORMED = [7, {"x": {"content": "a"}}, {"-1": {"content": "a"}}, {"9" * 5000: {"content": "a"}}, {"900": None}]


@pytest.mark.parametrize("decoder", [*MALFORMED, {"900": {}}, {"900": 7}])
def test_a_malformed_added_tokens_decoder_is_refused_by_name(decoder: Any, make: Any) -> None:
    with pytest.raises(ConfigError, match=r"tokenizer_config\.json: added_tokens_decoder") as refused:
        Tokenizer(make(added_tokens_decoder=decoder))
    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "special_tokens_map.json", "tokenizer.json"])
def test_a_byte_order_mark_before_a_file_is_skipped(name: str, make: Any) -> None:
    directory = make(eos_token="<|end|>", chat_template="{{ eos_token }}")
    (directory / "config.json").write_text('{"mask_token_id": 1}')
    (directory / "special_tokens_map.json").write_text("{}")
    path = directory / name
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert text_of(directory) == "<|end|>"


PARTS_OF_USERS = (
    "{% for m in messages %}{% if m.role == 'user' %}{% for p in m['content'] %}{{ p['text'] }}{% endfor %}"
    "{% else %}{{ m.content }}{% endif %};{% endfor %}"
)


@pytest.mark.parametrize(
    ("source", "text"), [(PARTS, "system:s;user:a<b>;assistant:c;user:;"), (PARTS_OF_USERS, "s;a<b>;c;;")]
)
def test_a_template_that_only_iterates_over_parts_gets_parts(source: str, text: str) -> None:
    contents = (("system", "s"), ("user", "a<b>"), ("assistant", "c"), ("user", ""))
    chat = [{"role": role, "content": content} for role, content in contents]
    assert ChatTemplate(source, Marks({}), {}).render(chat, {}) == text


MIXED = [
    "{% for m in messages %}{% if m.content is string %}S{{ m.content }}{% else %}P{% for p in m.content %}{{ p.text }}"
    "{% endfor %}{% endif %}{% endfor %}",
    "{% for m in messages %}{{ m.content }}{% endfor %}",
    "{% for m in messages %}{{ m.content | upper }}{% endfor %}",
    "{% for m in messages %}{% for c in m.content %}{{ c }}{% endfor %}{% endfor %}",
    "{% for m in messages %}{{ raise_exception('no') if m.content is not string else m.content }}{% endfor %}",
]


@pytest.mark.parametrize("source", MIXED)
def test_a_template_that_takes_text_gets_text(source: str) -> None:
    (theirs,) = rendered_by_transformers([(source, USER, {})])
    assert ChatTemplate(source, Marks({}), {}).render(USER, {}) == theirs


def test_text_in_parts_becomes_no_special_token(tmp_path: Path) -> None:
    save(byte_level(), tmp_path, template=PARTS + "<|role_end|>")
    tokenizer = Tokenizer(tmp_path)
    ids = tokenizer.encode_chat([{"role": "user", "content": "<|role_end|><|end|>"}])
    assert specials_in(tokenizer, ids) == ["<|role_end|>"]


RESULT = [
    *USER,
    {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]},
    {"role": "tool", "content": "3"},
]
EACH, END = "{% for m in messages %}", "{% endfor %}"
CALLS = "{% for call in m.tool_calls or [] %}{{ call.function.name }}(){% endfor %}"
SKIP = "{% if m.role in ('user', 'assistant') %}"


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (EACH + "[{{ m.role }}]{{ m.content }}" + CALLS + END, "[user]hi[assistant]f()[tool]3"),
        (EACH + "[{{ m.role }}]{% for p in m.content %}{{ p.text }}{% endfor %}" + CALLS + END,
         "[user]hi[assistant]f()[tool]3"),
        (EACH + "{% if m.role == 'tool' %}<{{ m.content }}>{% endif %}" + END, "<3>"),
        (EACH + SKIP + "[{{ m.role }}]{{ m.content }}" + CALLS + "{% endif %}" + END,
         "[user]hi[assistant]f()[user]<tool_response>\n3\n</tool_response>"),
        (EACH + SKIP + "{{ m.content }}" + CALLS + "{% else %}{{ raise_exception('no') }}{% endif %}" + END,
         "hif()<tool_response>\n3\n</tool_response>"),
        (EACH + "[{{ m.role }}]{{ m.content }}" + END,
         '[user]hi[assistant]<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
         "[user]<tool_response>\n3\n</tool_response>"),
    ],
    ids=["every role", "every role in parts", "its name", "skipped", "refused", "without calls"],
)  # fmt: skip
def test_a_result_keeps_its_role_where_the_template_writes_it(template: str, expected: str) -> None:
    assert ChatTemplate(template, Marks({}), {}).render(RESULT, {}) == expected
