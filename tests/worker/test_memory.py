"""Tests of the warm-up: kernels that the cache lacks are compiled first."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

pytest.importorskip("triton")

from runtime.distributed.process_group import SINGLE_RANK, TensorParallelGroup
from runtime.kernels.compiler import KernelCompiler, KernelNotCached
from runtime.request.engine_messages import EngineInfo
from runtime.worker.memory import _Kernels
from runtime.worker.model_runner import ModelRunner


class Steps:
    """Records events. The first `missing` warm-ups launch a kernel that is not cached."""

    def __init__(self, missing: int) -> None:
        self.missing = missing
        self.events: list[str] = []

    def work(self) -> str:
        self.events.append("work")
        self.missing -= 1
        if self.missing >= 0:
            raise KernelNotCached("a kernel")
        return "result"

    def kernels(self, group: TensorParallelGroup, *, compiles: bool = True) -> _Kernels:
        waited = SimpleNamespace(wait_until_hashed=lambda: self.events.append("hashed"))
        compiler = cast(KernelCompiler, waited) if compiles else None
        info = cast(EngineInfo, None)
        return _Kernels(lambda: cast(ModelRunner, None), lambda runner: None, info, group, compiler)


@pytest.fixture
def steps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Steps:
    made = Steps(request.param)
    monkeypatch.setattr(_Kernels, "_compile", lambda self, compiler: made.events.append("compile"))
    return made


@pytest.mark.parametrize("steps", [0], indirect=True)
def test_cached_kernels_need_one_warm_up(steps: Steps) -> None:
    assert steps.kernels(SINGLE_RANK).compiled_before(steps.work) == "result"
    assert steps.events == ["hashed", "work"]


@pytest.mark.parametrize("steps", [1], indirect=True)
def test_a_warm_up_that_lacks_a_kernel_is_repeated_after_the_compilation(steps: Steps) -> None:
    assert steps.kernels(SINGLE_RANK).compiled_before(steps.work) == "result"
    assert steps.events == ["hashed", "work", "compile", "work"]


@pytest.mark.parametrize("steps", [0], indirect=True)
def test_ranks_compile_first_because_none_may_leave_a_step(steps: Steps) -> None:
    group = cast(TensorParallelGroup, SimpleNamespace(size=2))
    assert steps.kernels(group).compiled_before(steps.work) == "result"
    assert steps.events == ["hashed", "compile", "work"]


@pytest.mark.parametrize("steps", [0], indirect=True)
def test_without_a_compiler_the_warm_up_compiles(steps: Steps) -> None:
    assert steps.kernels(SINGLE_RANK, compiles=False).compiled_before(steps.work) == "result"
    assert steps.events == ["work"]
