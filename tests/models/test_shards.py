"""Tests that a sharded model has the logits of the full model. Ranks are threads, so they can share one GPU."""

from functools import partial

import pytest
import torch

from tests.distributed.threads import together
from tests.executor.cases import EXPERTS, FAMILIES, LENT, ODD
from tests.golden import GOLDEN
from tests.models.tiny import tiny_logits, write_random


def checkpoint(key, directory):
    return GOLDEN / key if key in LENT else write_random(key, directory, **ODD.get(key, {}))


def shared(size, key, path, dtype, device="cpu", *, buffers=False, **more):
    """Returns logits over the full vocabulary. `buffers`: ranks access each other's buffers."""
    work = partial(tiny_logits, key, path, dtype, device, **more)
    parts = together(size, lambda group: work(group=group), torch.device(device), shared=buffers)
    return [torch.cat(each, 1) for each in zip(*parts, strict=True)]


def near(ours, expected, tolerance):
    for one, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(one.cpu(), other.cpu(), rtol=tolerance, atol=tolerance)


def cases():
    return [(key, False) for key in FAMILIES] + [(key, True) for key in EXPERTS]


WAYS = {"unified": {"layout": "unified"}, "distinct": {"layout": "distinct"}, "sharded residual": {"buffers": True}}


@pytest.mark.parametrize(("key", "deals"), cases())
@pytest.mark.parametrize("way", WAYS)
def test_two_ranks(tmp_path, key, deals, way):
    """With a sharded residual, each rank norms its own rows and keeps only their sums."""
    path = checkpoint(key, tmp_path)
    unsharded = tiny_logits(key, path, torch.float64)
    near(shared(2, key, path, torch.float64, deals=deals, **WAYS[way]), unsharded, 1e-10)


@pytest.mark.parametrize("key", ["dream"])
def test_more_ranks_than_key_heads(tmp_path, key):
    path = checkpoint(key, tmp_path)
    unsharded = tiny_logits(key, path, torch.float64)
    near(shared(4, key, path, torch.float64), unsharded, 1e-10)


@pytest.mark.gpu
@pytest.mark.parametrize(("key", "deals"), cases())
def test_two_ranks_on_one_device(tmp_path, key, deals):
    path = checkpoint(key, tmp_path)
    unsharded = tiny_logits(key, path, torch.float32, "cpu")
    near(shared(2, key, path, torch.float32, "cuda", deals=deals), unsharded, 2e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("key", ["llada2_tiny", "sdar_moe"])
@pytest.mark.parametrize("deals", [False, True])
def test_two_ranks_with_fp8(tmp_path, key, deals):
    path = checkpoint(key, tmp_path)
    unsharded = torch.cat(tiny_logits(key, path, torch.bfloat16, "cuda", quantization="fp8")).float().cpu()
    ours = torch.cat(shared(2, key, path, torch.bfloat16, "cuda", quantization="fp8", deals=deals)).float().cpu()
    assert float((ours - unsharded).norm() / unsharded.norm()) < 0.3
