"""Builds the grammar cache of an engine, for the engine process and for the process that checks requests."""

from __future__ import annotations

from pathlib import Path

from runtime.request.engine_messages import EngineInfo
from runtime.structured_output.grammar_cache import GrammarCache
from runtime.structured_output.grammar_matcher import GrammarFacts
from runtime.structured_output.llguidance_tokenizer import load_llguidance_tokenizer


def create_grammar_cache(directory: Path, info: EngineInfo) -> GrammarCache:
    """Returns a cache for the checkpoint in `directory`. The tokenizer is loaded with the first grammar."""
    facts = GrammarFacts.of(
        vocab_size=info.vocab_size,
        max_token_id=info.max_token_id,
        mask_id=info.mask_token_id,
        eos=info.eos_token_ids,
    )
    return GrammarCache(
        lambda: load_llguidance_tokenizer(directory, size=info.vocab_size, eos=info.eos_token_ids), facts
    )
