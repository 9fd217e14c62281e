"""A runner that replays recorded work: steps are filled up to one of few shapes, so that each step's hundreds of
launches are two, and the host is free while the device is at them.

The forward is one recording and what follows it, head and rules, another: by the number of its blocks and of those of
their positions that are sampled. The host works these out while the forward runs.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from runtime.algorithms.base import Rule
from runtime.engine.step_plan import BlockPlan, BlockResults, ConditionedRows, Ints, StepPlan
from runtime.worker.capture_sizes import Sizes, room_for, sampled_step
from runtime.worker.cuda_graph import Work
from runtime.worker.graph_padding import Views, fill_forward, fill_sample, forward_kinds, sample_kinds
from runtime.worker.host_buffers import Kinds, Layout, Passage, Port, pack, sizes_on_device
from runtime.worker.input_batch import ForwardShape, GroupShape, SampleShape, forward_inputs, sample_inputs
from runtime.worker.model_runner import ModelRunner
from runtime.worker.sample.sampler_output import Told, all_go_on, results, tokens_after

log = logging.getLogger(__name__)

USES = 3  # steps of a shape that was not recorded at start, before it is
MOST = 2048  # recordings
LEAST_PORT = 1 << 23  # bytes


@dataclass
class Recording:
    """`into`: where its inputs are written, which go through `inputs`, and `given` where the device finds them. What
    says something: how that lies (`out`), which goes through `outputs`, and where the host finds it (`told`)."""

    into: Views
    given: dict[str, torch.Tensor]
    inputs: Passage
    replay: Work | None = None
    out: Layout = field(default_factory=lambda: Layout({}))
    outputs: Passage | None = None
    told: Views = field(default_factory=dict)


class ReplayingRunner(ModelRunner):
    """A `ModelRunner` whose steps are recorded and replayed where they can be.

    Args:
        record: does some work once and returns its replay. rules: record head and rules too, not only forwards.
        uses: steps of a shape before it is recorded.
    """

    def __init__(
        self, *args: Any, sizes: Sizes, record: Callable[[Work], Work], rules: bool = True, uses: int = USES,
        **named: Any,
    ) -> None:  # fmt: skip
        super().__init__(*args, **named)
        self.sizes = sizes
        self.record = record
        self.rules = rules
        self.uses = uses
        self.told = self.step.signal is not None
        self._recorded: dict[Hashable, Recording] = {}
        self._used: Counter[Hashable] = Counter()  # steps of shapes that are not recorded
        self._stood: np.ndarray | None = None  # positions of the last forward's rows, if it was replayed:
        self._standing: Recording | None = None  # this, which has been told already where they stand,
        self._conditioned: ConditionedRows | None = None  # and which of them are told of their last steps
        self._left: torch.Tensor | None = None  # by the last replayed forward, [most rows, hidden]
        self._ahead: Ints | None = None  # of what tokens the next step's was launched
        self.after = tokens_after  # what the next step feeds; a benchmark's feeds the same again
        largest = Layout(forward_kinds(sizes.forwards(told=self.told)[0], sizes.block)).nbytes
        self._rows_port, self._blocks_port, self._told_port = (
            Port(self.device, max(2 * largest, LEAST_PORT)) for _ in range(3)
        )

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> BlockResults | None:
        ahead, self._ahead = self._ahead, None
        left: torch.Tensor | None = None
        reason = ""
        if self._stands(plan):
            begun = ahead is not None and np.array_equal(ahead, plan.tokens)
            left = self._left if begun else self._replay(plan.tokens)
        if left is None:
            left, reason = self._forward_anew(plan)
        blocks = plan.blocks  # worked out only now: the device is at the forward meanwhile
        if blocks is None:
            self.ran.count(reason)
            return None
        return self._decide(plan, blocks, left, reason)

    def _stands(self, plan: StepPlan) -> bool:
        """Whether its forward is the last one again, but for its tokens."""
        if plan.positions is not self._stood or plan.merged is not None:
            return False
        return not self.told or _alike(plan.conditioned, self._conditioned)

    def _replay(self, tokens: Ints) -> torch.Tensor | None:
        """The last forward again, of other tokens."""
        recording = self._standing
        assert recording is not None
        assert recording.replay is not None
        self._rows_port.wait()
        recording.into["tokens"][: len(tokens)] = tokens
        self.clock.begin()
        recording.inputs.send()
        recording.replay()
        return self._left

    def _begin_next(self, step: StepPlan, plan: BlockPlan, found: Told) -> bool:
        """Whether the next step's forward has been launched: where it is this one's again, nobody asks for logits of
        this one, no row is another than its block's, and all blocks, or none, are told of their last step."""
        if step.positions is not self._stood or len(step.tokens) != plan.tokens.size or plan.told is not None:
            return False
        if self.told and (step.conditioned is None or len(step.conditioned.rows) < len(plan.tokens)):
            return False
        if not all_go_on(found, len(plan.tokens), noisy=plan.noise is not None) or not step.begin_next():
            return False
        self._ahead = self.after(plan, found).ravel()
        self._replay(self._ahead)
        return True

    def _forward_anew(self, plan: StepPlan) -> tuple[torch.Tensor, str]:
        """[rows, hidden], and why it was not replayed, "" if it was."""
        shape, arrays = forward_inputs(plan, told=self.told, block_size=self.block_size)
        padded = self.sizes.forward(shape, told=self.told)
        self._stood = self._standing = None
        if padded is not None:

            def fill(into: Views) -> None:
                fill_forward(into, shape, arrays, padded, self.sizes)
                self.clock.begin()  # nothing is on the device before

            if self._forward(padded, fill):
                self._stood, self._standing = plan.positions, self._recorded[padded]
                self._conditioned = plan.conditioned
                assert self._left is not None
                return self._left, ""
        self.clock.begin()
        return self.step.forward(shape, self.going.put(arrays)), "prefill" if padded is None else "new"

    def _decide(self, step: StepPlan, plan: BlockPlan, left: torch.Tensor, reason: str) -> BlockResults:
        shape, arrays = sample_inputs(plan, self.step.sampler.get_algorithm)
        members = [group.members for group in plan.groups]
        if self.apart and not self.step.sampler.is_batch_invariant(shape):
            self.ran.count(reason or "apart")
            return self._sample(step, plan, left)
        padded = None
        if shape.shaped:
            reason = reason or "shaped"
        elif self.rules and left is self._left:
            noise = any(self.step.sampler.get_algorithm(group.rule).noisy for group in shape.groups)
            padded = self.sizes.sample(shape, noise=noise, placed=self.told)
        elif not self.rules:
            reason = reason or "flag"
        recording = None
        if padded is not None:
            recording = self._rules(padded, lambda into: fill_sample(into, shape, arrays, padded, self.sizes))
        if padded is None or recording is None:
            self.ran.count(reason or "new")
            found = self.step.sample(shape, self.going.put(arrays), left)
            if self.meanwhile is not None:
                self.meanwhile()
            told = self.coming.take(found)
            self.clock.end(self.coming, ahead=self._begin_next(step, plan, told))
            return self._walked(plan, left, results(shape, told, members))
        self.ran.count(reason)
        if recording.outputs is None:
            recording.outputs = self._told_port.slice(recording.out.nbytes)
            recording.told = recording.out.on_host(self._told_port.numbers)
        if self.meanwhile is not None:
            self.meanwhile()
        recording.outputs.fetch()
        self._rows_port.sent = self._blocks_port.sent = False
        self.clock.end(self._told_port.staging, ahead=self._begin_next(step, plan, recording.told))
        return self._walked(plan, left, results(padded, recording.told, members))

    def _forward(self, shape: ForwardShape, fill: Callable[[Views], None]) -> bool:
        """Launch a forward; False if it has no recording."""

        def work() -> None:
            left = self.step.forward(shape, given)
            if self._left is None:
                self._left = left.new_zeros(self.sizes.forwards(told=self.told)[0].rows, *left.shape[1:])
            self._left[: shape.rows].copy_(left)

        recording = self._ready(shape, lambda: forward_kinds(shape, self.sizes.block), self._rows_port)
        if recording is None:
            return False
        given = recording.given
        return self._launch(shape, recording, self._rows_port, fill, work)

    def _rules(self, shape: SampleShape, fill: Callable[[Views], None]) -> Recording | None:
        """Launch head and rules; None if they have no recording."""

        def work() -> None:
            assert self._left is not None
            found = self.step.sample(shape, given, self._left, fixed=True)
            if not out.sizes:
                out.place(sizes_on_device(found))
            pack(found, out, self._told_port.device)

        def kinds() -> Kinds:
            rules = [self.step.sampler.get_algorithm(group.rule) for group in shape.groups]
            return sample_kinds(shape, [len(rule.columns) for rule in rules], [len(rule.keeps) for rule in rules])

        recording = self._ready(shape, kinds, self._blocks_port)
        if recording is None:
            return None
        given, out = recording.given, recording.out
        return recording if self._launch(shape, recording, self._blocks_port, fill, work) else None

    def _ready(self, shape: Hashable, kinds: Callable[[], Kinds], port: Port) -> Recording | None:
        """The recording of a shape, not recorded yet if its time has just come; None if it has not."""
        found = self._recorded.get(shape)
        if found is not None:
            return found
        self._used[shape] += 1
        if self._used[shape] < self.uses or len(self._recorded) >= MOST:
            return None
        layout = Layout(kinds())
        if layout.nbytes > len(port):
            return None
        return Recording(layout.on_host(port.numbers), layout.on_device(port.device), port.slice(layout.nbytes))

    def _launch(
        self, shape: Hashable, recording: Recording, port: Port, fill: Callable[[Views], None], work: Work
    ) -> bool:
        port.wait()
        fill(recording.into)
        recording.inputs.send()
        if recording.replay is None:
            try:
                recording.replay = self.record(work)
            except RuntimeError:
                log.warning("a step cannot be recorded and will be launched anew each time: %s", shape, exc_info=True)
                self._used[shape] = -(2**62)
                return False
            self._recorded[shape] = recording
        recording.replay()
        return True

    @torch.inference_mode()
    def record_forward(self, shape: ForwardShape) -> None:
        """Before any step."""
        self._used[shape] = self.uses
        nothing = _nothing(forward_kinds(shape, self.sizes.block))
        none = ForwardShape(0, 0, 0, shape.pages, 0, 0, (0, shape.merged[1]))
        self._forward(shape, lambda into: fill_forward(into, none, nothing, shape, self.sizes))

    @torch.inference_mode()
    def record_sample(self, shape: SampleShape) -> None:
        """Before any step, after a forward."""
        self._used[shape] = self.uses
        rules = [self.step.sampler.get_algorithm(group.rule) for group in shape.groups]
        columns, keeps = [len(rule.columns) for rule in rules], [len(rule.keeps) for rule in rules]
        nothing = _nothing(sample_kinds(shape, columns, keeps))
        groups = tuple(replace(group, blocks=0, rows=0, drawn=0, limited=0) for group in shape.groups)
        none = SampleShape(0, shape.size, groups)
        self._rules(shape, lambda into: fill_sample(into, none, nothing, shape, self.sizes))

    def samples(
        self, rule: Rule, wants: int, *, top: int = 0, draws: bool = False, limited: bool = False
    ) -> list[SampleShape]:
        """Shapes of all numbers of blocks under one rule, the largest first. `draws`: all that is sampled, `limited`:
        under top-k or top-p."""
        found = []
        for n in reversed(self.sizes.sampled_blocks):
            step = sampled_step(n * self.sizes.block)
            for rows in reversed(range(step, n * self.sizes.block + step, step)):
                group = GroupShape(
                    rule.key, wants, n + 1, rows, rows if draws else 0, rows if draws and limited else 0,
                    room_for(int(bool(rule.keeps)), once=rule.once), rule.once, top,
                )  # fmt: skip
                found.append(
                    SampleShape(n + 1, self.sizes.block, (group,), remasked=True, noise=rule.noisy, placed=self.told)
                )
        return found

    @property
    def recordings(self) -> int:
        return len(self._recorded)


def _alike(one: ConditionedRows | None, other: ConditionedRows | None) -> bool:
    if one is None or other is None:
        return one is other
    return np.array_equal(one.rows, other.rows) and np.array_equal(one.place, other.place)


def _nothing(kinds: Kinds) -> dict[str, np.ndarray]:
    """Arrays of nothing."""
    return {name: np.zeros((0, *shape[1:]), dtype) for name, (dtype, shape) in kinds.items()}
