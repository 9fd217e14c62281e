"""Tests of a backend's loop: when it sends the outputs of its engine, and when it captures CUDA graphs."""

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from runtime.config import EngineConfig, ServerConfig
from runtime.errors import AdapterNotLoadedError, RequestError
from runtime.request.engine_messages import EngineOutput, EngineStats, RequestSpec
from runtime.request.output import CompletionState, TextBuilder
from runtime.server.engine_client.adapter_registry import AdapterEntry
from runtime.server.engine_client.ipc_protocol import Add, Configure, Outputs, Ready, Stats
from runtime.server.engine_process.backend import Backend, serve
from runtime.server.engine_process.channel import FrontendGone
from runtime.server.frontend_processes.engine_client import FrontendEngineClient
from runtime.server.frontend_processes.protocol import EngineState
from runtime.server.metrics import RequestMetrics
from runtime.server.serving.job import GenerationJob
from tests.on_loop import on_loop
from tests.request.test_sampling_params import INFO


class Recording:
    """A link and an engine with `steps` steps, which record the sent messages and the steps in one list."""

    name = b"backend-0"

    def __init__(self, steps: int, *, overlaps: bool) -> None:
        self.left = self.steps = steps
        self.overlaps = overlaps
        self.sent: list[Any] = []
        self.brought: list[EngineOutput] = []
        self.work: Callable[[], None] = lambda: None
        self.backend = Backend(self, self)  # type: ignore[arg-type]

    def receive(self, seconds: float) -> Iterator[Any]:
        if not self.left:
            raise FrontendGone("enough")
        return iter(())

    def send(self, event: Any) -> None:
        if not isinstance(event, Stats):
            self.sent.append(event.outputs[0].id if isinstance(event, Outputs) else event)

    def set_overlap_callback(self, work: Callable[[], None]) -> bool:
        self.work = work
        return self.overlaps

    def has_work(self) -> bool:
        return self.left > 0

    def execute_step(self) -> None:
        number = self.steps - self.left
        self.left -= 1
        self.sent.append(f"step {number}")
        if self.overlaps:
            self.work()
        self.sent.append(f"end {number}")
        self.brought.append(EngineOutput(id=f"news {number}", nfe=1))

    def capture_next(self) -> bool:
        return False

    def take_outputs(self) -> list[EngineOutput]:
        brought, self.brought = self.brought, []
        return brought

    def progress(self) -> list[EngineOutput]:
        return []

    def stats(self) -> EngineStats:
        return EngineStats()


@pytest.mark.parametrize("overlaps", [True, False])
def test_outputs_of_a_step_are_sent_while_the_device_runs_the_next(overlaps: bool) -> None:
    each = Recording(4, overlaps=overlaps)
    with pytest.raises(FrontendGone):
        each.backend.run()
    if overlaps:
        assert each.sent == [
            "step 0", "end 0",
            "step 1", "news 0", "end 1",
            "step 2", "news 1", "end 2",
            "step 3", "news 2", "end 3", "news 3",
        ]  # fmt: skip
    else:
        assert each.sent == [word for n in range(4) for word in (f"step {n}", f"end {n}", f"news {n}")]


class Loading(Recording):
    """A link that records how many objects are excluded from garbage collection when the engine is ready."""

    frozen = 0
    info = None

    def send_hello(self) -> None: ...

    def configuration(self) -> Configure:
        return Configure(EngineConfig(), (), "info", "text")

    def send(self, event: Any) -> None:
        if isinstance(event, Ready):
            self.frozen = gc.get_freeze_count()

    def fail(self, sentence: str) -> None: ...


def test_the_loaded_engine_is_excluded_from_garbage_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.server.logs.configure_logging", lambda *_: None)
    each, before = Loading(0, overlaps=False), gc.get_freeze_count()
    gc.disable()  # as the process does while it loads
    try:
        with pytest.raises(FrontendGone):
            serve(each, lambda *_: each, lambda: None)  # type: ignore[arg-type]
        assert gc.isenabled()
    finally:
        gc.enable()
        gc.unfreeze()
    assert each.frozen > before


class Capturing(Recording):
    """An engine with four graphs to capture. A request arrives after the second capture."""

    graphs = 4

    def receive(self, seconds: float) -> Iterator[Any]:
        if seconds > 0:  # the loop would sleep
            raise FrontendGone("enough")
        if self.graphs == 2 and not self.left and "step 0" not in self.sent:
            self.left = 1
        return iter(())

    def capture_next(self) -> bool:
        self.graphs -= 1
        self.sent.append("capture")
        return self.graphs > 0


def test_graphs_are_captured_one_at_a_time_while_no_request_runs() -> None:
    each = Capturing(1, overlaps=False)
    each.left = 0
    with pytest.raises(FrontendGone):
        each.backend.run()
    assert each.sent == ["capture", "capture", "step 0", "end 0", "news 0", "capture", "capture"]
    assert not each.backend.capturing


class Forgetful(Recording):
    """An engine whose adapter was unloaded."""

    def __init__(self) -> None:
        super().__init__(1, overlaps=False)
        self.outputs: list[EngineOutput] = []

    def add(self, spec: RequestSpec) -> None:
        raise AdapterNotLoadedError(f"adapter {spec.adapter!r} is not loaded")

    def send(self, event: Any) -> None:
        self.outputs += event.outputs


@on_loop
async def test_a_request_that_arrives_after_its_adapter_was_unloaded_ends_as_not_found() -> None:
    """Requests and unloads arrive on different sockets, in any order."""
    spec = RequestSpec(id="r", prompt=[1], max_tokens=1, adapter="a", decoding=INFO.defaults())
    engine = Forgetful()
    engine.backend.handle(Add.of([spec]))
    (output,) = engine.outputs
    assert (output.id, output.finish_reason, output.adapter_unloaded) == ("r", "error", True)
    client = FrontendEngineClient(
        ServerConfig(frontend_processes=2), RequestMetrics(), lambda message: None, "frontend-0.1", 0
    )
    adapters = {"a": AdapterEntry("uri", "route", "ready")}
    client.on_state(EngineState(INFO, [], [0], ("start", 0, 0), adapters, True, True))
    with GenerationJob("j", client, [CompletionState(0, spec, TextBuilder())], streamed=False) as job:
        client.on_outputs(0, [output])
        with pytest.raises(RequestError, match="model: 'a' is no longer served") as error:
            async for _ in job.updates():
                pass
    assert (error.value.status, error.value.code, job.outcome) == (404, "model_not_found", "refused")
