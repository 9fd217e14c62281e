"""Checkpoints whose config.json looks like that of a family, but that need another decoding."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runtime.errors import ConfigError
from runtime.models.llada2 import MODEL_TYPES
from runtime.models.published import published_defaults

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LookAlike:
    """Checkpoints that a family would take for its own.

    Attributes:
        model_types: values of `model_type` in config.json.
        applies: (config.json, names of the repository) -> whether this is such a checkpoint.
        sentence: what is wrong, and the fix.
        refused: the server does not start. Otherwise it logs a warning.
    """

    model_types: tuple[str, ...]
    applies: Callable[[Mapping[str, Any], Sequence[str]], bool]
    sentence: str
    refused: bool


def _is_introspective(config: Mapping[str, Any], names: Sequence[str]) -> bool:
    """Whether this is I-DLM, by its name or by its odd block size. All block sizes of SDAR are powers of two."""
    size = config.get("block_size")
    named = any(re.search(r"(?<![a-z0-9])i[-_]?dlm(?![a-z0-9])", name, re.IGNORECASE) for name in names)
    return named or (isinstance(size, int | float) and not isinstance(size, bool) and size % 2 == 1)


def _has_no_version(config: Mapping[str, Any], names: Sequence[str]) -> bool:
    """Whether this has the published vocabulary of LLaDA2.0 and 2.1, and no name tells which of them it is."""
    vocab = config.get("vocab_size")
    published = isinstance(vocab, int) and vocab > 156895 and config.get("expert_capacity") is None
    return published and published_defaults("llada2", names).repository is None


LOOK_ALIKES = (
    LookAlike(
        ("sdar",),
        _is_introspective,
        "config.json or the repository's name is that of an I-DLM model, which decodes causally (verify and draft) and "
        "is not supported yet; give the checkpoint of another model with --model",
        refused=True,
    ),
    LookAlike(
        MODEL_TYPES,
        _has_no_version,
        "config.json is equal for LLaDA2.0 and LLaDA2.1, and the name does not tell which of them this is; for "
        "LLaDA2.1, set --model-name llada2dot1_mini or llada2dot1_flash, otherwise --sampling-mode naive",
        refused=False,
    ),
)


def check_look_alikes(config: Mapping[str, Any], names: Sequence[str], sampling_mode: str | None) -> None:
    """Refuses a checkpoint that needs another decoding, or logs a warning with the flag that it may need.

    Args:
        config: content of config.json.
        names: names of the repository (``weights.repository``).
        sampling_mode: value of --sampling-mode, which answers such a warning.

    Raises:
        ConfigError: the checkpoint needs a decoding that is not supported.
    """
    for entry in LOOK_ALIKES:
        if config.get("model_type") not in entry.model_types or not entry.applies(config, names):
            continue
        if entry.refused:
            raise ConfigError(entry.sentence)
        if sampling_mode is None:
            log.warning("%s", entry.sentence)
