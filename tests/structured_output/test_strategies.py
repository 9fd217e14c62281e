"""Tests of grammars with every mask-filling strategy, replayed or eager, preempted or not."""

import re
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import llguidance
import msgspec
import numpy as np
import pytest

from runtime.engine.engine import Engine
from runtime.request.engine_messages import DecodingParams, EngineOutput, RequestSpec, ToolNames
from runtime.request.structured import grammar_of
from runtime.scheduling.grammar_queue import GrammarQueue
from runtime.scheduling.step_plan import GrammarBlock, StepPlan
from runtime.structured_output.grammar_cache import GrammarCache
from runtime.structured_output.grammar_facts import GrammarFacts
from runtime.worker.constrained_decoding import GrammarWalk
from runtime.worker.cuda_graph_runner import CudaGraphRunner
from tests.engine.harness import Setup, check_idle, decoding_of, make_engine
from tests.engine.test_async_scheduling import forwards_of, noting
from tests.matrix import marked
from tests.oracle.block import Params

TOKENS = [b"a", b"b", b"c", b"", b"ab", b"bc", b"0", b"1", b"01", b"-", b"x", b"y", b"xy", b"", b"z", b""]
EOS, MASK = 3, 13
REGEXES = ("(ab|c){2,5}-[01]{2,9}", "[abc]*z", "x(yx){3,6}-", "(0|1|-){1,12}", "abcabcabc")
SETUPS = {
    "multi_bd": Setup(block=4, buffer=3),
    "d2f": Setup(strategy="d2f", block=4, buffer=2),
    "fast_dllm_v2": Setup(strategy="fast_dllm_v2", block=16, page=8),
    "nemotron_diffusion": Setup(strategy="nemotron_diffusion", block=4),
    "full": Setup(strategy="full", block=4),
    "full, shifted": Setup(strategy="full", block=4, shift=True),
}
CACHES = {"full": ("none", "prefix", "dual", "vicinity"), "full, shifted": ("none", "prefix", "dual", "vicinity")}
QUICK = [(name, False) for name in ("d2f", "fast_dllm_v2", "nemotron_diffusion")]
QUICK += [(name, True) for name in ("multi_bd", "full", "full, shifted")]


class TokenTable:
    """The vocabulary in the form that the grammar engine reads."""

    eos_token_id, bos_token_id = EOS, None
    tokens = TOKENS
    special_token_ids = (EOS, MASK, 15)

    def __call__(self, text: bytes) -> list[int]:
        return [TOKENS.index(bytes([byte])) for byte in text if bytes([byte]) in TOKENS]


def engine_of(setup: Setup) -> Engine:
    engine = make_engine(setup)
    facts = GrammarFacts.of(vocab_size=setup.vocab, max_token_id=setup.max_token, mask_id=MASK, eos=setup.eos)
    tokens = llguidance.LLTokenizer(llguidance.TokenizerWrapper(TokenTable()), n_vocab=setup.vocab)
    engine.grammar_queue = GrammarQueue(engine.scheduler, GrammarCache(lambda: tokens, facts))
    return engine


def spec_of(i: int, cache: str, **more: Any) -> RequestSpec:
    p = Params(max_tokens=20, accept_threshold=(0.2, 0.5, 0.9)[i % 3], sub_block_size=8, block_cache=bool(i % 2))
    others = {"cache": cache, "block_length": 4, "sub_block_size": 8, "block_cache": bool(i % 2)}
    regex = REGEXES[i % len(REGEXES)]
    return RequestSpec(
        id=str(i), prompt=[1, 2, 4, 5, 6][: 1 + i % 5], max_tokens=20, temperature=(0.0, 1.0)[i // 5 % 2], seed=i,
        decoding=DecodingParams(values=decoding_of(p) | others), stream_mode="stable",
        grammar=grammar_of({"regex": regex}, "structured_outputs"), **more,
    )  # fmt: skip


def served(
    engine: Engine, specs: list[RequestSpec], special: Mapping[int, str] = MappingProxyType({}), every: int = 0
) -> dict[str, tuple[str, str | None, int]]:
    """Runs the requests and returns text, finish reason and number of forwards of each.

    `special` has the text of special tokens. Unless `every` is 0, a request is preempted every so many steps.
    """
    for spec in specs:
        engine.add(spec)
    ids: dict[str, list[int]] = {spec.id: [] for spec in specs}
    last: dict[str, EngineOutput] = {}
    steps = 0
    while engine.has_work():
        for output in engine.step():
            ids[output.id] += output.new_tokens
            last[output.id] = output
        steps += 1
        running = [request for request in engine.scheduler.running if not request.finished]
        if every and steps % every == 0 and running and engine._launched is None:  # no launched request is preempted
            engine.scheduler._preempt(running[-1])
    check_idle(engine)
    text = {id: "".join(special.get(token, TOKENS[token].decode()) for token in tokens) for id, tokens in ids.items()}
    return {id: (text[id], last[id].finish_reason, last[id].nfe) for id in ids}


@pytest.mark.parametrize(
    ("name", "replayed"), marked([(name, replayed) for name in SETUPS for replayed in (False, True)], quick=QUICK)
)
def test_answers_match(name: str, replayed: bool) -> None:
    setup = replace(SETUPS[name], replayed=replayed)
    for cache in CACHES.get(name, ("none",)):
        specs = [spec_of(i, cache) for i in range(10)]
        together = served(engine_of(setup), specs)
        for spec in specs:
            text, reason, nfe = together[spec.id]
            assert reason in ("stop", "length")
            if reason == "stop":
                assert re.fullmatch(REGEXES[int(spec.id) % len(REGEXES)], text)
            assert nfe <= 20 + 1
        assert sum(reason == "stop" for _, reason, _ in together.values()) >= 5
        assert served(engine_of(setup), specs, every=2) == together
        alone = [served(engine_of(setup), [spec])[spec.id] for spec in specs[:3]]
        assert alone == [together[spec.id] for spec in specs[:3]]


NAMES = "(ab|c)-"  # the rest of a call's name, with what follows it
MARKS = {"text": ("x", {}), "special": ("[", {12: "["})}


def names_of(mark: str, regex: str) -> ToolNames:
    opens, special = MARKS[mark]
    asked = grammar_of({"regex": f"{opens if mark == 'text' else ''}{regex}(?s:.*)"}, "tools")
    return ToolNames(opens=opens, grammar=asked, special_tokens=special)


@pytest.mark.parametrize("mark", MARKS)
@pytest.mark.parametrize(
    ("name", "replayed"), marked([(name, replayed) for name in SETUPS for replayed in (False, True)], quick=QUICK)
)
def test_only_names_of_tools_follow_the_mark_of_a_call(name: str, replayed: bool, mark: str) -> None:
    """All text up to the first mark, and an answer without a mark, is that of a request without tools."""
    setup = replace(SETUPS[name], replayed=replayed, buffer=1)
    opens, special = MARKS[mark]
    names = names_of(mark, NAMES)
    called = 0
    for cache in CACHES.get(name, ("none",)):
        free = [msgspec.structs.replace(spec_of(i, cache), grammar="") for i in range(20)]
        specs = [msgspec.structs.replace(spec, tool_names=names) for spec in free]
        expected, together = served(engine_of(setup), free, special), served(engine_of(setup), specs, special)
        for spec in specs:
            before, begun, _ = expected[spec.id][0].partition(opens)
            text = together[spec.id][0]
            if not begun:
                assert together[spec.id] == expected[spec.id]
                continue
            called += 1
            assert text.startswith(before + opens)
            rests = text.split(opens)[1:]
            for i, rest in enumerate(rests, 1):
                begins_none = mark == "text" and rest.startswith("y")  # the token "xy" is no beginning of a call
                cut = i == len(rests) and any(name.startswith(rest) for name in ("ab-", "c-"))
                assert re.match(NAMES, rest) or cut or begins_none, (text, expected[spec.id])
            assert together[spec.id][1] in ("stop", "length")
        assert served(engine_of(setup), specs, special, every=2) == together
        alone = [served(engine_of(setup), [spec], special)[spec.id] for spec in specs[:2]]
        assert alone == [together[spec.id] for spec in specs[:2]]
    assert called > 3


@pytest.mark.parametrize("name", SETUPS)
def test_a_request_goes_on_after_a_name_that_no_token_matches(name: str) -> None:
    setup = replace(SETUPS[name], buffer=1)
    failed = 0
    for cache in CACHES.get(name, ("none",)):
        engine, names = engine_of(setup), names_of("text", "é")
        free = [msgspec.structs.replace(spec_of(i, cache), grammar="") for i in range(24)]
        expected = served(engine_of(setup), free)
        for spec in free:
            engine.add(msgspec.structs.replace(spec, tool_names=names))
        ends: dict[str, str | None] = {}
        for _ in range(24 * 40):
            ends |= {output.id: output.finish_reason for output in engine.step()}
        assert {ends[spec.id] for spec in free} <= {"stop", "length"}
        check_idle(engine)
        failed += sum("x" in text for text, _, _ in expected.values())
    assert failed > 3


def test_text_after_a_name_is_not_that_of_its_grammar() -> None:
    """It would forbid the end marker of the call, so that a model would end the answer instead of calling again."""
    engine = engine_of(SETUPS["multi_bd"])
    spec = msgspec.structs.replace(spec_of(0, "none"), grammar="", tool_names=names_of("special", NAMES))
    engine.add(spec)
    while not engine.scheduler.waiting:
        engine.grammar_queue.poll()
    (request,) = engine.scheduler.waiting
    matcher = request.tool_names._constraint
    walk = GrammarWalk(GrammarBlock(0, 0, 8, 20, 0.1, matcher.partial_at(matcher.matcher)), 0)
    for token in (4, 9):
        assert walk.is_active
        walk.propose(token, 1.0, np.zeros(1, np.int32))
    assert not walk.is_active
    assert walk.accepted == [4, 9]


@pytest.mark.parametrize(
    "grammar", [grammar_of({"regex": "[ab]{3}é"}, "structured_outputs"), "{}"], ids=["matched by no token", "invalid"]
)
def test_a_grammar_that_cannot_be_applied_ends_only_its_request(grammar: str) -> None:
    wrong = msgspec.structs.replace(spec_of(0, "none"), grammar=grammar)
    got = served(engine_of(SETUPS["multi_bd"]), [wrong, spec_of(1, "none")])
    assert got["0"][1] == "error"
    assert got["1"][1] in ("stop", "length")


def test_the_next_forward_is_launched_early_although_tools_may_be_called(monkeypatch: pytest.MonkeyPatch) -> None:
    launched = []
    launch_next = CudaGraphRunner.launch_next

    def launch(runner: CudaGraphRunner) -> StepPlan | None:
        plan = launch_next(runner)
        launched.extend([runner] * (plan is not None))
        return plan

    monkeypatch.setattr(CudaGraphRunner, "launch_next", launch)
    slow = decoding_of(Params(max_tokens=36, accept_threshold=1.0, ignore_eos=True))
    for opens, special in MARKS.values():
        names = ToolNames(opens=opens * 9, grammar=grammar_of({"regex": NAMES}, "tools"), special_tokens=special)
        spec = RequestSpec(
            id="0", prompt=[1, 2, 4], max_tokens=36, decoding=DecodingParams(values=slow), tool_names=names, seed=0,
            ignore_eos=True, stream_mode="stable",
        )  # fmt: skip
        served(engine_of(Setup(block=8, replayed=True, eos=(15,))), [spec], special)
        assert launched
        launched.clear()


@pytest.mark.parametrize("name", SETUPS)
def test_forwards_are_launched_early_although_a_request_has_a_grammar(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All requests have rows in them. The host only applies the grammar before the launch."""
    setup = replace(SETUPS[name], replayed=True, buffer=1, eos=(15,), budget=192)
    noted = noting(monkeypatch)
    constrained = [msgspec.structs.replace(spec_of(i, "none"), ignore_eos=True) for i in (0, 2)]
    free = [msgspec.structs.replace(spec, id=f"free {spec.id}", grammar="") for spec in constrained]
    engine = engine_of(setup)
    forwards = forwards_of(engine, monkeypatch)
    together = served(engine, constrained + free)
    steps = engine.stats().steps
    assert len(noted) > 10
    assert sum(begun for _, begun in noted) >= len(noted) - 2  # those with the last results
    assert forwards.call_count == steps, "a launched forward was not used by a step"
    assert together == served(engine_of(replace(setup, replayed=False)), constrained + free)


def test_positions_behind_a_name_have_no_candidates_of_an_earlier_step() -> None:
    engine, names, seen = engine_of(SETUPS["fast_dllm_v2"]), names_of("text", NAMES), 0
    for i in range(20):
        more = {"grammar": "", "tool_names": names, "stream_mode": "denoise", "stream_candidates": 2}
        engine.add(msgspec.structs.replace(spec_of(i, "none"), **more))
    while engine.has_work():
        constrained = {request.spec.id for request in engine.scheduler.running if request.constraint is not None}
        for output in engine.step():
            if output.id in constrained and output.masked:
                assert output.candidates == [[]] * len(output.masked)
                seen += 1
    assert seen


def test_names_that_cannot_be_compiled_leave_the_request_free() -> None:
    free = msgspec.structs.replace(spec_of(0, "none"), grammar="")
    named = msgspec.structs.replace(free, tool_names=ToolNames(opens="x", grammar="{}"))
    setup = SETUPS["nemotron_diffusion"]
    assert served(engine_of(setup), [named]) == served(engine_of(setup), [free])
    assert served(make_engine(setup), [named]) == served(make_engine(setup), [free])  # without grammars


def test_a_request_that_waits_for_its_grammar_can_be_aborted() -> None:
    engine = engine_of(SETUPS["multi_bd"])
    engine.add(spec_of(0, "none"))
    engine.abort("0")
    assert not engine.has_work()
    check_idle(engine)
