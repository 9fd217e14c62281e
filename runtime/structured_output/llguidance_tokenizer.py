"""A checkpoint's tokenizer as the grammar engine sees it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from runtime.errors import ConfigError
from runtime.weights import tokenizer_json

if TYPE_CHECKING:
    from llguidance import LLTokenizer


def read_vocabulary(directory: Path, *, size: int, eos: Sequence[int]) -> LLTokenizer:
    """Of ``tokenizer.json`` in `directory`.

    Args:
        size: of the model's vocabulary, the width of its logits. eos: the ids that end an answer.

    Raises:
        ConfigError: the engine cannot read it.
    """
    from llguidance import LLTokenizer  # only where a grammar is asked for

    data = tokenizer_json.read_tokenizer(directory)
    file = tokenizer_json.source_name(directory)
    if data is None:
        raise ConfigError(f"{file}: not found; grammars need the tokenizer")
    for token in data["added_tokens"]:
        if token["id"] in eos:
            token["special"] = True  # whatever the file says: it stands for no text
    try:
        return LLTokenizer(json.dumps(data), n_vocab=size, eos_token=list(eos))
    except Exception as error:  # the library raises nothing narrower
        raise ConfigError(f"{file}: grammars cannot be built on it: {error}") from None
