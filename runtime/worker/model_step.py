"""A step on the device: tensors in, tensors out. What is launched depends on the shapes alone."""

from __future__ import annotations

import torch

from runtime.algorithms.base import Orders
from runtime.algorithms.logits_ops import WHOLE, Vocabulary
from runtime.algorithms.vocab_parallel import PartedVocabulary
from runtime.kernels.forward_batch import ForwardBatch
from runtime.kernels.unmask import Blocks, Sampled
from runtime.layers.embedding import merged
from runtime.layers.kv_pool import KVPool
from runtime.models.base import HasIds, Model, SelfConditioned
from runtime.worker.input_batch import ForwardShape, SampleShape
from runtime.worker.sample.algorithm_groups import Tensors
from runtime.worker.sample.sampler import Sampler
from runtime.worker.sample.sampler_output import Outcome, outcome

MIXED = 32  # rows that are made of several tokens' at a time, where bits must not depend on how many there are


class DeviceStep:
    """Args:
    model: a family's model. pool: where its keys and values lie, on the same device.
    mask_id, max_token_id, eos_ids: see EngineInfo. orders: what the model orders edits with.
    places: most requests that hold pages at a time; for each, a model that conditions itself is told of its last step.
    apart: rows that are made of several tokens' are made so few at a time, always as many.
    vocabulary: how logits are asked, of a model that no other process shares.
    """

    def __init__(
        self,
        model: Model,
        pool: KVPool,
        *,
        block_size: int,
        mask_id: int | None,
        max_token_id: int,
        eos_ids: tuple[int, ...],
        orders: Orders | None,
        places: int,
        apart: bool = False,
        vocabulary: Vocabulary = WHOLE,
    ) -> None:
        self.model = model
        self.pool = pool
        self.mask_id = mask_id
        self.mixed = (1 if pool.device.type == "cpu" else MIXED) if apart else None  # rows at a time
        self.eos_ids = torch.tensor(eos_ids, dtype=torch.int64, device=pool.device)
        told = model if isinstance(model, SelfConditioned) else None
        self.signal: torch.Tensor | None = None  # [places, block, width], of the last step of whoever has the place
        if told is not None:  # the last is nobody's
            shape = (places + 1, block_size, told.signal_width)
            self.signal = torch.zeros(shape, dtype=pool.dtype, device=pool.device)
        ids = model.ids if isinstance(model, HasIds) else None
        self.vocabulary = vocabulary if ids is None else PartedVocabulary(ids)
        self.sampler = Sampler(
            model.head, mask_id=mask_id, max_token_id=max_token_id, eos_ids=self.eos_ids, edit_tokens=orders,
            self_conditioning_fn=None if told is None else told.soften, logits_ops=self.vocabulary,
        )  # fmt: skip

    def batch(self, shape: ForwardShape, given: Tensors) -> ForwardBatch:
        return ForwardBatch(
            tokens=given["tokens"],
            positions=given["positions"],
            slots=given["slots"],
            visible_end=given["visible_end"],
            window_origin=given["window_origin"],
            open=given["open"],
            tiles=given["tiles"],
            page_table=given["page_table"],
            page_size=self.pool.page_size,
            tile_rows=shape.tile_rows,
            reach=shape.reach,
            signal=self._told(shape, given),
            adapters=given.get("adapters"),
            adapted=shape.adapted,
        )

    def forward(self, shape: ForwardShape, given: Tensors) -> torch.Tensor:
        """[rows, hidden], as ``Model.forward`` leaves them; the rows' K/V goes into the pool."""
        x = self.model.embed(given["tokens"])
        if shape.merged[0]:
            self._merge(x, given)
        return self.model.forward(x, self.batch(shape, given), self.pool)

    def sample(self, shape: SampleShape, given: Tensors, left: torch.Tensor, *, fixed: bool = False) -> Outcome:
        """What becomes of the step's blocks. `left`: by the step's forward. `fixed`: launch the same whatever the
        contents, and ask the host nothing."""
        hidden = self.model.finish(left[given["rows"]]) if shape.rows else left[:0]
        filled = self._filled(shape, given, hidden)
        if filled is not None:
            return filled
        signal: torch.Tensor | None = None  # [n, block, width]
        if self.signal is not None and shape.placed:
            signal = self.signal.new_zeros(shape.blocks, *self.signal.shape[1:])
        decided = []
        kept: Outcome = {}
        groups = self.sampler.sample(shape, given, hidden, signal, graph_safe=fixed)
        for i, (rule, members, blocks) in enumerate(groups):
            decided.append((members, rule.decide(blocks)))
            if blocks.kept is not None:
                kept[f"kept{i}"] = blocks.kept
        if self.signal is not None and signal is not None:
            self.signal[given["place"]] = signal
        found = outcome(
            given["block_tokens"], given["block_state"], decided, mask_id=self.mask_id, eos_ids=self.eos_ids
        )
        return found | kept

    def _filled(self, shape: SampleShape, given: Tensors, hidden: torch.Tensor) -> Outcome | None:
        """What becomes of blocks whose only rule is plain and wants nothing, in few launches; None of others. `hidden`:
        of the sampled positions."""
        group, head = shape.groups[0], self.sampler.fused_lm_head
        rule = self.sampler.get_algorithm(group.rule)
        if head is None or head.kernels.fill is None or rule.plain is None or not shape.rows:
            return None
        if len(shape.groups) > 1 or group.wants or shape.drawn or shape.noise or shape.placed or shape.shaped:
            return None
        token, conf = self.sampler.greedy(head, hidden, given["live"])
        threshold, steps = (rule.columns[field.name] for field in rule.plain)
        after = head.kernels.fill(
            Blocks(
                given["block_tokens"], given["block_state"], given["may_force"], given["advanced"], given["params0"],
                threshold, steps,
            ),
            Sampled(token, conf, given["block"], given["at"]), self.mask_id, self.eos_ids,
        )  # fmt: skip
        return after._asdict()

    def _told(self, shape: ForwardShape, given: Tensors) -> torch.Tensor | None:
        """[rows, width]: what open rows are told of their blocks' last steps; None if there were none."""
        if self.signal is None or not shape.told:
            return None
        told = self.signal.new_zeros(shape.rows + 1, self.signal.shape[2])  # the last row is nobody's
        told[given["told_rows"]] = self.signal[given["told_place"]]
        return told[: shape.rows]

    def _merge(self, x: torch.Tensor, given: Tensors) -> None:
        """In place: some rows of `x` [rows, hidden]."""
        rows, given_rows = given["merged_rows"], [given[f"merged_{name}"] for name in ("ids", "probs", "how")]
        if self.mixed is None:
            x[rows] = self._mixed(x[rows], *given_rows)
            return
        made = x[rows]
        for first in range(0, len(rows), self.mixed):
            part = torch.arange(first, first + self.mixed, device=x.device).clamp(max=len(rows) - 1)
            few = self._mixed(made[part], *(each[part] for each in given_rows))
            made[first : first + self.mixed] = few[: len(rows) - first]
        x[rows] = made

    def _mixed(self, own: torch.Tensor, ids: torch.Tensor, probs: torch.Tensor, how: torch.Tensor) -> torch.Tensor:
        assert self.mask_id is not None  # of what is FILLED instead of masked
        smooth, weight, renormalize = how.unbind(1)
        return merged(
            self.model.embed, own, ids, probs, self.mask_id, smooth=smooth > 0, weight=weight,
            renormalize=renormalize > 0,
        )  # fmt: skip
