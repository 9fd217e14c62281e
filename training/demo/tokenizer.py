"""Tokenizer of the demo: byte-level BPE with words as tokens, and the chat format of LLaDA2.

See docs/models/architecture-notes.md#llada2-layers.

Words of the tasks' wording are tokens. Other words, known or not, are split into letters, and numbers into digits.
Therefore text that has to be copied, spelled or reversed always consists of the same few tokens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from training.demo.tasks.tool_format import HOW, result_text
from training.demo.vocabulary import PIECES

VOCAB_SIZE = 1024
EOS, MASK, ROLE, ROLE_CLOSE, TURN_END = "<|endoftext|>", "<|mask|>", "<role>", "</role>", "<|role_end|>"
SPECIALS = (EOS, MASK, ROLE, ROLE_CLOSE, TURN_END)
ROLES: Mapping[str, str] = {"system": "SYSTEM", "user": "HUMAN", "assistant": "ASSISTANT", "tool": "OBSERVATION"}
THINKING_OFF = "detailed thinking off"

# A digit alone; a word with the space before it; any other sign with the spaces around it that do not belong to a word;
# each white-space character alone.
PIECE_PATTERN = r"\p{N}| ?\p{L}+| ?[^\s\p{L}\p{N}] (?=\p{N})| ?[^\s\p{L}\p{N}]|\n|\s"

CHAT_TEMPLATE = (
    "{%- set end = '" + THINKING_OFF + "<|role_end|>' -%}"
    "{%- set tools = tools | default(none) -%}{%- if tools -%}"
    "{%- set offer -%}# Tools\n<tools>\n{% for tool in tools %}{{ tool | tojson }}{{ '\n' }}{% endfor %}</tools>\n"
    + HOW
    + "{%- endset -%}"
    "{%- if not messages or messages[0].role != 'system' -%}"
    "<role>SYSTEM</role>{{ offer }}{{ '\n' }}{{ end }}"
    "{%- endif -%}"
    "{%- endif -%}"
    "{%- for message in messages -%}"
    "{%- if message.role == 'system' -%}"
    "<role>SYSTEM</role>{{ message.content }}"
    "{% if tools and loop.first %}{{ '\n' }}{{ offer }}{% endif %}{{ '\n' }}{{ end }}"
    "{%- elif message.role == 'user' -%}<role>HUMAN</role>{{ message.content }}<|role_end|>"
    "{%- elif message.role == 'assistant' -%}<role>ASSISTANT</role>{{ message.content or '' }}"
    "{%- for call in message.tool_calls or [] -%}"
    "{%- set function = call.function or call -%}"
    "{%- if message.content or not loop.first -%}{{ '\n' }}{%- endif -%}"
    '<tool_call>\n{"name": {{ function.name | tojson }}, "arguments": '
    "{%- if function.arguments is string %} {{ function.arguments }}"
    "{% else %} {{ function.arguments | tojson }}{% endif -%}"
    "}\n</tool_call>"
    "{%- endfor -%}<|role_end|>"
    "{%- elif message.role == 'tool' -%}"
    "{% if loop.first or loop.previtem.role != 'tool' %}<role>OBSERVATION</role>{% else %}{{ '\n' }}{% endif %}"
    "<tool_response>\n{{ message.content }}\n</tool_response>"
    "{%- if loop.last or loop.nextitem.role != 'tool' -%}<|role_end|>{%- endif -%}"
    "{%- else -%}{{ raise_exception('Unknown role ' ~ message.role) }}"
    "{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}<role>ASSISTANT</role>{%- endif -%}"
)


def make_tokenizer() -> Tokenizer:
    """Builds the tokenizer: all bytes, words and signs of `vocabulary.py`, and the special tokens, in this order."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    encoded_pieces = [level.pre_tokenize_str(piece)[0][0] for piece in PIECES]
    vocab = {piece: number for number, piece in enumerate([*alphabet, *encoded_pieces])}
    # No merges: a piece is a token if it is in the vocabulary (`ignore_merges`), otherwise single bytes.
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(PIECE_PATTERN), behavior="isolated"), level]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIALS])
    return tokenizer


class ChatEncoder:
    """Encodes messages as the chat template does, with message content as ordinary text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.eos, self.mask, self._role, self._role_close, self.turn_end = (tokenizer.token_to_id(s) for s in SPECIALS)
        self._names = {role: self._header(name) for role, name in ROLES.items()}

    def _header(self, name: str) -> list[int]:
        return [self._role, *self.text(name), self._role_close]

    def text(self, text: str) -> list[int]:
        """Encodes ordinary text. Names of special tokens in it stay text."""
        self.tokenizer.encode_special_tokens = True
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def prompt(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Encodes the conversation and the assistant's header. A tool's result follows a turn of another role."""
        ids: list[int] = []
        for message in messages:
            role, content = message["role"], message["content"]
            if role == "system":
                content += f"\n{THINKING_OFF}"
            if role == "tool":
                content = result_text(content)
            ids += [*self._names[role], *self.text(content), self.turn_end]
        return ids + self._names["assistant"]

    def answer(self, text: str) -> list[int]:
        """Encodes an answer with the end of its turn."""
        return [*self.text(text), self.turn_end]

    def decode(self, ids: Sequence[int]) -> str:
        """Decodes ids up to the first turn end or EOS."""
        stop = next((i for i, t in enumerate(ids) if t in (self.turn_end, self.eos)), len(ids))
        return str(self.tokenizer.decode(list(ids[:stop]), skip_special_tokens=True))


def save_tokenizer(tokenizer: Tokenizer, directory: Path, max_length: int) -> None:
    """Writes tokenizer.json and tokenizer_config.json with the chat template."""
    tokenizer.encode_special_tokens = False
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": EOS,
        "pad_token": EOS,
        "mask_token": MASK,
        "additional_special_tokens": [ROLE, ROLE_CLOSE, TURN_END],
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")
