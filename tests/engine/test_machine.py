"""State machine test of the engine: random arrivals, steps and aborts.

The page accounting is always right, and at the end every answer equals the oracle's.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.engine.harness import Run, Setup, check_accounting
from tests.engine.samples import asks, setups
from tests.examples import examples


class EngineMachine(RuleBasedStateMachine):
    run: Run
    setup_: Setup

    @initialize(setup=setups())
    def start(self, setup: Setup) -> None:
        self.setup_ = setup
        self.run = Run(setup)

    def live(self) -> list[str]:
        return [id for id, received in self.run.received.items() if not received.ended and id not in self.run.aborted]

    @precondition(lambda self: len(self.live()) < 12)
    @rule(data=st.data())
    def arrive(self, data: st.DataObject) -> None:
        self.run.add(data.draw(asks(self.setup_)))

    @rule(count=st.integers(1, 6))
    def steps(self, count: int) -> None:
        for _ in range(count):
            self.run.step()

    @precondition(lambda self: self.live())
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.run.abort(data.draw(st.sampled_from(self.live())))

    @precondition(lambda self: self.run.asks)
    @rule(data=st.data())
    def abort_what_may_have_ended(self, data: st.DataObject) -> None:
        self.run.abort(data.draw(st.sampled_from(sorted(self.run.asks))))

    @precondition(lambda self: self.run.asks)
    @rule(data=st.data())
    def follow_up(self, data: st.DataObject) -> None:
        """Adds a next chat turn. Its prompt begins with an earlier prompt and the received part of its answer."""
        id = data.draw(st.sampled_from(sorted(self.run.asks)))
        prompt = (*self.run.asks[id].prompt, *self.run.received[id].tokens, 7)
        ask = data.draw(asks(self.setup_))
        if len(prompt) + ask.params.max_tokens <= self.setup_.max_len:
            self.run.add(replace(ask, prompt=prompt))

    @rule()
    def until_idle(self) -> None:
        self.run.drain()

    @invariant()
    def pages_add_up(self) -> None:
        if hasattr(self, "run"):
            check_accounting(self.run.engine)
            info, scheduler = self.run.engine.info, self.run.engine.scheduler
            assert len(scheduler.running) <= info.max_num_reqs
            order = [request.arrival_index for request in scheduler.running]
            assert order == sorted(order)

    def teardown(self) -> None:
        if hasattr(self, "run"):
            self.run.drain()
            self.run.compare()


TestEngineMachine = EngineMachine.TestCase
TestEngineMachine.settings = examples(20, stateful_step_count=25)
