"""Records one answer with all its denoising steps, for the playground to replay without the model."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import httpx

SECONDS = 120.0


def record(url: str, prompt: str) -> str:
    """Returns the recording of the answer to a prompt, as JSON with one step per line."""
    body = {
        "messages": [{"role": "user", "content": prompt}],
        "stream": True,
        "stream_mode": "denoise",
        "stream_options": {"include_usage": True},
        "logprobs": True,
        "top_logprobs": 2,
    }
    steps: list[dict[str, Any]] = []
    scores: list[list[Any]] = []
    text = ""
    usage: dict[str, Any] = {}
    with httpx.Client(base_url=url, timeout=SECONDS, trust_env=False) as client:
        for chunk in _events(client, body):
            usage = chunk.get("usage") or usage
            for choice in chunk["choices"]:
                text += choice["delta"].get("content") or ""
                scores += [_score(entry) for entry in (choice["logprobs"] or {}).get("content", ())]
            if "denoise" in chunk:
                steps.append(chunk["denoise"])
        ids = sorted({token for step in steps for token in step["tokens"]})
        answer = client.post("/detokenize", json={"tokens": ids, "return_bytes": True}).raise_for_status().json()
    fields = {
        "prompt": prompt,
        "text": text,
        "prompt_tokens": usage["prompt_tokens"],
        "tokens": usage["completion_tokens"],
        "bytes": dict(zip(map(str, ids), answer["bytes"], strict=True)),
        "scores": scores,
    }
    return _with_lines(fields, steps)


def _events(client: httpx.Client, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    with client.stream("POST", "/v1/chat/completions", json=body) as response:
        response.raise_for_status()
        for line in response.iter_lines():
            if line.startswith("data: {"):
                yield json.loads(line.removeprefix("data: "))


def _score(entry: Mapping[str, Any]) -> list[Any]:
    """Returns the probability of a token, its runner-up, and the probability of that one."""
    p = round(math.exp(entry["logprob"]), 4)
    for other in entry["top_logprobs"]:
        if other["token"] != entry["token"]:
            return [p, other["token"], round(math.exp(other["logprob"]), 4)]
    return [p, None, 0]


def _with_lines(fields: Mapping[str, Any], steps: list[dict[str, Any]]) -> str:
    def dump(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

    head = ",\n".join(f"{dump(name)}:{dump(value)}" for name, value in fields.items())
    return "{" + head + ',\n"steps":[\n' + ",\n".join(map(dump, steps)) + "\n]}\n"
