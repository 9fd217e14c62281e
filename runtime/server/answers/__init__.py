"""What routes answer, as types for the OpenAPI alone."""

from __future__ import annotations

from typing_extensions import is_typeddict

from runtime.server.answers import common, messages, openai, own, responses, status


def types() -> list[type]:
    """All of them."""
    modules = common, openai, own, responses, messages, status
    every = [value for module in modules for value in vars(module).values() if is_typeddict(value)]
    return [kind for kind in dict.fromkeys(every) if kind.__module__.startswith(__name__) and kind.__name__[0] != "_"]
