"""A word to who continues a prompt with a model that was tuned on conversations, and is answered with nothing."""

from __future__ import annotations

from collections.abc import Iterable

from runtime.request.engine_messages import EngineInfo
from runtime.request.output import CompletionState
from runtime.tokenizer import Tokenizer

WARNING = (
    "the model ended at once: it was tuned on conversations, and this prompt is not in its chat template; send it as "
    "messages, to /v1/chat/completions or /generate"
)


def template_warning(choices: Iterable[CompletionState], info: EngineInfo, tokenizer: Tokenizer) -> dict[str, str]:
    """`warning`, where one of `choices` has ended without a word and the template had no part in its prompt: that
    writes special tokens, and text never does."""
    if not tokenizer.has_template:
        return {}
    begins = len(info.with_bos([]))
    for choice in choices:
        silent = choice.eos and not (choice.text or "").strip()
        if silent and tokenizer.special.isdisjoint(choice.spec.prompt[begins:]):
            return {"warning": WARNING}
    return {}
