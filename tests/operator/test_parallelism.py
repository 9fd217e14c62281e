"""Tests of ranks and replicas of a pod: its GPUs, its shared memory, its arguments."""

from __future__ import annotations

from typing import Any

import pytest

from tests.operator.samples import container, edit, make, running, template


def shared_memory(made: Any) -> Any:
    volumes = {one["name"]: one for one in template(made)["spec"]["volumes"]}
    assert volumes["shm"]["emptyDir"]["medium"] == "Memory"
    return volumes["shm"]["emptyDir"]["sizeLimit"]


@pytest.mark.parametrize(
    ("parallelism", "gpus", "arguments"),
    [
        ({}, 1, []),
        ({"tensor": 1, "data": 1, "expert": 1}, 1, []),
        ({"tensor": 4}, 4, ["--tensor-parallel-size=4"]),
        ({"data": 2}, 2, ["--data-parallel-size=2"]),
        ({"tensor": 2, "data": 3}, 6, ["--tensor-parallel-size=2", "--data-parallel-size=3"]),
        ({"tensor": 8, "expert": 8}, 8, ["--tensor-parallel-size=8", "--expert-parallel-size=8"]),
    ],
)
def test_a_pod_gets_a_gpu_for_each_rank_of_each_engine(
    parallelism: dict[str, int], gpus: int, arguments: list[str]
) -> None:
    main = container(make(running(gpu={}, parallelism=parallelism)))
    assert main["resources"]["limits"] == {"nvidia.com/gpu": gpus}
    assert [one for one in main["args"] if "parallel" in one] == arguments


def test_ranks_get_more_shared_memory_unless_the_spec_sets_it() -> None:
    assert shared_memory(make(running(gpu={}))) == "1Gi"
    assert shared_memory(make(running(gpu={}, parallelism={"data": 4}))) == "1Gi"
    assert shared_memory(make(running(gpu={}, parallelism={"tensor": 2}))) == "8Gi"
    assert shared_memory(make(running(gpu={}, parallelism={"tensor": 2}, sharedMemorySize="2Gi"))) == "2Gi"


def test_setting_sizes_to_their_defaults_restarts_nothing() -> None:
    observed = running(gpu={}, parallelism={"data": 2})
    same = edit(observed, parallelism={"data": 2, "tensor": 1, "expert": 1}, sharedMemorySize="1Gi")
    assert template(make(same)) == template(make(observed))
