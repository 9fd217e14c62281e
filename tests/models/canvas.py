"""Runs a model that commits tokens causally and denoises a canvas, for several sequences over one KV pool."""

from dataclasses import dataclass

import torch

from runtime.kernels.forward_batch import ForwardBatch
from runtime.models.diffusion_gemma import DiffusionGemma
from tests.models.paged import page_tables, poisoned_pool
from tests.tiles import make_query_tiles


@dataclass
class Run:
    """Rows of one sequence in a forward."""

    sequence: int
    ids: list[int]
    first: int  # position of the first id
    open: bool = False  # the rows are an editable canvas; otherwise they are committed
    signal: torch.Tensor | None = None  # self-conditioning, [len(ids), hidden]


class Driver:
    """Runs forwards of `sequences` sequences with at most `length` positions."""

    def __init__(
        self, model: DiffusionGemma, sequences: int, length: int, page_size: int, dtype: torch.dtype,
        device: str = "cpu", layout: str = "unified",
    ) -> None:  # fmt: skip
        self.model, self.page_size, self.device = model, page_size, device
        self.tables, pages = page_tables([length] * sequences, page_size, torch.Generator().manual_seed(0))
        self.pool = poisoned_pool(model, pages, page_size, dtype, device, layout)

    def step(self, *runs: Run) -> list[torch.Tensor]:
        """Returns the logits [len(ids), vocab] of each run."""
        positions = torch.cat([torch.arange(run.first, run.first + len(run.ids)) for run in runs])
        counts = torch.tensor([len(run.ids) for run in runs])
        owner = torch.repeat_interleave(torch.arange(len(runs)), counts)
        open_, first = torch.tensor([run.open for run in runs])[owner], torch.tensor([r.first for r in runs])[owner]
        tables = self.tables[[run.sequence for run in runs]]
        slots = tables[owner, positions // self.page_size].long() * self.page_size + positions % self.page_size
        signal = None
        if any(run.signal is not None for run in runs):
            none = torch.zeros(1, self.model.config.hidden, dtype=self.pool.dtype, device=self.device)
            signal = torch.cat([none.expand(len(r.ids), -1) if r.signal is None else r.signal for r in runs])
        batch = ForwardBatch(
            tokens=torch.tensor([token for run in runs for token in run.ids]).to(self.device),
            positions=positions.to(self.device), slots=slots.to(self.device),
            visible_end=torch.where(open_, first + counts[owner], positions + 1).int().to(self.device),
            window_pos=torch.where(open_, first, positions).to(self.device), is_editable=open_.to(self.device),
            query_tiles=torch.from_numpy(make_query_tiles(counts.numpy())).to(self.device),
            page_table=tables.to(self.device), page_size=self.page_size, tile_rows=int(counts.max()),
            max_seq_len=int(positions.max()) + 1, self_conditioning=signal,
        )  # fmt: skip
        left = self.model.forward(self.model.embed(batch.tokens), batch, self.pool)
        return list(self.model.lm_head(self.model.final_hidden_states(left)).split(counts.tolist()))

    def commit(self, sequence: int, ids: list[int], chunk: int, first: int = 0) -> None:
        for start in range(0, len(ids), chunk):
            self.step(Run(sequence, ids[start : start + chunk], first + start))
