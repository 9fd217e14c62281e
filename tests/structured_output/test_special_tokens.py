"""Tests that the text of a special token in a grammar is text: it is generated with ordinary tokens."""

import json
import re
from typing import Any

import numpy as np
import pytest

from runtime import LLM, SamplingParams
from runtime.errors import RequestError
from runtime.request.structured import grammar_of
from runtime.structured_output.grammar_cache import GrammarCache, load_llguidance_tokenizer
from runtime.structured_output.grammar_facts import GrammarFacts
from runtime.structured_output.grammar_matcher import GrammarMatcher
from runtime.tokenizer import Tokenizer
from tests.server.checkpoint import EOS, MASK, TAGS, write_checkpoint

CHAT = [{"role": "user", "content": "Hello"}]
SIZE = 272
MARK = "[MARK]"


def forms_of(text: str) -> dict[str, tuple[dict[str, Any], str]]:
    """Returns constraints with the text of a special token, each with an answer."""
    quoted, escaped = json.dumps(text), re.escape(text)
    slashed = escaped.replace("/", r"\/")
    named = {"properties": {text: {"type": "null"}}, "required": [text], "additionalProperties": False}
    return {
        "choice": ({"choice": [f"{text}yes", "no"]}, f"{text}yes"),
        "only choice": ({"choice": [text]}, text),
        "part of a choice": ({"choice": [f"a {text} b"]}, f"a {text} b"),
        "regex": ({"regex": f"[a-c]{{2}}{escaped}"}, f"ab{text}"),
        "regex of parts": ({"regex": f"({re.escape(text[:-1])})({re.escape(text[-1])}|x){{3}}"}, f"{text}x{text[-1]}"),
        "any text": ({"regex": "(?s:.)*"}, f"a{text}"),
        "Lark": ({"grammar": f"start: {quoted} A\nA: /b+/"}, f"{text}b"),
        "Lark in parts": ({"grammar": f'start: {quoted[:3]}" "{quoted[3:]} "!" // {text} " /'}, f"{text}!"),
        "Lark regex": ({"grammar": f'start: A\nA: /"{slashed}"/'}, quoted),
        "GBNF": ({"grammar": f"root ::= x {quoted} # {text}\nx ::= [a-c]"}, f"c{text}"),
        "GBNF with an escape": ({"grammar": f'root ::= "\\x{ord(text[0]):02x}" {json.dumps(text[1:])}'}, text),
        "const": ({"json": {"const": text}}, quoted),
        "enum": ({"json": {"enum": [f"{text} a", 1]}}, json.dumps(f"{text} a")),
        "pattern": ({"json": {"type": "string", "pattern": f"^{escaped}$"}}, quoted),
        "property": ({"json": {"type": "object", **named}}, f"{{{quoted}: null}}"),
    }


SEVERAL = ("choice", "regex", "regex of parts", "any text", "Lark", "GBNF", "enum")  # forms with several answers
Grammars = tuple[GrammarCache, Tokenizer]


@pytest.fixture(scope="module", params=["special", "not special"])
def grammars(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Grammars:
    """Returns the grammars and the tokenizer of a checkpoint, whose mask is not flagged as special."""
    directory = write_checkpoint(tmp_path_factory.mktemp("models") / "tiny", tagged=True)
    data = json.loads((directory / "tokenizer.json").read_text())
    last = data["added_tokens"][-1]
    for token in data["added_tokens"]:
        token["special"] = request.param == "special" and token["id"] != MASK
    data["added_tokens"].append({**last, "id": last["id"] + 1, "content": MARK, "special": True})
    (directory / "tokenizer.json").write_text(json.dumps(data))
    (directory / "tokenizer_config.json").write_text("{}")
    facts = GrammarFacts.of(vocab_size=SIZE, max_token_id=SIZE - 1, mask_id=MASK, eos=[EOS])
    load = {"size": SIZE, "eos": [EOS], "mask": MASK}
    return GrammarCache(lambda: load_llguidance_tokenizer(directory, **load), facts), Tokenizer(directory)  # type: ignore[arg-type]


def generate(answer: GrammarMatcher, wanted: list[int]) -> list[int]:
    """Returns the tokens of an answer for which the model wants `wanted`, without the end-of-sequence token."""
    tokens: list[int] = []
    row = np.zeros(answer.facts.mask_len, dtype=np.int32)
    while not answer.finished:
        row[:] = 0
        answer.fill_bitmask(row)
        asked = [*wanted, EOS][len(tokens)]
        assert int(row[asked // 32]) >> asked % 32 & 1, (tokens, asked, answer.error)
        for token in answer.forced_tokens() or [asked]:
            answer.accept_token(token)
            tokens.append(token)
    assert answer.error == ""
    return tokens[:-1]


@pytest.mark.parametrize("text", ["<|endoftext|>", "<|mask|>", "<|role_end|>", "<role>", *TAGS[1:3], MARK])
def test_text_of_a_special_token_is_generated_with_ordinary_tokens(grammars: Grammars, text: str) -> None:
    cache, tokenizer = grammars
    for name, (form, answer) in forms_of(text).items():
        wanted = [token for character in answer for token in tokenizer.encode(character)]
        matcher = cache.compile(grammar_of(form, "structured_outputs"), "structured_outputs")
        assert (name, generate(matcher, wanted)) == (name, wanted)


def test_a_rule_that_names_a_special_token_takes_the_token(grammars: Grammars) -> None:
    cache, tokenizer = grammars
    tag, role = (tokenizer.token_id(text) for text in (TAGS[0], "<role>"))
    lark = f'start: {TAGS[0]} "<role>"? end // <none>\nend: <role> | <[{tag}]> "{TAGS[0]}"'
    for answer in ([tag, role], [tag, *map(ord, "<role>"), role], [tag, tag, *map(ord, "<tool_call>")]):
        wanted = [token if token > 255 else tokenizer.encode(chr(token))[0] for token in answer]
        matcher = cache.compile(grammar_of({"grammar": lark}, "structured_outputs"), "structured_outputs")
        assert generate(matcher, wanted) == wanted
    with pytest.raises(RequestError, match=r"special token.* \"?<none>"):
        cache.compile(grammar_of({"grammar": "start: <none>"}, "structured_outputs"), "structured_outputs")


@pytest.mark.parametrize("text", ["<|endoftext|>", "<role>"])
def test_the_demo_answers_with_the_text_of_its_special_tokens(llm: LLM, text: str) -> None:
    for name, (form, answer) in forms_of(text).items():
        params = SamplingParams(max_tokens=60, structured_outputs=form)
        found = llm.generate([CHAT], params)[0]
        if name not in SEVERAL:
            assert (name, found.finish_reason, found.text) == (name, "stop", answer)
        *events, final = llm.stream(CHAT, params, stream_mode="block_append")  # type: ignore[arg-type]
        assert "".join(event["text"] for event in events) == final["text"] == found.text
