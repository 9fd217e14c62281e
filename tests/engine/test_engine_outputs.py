"""Tests of the engine's outputs, which are taken after a step or while the device runs the next one."""

import logging
from collections.abc import Sequence
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.engine.engine import Engine
from runtime.request.engine_messages import EngineOutput
from tests.engine.harness import Ask, Run, Setup, check_idle, make_engine, run_all, spec_of
from tests.engine.samples import STRATEGIES, asks, setups
from tests.examples import examples
from tests.oracle.block import Params


class Overlapping:
    """A runner that allows output processing while it runs a step."""

    def __init__(self, runner: Any) -> None:
        self.runner = runner
        self.overlaps = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self.runner, name)


def overlapping(setup: Setup, received: list[EngineOutput], several: Sequence[Ask] = ()) -> Engine:
    """Returns an engine with the requests r0, r1, ... Outputs are added to `received` while the next step runs."""
    engine = make_engine(setup)
    engine.runner = Overlapping(engine.runner)
    assert engine.set_overlap_callback(lambda: received.extend(engine.take_outputs()))
    for number, ask in enumerate(several):
        engine.add(spec_of(f"r{number}", ask))
    return engine


def drain(engine: Engine, received: list[EngineOutput]) -> None:
    while engine.has_work():
        engine.execute_step()
    received += engine.take_outputs()
    check_idle(engine)


@STRATEGIES
@examples(10)
@given(data=st.data())
def test_outputs_a_step_later_are_the_same_also_next_to_aborted_requests(strategy: str, data: st.DataObject) -> None:
    """Requests may be aborted or preempted before their deferred outputs are processed."""
    setup = data.draw(setups(strategy=strategy))
    several = data.draw(st.lists(asks(setup), min_size=1, max_size=5))
    expected = run_all(setup, several)
    received: list[EngineOutput] = []
    engine = overlapping(setup, received, several)
    aborted: dict[str, int] = {}
    aborts = data.draw(st.booleans())
    while engine.has_work():
        if aborts and data.draw(st.integers(0, 7)) == 0:
            id = f"r{data.draw(st.integers(0, len(several) - 1))}"
            aborted.setdefault(id, len(received))
            engine.abort(id)
        if data.draw(st.integers(0, 7)) == 0:
            received += engine.take_outputs()
        if data.draw(st.integers(0, 7)) == 0:
            engine.stats()
        engine.execute_step()
    received += engine.take_outputs()
    check_idle(engine)
    for id, other in expected.received.items():
        mine = [output for output in received[: aborted.get(id)] if output.id == id]
        emitted = [token for output in mine for token in output.new_tokens]
        assert emitted == other.tokens[: len(emitted)]
        assert all(output.finish_reason is None for output in mine[:-1])
        if id not in aborted:
            last = other.outputs[-1]
            assert (emitted, mine[-1].nfe, mine[-1].finish_reason) == (other.tokens, last.nfe, last.finish_reason)
    assert aborted or engine.cache._by_key.keys() == expected.engine.cache._by_key.keys()


@pytest.mark.parametrize("at", range(1, 6))
def test_a_strategy_that_fails_on_results_ends_only_their_request(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It fails while the next step runs, which contains that request and may finish it."""
    logging.getLogger("runtime.engine.output_processor").setLevel(logging.CRITICAL)
    setup = Setup(block=8)
    endless = {"accept_threshold": 1.0, "ignore_eos": True}
    several = [Ask((1, 2, 3), Params(max_tokens=count, **endless)) for count in (16, 5, 16)]
    expected = run_all(setup, several)
    received: list[EngineOutput] = []
    engine = overlapping(setup, received, several)
    apply, calls = engine.strategy.update, 0

    def fails(request: Any, *others: Any) -> None:
        nonlocal calls
        apply(request, *others)
        calls += request.spec.id == "r1"
        if request.spec.id == "r1" and calls == at:
            raise RuntimeError("out of luck")

    monkeypatch.setattr(engine.strategy, "update", fails)
    drain(engine, received)
    assert calls == at
    ends = [(output.id, output.finish_reason, output.error) for output in received if output.finish_reason]
    assert sorted(ends) == [
        ("r0", "length", None), ("r1", "error", "RuntimeError: out of luck"), ("r2", "length", None),
    ]  # fmt: skip
    for id in ("r0", "r2"):
        assert [t for output in received if output.id == id for t in output.new_tokens] == expected.received[id].tokens


def test_errors_are_reported_though_every_step_fails() -> None:
    logging.getLogger("runtime.engine.engine").setLevel(logging.CRITICAL)
    received: list[EngineOutput] = []
    engine = overlapping(Setup(max_reqs=1), received)
    engine.runner.launch_forward = Mock(side_effect=RuntimeError("out of luck"))  # type: ignore[method-assign]
    for number in range(3):
        engine.add(spec_of(f"r{number}", Ask((1, 2, 3), Params(max_tokens=5))))
    counts = []
    while engine.has_work():
        engine.execute_step()
        counts.append(len(received))
    assert counts == [1, 2, 3]


def test_a_step_without_requests_reports_too() -> None:
    """While a grammar is compiled, the engine has work but schedules no request."""
    received: list[EngineOutput] = []
    engine = overlapping(Setup(), received)
    engine.add(spec_of("r0", Ask((1, 2, 3), Params(max_tokens=3, accept_threshold=0.0, ignore_eos=True))))
    while engine.scheduler.running or engine.scheduler.waiting:
        engine.execute_step()
    assert engine._output_processor.updated_requests
    engine.execute_step()
    assert received[-1].finish_reason == "length"


def test_an_aborted_request_has_one_last_output() -> None:
    engine = make_engine(Setup())
    ask = Ask((1, 2, 3), Params(max_tokens=12, accept_threshold=0.0, ignore_eos=True))
    expected = run_all(Setup(), [ask]).received["r0"].tokens
    for id in ("kept", "aborted"):
        engine.add(spec_of(id, ask))
    while not engine._output_processor.updated_requests:
        engine.execute_step()
    last = engine.abort("aborted")
    assert last is not None
    assert last.finish_reason == "abort"
    assert last.new_tokens == expected[: len(last.new_tokens)] != []
    assert engine.abort("aborted") is None
    assert {output.id for output in engine.take_outputs()} == {"kept"}
    assert engine.take_outputs() == []
    while not any(request.finish_reason for request in engine._output_processor.updated_requests):
        engine.execute_step()
    untaken = engine.abort("kept")  # it has finished, but its output was not taken
    assert untaken is not None
    assert untaken.finish_reason == "length"
    assert engine.take_outputs() == []


@STRATEGIES
@pytest.mark.parametrize("report", ["final", "denoise"])
@pytest.mark.parametrize("end", ["length", "max_nfe", "abort", "error"])
def test_tokens_are_counted_in_the_step_that_makes_them(
    strategy: str, report: str, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the log shows no tokens for minutes, and then those of a long answer in one interval."""
    logging.getLogger("runtime.engine.output_processor").setLevel(logging.CRITICAL)
    engine = make_engine(Setup(strategy=strategy, block=8))
    rule = {"algorithm": "dmax", "max_steps_per_block": 64} if strategy == "dmax" else {}
    nfe = 6 if end == "max_nfe" else None
    params = Params(max_tokens=16, accept_threshold=1.0, ignore_eos=True, block_length=16, max_nfe=nfe, **rule)
    engine.add(spec_of("r0", Ask(tuple(range(4, 12)), params, report=report, pinned=((4, 5),))))
    outputs: list[EngineOutput] = []
    made: list[int] = []
    while engine.has_work():
        outputs += engine.step()
        stats = engine.stats()
        made.append(stats.generated_tokens - sum(made))
        if stats.forwards_denoise == 5 and end == "abort" and (aborted := engine.abort("r0")) is not None:
            outputs.append(aborted)
        elif stats.forwards_denoise == 5 and end == "error":
            monkeypatch.setattr(engine.strategy, "update", Mock(side_effect=RuntimeError("out of luck")))
    last = outputs[-1]
    assert last.finish_reason == end
    assert (last.generated, last.forwards) == (sum(made), stats.forwards_denoise)
    assert max(made) == 1
    assert sum(made) == 15 if end == "length" else 5 <= sum(made) < 15
    assert report == "denoise" or len(outputs) == 1


def test_final_blocks_are_cached_even_if_outputs_are_not_taken() -> None:
    """Blocks are added to the prefix cache when outputs are taken, or when the pages of their request are freed."""
    setup = Setup(pages=64, max_len=40, max_reqs=2)
    ask = Ask((1, 2, 3, 4), Params(max_tokens=16, accept_threshold=0.0, ignore_eos=True))
    run = Run(setup)
    run.add(ask)
    while run.engine.has_work():
        run.step()
    engine = make_engine(setup)
    engine.add(spec_of("r0", ask))
    while engine.has_work():
        engine.execute_step()
    assert engine.cache._by_key.keys() == run.engine.cache._by_key.keys()
