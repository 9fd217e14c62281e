"""Makes the outputs that the engine returns for a request."""

from __future__ import annotations

from runtime.engine.request import Request
from runtime.request.engine_messages import EngineOutput, TokenLogprobs


def make_output(request: Request) -> EngineOutput:
    """Returns the tokens that have become stable since the last output, and the state of the request."""
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
        output.logprobs = _make_logprobs(request)
    if request.stream_steps:
        output.start, output.tokens, output.masked = request.last_step_event
    request.num_sent_tokens = request.num_stable_tokens
    return output


def _make_logprobs(request: Request) -> TokenLogprobs:
    """Returns the logprobs of the new tokens, and of the end-of-sequence token."""
    assert request.logprobs is not None
    last = request.num_stable_tokens + request.hit_eos
    found = TokenLogprobs(*request.logprobs.between(request.num_sent_tokens, last))
    if request.hit_eos:
        found.end = int(request.tokens[request.num_stable_tokens])
    return found
