"""Converts a checkpoint's tokenizer to llguidance's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from runtime.errors import ConfigError
from runtime.weights import tokenizer_json

if TYPE_CHECKING:
    from llguidance import LLTokenizer


def load_llguidance_tokenizer(directory: Path, *, size: int, eos: Sequence[int]) -> LLTokenizer:
    """Loads ``tokenizer.json`` of `directory`.

    Args:
        directory: The checkpoint.
        size: Vocabulary size of the model, the width of its logits.
        eos: EOS ids.

    Raises:
        ConfigError: llguidance cannot read the tokenizer.
    """
    from llguidance import LLTokenizer  # imported with the first grammar

    data = tokenizer_json.read_tokenizer(directory)
    file = tokenizer_json.source_name(directory)
    if data is None:
        raise ConfigError(f"{file}: not found; grammars need the tokenizer")
    for token in data["added_tokens"]:
        if token["id"] in eos:
            token["special"] = True  # EOS has no text, even if the file does not flag it as special
    try:
        return LLTokenizer(json.dumps(data), n_vocab=size, eos_token=list(eos))
    except Exception as error:  # the library raises nothing narrower
        raise ConfigError(f"{file}: grammars cannot be built on it: {error}") from None
