"""Tests of slow grammar masks: they end their own request with an error. After two such requests they are refused."""

import os
from types import SimpleNamespace
from typing import Any

import pytest

from runtime import LLM, SamplingParams
from runtime.errors import RequestError
from runtime.request.structured import grammar_of
from runtime.structured_output import grammar_cache as module
from runtime.structured_output import grammar_matcher, sandbox
from runtime.structured_output.grammar_cache import GrammarCache, GrammarError
from runtime.structured_output.grammar_matcher import GrammarMatcher, MaskLimits
from tests.structured_output.slow_grammars import COMPILER

CHAT = [{"role": "user", "content": "Anna, 34, lives in Rome. Write this as JSON."}]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Replaces the thread's CPU time that grammars read. Each call advances it by `step` seconds."""
    found = {"now": 0.0, "step": 0.0}

    def thread_time() -> float:
        found["now"] += found["step"]
        return found["now"]

    monkeypatch.setattr(grammar_matcher, "time", SimpleNamespace(thread_time=thread_time))
    return found


def test_a_grammar_with_slow_masks_is_refused_before_it_reaches_the_engine(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "COMMAND", COMPILER)
    checker = sandbox.GrammarSandbox(llm.tokenizer.directory, llm.engine.info, os.environ)
    monkeypatch.setattr(llm.engine.grammars, "checker", checker)
    steps = llm.engine.stats().steps
    with pytest.raises(RequestError, match=r"^structured_outputs\.regex: cannot be applied: .*CPU time"):
        llm.generate([CHAT], SamplingParams(structured_outputs={"regex": "mask for 20 ms[a-z]{40}"}))
    assert llm.engine.stats().steps == steps
    checker.close()


def test_an_answer_that_exceeds_its_time_fails_alone(llm: LLM, clock: dict[str, float]) -> None:
    grammars = llm.engine.grammars
    text = grammar_of({"regex": "[a-z]{40}"}, "x")
    first, second = grammars.compile(text, "x"), grammars.compile(text, "x")
    clock["step"] = MaskLimits().token_seconds / 2
    steps = _walk(first, 40)
    assert (steps, first.error) == (40, "")
    clock["step"] = MaskLimits().seconds
    third = grammars.compile(text, "x")
    assert _walk(third, 40) < 3
    assert third.error == "it takes more than 0.25 s and 2 ms per token of CPU time to apply; send a simpler one"
    clock["step"] = 0.0
    assert _walk(second, 40) == 40
    assert second.error == ""


def _walk(answer: GrammarMatcher, tokens: int, pick: int = 0) -> int:
    """Accepts up to `tokens` tokens, each the allowed one with index `pick`; returns the number of accepted tokens."""
    import numpy as np

    for taken in range(tokens):
        row = np.zeros(answer.facts.mask_len, dtype=np.int32)
        answer.fill_bitmask(row)
        if answer.error or answer.finished:
            return taken
        allowed = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
        answer.accept_token(int(allowed[pick]))
    return tokens


def test_a_grammar_is_refused_after_two_answers_that_exceeded_the_limits(llm: LLM, clock: dict[str, float]) -> None:
    slow, quick = {"regex": "[0-9]{30}"}, SamplingParams(max_tokens=8)
    params = SamplingParams(structured_outputs=slow, max_tokens=40)
    grammars = llm.engine.grammars
    grammars.compile(grammar_of(slow, "structured_outputs"), "x")
    alone = llm.generate([CHAT], quick)[0].token_ids
    for _ in range(2):
        clock["step"] = 0.0
        llm.generate([CHAT], params)
        clock["step"] = 1.0
        with pytest.raises(GrammarError, match="CPU time to apply") as refused:
            llm.generate([CHAT, CHAT], [params, quick])
        assert refused.value.status == 400
    clock["step"] = 0.0
    with pytest.raises(GrammarError, match=r"^structured_outputs\.regex: .*CPU time to apply"):
        llm.generate([CHAT], params)
    assert llm.generate([CHAT], quick)[0].token_ids == alone


def test_an_answer_that_exceeds_the_work_of_a_mask_ends_alone(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(module.LIMITS, "step_max_items", 700)
    grammars = GrammarCache(llm.engine.grammars.load_tokenizer, llm.engine.grammars.facts)
    text = grammar_of({"grammar": 'start: s "!"\ns: /[a-z]/ s /[a-z]/ | ""'}, "x")
    answer = grammars.compile(text, "x")
    assert 0 < _walk(answer, 500, -1) < 500
    assert "limit 700" in answer.error
    monkeypatch.setitem(module.LIMITS, "step_max_items", 70)
    _, why = grammars.try_compile(text, thorough=True)
    assert "limit 70" in why
    other = grammars.get(text)
    assert _walk(other, 3, -1) == 3


def test_refused_grammars_are_remembered_up_to_a_number(monkeypatch: pytest.MonkeyPatch, llm: LLM) -> None:
    monkeypatch.setattr("runtime.structured_output.grammar_cache.MAX_OVERRUN", 10)
    grammars = GrammarCache(llm.engine.grammars.load_tokenizer, llm.engine.grammars.facts)
    for number in range(20):
        for _ in range(2):
            grammars.add_overrun(str(number), "slow")
    assert grammars.get("0") is None
    with pytest.raises(GrammarError, match="slow"):
        grammars.get("19")


def test_a_refused_grammar_is_accepted_again_after_ten_minutes(llm: LLM) -> None:
    now = [0.0]
    grammars = GrammarCache(llm.engine.grammars.load_tokenizer, llm.engine.grammars.facts, lambda: now[0])
    text = grammar_of({"regex": "[a-z]"}, "x")
    for start in (0.0, 600.0):  # the first overrun has expired before the second
        now[0] = start
        grammars.add_overrun(text, "slow")
        grammars.compile(text, "x")
    now[0] = 1199.0
    grammars.add_overrun(text, "slow")
    for now[0] in (1199.0, 1798.0):
        with pytest.raises(GrammarError, match="slow"):
            grammars.compile(text, "x")
    now[0] = 1799.0
    grammars.compile(text, "x")
    assert grammars.get(text) is not None


@pytest.mark.parametrize(
    "asked", [{"regex": "a{300}b"}, {"choice": ["the only choice, which is forced letter by letter"]}]
)
def test_forced_text_is_computed_once(llm: LLM, asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    found = llm.engine.grammars.compile(grammar_of(asked, "x"), "x")
    computed = found.forced_tokens()
    for i, token in enumerate(computed):
        assert found.forced_tokens() == computed[i:]
        found.accept_token(token)
    assert not found.error
