"""Tests of a group's collectives, also captured on a GPU."""

import os
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from runtime.distributed.process_group import (
    SINGLE_RANK,
    TensorParallelGroup,
    _make_buffer,
    create_store_file,
    init_process_group,
    make_store,
    open_store_file,
)


def test_a_group_of_one_rank_does_not_communicate():
    x = torch.arange(4.0)
    assert SINGLE_RANK.is_single
    assert SINGLE_RANK.all_reduce(x) is x
    assert torch.equal(SINGLE_RANK.all_gather(x), x[None])
    assert SINGLE_RANK.min_across_ranks(7, torch.device("cpu")) == 7
    SINGLE_RANK.abort()


def test_a_store_of_one_host_has_no_socket():
    psutil = pytest.importorskip("psutil")
    before = len(psutil.Process().net_connections("all"))
    file = create_store_file()
    ranks = [open_store_file(file, 5) for _ in range(2)]
    ranks[0].set("a", "b")
    assert ranks[1].get("a") == b"b"
    assert len(psutil.Process().net_connections("all")) == before
    with pytest.raises(RuntimeError, match="timeout"):
        ranks[1].wait(["absent"], timedelta(seconds=0.1))


def test_the_store_of_several_hosts_listens_on_one_address_only():
    store = make_store("127.0.0.1", 5)
    make_store("127.0.0.1", 5, store.port).set("a", "b")
    assert store.get("a") == b"b"
    psutil = pytest.importorskip("psutil")
    every = [c.laddr for c in psutil.Process().net_connections("tcp") if c.status == "LISTEN"]
    assert [address.ip for address in every if address.port == store.port] == ["127.0.0.1"]


@pytest.fixture
def nccl():
    device = torch.device("cuda", torch.cuda.current_device())
    store = dist.HashStore()
    made = init_process_group(0, 1, store, device, 60)
    assert made.is_single
    yield TensorParallelGroup(0, 2, made.backend)  # claims two ranks, so that collectives run
    made.abort()


@pytest.mark.gpu
def test_recorded_collectives(nccl):
    from runtime.worker.cuda_graph_runner import GraphCapturer

    device = torch.device("cuda")
    x, out = torch.zeros(1000, device=device), torch.zeros(1000, device=device)
    largest = torch.zeros(1000, device=device)

    def work():
        out.copy_(nccl.all_reduce(x * 2))
        largest.copy_(nccl.all_reduce_max(x.clone()))

    replay = GraphCapturer(device)(work)
    for value in (3.0, 4.0):
        x.fill_(value)
        replay()
        torch.cuda.synchronize()
        assert (out == 2 * value).all()
        assert (largest == value).all()


@pytest.mark.gpu
def test_a_gather_of_one(nccl):
    made = TensorParallelGroup(0, 1, nccl.backend)
    gathered = torch.empty(6, device="cuda")
    made.backend._allgather_base(gathered, torch.arange(6.0, device="cuda")).wait()
    assert gathered.tolist() == list(range(6))
    assert "MASTER_ADDR" not in os.environ


@pytest.mark.parametrize(("near", "disabled", "why"), [(False, "0", "several hosts"), (True, "1", "NCCL_P2P_DISABLE")])
def test_a_group_without_symmetric_memory_logs_the_reason(monkeypatch, caplog, near, disabled, why):
    monkeypatch.setenv("NCCL_P2P_DISABLE", disabled)
    with caplog.at_level("INFO"):
        assert _make_buffer(TensorParallelGroup(0, 2), None, torch.device("cuda", 0), same_host=near) is None
        assert _make_buffer(TensorParallelGroup(1, 2), None, torch.device("cuda", 0), same_host=near) is None
    (line,) = caplog.messages
    assert line.startswith("Symmetric memory disabled, all-reduce over NCCL: ")
    assert why in line
