"""Text: tokenizer, chat template, and stable text out of token ids. No torch, no transformers."""

from runtime.text.answer import Answer
from runtime.text.tokenizer import Tokenizer

__all__ = ["Answer", "Tokenizer"]
