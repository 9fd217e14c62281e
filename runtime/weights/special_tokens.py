"""Resolves the ids of mask, EOS and BOS, and the largest token id (docs/research/decoding-rules.md#special-tokens)."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from runtime.errors import ConfigError
from runtime.models.base import ModelFamily, ModelInfo
from runtime.models.config_reader import ConfigReader
from runtime.weights import tokenizer_json
from runtime.weights.checkpoint import Checkpoint

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TokenIds:
    """Special token ids of a model.

    Attributes:
        mask: The mask id; None in a family without one.
        eos: EOS ids, sorted; may be empty.
        bos: First id of a prompt that is plain text; None if there is none.
        max_token_id: Largest id that a prompt may have and the model may predict.
    """

    mask: int | None
    eos: tuple[int, ...]
    bos: int | None
    max_token_id: int


def resolve_token_ids(
    checkpoint: Checkpoint,
    family: ModelFamily[Any],
    model_info: ModelInfo,
    *,
    mask_token_id: int | None = None,
    eos_token_ids: Sequence[int] | None = None,
    skip_tokenizer: bool = False,
) -> TokenIds:
    """Resolves the special token ids.

    The mask id is from the flag, config.json or the tokenizer, in this order. EOS ids are from the flag, else the union
    of config.json, generation_config.json, the tokenizer and the family's turn-end tokens. Without any of these, the
    family's own id is used if the vocabulary has it. BOS is that of config.json or, in some
    families, of the tokenizer.

    Raises:
        ConfigError: There are no tokenizer files (unless `skip_tokenizer`), no mask id, or an id is outside the
            vocabulary, including BOS.
    """
    vocab_size = model_info.vocab_size
    vocab, named = ({}, {}) if skip_tokenizer else _tokenizer(checkpoint)
    largest = vocab_size - 1 if skip_tokenizer else max(vocab.values())
    if largest >= vocab_size:
        file = tokenizer_json.source_name(checkpoint.path)
        raise ConfigError(f"{file} has id {largest}, but config.json's vocab_size is {vocab_size}")

    if not family.masks and mask_token_id is not None:
        raise ConfigError(f"--mask-token-id {mask_token_id}: the {family.key} family has no mask; leave it out")
    mask = model_info.mask_id if mask_token_id is None else mask_token_id
    if mask is not None:
        _check("config.json: mask_token_id" if mask_token_id is None else "--mask-token-id", [mask], vocab_size)
    if mask is None and family.masks:
        candidates = [named.get("mask_token"), *family.mask_tokens]
        mask = next((vocab[w] for w in candidates if w is not None and w in vocab), None)
    if mask is None and family.mask_id is not None and family.mask_id < vocab_size:
        mask = family.mask_id
    if mask is None and family.masks:
        hint = f" ({family.mask_hint})" if family.mask_hint else ""
        raise ConfigError(f"config.json and the tokenizer name no mask token; give its id with --mask-token-id{hint}")

    if eos_token_ids is not None:
        _check("--eos-token-ids", eos_token_ids, vocab_size)
        eos = set(eos_token_ids)
    else:
        generation = ConfigReader(checkpoint.generation_config, "generation_config.json").ids("eos_token_id")
        _check("config.json: eos_token_id", model_info.eos_ids, vocab_size)
        _check("generation_config.json: eos_token_id", generation, vocab_size)
        eos = {*model_info.eos_ids, *generation}
        candidates = [named.get("eos_token"), *family.turn_end_tokens]
        eos |= {vocab[w] for w in candidates if w is not None and w in vocab}
        eos = eos or {id for id in family.eos_ids if id < vocab_size}
    bos = model_info.bos_id
    if family.tokenizer_bos:
        bos = vocab.get(named.get("bos_token", ""))
        if bos is None and vocab:
            log.warning(
                "no BOS token before prompts of text, although %s models are trained with one: tokenizer_config.json "
                "has no bos_token of the vocabulary", family.key,
            )  # fmt: skip
    elif bos is not None:
        _check("config.json: bos_token_id", [bos], vocab_size)
    if mask in eos:
        raise ConfigError(f"id {mask} is both the mask and an end token; set --mask-token-id or --eos-token-ids")
    return TokenIds(mask, tuple(sorted(eos)), bos, largest)


def _check(source: str, ids: Sequence[int], vocab_size: int) -> None:
    """Raises ConfigError for an id outside the vocabulary."""
    for id in ids:
        if not 0 <= id < vocab_size:
            raise ConfigError(f"{source} {id} is outside the vocabulary (0 to {vocab_size - 1})")


def _tokenizer(checkpoint: Checkpoint) -> tuple[dict[str, int], dict[str, str]]:
    """Returns token -> id, and the named tokens of tokenizer_config.json or special_tokens_map.json."""
    from tokenizers import Tokenizer

    data = tokenizer_json.read_tokenizer(checkpoint.path)
    file = tokenizer_json.source_name(checkpoint.path)
    if data is None:
        raise ConfigError(f"{checkpoint.path} holds no tokenizer; add its files, or {tokenizer_json.REMEDY}")
    try:
        vocab = Tokenizer.from_str(json.dumps(data)).get_vocab(with_added_tokens=True)
    except Exception as error:  # the library raises bare Exception for a broken file
        raise ConfigError(f"{file} is not a readable tokenizer: {error}") from error
    if not vocab:
        raise ConfigError(f"{file} holds no token")
    return vocab, tokenizer_json.named_tokens(checkpoint.path)
