"""Which ids mean mask and end, and which ids exist at all (decoding.md 1, runtime.md 1)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runtime.errors import ConfigError
from runtime.models.base import Family
from runtime.weights import files
from runtime.weights.checkpoint import Checkpoint


@dataclass(frozen=True)
class TokenIds:
    """`eos` is sorted and may be empty. `max_token_id`: the largest id a prompt may hold and the model may predict."""

    mask: int
    eos: tuple[int, ...]
    max_token_id: int


def read_tokens(
    checkpoint: Checkpoint,
    family: Family,
    *,
    mask_token_id: int | None = None,
    eos_token_ids: Sequence[int] | None = None,
    skip_tokenizer: bool = False,
) -> TokenIds:
    """Resolve the ids. Mask: flag, config, tokenizer. EOS: flag, else the union of config, generation_config,
    tokenizer and the family's turn-end tokens.

    Raises:
        ConfigError: no tokenizer files (unless `skip_tokenizer`), no mask id, or an id outside the vocabulary.
    """
    config, vocab_size = checkpoint.config, _vocab_size(checkpoint.config)
    vocab, named = ({}, {}) if skip_tokenizer else _tokenizer(checkpoint)
    largest = vocab_size - 1 if skip_tokenizer else max(vocab.values())
    if largest >= vocab_size:
        raise ConfigError(f"{checkpoint.path / 'tokenizer.json'} knows id {largest}, but config.json's vocab_size is "
                          f"{vocab_size}")  # fmt: skip

    mask = mask_token_id
    if mask is None:
        mask = _one_id("mask_token_id", config.get("mask_token_id"))
    if mask is None:
        words = [named.get("mask_token"), *family.mask_tokens]
        mask = next((vocab[w] for w in words if w is not None and w in vocab), None)
    if mask is None:
        raise ConfigError("config.json and the tokenizer name no mask token; give its id with --mask-token-id")

    if eos_token_ids is not None:
        eos = set(eos_token_ids)
    else:
        eos = set(_ids("eos_token_id", config.get("eos_token_id")))
        eos |= set(_ids("eos_token_id", checkpoint.generation_config.get("eos_token_id")))
        words = [named.get("eos_token"), *family.turn_end_tokens]
        eos |= {vocab[w] for w in words if w is not None and w in vocab}
    for flag, ids in (("--mask-token-id", [mask]), ("--eos-token-ids", sorted(eos))):
        for token in ids:
            if not 0 <= token < vocab_size:
                raise ConfigError(f"{flag}: id {token} is outside the vocabulary (0 to {vocab_size - 1})")
    if mask in eos:
        raise ConfigError(f"id {mask} is both the mask and an end token; set --mask-token-id or --eos-token-ids")
    return TokenIds(mask, tuple(sorted(eos)), largest)


def _vocab_size(config: Mapping[str, Any]) -> int:
    value = config.get("vocab_size")
    if not isinstance(value, int) or isinstance(value, bool) or value < 2:
        raise ConfigError(f"config.json: vocab_size must be a whole number of at least 2, not {value!r}")
    return value


def _tokenizer(checkpoint: Checkpoint) -> tuple[dict[str, int], dict[str, str]]:
    """All tokens with their ids, and the tokens that tokenizer_config.json or special_tokens_map.json name."""
    from tokenizers import Tokenizer

    text = files.read_text(checkpoint.path, "tokenizer.json", files.JSON_BYTES)
    if text is None:
        raise ConfigError(f"{checkpoint.path} holds no tokenizer.json; add the tokenizer's files, or use ids in and "
                          "ids out with skip_tokenizer=True")  # fmt: skip
    file = checkpoint.path / "tokenizer.json"
    try:
        vocab = Tokenizer.from_str(text).get_vocab(with_added_tokens=True)
    except Exception as error:  # the library raises bare Exception for a broken file
        raise ConfigError(f"{file} is not a readable tokenizer: {error}") from error
    if not vocab:
        raise ConfigError(f"{file} holds no token")
    named: dict[str, str] = {}
    for source in ("special_tokens_map.json", "tokenizer_config.json"):
        for key, value in checkpoint.read_json(source).items():
            word = value.get("content") if isinstance(value, dict) else value
            if key in ("mask_token", "eos_token") and isinstance(word, str):
                named[key] = word
    return vocab, named


def _one_id(field: str, value: Any) -> int | None:
    ids = list(_ids(field, value))
    if len(ids) > 1:
        raise ConfigError(f"{field} in the checkpoint's config must be one id, not {value!r}")
    return ids[0] if ids else None


def _ids(field: str, value: Any) -> Iterable[int]:
    """An id, a list of ids or nothing."""
    values = [] if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(v, int) and not isinstance(v, bool) for v in values):
        raise ConfigError(f"{field} in the checkpoint's config must be a token id or a list of them, not {value!r}")
    return values
