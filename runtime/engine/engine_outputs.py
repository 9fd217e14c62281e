"""What a client is told of its request after a step."""

from __future__ import annotations

from runtime.engine.request import Request
from runtime.request.engine_messages import EngineOutput, TokenLogprobs


def news(request: Request) -> EngineOutput:
    """All that has become stable since the last time, and how it is with the request."""
    output = EngineOutput(
        id=request.spec.id,
        nfe=request.nfe,
        new_tokens=request.tokens[request.num_sent_tokens : request.num_stable_tokens].tolist(),
        finish_reason=request.reason,
        eos=request.hit_eos,
        cached_tokens=request.cached_tokens,
        queue_seconds=request.queue_seconds,
        prefill_seconds=request.prefill_seconds,
    )
    if request.logprobs is not None:
        output.logprobs = _logprobs(request)
    if request.stream_steps:
        output.start, output.tokens, output.masked = request.last_step_event
    request.num_sent_tokens = request.num_stable_tokens
    return output


def _logprobs(request: Request) -> TokenLogprobs:
    """Of the new tokens, and of the one that ended the answer."""
    assert request.logprobs is not None
    last = request.num_stable_tokens + request.hit_eos
    found = TokenLogprobs(*request.logprobs.between(request.num_sent_tokens, last))
    if request.hit_eos:
        found.end = int(request.tokens[request.num_stable_tokens])
    return found
