"""Names of tokenizer files, and what their fields mean, for the reader, the cache and the converter."""

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
# What a tokenizer.json is converted from; each of these formats is sufficient.
BPE_FILES = ("vocab.json", "merges.txt")
SENTENCEPIECE_FILES = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model")  # the first may be tiktoken's
TIKTOKEN_FILE, TIKTOKEN_SUFFIX = "tiktoken.model", ".tiktoken"
SETTING_FILES = (ADDED_FILE, SPECIAL_FILE, CONFIG_FILE, "config.json")

NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
SPECIAL_LISTS = ("additional_special_tokens", "extra_special_tokens")
MAX_ID_DIGITS = 9  # of a token's id; more are the id of no token
SPACE = "▁"  # how sentencepiece's pieces spell a space
TOKEN_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")

# A directory for converted files where the cache cannot be written. Child processes inherit the variable. Its name does
# not begin as those of flags do.
TEMPORARY_VARIABLE = "CONVERTED_TOKENIZERS_OF_UNMASK"

REMEDY = (
    "make tokenizer.json where the tokenizer loads, with "
    "transformers.AutoTokenizer.from_pretrained(...).backend_tokenizer.save('tokenizer.json'), and put it into the "
    "checkpoint's directory"
)


def vocabulary_files(directory: Path) -> list[str]:
    """Names of the files in `directory` that a tokenizer can be converted from."""
    names = [*BPE_FILES, *SENTENCEPIECE_FILES, TIKTOKEN_FILE]
    return [name for name in names if checkpoint_files.has(directory, name)] + sorted(
        path.name for path in directory.glob(f"*{TIKTOKEN_SUFFIX}")
    )


def token_text(value: Any) -> str | None:
    """The text of a token that a config names, as text or as an object with `content`; None for anything else."""
    value = value.get("content") if isinstance(value, Mapping) else value
    return value if isinstance(value, str) else None


def declared_tokens(config: Mapping[str, Any], file: str) -> dict[int, dict[str, Any]]:
    """Returns the entries of `added_tokens_decoder` by their ids. ConfigError for a malformed one."""
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
    """Whether texts need `with_prefix`: a Metaspace adds no space to a text that begins with one; sentencepiece does.

    Only for converted tokenizers: the ids of a published tokenizer.json are those that the tokenizers library returns.
    """
    splitter = data.get("pre_tokenizer") or {}
    return splitter.get("type") == "Metaspace" and splitter.get("prepend_scheme") == "first"


def with_prefix(text: str) -> str:
    """`text` with the space that sentencepiece would add, if Metaspace does not."""
    return f" {text}" if text.startswith((" ", SPACE)) else text


def use_temporary_directory(path: Path) -> None:
    """Has this process and its children put converted files at `path` where the cache cannot be written."""
    os.environ[TEMPORARY_VARIABLE] = str(path)
