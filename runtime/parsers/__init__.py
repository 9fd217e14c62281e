"""Parsers of model output in `chat_output.py`, and one file per format of reasoning and tool calls.

Importing the package registers the formats.
"""

from runtime.parsers import gemma4, hermes, qwen3_coder, think  # noqa: F401  they register themselves
