"""Parsers of model output: reasoning and tool calls, one file per format. Importing the package registers them."""

from runtime.parsers import gemma4, hermes, qwen3_coder, think  # noqa: F401  they register themselves
