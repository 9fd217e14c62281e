"""A request without a prompt is refused with the field and the fix."""

from __future__ import annotations

import httpx
import pytest

EMPTY = "is empty; give a text or token ids with at least one token, or messages for a chat"
NO_MESSAGES = "must be a list of at least one message"


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/v1/completions", {"prompt": ""}, f"prompt: {EMPTY}"),
        ("/v1/completions", {"prompt": []}, f"prompt: {EMPTY}"),
        ("/v1/completions", {"prompt": ["a", ""]}, f"prompt[1]: {EMPTY}"),
        ("/generate", {"prompt": ""}, f"prompt: {EMPTY}"),
        ("/generate", {"messages": []}, f"messages: {NO_MESSAGES}"),
        ("/generate", {}, "prompt: give either prompt or messages"),
        ("/v1/chat/completions", {"messages": []}, f"messages: {NO_MESSAGES}"),
        ("/v1/responses", {"input": []}, f"input: {NO_MESSAGES}"),
        ("/v1/messages", {"messages": [], "max_tokens": 1}, f"messages: {NO_MESSAGES}"),
    ],
)
def test_an_empty_prompt_is_refused(client: httpx.Client, path: str, body: dict[str, object], message: str) -> None:
    answer = client.post(path, json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == message
