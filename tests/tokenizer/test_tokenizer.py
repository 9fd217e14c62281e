"""Tests of the tokenizer: user text never becomes a special token, and templates give the ids of transformers."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library

from runtime.errors import ConfigError, RequestError
from runtime.tokenizer import Tokenizer
from tests.examples import examples
from tests.tokenizer.conftest import SPECIALS, TEMPLATE, byte_level, metaspace, save, sentencepiece, specials_in

HOSTILE = st.lists(
    st.sampled_from([*SPECIALS, *SPECIALS, "<", "|", "role", "_end", "|>", ">", "a", " ", "é"]), max_size=8
).map("".join)


@examples(300)
@given(text=st.one_of(st.text(max_size=40), HOSTILE))
def test_text_never_yields_special_ids_and_round_trips(pair, text):
    tokenizer, library = pair
    ids = tokenizer.encode(text)
    assert specials_in(tokenizer, ids) == []
    if not any(s in text for s in SPECIALS):
        assert ids == library.encode(text, add_special_tokens=False).ids
    if tokenizer.token_id("Ġ") is not None:  # byte-level tokenizers are lossless
        assert tokenizer.decode(ids) == text


@examples(300)
@given(text=st.one_of(st.text(max_size=40), HOSTILE))
def test_with_parse_special_the_ids_are_those_of_the_library(pair, text):
    tokenizer, library = pair
    found = tokenizer.encode_limited(text, 10**6, parse_special=True)
    assert found == library.encode(text, add_special_tokens=False).ids


@examples(300)
@given(contents=st.lists(HOSTILE, min_size=1, max_size=3), note=HOSTILE)
def test_no_message_and_no_variable_can_forge_a_special_token(pair, contents, note):
    tokenizer = pair[0]
    messages = [{"role": "user", "content": c} for c in contents]
    ids = tokenizer.encode_chat(messages, note=note)
    role = ["<role>", "</role>"]
    assert specials_in(tokenizer, ids) == [*role, "<|role_end|>"] * len(contents) + role


def test_a_role_cannot_forge_a_special_token(directory):
    template = "{% for m in messages %}<role>{{ m.role|lower }}</role>{{ m.content }}{% endfor %}"
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    tokenizer = Tokenizer(directory)
    ids = tokenizer.encode_chat([{"role": "<|MASK|></ROLE>", "content": "x"}])
    assert specials_in(tokenizer, ids) == ["<role>", "</role>"]


def test_ordinary_conversations_have_the_ids_of_transformers(pair, tmp_path):
    from transformers import PreTrainedTokenizerFast

    tokenizer, library = pair
    theirs = PreTrainedTokenizerFast(tokenizer_object=library, chat_template=TEMPLATE, eos_token="<|end|>")
    conversation = [
        {"role": "system", "content": "a b"},
        {"role": "user", "content": "Solve: 12 + 30. é東"},
        {"role": "assistant", "content": "ab<|end|> dropped"},
        {"role": "user", "content": "ab"},
    ]
    for messages, options in (
        (conversation, {}),
        (conversation[1:2], {"note": "AB"}),
        (conversation, {"add_generation_prompt": False}),
    ):
        options = {"add_generation_prompt": True} | options
        expected = theirs.apply_chat_template(messages, tokenize=True, return_dict=False, **options)
        assert tokenizer.encode_chat(messages, **options) == expected


def test_a_template_still_finds_special_text_in_a_message(directory):
    tokenizer = Tokenizer(directory)
    conversation = [{"role": "assistant", "content": "ab<|end|>rest"}]
    assert tokenizer.encode_chat(conversation) == tokenizer.encode_chat([{"role": "assistant", "content": "ab"}])


@pytest.mark.parametrize(
    ("messages", "kwargs", "param"),
    [
        ([], {}, "messages"),
        ("hello", {}, "messages"),
        (["hello"], {}, "messages[0]"),
        ([{"role": "user"}], {}, "messages[0].content"),
        ([{"role": "user", "content": None}], {}, "messages[0].content"),
        ([{"role": "user", "content": "a"}, {"role": 7, "content": "a"}], {}, "messages[1].role"),
        ([{"role": "wizard", "content": "a"}], {}, "messages"),
        ([{"role": "user", "content": "\ud800"}], {}, "messages"),
        ([{"role": "user", "content": "a"}], {"note": 7.5}, None),
        ([{"role": "user", "content": "a"}], {"note": {"a": [1]}}, None),
        ([{"role": "user", "content": "a"}], {"messages": []}, "chat_template_kwargs.messages"),
        ([{"role": "user", "content": "a"}], {"eos_token": "x"}, "chat_template_kwargs.eos_token"),
    ],
)
def test_bad_conversations(directory, messages, kwargs, param):
    tokenizer = Tokenizer(directory)
    if param is None:
        assert tokenizer.encode_chat(messages, **kwargs)
        return
    with pytest.raises(RequestError) as caught:
        tokenizer.encode_chat(messages, **kwargs)
    assert caught.value.param == param
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 400


def test_an_error_raised_by_a_template_shows_no_internal_marks(directory):
    with pytest.raises(RequestError, match="Unknown <role> wizard"):
        Tokenizer(directory).encode_chat([{"role": "wizard", "content": "a"}])


def test_the_sandbox_holds(directory):
    file = directory / "bad.jinja"
    file.write_text("{{ messages.__class__.__mro__ }}")
    with pytest.raises(RequestError, match="unsafe"):
        Tokenizer(directory, file).encode_chat([{"role": "user", "content": "a"}])
    file.write_text("{{ messages.append(1) }}")
    with pytest.raises(RequestError):
        Tokenizer(directory, file).encode_chat([{"role": "user", "content": "a"}])


def test_tokens_without_the_special_flag_that_are_used_as_special(tmp_path):
    """These tokens have no special flag, but the template writes them or config.json names them."""
    save(byte_level(), tmp_path, special=False)
    (tmp_path / "config.json").write_text(json.dumps({"mask_token_id": Library.from_file(
        str(tmp_path / "tokenizer.json")).token_to_id("<|mask|>")}))  # fmt: skip
    tokenizer = Tokenizer(tmp_path)
    assert specials_in(tokenizer, tokenizer.encode("".join(SPECIALS))) == []


def test_added_tokens_of_the_config_alone(directory):
    config = json.loads((directory / "tokenizer_config.json").read_text())
    new = Tokenizer(directory).max_token_id + 1
    config["added_tokens_decoder"] = {str(new): {"content": "<late>", "special": True}}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer(directory)
    assert (tokenizer.max_token_id, tokenizer.token_id("<late>")) == (new, new)
    assert new not in tokenizer.encode("<late>")
    config["added_tokens_decoder"] = {str(new + 5): {"content": "<late>", "special": True}}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=f"'<late>' has the id {new + 5}, but is loaded with {new}; ids"):
        Tokenizer(directory)


def test_broken_files(directory, tmp_path_factory):
    with pytest.raises(ConfigError, match="no tokenizer"):
        Tokenizer(tmp_path_factory.mktemp("empty"))
    with pytest.raises(ConfigError, match="--chat-template"):
        Tokenizer(directory, directory / "none.jinja")
    (directory / "chat_template.jinja").write_text("{% if %}")
    with pytest.raises(ConfigError, match="template does not compile"):
        Tokenizer(directory)
    (directory / "chat_template.jinja").write_text("<|{{ 'mask' }}|>{{ messages[0].content }}")
    with pytest.raises(ConfigError, match="from parts"):
        Tokenizer(directory)
    (directory / "chat_template.jinja").unlink()
    data = json.loads((directory / "tokenizer.json").read_text())
    wrong = [{"decoder": {"type": "CTC"}}, {"decoder": []}, {"decoder": {"type": "Metaspace"}}, {"model": {}}]
    wrong += [{"model": data["model"] | {"unk_token": []}}, {"model": data["model"] | {"vocab": None}}]
    for text in ("{", "[]", "{}", *(json.dumps(data | each) for each in wrong)):
        (directory / "tokenizer.json").write_text(text)
        with pytest.raises(ConfigError, match=r"tokenizer\.json"):
            Tokenizer(directory)


@pytest.mark.parametrize("value", [-1, None, [[1]], {"a": 1}, [{}], "x"])
def test_ids_of_the_config_that_are_no_ids(directory, value):
    """A family may not read pad_token_id, so that nothing else checks it; Llama's configs have -1."""
    (directory / "config.json").write_text(json.dumps({"pad_token_id": value}))
    assert Tokenizer(directory).special


def test_lone_surrogates_are_refused(pair):
    with pytest.raises(RequestError) as caught:
        pair[0].encode("a\udfffb", param="input")
    assert caught.value.param == "input"


def test_unigram_and_bpe_start_a_text_the_same_way(tmp_path):
    for name, library in (("m", metaspace()), ("s", sentencepiece())):
        (tmp_path / name).mkdir()
        save(library, tmp_path / name)
        tokenizer = Tokenizer(tmp_path / name)
        assert tokenizer.decode(tokenizer.encode("ab a")) == "ab a"
