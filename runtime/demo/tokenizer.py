"""The demo's tokenizer: a small byte-level BPE with every digit a token, and the LLaDA2 chat format (models.md 1)."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from runtime.demo.tasks import all_tasks

VOCAB_SIZE = 1024
EOS, MASK, ROLE, ROLE_CLOSE, TURN_END = "<|endoftext|>", "<|mask|>", "<role>", "</role>", "<|role_end|>"
SPECIALS = (EOS, MASK, ROLE, ROLE_CLOSE, TURN_END)
ROLES: Mapping[str, str] = {"system": "SYSTEM", "user": "HUMAN", "assistant": "ASSISTANT"}
THINKING_OFF = "detailed thinking off"

# A digit alone; a word with the space before it; any other sign alone, with the space before it; runs of white space.
_PIECES = r"\p{N}| ?\p{L}+| ?[^\s\p{L}\p{N}]|\n|\s"
_SPELLED = frozenset({"spell", "reverse"})  # their answers are letters, no source of useful merges

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message.role == 'system' -%}"
    "<role>SYSTEM</role>{{ message.content }}\n" + THINKING_OFF + "<|role_end|>"
    "{%- elif message.role == 'user' -%}<role>HUMAN</role>{{ message.content }}<|role_end|>"
    "{%- elif message.role == 'assistant' -%}<role>ASSISTANT</role>{{ message.content }}<|role_end|>"
    "{%- else -%}{{ raise_exception('Unknown role ' ~ message.role) }}"
    "{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}<role>ASSISTANT</role>{%- endif -%}"
)


def train_tokenizer(seed: int = 0, samples_per_task: int = 2000) -> Tokenizer:
    """Learn the merges from the tasks' own text. The same seed gives the same tokenizer."""

    def corpus() -> list[str]:
        texts = [*ROLES.values(), THINKING_OFF] * samples_per_task
        for item in all_tasks().values():
            rng = random.Random(f"tokenizer/{item.name}/{seed}")
            for _ in range(samples_per_task):
                sample = item.make(rng)
                texts += [m["content"] for m in sample.messages]
                if item.name not in _SPELLED:
                    texts.append(sample.answer)
        return texts

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(SPECIALS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIALS])
    return tokenizer


class ChatEncoder:
    """Messages to ids, as the chat template gives them, with message content always ordinary text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.eos, self.mask, self._role, self._role_close, self.turn_end = (tokenizer.token_to_id(s) for s in SPECIALS)
        self._names = {role: self._header(name) for role, name in ROLES.items()}

    def _header(self, name: str) -> list[int]:
        return [self._role, *self.text(name), self._role_close]

    def text(self, text: str) -> list[int]:
        """Ids of ordinary text: special tokens spelt in it stay text."""
        self.tokenizer.encode_special_tokens = True
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def prompt(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """The conversation and the header of the assistant's turn."""
        ids: list[int] = []
        for message in messages:
            tail = f"\n{THINKING_OFF}" if message["role"] == "system" else ""
            ids += [*self._names[message["role"]], *self.text(message["content"] + tail), self.turn_end]
        return ids + self._names["assistant"]

    def answer(self, text: str) -> list[int]:
        """An answer and its turn's end."""
        return [*self.text(text), self.turn_end]

    def decode(self, ids: Sequence[int]) -> str:
        """Text up to the first turn end or EOS."""
        stop = next((i for i, t in enumerate(ids) if t in (self.turn_end, self.eos)), len(ids))
        return str(self.tokenizer.decode(list(ids[:stop]), skip_special_tokens=True))


def save_tokenizer(tokenizer: Tokenizer, directory: Path, max_length: int) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja."""
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
