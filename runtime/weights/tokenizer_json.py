"""Reads ``tokenizer.json``: the checkpoint's own, or one that is converted from other formats.

A checkpoint may have `vocab.json` and `merges.txt`, a sentencepiece model or a tiktoken file instead. A child process
(``runtime.weights.tokenizer_conversion``) converts those with transformers, which no serving process imports. The
result is cached by the content of its inputs. Without a writable cache it is a temporary file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runtime.errors import ConfigError
from runtime.weights import checkpoint_files
from runtime.weights.tokenizer_formats import (
    CONFIG_FILE,
    FILE,
    SPECIAL_FILE,
    SPECIAL_LISTS,
    TOKEN_FLAGS,
    declared_tokens,
    token_text,
    vocabulary_files,
)

_MARKUP = re.compile(r"[<\[{|].+[>\]}|]", re.DOTALL)


def read_tokenizer(directory: Path) -> dict[str, Any] | None:
    """Returns the content of the checkpoint's ``tokenizer.json``, converted from other formats if there is none.

    Tokens that only ``tokenizer_config.json`` or ``special_tokens_map.json`` declares are among its `added_tokens`.

    Args:
        directory: the checkpoint's.

    Returns:
        The parsed object; None if the checkpoint holds no tokenizer in any known format.

    Raises:
        ConfigError: a file cannot be read, or the tokenizer cannot be converted.
    """
    data = checkpoint_files.read_json(directory, FILE)
    if data is None:
        data = _converted(directory)
    if data is not None:
        _add_declared(data, directory)
    return data


def source_name(directory: Path) -> str:
    """Returns the file that messages about the tokenizer name."""
    if checkpoint_files.has(directory, FILE):
        return str(directory / FILE)
    found = vocabulary_files(directory)
    return f"{directory / FILE} (converted from {' and '.join(found)})" if found else str(directory / FILE)


def named_tokens(directory: Path) -> dict[str, str]:
    """Returns name -> text of `bos_token` and similar entries; a checkpoint may name further tokens.

    ``tokenizer_config.json`` takes precedence over ``special_tokens_map.json``. Raises ConfigError for an unreadable
    file.
    """
    named: dict[str, str] = {}
    for file in (SPECIAL_FILE, CONFIG_FILE):
        config = checkpoint_files.read_json(directory, file) or {}
        extra = config.get("extra_special_tokens")
        entries = {**(extra if isinstance(extra, dict) else {}), **config}
        named |= {
            name: text
            for name, value in entries.items()
            if name.endswith("_token") and (text := token_text(value)) is not None
        }
    return named


def _special_texts(directory: Path) -> set[str]:
    """Returns the texts of all tokens that the two files declare special, by any name."""
    found = set(named_tokens(directory).values())
    for file in (SPECIAL_FILE, CONFIG_FILE):
        config = checkpoint_files.read_json(directory, file) or {}
        for name in SPECIAL_LISTS:
            value = config.get(name)
            entries = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
            found |= {text for entry in entries if (text := token_text(entry)) is not None}
    return found


def _is_token(entry: Any) -> bool:
    return isinstance(entry, Mapping) and isinstance(entry.get("id"), int) and isinstance(entry.get("content"), str)


def _add_declared(data: dict[str, Any], directory: Path) -> None:
    """Adds tokens to `added_tokens` that only the other files declare, and flags those that they declare special."""
    entries = data.get("added_tokens") or []
    if not isinstance(entries, list) or not all(_is_token(entry) for entry in entries):
        raise ConfigError(f"{source_name(directory)}: added_tokens must be a list of objects with id and content")
    added = data["added_tokens"] = list(entries)
    known = {token["id"] for token in added}
    texts = {token["content"] for token in added}
    config = checkpoint_files.read_json(directory, CONFIG_FILE) or {}
    for number, token in sorted(declared_tokens(config, str(directory / CONFIG_FILE)).items()):
        if number not in known:
            added.append({"id": number, **token})
            known.add(number)
            texts.add(token["content"])
    special = _special_texts(directory) - {token["content"] for token in added if token.get("special")}
    special -= _ordinary(special, data.get("model"))
    data["added_tokens"] = [{**token, "special": True} if token["content"] in special else token for token in added]
    vocabulary = data["model"].get("vocab") if special else None
    if not isinstance(vocabulary, Mapping):
        return
    for text in sorted(special - texts):
        if text in vocabulary:
            flags = dict.fromkeys(TOKEN_FLAGS, False) | {"special": True}
            data["added_tokens"].append({"id": vocabulary[text], "content": text, **flags})


def _ordinary(texts: set[str], model: Any) -> set[str]:
    """Returns those of `texts` that encode ordinary text, such as a padding token "!".

    They cannot become special, because the text could not be encoded without them.
    """
    if not texts or not isinstance(model, Mapping):
        return set(texts)
    if model.get("type") != "BPE":
        return {text for text in texts if not _MARKUP.fullmatch(text)}
    found = {text for text in texts if len(text) < 2}
    for merge in model.get("merges") or ():
        merged = "".join(merge) if isinstance(merge, list) else merge.replace(" ", "", 1)
        if merged in texts:
            found.add(merged)
    return found


def _converted(directory: Path) -> dict[str, Any] | None:
    """Returns the converted tokenizer of the checkpoint; None if it has none."""
    names = vocabulary_files(directory)
    if not names:
        return None
    from runtime.weights.tokenizer_cache import converted  # not needed with tokenizer.json

    return converted(directory, names)
