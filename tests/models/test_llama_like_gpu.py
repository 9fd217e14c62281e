"""Tests of the golden logits of Llama-like families on the GPU, with each attention implementation."""

import json

import pytest
import torch
from safetensors.torch import load_file

from tests.golden import GOLDEN
from tests.models.paged import load, logits_in_chunks
from tests.models.test_llada2_gpu import TOLERANCE, distance, dtypes, implementations
from tests.oracle.spelling import KINDS

pytestmark = pytest.mark.gpu  # selected by this marker only, so that a missing device is a failure and no skip


@dtypes
@implementations
@pytest.mark.parametrize("family", [key for key, kind in KINDS.items() if kind.golden])
def test_golden_logits(family, dtype, attn_impl):
    expected = load_file(GOLDEN / family / "expected.safetensors")
    case = next(c for c in json.loads((GOLDEN / family / "cases.json").read_text()) if c["name"] == "logits_0")
    ids = expected["ids_0"].flatten().tolist()
    block = len(ids) if case["attention"] == "full" else case["block_size"]
    model = load(GOLDEN / family, dtype, "cuda", attn_impl, family if KINDS[family].needs_model_name else None)
    (logits,) = logits_in_chunks(
        model, [ids], block_size=block, page_size=8, chunk_blocks=[2], dtype=dtype, device="cuda"
    )
    assert logits.dtype == torch.float32
    assert distance(logits, expected["logits_0"].view_as(logits)) < TOLERANCE[dtype]
