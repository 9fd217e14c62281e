"""Tests of the warm-up: kernels that the cache lacks are compiled first."""

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


@pytest.mark.parametrize(
    ("missing", "ranks", "compiles", "events"),
    [
        (0, 1, True, ["hashed", "work"]),
        (1, 1, True, ["hashed", "work", "compile", "work"]),
        (0, 2, True, ["hashed", "compile", "work"]),  # no rank may leave a step
        (0, 1, False, ["work"]),
    ],
)
def test_kernels_that_the_cache_lacks_are_compiled_before_the_warm_up(
    missing: int, ranks: int, compiles: bool, events: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = Steps(missing)
    monkeypatch.setattr(_Kernels, "_compile", lambda self, compiler: steps.events.append("compile"))
    group = SINGLE_RANK if ranks == 1 else cast(TensorParallelGroup, SimpleNamespace(size=ranks))
    assert steps.kernels(group, compiles=compiles).compiled_before(steps.work) == "result"
    assert steps.events == events
