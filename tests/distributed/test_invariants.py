"""Tests that the invariants of docs/research/decoding-rules.md#invariants hold with two tensor parallel ranks.

With preemption, other requests, aborts and prefix hits, each answer is that of one process without other requests.
"""

import random

import pytest

from runtime import LLM, SamplingParams
from runtime.request.resolve import RequestContext, resolve
from tests.distributed.cases import served
from tests.engine.harness import check_accounting
from tests.matrix import marked

FLAGS = {"block_size": 8, "page_size": 4, "max_model_len": 64}
TIGHT = {"num_pages": 26, "max_num_batched_tokens": 48, "max_num_reqs": 5}  # preempts, and cuts prompts


def some_requests(seed, count):
    draw = random.Random(seed)
    shared = [draw.randrange(200) for _ in range(24)]
    found = []
    for n in range(count):
        prompt = shared[: draw.choice([0, 8, 16, 24])] + [draw.randrange(200) for _ in range(draw.randint(1, 12))]
        ask = SamplingParams(
            max_tokens=draw.randint(1, 24), ignore_eos=draw.random() < 0.7, seed=n,
            temperature=draw.choice([0, 0, 0.8]), top_k=draw.choice([0, 6]),
            decoding={"accept_threshold": draw.choice([0.3, 0.9])},
        )  # fmt: skip
        found.append((prompt, ask))
    return found


def run(llm, requests, seed):
    """Returns the tokens of requests that were not aborted. Requests arrive and are aborted between steps."""
    draw, engine = random.Random(seed), llm.engine
    pending = [
        resolve(ask, prompt, llm.info, RequestContext(id=f"r{n}", stream_mode="stable"))
        for n, (prompt, ask) in enumerate(requests)
    ]
    aborted = {f"r{n}" for n in range(len(requests)) if draw.random() < 0.2}
    answers = {spec.id: [] for spec in pending}
    ended = set()
    while pending or engine.has_work():
        while pending and draw.random() < 0.6:
            engine.add(pending.pop(0))
        for output in engine.step():
            assert output.error is None
            assert output.id not in ended
            answers[output.id] += output.new_tokens
            if output.finish_reason is not None:
                ended.add(output.id)
        for id in [id for id in aborted if draw.random() < 0.3]:
            engine.abort(id)
        check_accounting(engine)
    for id in aborted:
        engine.abort(id)
    assert engine.stats().pages_used == 0
    return {id: tokens for id, tokens in answers.items() if id not in aborted}


@pytest.mark.parametrize("seed", marked(range(2), quick=(0,)))
def test_no_answer_depends_on_other_requests(pair, tmp_path, seed):
    flags = served("llada2_tiny", tmp_path) | FLAGS
    requests = some_requests(seed, 10)
    with LLM(**flags, **TIGHT, tensor_parallel_size=2) as llm:
        found = run(llm, requests, seed)
        assert llm.engine.stats().preemptions or llm.engine.stats().prefix_hit_tokens
    with LLM(**flags, disable_prefix_caching=True) as alone:
        for id, tokens in found.items():
            prompt, ask = requests[int(id[1:])]
            (out,) = alone.generate([prompt], ask)
            assert out.token_ids == tokens
            if ask.ignore_eos:
                assert len(tokens) == ask.max_tokens
