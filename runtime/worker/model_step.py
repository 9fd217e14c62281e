"""The device part of a step, from input tensors to output tensors. Launches depend only on the descriptors."""

from __future__ import annotations

import torch

from runtime.algorithms.base import EditTokens
from runtime.algorithms.logits_ops import DEFAULT_LOGITS_OPS, LogitsOps
from runtime.algorithms.vocab_parallel import VocabParallelLogitsOps
from runtime.kernels.forward_batch import ForwardBatch
from runtime.kernels.unmask import BlockInputs, SampledRows
from runtime.layers.embedding import soft_token_embeddings
from runtime.layers.kv_pool import KVPool
from runtime.models.base import Model, SelfConditioned, SupportsTensorParallel
from runtime.worker.input_batch import ForwardDescriptor, SampleDescriptor
from runtime.worker.sample.algorithm_groups import Tensors
from runtime.worker.sample.sampler import Sampler
from runtime.worker.sample.sampler_output import SamplerOutput, make_sampler_output

SOFT_EMBEDDING_CHUNK_ROWS = 32  # rows per chunk of soft embeddings in batch-invariant mode


class ModelStep:
    """Runs the forward and the sampling of a step.

    Args:
        pool: the KV pool, on the device of the model.
        mask_id, max_token_id, eos_ids: see EngineInfo.
        edit_tokens: the model's tokens that order edits.
        max_num_reqs: number of self-conditioning slots, one per running request.
        batch_invariant: compute soft embeddings in chunks of constant size.
        logits_ops: operations on logits of a model without vocabulary sharding.
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
        edit_tokens: EditTokens | None,
        max_num_reqs: int,
        batch_invariant: bool = False,
        logits_ops: LogitsOps = DEFAULT_LOGITS_OPS,
    ) -> None:
        self.model = model
        self.pool = pool
        self.mask_id = mask_id
        self.soft_embedding_chunk_rows = (
            (1 if pool.device.type == "cpu" else SOFT_EMBEDDING_CHUNK_ROWS) if batch_invariant else None
        )
        self.eos_ids = torch.tensor(eos_ids, dtype=torch.int64, device=pool.device)
        self_conditioned = model if isinstance(model, SelfConditioned) else None
        self.self_conditioning: torch.Tensor | None = None  # [slots, block, width], of the last step of each slot
        if self_conditioned is not None:  # the last slot is for padding
            shape = (max_num_reqs + 1, block_size, self_conditioned.self_conditioning_size)
            self.self_conditioning = torch.zeros(shape, dtype=pool.dtype, device=pool.device)
        ids = model.ids if isinstance(model, SupportsTensorParallel) else None
        self.logits_ops = logits_ops if ids is None else VocabParallelLogitsOps(ids)
        self.sampler = Sampler(
            model.lm_head, mask_id=mask_id, max_token_id=max_token_id, eos_ids=self.eos_ids, edit_tokens=edit_tokens,
            self_conditioning_fn=None if self_conditioned is None else self_conditioned.compute_self_conditioning,
            logits_ops=self.logits_ops,
        )  # fmt: skip

    def batch(self, descriptor: ForwardDescriptor, inputs: Tensors) -> ForwardBatch:
        return ForwardBatch(
            tokens=inputs["tokens"],
            positions=inputs["positions"],
            slots=inputs["slots"],
            visible_end=inputs["visible_end"],
            window_pos=inputs["window_origin"],
            is_editable=inputs["is_editable"],
            query_tiles=inputs["tiles"],
            page_table=inputs["page_table"],
            page_size=self.pool.page_size,
            tile_rows=descriptor.tile_rows,
            max_seq_len=descriptor.reach,
            self_conditioning=self._self_conditioning_rows(descriptor, inputs),
            lora_slots=inputs.get("adapters"),
            active_lora_modules=descriptor.active_lora_modules,
        )

    def forward(self, descriptor: ForwardDescriptor, inputs: Tensors) -> torch.Tensor:
        """Returns hidden states [rows, hidden] before the final norm, and writes the K/V of the rows to the pool."""
        x = self.model.embed(inputs["tokens"])
        if descriptor.soft_embedding_shape[0]:
            self._apply_soft_embeddings(x, inputs)
        return self.model.forward(x, self.batch(descriptor, inputs), self.pool)

    def sample(
        self, shape: SampleDescriptor, inputs: Tensors, hidden_states: torch.Tensor, *, graph_safe: bool = False
    ) -> SamplerOutput:
        """Samples the blocks of a step and applies their unmasking algorithms.

        Args:
            hidden_states: [rows, hidden], the result of `forward`.
            graph_safe: see ``Sampler.sample``.
        """
        hidden = self.model.final_hidden_states(hidden_states[inputs["rows"]]) if shape.rows else hidden_states[:0]
        fused = self._fused_unmask(shape, inputs, hidden)
        if fused is not None:
            return fused
        self_conditioning: torch.Tensor | None = None  # [n, block, width]
        if self.self_conditioning is not None and shape.self_conditioned:
            self_conditioning = self.self_conditioning.new_zeros(shape.blocks, *self.self_conditioning.shape[1:])
        decided = []
        history: SamplerOutput = {}
        groups = self.sampler.sample(shape, inputs, hidden, self_conditioning, graph_safe=graph_safe)
        for i, (algorithm, members, blocks) in enumerate(groups):
            decided.append((members, algorithm.decide(blocks)))
            if blocks.history is not None:
                history[f"history{i}"] = blocks.history
        if self.self_conditioning is not None and self_conditioning is not None:
            self.self_conditioning[inputs["req_slot"]] = self_conditioning
        found = make_sampler_output(
            inputs["block_tokens"], inputs["block_state"], decided, mask_id=self.mask_id, eos_ids=self.eos_ids
        )
        return found | history

    def _fused_unmask(self, shape: SampleDescriptor, inputs: Tensors, hidden: torch.Tensor) -> SamplerOutput | None:
        """Returns the output of the fused unmasking kernel, for one threshold algorithm without further statistics;
        None where it does not apply.

        Args:
            hidden: [n, hidden] of the sampled positions.
        """
        group, lm_head = shape.groups[0], self.sampler.fused_lm_head
        algorithm = self.sampler.get_algorithm(group.algorithm)
        if (
            lm_head is None
            or lm_head.kernels.threshold_unmask is None
            or algorithm.fused_threshold is None
            or not shape.rows
        ):
            return None
        if (
            len(shape.groups) > 1
            or group.required_stats
            or shape.num_sampled
            or shape.uniform_noise
            or shape.self_conditioned
            or shape.has_logits_processors
        ):
            return None
        token, conf = self.sampler.greedy(lm_head, hidden, inputs["num_valid"])
        threshold, steps = (algorithm.columns[field.name] for field in algorithm.fused_threshold)
        after = lm_head.kernels.threshold_unmask(
            BlockInputs(
                inputs["block_tokens"], inputs["block_state"], inputs["may_force"], inputs["num_steps_forcing"],
                inputs["params0"], threshold, steps,
            ),
            SampledRows(token, conf, inputs["block"], inputs["at"]), self.mask_id, self.eos_ids,
        )  # fmt: skip
        return after._asdict()

    def _self_conditioning_rows(self, shape: ForwardDescriptor, inputs: Tensors) -> torch.Tensor | None:
        """Returns the self-conditioning [rows, width] from the last step of each row's block; None if there is none."""
        if self.self_conditioning is None or not shape.num_self_conditioned:
            return None
        # one more row, to which padding is written
        rows = self.self_conditioning.new_zeros(shape.rows + 1, self.self_conditioning.shape[2])
        rows[inputs["self_conditioning_rows"]] = self.self_conditioning[inputs["self_conditioning_slots"]]
        return rows[: shape.rows]

    def _apply_soft_embeddings(self, x: torch.Tensor, inputs: Tensors) -> None:
        """Replaces the embeddings `x` [rows, hidden] of rows with soft embeddings in place."""
        rows, arguments = (
            inputs["soft_embedding_rows"],
            [inputs[f"soft_embedding_{name}"] for name in ("ids", "probs", "params")],
        )
        if self.soft_embedding_chunk_rows is None:
            x[rows] = self._blend(x[rows], *arguments)
            return
        embeds = x[rows]
        for first in range(0, len(rows), self.soft_embedding_chunk_rows):
            part = torch.arange(first, first + self.soft_embedding_chunk_rows, device=x.device).clamp(max=len(rows) - 1)
            few = self._blend(embeds[part], *(each[part] for each in arguments))
            embeds[first : first + self.soft_embedding_chunk_rows] = few[: len(rows) - first]
        x[rows] = embeds

    def _blend(self, own: torch.Tensor, ids: torch.Tensor, probs: torch.Tensor, how: torch.Tensor) -> torch.Tensor:
        assert self.mask_id is not None  # soft embeddings mix with the mask's embedding
        smooth, weight, renormalize = how.unbind(1)
        return soft_token_embeddings(
            self.model.embed, own, ids, probs, self.mask_id, smooth=smooth > 0, weight=weight,
            renormalize=renormalize > 0,
        )  # fmt: skip
