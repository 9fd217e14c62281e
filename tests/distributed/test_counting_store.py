"""Processes that have exchanged different numbers of things before find each other's."""

import torch.distributed as dist

from runtime.distributed.counting_store import RenumberingStore


def test_numbers_count_from_where_each_begins():
    shared = dist.HashStore()
    counting = [RenumberingStore(shared) for _ in range(2)]  # somebody has to keep what is written in Python
    old, new = (dist.PrefixStore("memory", store) for store in counting)
    for ours, theirs in ((7, 0), (8, 1), (12, 2)):  # between the last two the old one met others
        old.set(f"CUDA/{ours}/0", f"{ours}")
        new.set(f"CUDA/{theirs}/1", f"{theirs}")
        old.wait([f"CUDA/{ours}/1"])
        assert old.get(f"CUDA/{ours}/1") == str(theirs).encode()
        assert new.get(f"CUDA/{theirs}/0") == str(ours).encode()


def test_other_keys_are_as_they_are():
    shared = dist.HashStore()
    store = RenumberingStore(shared)
    store.set("name", "a")
    assert shared.get("name") == b"a"
    assert store.check(["name"])
    assert store.add("count", 3) == 3
