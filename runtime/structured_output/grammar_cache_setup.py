"""The grammars of a loaded engine, for the process that serves it and for the one that checks requests."""

from __future__ import annotations

from pathlib import Path

from runtime.request.engine_messages import EngineInfo
from runtime.structured_output.grammar_cache import Grammars
from runtime.structured_output.grammar_matcher import Facts
from runtime.structured_output.llguidance_tokenizer import read_vocabulary


def grammars_of(directory: Path, info: EngineInfo) -> Grammars:
    """Of the checkpoint in `directory`, whose tokenizer is read once a grammar is asked for."""
    facts = Facts.of(
        vocab_size=info.vocab_size,
        max_token_id=info.max_token_id,
        mask_id=info.mask_token_id,
        eos=info.eos_token_ids,
    )
    return Grammars(lambda: read_vocabulary(directory, size=info.vocab_size, eos=info.eos_token_ids), facts)
