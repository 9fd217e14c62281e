"""`think`: reasoning between ``<think>`` and ``</think>``. So do Qwen's models, Ling's, Nemotron and many others."""

from runtime.parsers.formats import ReasoningFormat, register_reasoning_format

register_reasoning_format(ReasoningFormat(key="think", opens="<think>", closes="</think>"))
