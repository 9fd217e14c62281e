"""Names and fields of tokenizer files, for reader, cache and converter."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runtime.errors import ConfigError
from runtime.weights import checkpoint_files

FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
SPECIAL_FILE = "special_tokens_map.json"
ADDED_FILE = "added_tokens.json"
# Sources of conversion; each of these formats is sufficient.
BPE_FILES = ("vocab.json", "merges.txt")
SENTENCEPIECE_FILES = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model")  # the first may be tiktoken's
TIKTOKEN_FILE, TIKTOKEN_SUFFIX = "tiktoken.model", ".tiktoken"
SETTING_FILES = (ADDED_FILE, SPECIAL_FILE, CONFIG_FILE, "config.json")

NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
SPECIAL_LISTS = ("additional_special_tokens", "extra_special_tokens")
MAX_ID_DIGITS = 9  # of a token id
SPACE = "▁"  # how sentencepiece's pieces spell a space
TOKEN_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")

# Directory for converted files if the cache is not writable, inherited by child processes. The name must not begin with
# the prefix of flags.
TEMPORARY_VARIABLE = "CONVERTED_TOKENIZERS_OF_UNMASK"

REMEDY = (
    "make tokenizer.json where the tokenizer loads, with "
    "transformers.AutoTokenizer.from_pretrained(...).backend_tokenizer.save('tokenizer.json'), and put it into the "
    "checkpoint's directory"
)


def vocabulary_files(directory: Path) -> list[str]:
    """Returns the files in `directory` that a tokenizer can be converted from."""
    names = [*BPE_FILES, *SENTENCEPIECE_FILES, TIKTOKEN_FILE]
    return [name for name in names if checkpoint_files.has(directory, name)] + sorted(
        path.name for path in directory.glob(f"*{TIKTOKEN_SUFFIX}")
    )


def token_text(value: Any) -> str | None:
    """Returns the text of a token in a config, a string or an object with `content`; None for anything else."""
    value = value.get("content") if isinstance(value, Mapping) else value
    return value if isinstance(value, str) else None


def declared_tokens(config: Mapping[str, Any], file: str) -> dict[int, dict[str, Any]]:
    """Returns the entries of `added_tokens_decoder` by id. Raises ConfigError for a malformed one."""
    entries = config.get("added_tokens_decoder") or {}
    if not isinstance(entries, Mapping):
        raise ConfigError(f"{file}: added_tokens_decoder must be an object, not {type(entries).__name__}; remove it")
    found = {}
    for key, token in entries.items():
        text = token_text(token)
        is_id = key.isascii() and key.isdecimal() and len(key) <= MAX_ID_DIGITS
        if not is_id or text is None:
            raise ConfigError(
                f"{file}: added_tokens_decoder[{key[:40]!r}] must map a token id to an object with content"
            )
        flags = token if isinstance(token, Mapping) else {}
        found[int(key)] = {"content": text, **{name: bool(flags.get(name)) for name in TOKEN_FLAGS}}
    return found


def lacks_prefix(data: Mapping[str, Any]) -> bool:
    """Returns whether texts need `with_prefix`.

    Metaspace adds no space to a text that begins with one; sentencepiece does. This applies to converted tokenizers
    only: ids of a published tokenizer.json are those of the tokenizers library.
    """
    splitter = data.get("pre_tokenizer") or {}
    return splitter.get("type") == "Metaspace" and splitter.get("prepend_scheme") == "first"


def with_prefix(text: str) -> str:
    """Adds the space that sentencepiece would add and Metaspace does not."""
    return f" {text}" if text.startswith((" ", SPACE)) else text


def use_temporary_directory(path: Path) -> None:
    """Sets the directory for converted files of this process and its children, if the cache is not writable."""
    os.environ[TEMPORARY_VARIABLE] = str(path)
