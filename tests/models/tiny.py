"""Tiny checkpoints of every family, and the logits of their models for a few sequences.

Any device, attention implementation and KV layout can be selected. This module imports nothing of the server, so GPU
tests can use it.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from runtime.models.diffusion_gemma import DiffusionGemma
from tests.golden import GOLDEN
from tests.models.canvas import Driver, Run
from tests.models.paged import load, logits_in_chunks
from tests.oracle.llama_like import tensors_of, write
from tests.oracle.spelling import KINDS, config_of, spelt

WRITTEN = tuple(key for key, kind in KINDS.items() if not kind.golden)  # families without golden data: random weights
EVERY = (*sorted(path.parent.name for path in GOLDEN.glob("*/model.safetensors")), *WRITTEN)
LENGTHS = (50, 9, 32)


def checkpoint_of(key: str, directory: Path) -> Path:
    """Returns the path of a checkpoint of the golden data, or writes one to `directory`."""
    return write_random(key, directory) if key in WRITTEN else GOLDEN / key


def write_random(key: str, directory: Path, seed: int = 6, **changes: Any) -> Path:
    """Writes a checkpoint of a family in KINDS with random weights. `changes`: to its config."""
    config = config_of(key, **changes)
    write(directory, config, spelt(key, tensors_of(key, config, seed=seed)))
    return directory


def tiny_logits(
    key: str, path: Path, dtype: torch.dtype, device: str = "cpu", attn_impl: str | None = None,
    layout: str = "unified", quantization: str | None = None, **shared: Any,
) -> list[torch.Tensor]:  # fmt: skip
    """Returns the logits [len, vocab] of each sequence, from chunks of different lengths in the same forwards.

    Args:
        shared: A rank's arguments of `load`. The logits are then those of its vocabulary shard.
    """
    name = key if key in KINDS and KINDS[key].needs_model_name else None
    model = load(path, dtype, device, attn_impl, name, quantization, **shared)
    if isinstance(model, DiffusionGemma):
        return _canvases(model, dtype, device, layout)
    block, prompt, golden = _seen(key, path)
    random = torch.Generator().manual_seed(4)
    sequences = [torch.randint(0, 40, (length,), generator=random).tolist() for length in LENGTHS]
    if golden is not None:
        sequences.append(golden)
    block = block or max(map(len, sequences))
    return logits_in_chunks(
        model, sequences, block_size=block, page_size=8, chunk_blocks=[2, 1, 3, 1][: len(sequences)], prompt=prompt,
        dtype=dtype, device=device, layout=layout,
    )  # fmt: skip


def _seen(key: str, path: Path) -> tuple[int, int, list[int] | None]:
    """Returns the block size (0: one block per sequence), the length of the prompt before blocks, and golden ids."""
    if not (path / "expected.safetensors").exists():
        return (0 if key in ("illada", "rnd1") else 4), 0, None
    expected = load_file(path / "expected.safetensors")
    if key == "llada2_tiny":
        return 8, 0, expected["input_ids"][0].tolist()
    case = next(case for case in json.loads((path / "cases.json").read_text()) if case["kind"] == "logits")
    block = 0 if case["attention"] == "full" else case["block_size"]
    return block, case.get("prompt_length", 0), expected[case["ids"]].flatten().tolist()


def _canvases(model: DiffusionGemma, dtype: torch.dtype, device: str, layout: str) -> list[torch.Tensor]:
    """Returns the logits of two forwards."""
    random = torch.Generator().manual_seed(4)

    def ids(count: int) -> list[int]:
        return torch.randint(0, 220, (count,), generator=random).tolist()

    driver = Driver(model, 2, 90, 8, dtype, device, layout)
    driver.commit(0, ids(70), 23)
    probs = torch.randn(16, 224, generator=random, dtype=torch.float64).mul(2).softmax(-1)
    if model.vocab_shard is not None:
        probs = probs[:, model.vocab_shard.local.start : model.vocab_shard.local.stop]
    signal = model.compute_self_conditioning(probs.to(device))
    out = driver.step(Run(0, ids(16), 70, open=True, signal=signal), Run(1, ids(13), 0))
    return out + driver.step(
        Run(0, ids(16), 70, open=True), Run(1, ids(20), 13, open=True, signal=signal[:1].expand(20, -1))
    )
