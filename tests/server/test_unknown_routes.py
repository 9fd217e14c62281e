"""A path without a route: the answer names the route that is most similar."""

from __future__ import annotations

import httpx
import pytest


@pytest.mark.parametrize(
    ("path", "suggestion"),
    [
        ("/v1/chat/completion", "/v1/chat/completions"),
        ("/v1/v1/chat/completions", "/v1/chat/completions"),
        ("/v1/message", "/v1/messages"),
        ("/genrate", "/generate"),
        ("/v1/chat/completions/", "/v1/chat/completions"),
    ],
)
def test_a_similar_route_is_suggested(client: httpx.Client, path: str, suggestion: str) -> None:
    answer = client.post(path, json={})
    assert answer.status_code == 404
    error = answer.json()["error"]
    message = error if isinstance(error, str) else error["message"]
    assert message == f"there is no route POST {path}; did you mean {suggestion}?"


@pytest.mark.parametrize("path", ["/wp-login.php", "/" + "v1/chat/completions" * 4, "/%20%0a"])
def test_nothing_is_suggested_without_a_similar_route(client: httpx.Client, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 404
    assert "there is no route GET /" in answer.text
    assert "did you mean" not in answer.text
