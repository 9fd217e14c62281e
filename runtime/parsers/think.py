"""`think`: reasoning between ``<think>`` and ``</think>``, as in Qwen's models, Ling, Nemotron and many others."""

from runtime.parsers.formats import ReasoningFormat, register_reasoning_format

register_reasoning_format(ReasoningFormat(key="think", opens="<think>", closes="</think>"))
