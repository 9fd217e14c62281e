"""Tests of the all-reduce buffers: their rotation, the lifetime of results, and sharded residuals."""

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from runtime.distributed.process_group import (
    MIN_BYTES,
    NUM_BUFFERS,
    AllReduceBuffer,
    RenumberingStore,
    TensorParallelGroup,
)
from runtime.kernels.layernorm import add_rms_norm_reference
from runtime.kernels.ops import TORCH, TRITON
from runtime.layers.layer_factory import LayerFactory
from runtime.layers.norm import RMSNorm
from tests.distributed.threads import SharedBuffer, together

CPU = torch.device("cpu")


def test_a_stored_tensor_lasts_until_all_slots_were_used():
    buffer = AllReduceBuffer(CPU)
    stored = [buffer.put(torch.full((2, 3), float(n))) for n in range(NUM_BUFFERS)]
    assert [int(x[0, 0]) for x in stored] == list(range(NUM_BUFFERS))
    buffer.put(torch.full((2, 3), 7.0))
    assert (stored[0] == 7).all()
    assert (stored[1] == 1).all()


def test_a_tensor_in_the_buffer_is_not_copied():
    buffer = AllReduceBuffer(CPU)
    slot = buffer.next((4, 2), torch.float64)
    assert buffer.next((4, 2), torch.float64).data_ptr() == slot.data_ptr()  # `next` does not reserve the buffer
    slot.fill_(3)
    assert buffer.put(slot) is slot
    assert buffer.next((4, 2), torch.float64).data_ptr() != slot.data_ptr()


def test_slots_grow_and_stay_for_captured_graphs():
    buffer = AllReduceBuffer(CPU)
    small = buffer.put(torch.ones(2, 2))
    large = buffer.put(torch.ones(MIN_BYTES, 2))
    assert large.shape == (MIN_BYTES, 2)
    assert (small == 1).all()
    assert buffer.next((0, 8), torch.float32) is None


def test_a_group_without_a_buffer_returns_its_input():
    x = torch.arange(6.0).view(2, 3)
    assert TensorParallelGroup().output_buffer(x.shape, x.dtype) is None
    assert TensorParallelGroup().all_reduce_out(x) is x


def test_processes_with_different_histories_agree_on_keys():
    shared = dist.HashStore()
    counting = [RenumberingStore(shared) for _ in range(2)]  # torch does not own stores that are written in Python
    old, new = (dist.PrefixStore("memory", store) for store in counting)
    for ours, theirs in ((7, 0), (8, 1), (12, 2)):  # before the last one, the old process had joined another group
        old.set(f"CUDA/{ours}/0", f"{ours}")
        new.set(f"CUDA/{theirs}/1", f"{theirs}")
        old.wait([f"CUDA/{ours}/1"])
        assert old.get(f"CUDA/{ours}/1") == str(theirs).encode()
        assert new.get(f"CUDA/{theirs}/0") == str(ours).encode()


def test_other_keys_are_unchanged():
    shared = dist.HashStore()
    store = RenumberingStore(shared)
    store.set("name", "a")
    assert shared.get("name") == b"a"
    assert store.check(["name"])
    assert store.add("count", 3) == 3


def add_reduced(group, x, residual):
    """Returns the normed rows, the rank's own rows of the sum, and their slice. It has no other rows of `residual`."""
    norm = RMSNorm(LayerFactory(CPU, torch.float64, TORCH, "torch", group=group), x.shape[2], 1e-6, weighted=False)
    rows = group.own_rows(len(residual))
    own = torch.full_like(residual, float("nan"))
    own[rows] = residual[rows]
    normed, total = norm.add_reduced(x[group.rank].clone(), own, group)
    return normed.clone(), total[rows], rows


@pytest.mark.parametrize("has_buffer", [True, False])
@pytest.mark.parametrize(("size", "rows"), [(2, 6), (3, 7), (4, 5), (4, 2)])  # the last ranks may have no rows
def test_ranks_norm_their_own_rows(monkeypatch, size, rows, has_buffer):
    if not has_buffer:  # as during the capture of a graph that needs a larger buffer
        monkeypatch.setattr(SharedBuffer, "next", lambda self, shape, dtype: None)
    x, residual = torch.randn(size, rows, 8, dtype=torch.float64), torch.randn(rows, 8, dtype=torch.float64)
    expected, total = add_rms_norm_reference(x.sum(0), residual, None, 1e-6)
    found = together(size, lambda group: add_reduced(group, x, residual), shared=True)
    for normed, _, _ in found:
        torch.testing.assert_close(normed, expected, rtol=1e-12, atol=1e-12)
    assert [n for *_, own in found for n in range(own.start, own.stop)] == list(range(rows))
    torch.testing.assert_close(torch.cat([own for _, own, _ in found]), total, rtol=1e-12, atol=1e-12)


def test_residuals_are_sharded_only_with_shared_buffers():
    def decided(group):
        return [
            LayerFactory(CPU, torch.float64, kernels, "torch", group=group).shards_residual
            for kernels in (TORCH, replace(TORCH, reduce_add_norm=None))
        ]

    assert together(2, decided, shared=True) == [[True, False]] * 2
    assert together(2, decided) == [[False, False]] * 2
    assert TRITON.reduce_add_norm is not None
    assert TRITON.for_quantization("fp8").reduce_add_norm is None
