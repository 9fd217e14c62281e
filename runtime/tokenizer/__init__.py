"""Tokenizer, chat template and incremental detokenizer. Imports neither torch nor transformers."""

from runtime.tokenizer.detokenizer import IncrementalDetokenizer
from runtime.tokenizer.tokenizer import Tokenizer

__all__ = ["IncrementalDetokenizer", "Tokenizer"]
