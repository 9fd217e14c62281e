"""Text: tokenizer, chat template, and stable text out of token ids. No torch, no transformers."""

from runtime.tokenizer.detokenizer import Answer
from runtime.tokenizer.tokenizer import Tokenizer

__all__ = ["Answer", "Tokenizer"]
