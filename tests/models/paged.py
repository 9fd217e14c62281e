"""Runs a model as the server does: pages in random order, and chunks of several sequences in one forward."""

from collections.abc import Sequence
from pathlib import Path

import torch

from runtime.distributed.process_group import SINGLE_RANK, TensorParallelGroup
from runtime.kernels.forward_batch import ForwardBatch
from runtime.layers.kv_pool import LAYOUTS, KVPool
from runtime.layers.layer_factory import LayerFactory
from runtime.models.base import Model, resolve_family
from runtime.quantization.checkpoint.scheme import quantization_of
from runtime.weights.checkpoint import resolve_checkpoint
from runtime.weights.hub import Progress
from runtime.weights.loader import load_model
from tests.tiles import make_query_tiles


def make_batch(
    rows: Sequence[tuple[list[int], int, int]], tables: torch.Tensor, *, block_size: int, page_size: int,
    prompt: int = 0,
) -> ForwardBatch:  # fmt: skip
    """Returns the batch of a forward. See docs/research/decoding-rules.md#visible-keys.

    Args:
        rows: For each sequence its ids, the first position to run, and the end of the run.
        tables: Page tables, [sequences, pages].
        prompt: Position at which the first block begins. Rows before it see all of the prompt, as in `d2f`.
    """
    device = tables.device
    firsts, ends = (torch.tensor(numbers) for numbers in zip(*((first, end) for _, first, end in rows), strict=True))
    lengths = ends - firsts
    tokens = torch.tensor([t for ids, first, end in rows for t in ids[first:end]])
    positions = torch.cat([torch.arange(first, end) for _, first, end in rows])
    owner = torch.repeat_interleave(torch.arange(len(rows)), lengths)
    slots = tables.cpu()[owner, positions // page_size].long() * page_size + positions % page_size
    tiles = torch.from_numpy(make_query_tiles(lengths.numpy()))
    block_ends = ((positions - prompt) // block_size + 1) * block_size + prompt
    block_ends = torch.where(positions < prompt, prompt, block_ends)
    return ForwardBatch(
        tokens=tokens.to(device), positions=positions.to(device), slots=slots.to(device),
        visible_end=torch.minimum(block_ends, ends[owner]).int().to(device), window_pos=positions.to(device),
        is_editable=torch.ones(len(positions), dtype=torch.bool, device=device), query_tiles=tiles.to(device),
        page_table=tables.int(), page_size=page_size, tile_rows=int(tiles[:, 2].max()), max_seq_len=int(ends.max()),
    )  # fmt: skip


def page_tables(lengths: Sequence[int], page_size: int, random: torch.Generator) -> tuple[torch.Tensor, int]:
    """Returns page tables with disjoint pages in random order, and the number of pages of the pool."""
    counts = [-(-n // page_size) for n in lengths]
    order = torch.randperm(sum(counts), generator=random) + 1
    tables = torch.zeros(len(counts), max(counts), dtype=torch.int32)
    for seq, pages in enumerate(order.split(counts)):
        tables[seq, : len(pages)] = pages
    return tables, sum(counts) + 1


def poisoned_pool(
    model: Model, pages: int, page_size: int, dtype: torch.dtype, device: str = "cpu", layout: str = "unified"
) -> KVPool:
    """Returns a KV pool full of NaN, which reveals reads of unwritten slots."""
    pool = LAYOUTS[layout](model.kv_shapes, num_pages=pages, page_size=page_size, dtype=dtype, device=device)
    for tensor in pool.tensors:
        tensor.fill_(float("nan"))
    return pool


def logits_in_chunks(
    model: Model, sequences: Sequence[list[int]], *, block_size: int, page_size: int, chunk_blocks: Sequence[int],
    prompt: int = 0, seed: int = 0, dtype: torch.dtype = torch.float32, device: str = "cpu", layout: str = "unified",
) -> list[torch.Tensor]:  # fmt: skip
    """Returns the logits [len, vocab] of each sequence. All sequences run in the same forwards.

    Args:
        chunk_blocks: Blocks per chunk, for each sequence.
        prompt: Length of the prompt, a multiple of the block size. The prompt runs in the first chunk.
    """
    random = torch.Generator().manual_seed(seed)
    tables, pages = page_tables([len(s) for s in sequences], page_size, random)
    tables = tables.to(device)
    pool = poisoned_pool(model, pages, page_size, dtype, device, layout)
    done = [0] * len(sequences)
    out: list[list[torch.Tensor]] = [[] for _ in sequences]
    while any(d < len(s) for d, s in zip(done, sequences, strict=True)):
        live = [n for n, s in enumerate(sequences) if done[n] < len(s)]
        ends = [min(len(sequences[n]), max(prompt, done[n] + chunk_blocks[n] * block_size)) for n in live]
        rows = [(sequences[n], done[n], end) for n, end in zip(live, ends, strict=True)]
        batch = make_batch(rows, tables[live], block_size=block_size, page_size=page_size, prompt=prompt)
        logits = model.lm_head(model.final_hidden_states(model.forward(model.embed(batch.tokens), batch, pool)))
        for n, part, end in zip(live, logits.split([e - f for _, f, e in rows]), ends, strict=True):
            out[n].append(part)
            done[n] = end
    return [torch.cat(parts) for parts in out]


def load(
    path: Path, dtype: torch.dtype = torch.float32, device: str = "cpu", attn_impl: str | None = None,
    name: str | None = None, quantization: str | None = None, group: TensorParallelGroup = SINGLE_RANK,
    deals: bool = False, progress: Progress | None = None,
) -> Model:  # fmt: skip
    """Loads the model of a checkpoint, or a rank's shard of it. `name`: the value of --model-name."""
    checkpoint = resolve_checkpoint(str(path))
    family = resolve_family(name, checkpoint.config)
    quantization = quantization_of(checkpoint.config, quantization)
    build = LayerFactory.create(device, dtype, attn_impl, quantization, group=group, expert_parallel=deals)
    return load_model(checkpoint, family, family.parse(checkpoint.config), build, progress)
