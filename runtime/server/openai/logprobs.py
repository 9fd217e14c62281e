"""Log-probabilities in the forms of chat completions and completions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from runtime.request.validation import refuse
from runtime.server.openai.protocol import ChatLogprobs, CompletionLogprobs, CompletionRequest
from runtime.server.serving.logprobs import LogprobStreamer, PromptEcho, TokenEntry, token_text


class ChatLogprobStreamer(LogprobStreamer):
    """The form of chat completions."""

    def empty(self) -> ChatLogprobs:
        return {"content": [], "refusal": None}

    def append(self, field: ChatLogprobs, entries: Iterable[TokenEntry]) -> None:
        super().append(field["content"], entries)


class CompletionLogprobStreamer(LogprobStreamer):
    """The form of completions. Only they return tokens of an echoed prompt, and then the end-of-sequence token."""

    def empty(self) -> CompletionLogprobs:
        return {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}

    def append(self, field: CompletionLogprobs, entries: Iterable[TokenEntry]) -> None:
        """Appends tokens. Top tokens always include the token of the position."""
        for entry, offset in entries:
            top: dict[str, float] | None = None
            if entry.logprob is not None:
                top = {}
                for token, value in (*entry.top, (entry.id, entry.logprob)):
                    top.setdefault(token_text(self._pieces(token)), value)
            field["tokens"].append(token_text(self._pieces(entry.id)))
            field["token_logprobs"].append(entry.logprob)
            field["top_logprobs"].append(top)
            field["text_offset"].append(offset)

    def entries(self) -> Sequence[TokenEntry]:
        choice, echo, found = self._choice, self._echo, self.take_new()
        if echo is None:
            return found
        # lm-eval requests one token after a prompt and drops the last entry, also if the model ends there
        if choice.end_logprob is not None and choice.eos:
            found.append((choice.end_logprob, len(choice.text or "")))
        base = len(echo.text(choice))
        return echo.entries(choice) + [(entry, base + offset) for entry, offset in found]


def parse_echo(body: CompletionRequest, prompts: Sequence[str | list[int]]) -> PromptEcho | None:
    """Returns the echo, None if not requested. Raises RequestError for fields that conflict with it or require it."""
    scores = bool(body.echo) and body.set_fields().get("logprobs") is not None
    if body.prompt_logprobs_stride is not None and not scores:
        raise refuse("prompt_logprobs_stride", "only with echo true and logprobs; leave it out")
    if scores and body.set_fields().get("logprobs_mode") == "processed":
        raise refuse("logprobs_mode", "processed does not go with echo, as no token of a prompt is drawn; leave it out")
    if not body.echo:
        return None
    if body.suffix:
        raise refuse("echo", "does not go with a suffix; leave one of them out")
    if scores and body.stream:
        raise refuse("echo", "cannot be combined with logprobs and stream; leave one of them out")
    stride, parse_special = body.prompt_logprobs_stride or 1, body.parse_special is True
    return PromptEcho(prompts, silent=body.max_tokens == 0, stride=stride, parse_special=parse_special)
