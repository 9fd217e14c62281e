"""Adapters and profiles of a backend. Threads read and write files, and the loop polls them between steps."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from runtime.errors import ConfigError, RequestError
from runtime.request.engine_messages import RequestSpec
from runtime.server.engine_client.ipc_protocol import CallResult, LoadAdapter
from runtime.server.engine_process.adapter_memory import AdapterMemory

log = logging.getLogger("unmask.backend")

POLL_SECONDS = 0.02  # interval at which an idle backend checks whether a file has been read or written


def _attempt(work: Callable[[], Any], failure: str, advice: str) -> tuple[Any, str | None]:
    """Returns the result of `work`, or None and why it failed. The log has the traceback of an unexpected error.

    Raises:
        RequestError: `work` raised it.
    """
    try:
        return work(), None
    except RequestError:
        raise
    except ConfigError as error:
        return None, str(error)
    except Exception as error:
        log.exception("%s; %s", failure, advice)
        return None, f"{failure}: {type(error).__name__}: {error}"


def _no_limit(num_bytes: int) -> None:
    """Reserves nothing: adapters of flags and of --lora-config do not count."""


@dataclass
class _Loading:
    """An adapter that is being loaded.

    Attributes:
        num_calls: calls that load it and have no result yet.
        waiting: requests that wait until the last of them has one.
    """

    num_calls: int = 0
    waiting: list[RequestSpec] = field(default_factory=list)


class AdapterWorker:
    """Loads and unloads adapters.

    Args:
        engine: the engine.
        send: sends results to the frontend.
        add: adds requests to the engine that had to wait until their adapter was loaded.
    """

    def __init__(self, engine: Any, send: Callable[[CallResult], None], add: Callable[[RequestSpec], None]) -> None:
        self.engine = engine
        self.send = send
        self.add = add
        self.memory = AdapterMemory()
        self._calls: deque[tuple[int, LoadAdapter]] = deque()  # loads that have not started
        self._num_reads = 0  # calls whose adapter is being read
        self._is_reloading = False  # one of them is a reload
        self._loading: dict[str, _Loading] = {}  # by name of the adapter
        # call, adapter, and result of the call, so far without an error if there is an adapter; threads append to it
        self._completed_reads: list[tuple[LoadAdapter, Any, CallResult]] = []
        self._unloading: dict[str, int] = {}  # adapter -> number of the call

    @property
    def pending(self) -> bool:
        """Whether `poll` has to be called."""
        return bool(self._loading or self._unloading)

    def load(self, number: int, call: LoadAdapter) -> None:
        """Loads an adapter, which a thread reads. `number`: of the call.

        Reloads are read one after the other, in the order of their first loads, so they take no more memory than then.
        Later loads wait for them: they may take only what these leave.
        """
        self._loading.setdefault(call.name, _Loading()).num_calls += 1
        self._end_unload(call.name)
        self._calls.append((number, call))
        self._start_reads()

    def _start_reads(self) -> None:
        while self._calls and not self._is_reloading and not (self._calls[0][1].reload and self._num_reads):
            number, call = self._calls.popleft()
            self._num_reads += 1
            self._is_reloading = call.reload
            is_loaded = call.name in self.engine.lora_manager.digests
            threading.Thread(
                target=self._read_adapter, args=(number, call, is_loaded), name=f"adapter {call.name}", daemon=True
            ).start()

    def unload(self, number: int, name: str) -> None:
        """Unloads an adapter when no request uses it. `number`: of the call."""
        self._end_unload(name)
        self._unloading[name] = number

    def _end_unload(self, name: str) -> None:
        """Completes the call of a pending unload, because a later call for the same adapter replaces it."""
        if (number := self._unloading.pop(name, None)) is not None:
            self.send(CallResult(number))

    def defer(self, spec: RequestSpec) -> bool:
        """Stores a request until its adapter is loaded. Returns False if the adapter is not being loaded."""
        if spec.adapter not in self._loading:
            return False
        self._loading[spec.adapter].waiting.append(spec)
        return True

    def abort(self, request_id: str) -> bool:
        """Drops a request that waits for its adapter. Returns False if it does not."""
        for loading in self._loading.values():
            kept = [spec for spec in loading.waiting if spec.id != request_id]
            if len(kept) < len(loading.waiting):
                loading.waiting = kept
                return True
        return False

    def poll(self) -> None:
        """Activates adapters that have been read, and unloads unused ones. It is called between steps."""
        while self._completed_reads:
            call, adapter, result = self._completed_reads.pop(0)
            if result.error is None:
                result = self._load_adapter(call, adapter, result)
            self.memory.release(result.number)
            self.send(result)
            self._num_reads -= 1
            if call.reload:
                self._is_reloading = False
            self._end_load(call.name)
        self._start_reads()
        for name in sorted(self._unloading):
            if name not in self._loading and self.engine.unload_adapter(name):
                self.memory.names.discard(name)
                self._count_memory()
                self.send(CallResult(self._unloading.pop(name)))

    def _end_load(self, name: str) -> None:
        """Adds the requests that wait for an adapter, after the last of its calls."""
        loading = self._loading[name]
        loading.num_calls -= 1
        if not loading.num_calls:
            del self._loading[name]
            for spec in loading.waiting:
                self.add(spec)

    def _load_adapter(self, call: LoadAdapter, adapter: Any, result: CallResult) -> CallResult:
        manager, failure = self.engine.lora_manager, f"failed to load adapter {call.name!r}"
        is_new = call.name not in manager.digests
        _, error = _attempt(partial(manager.load, call.name, adapter), failure, "report it with this traceback")
        if call.by_request and is_new and error is None:
            self.memory.names.add(call.name)
        self._count_memory()
        return CallResult(result.number, error=error)

    def _count_memory(self) -> None:
        self.memory.held_bytes = self.engine.lora_manager.host_bytes(self.memory.names)

    def _read_adapter(self, number: int, call: LoadAdapter, is_loaded: bool) -> None:
        """Reads an adapter. If its name `is_loaded`, it needs only the digest, and no memory is reserved."""
        reserve = partial(self.memory.reserve, number, call.max_bytes) if call.by_request else _no_limit
        read = partial(self.engine.lora_manager.read, call.uri, reserve, only_digest=is_loaded)
        failure = f"failed to read adapter {call.name!r} from {call.uri}"
        try:
            adapter, error = _attempt(read, failure, "check its files")
            result = CallResult(number, error=error)
        except RequestError as refusal:
            adapter, result = None, CallResult(number, error=refusal.message, status=refusal.status)
        self._completed_reads.append((call, adapter, result))


STEP = "engine step"  # name of each step in the trace
# Steps of a profile, which then stops by itself. Each takes memory until the file is written, and time to write it.
MAX_PROFILED_STEPS = 1000


class ProfileWorker:
    """Records profiles. Its methods are called in the thread of the steps, because the profiler records this thread.

    Attributes:
        recording: a profile is being recorded.
    """

    def __init__(self, name: str, send: Callable[[CallResult], None]) -> None:
        self.name = name
        self.send = send
        self.recording = False
        self._directory = Path()
        self._profile: Any = None
        self._num_steps = 0
        self._written: CallResult | None = None
        self._writer: threading.Thread | None = None

    @property
    def pending(self) -> bool:
        """Whether a file is being written, so that `poll` has to be called."""
        return self._writer is not None

    def start(self, number: int, directory: str) -> None:
        """Starts to record. `number`: of the call. `directory`: where `stop` writes the file."""
        self._directory = Path(directory)
        failure = f"failed to start the profile in {directory}"
        self._profile, error = _attempt(self._make_profile, failure, "check --torch-profiler-dir")
        self.recording = error is None
        self._num_steps = 0
        self.send(CallResult(number, error=error))

    def _make_profile(self) -> Any:
        import torch
        from torch.profiler import ProfilerActivity, profile

        self._directory.mkdir(parents=True, exist_ok=True)
        if not os.access(self._directory, os.W_OK):
            raise PermissionError(f"{self._directory} is not writable")
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
        made = profile(activities=activities)
        made.start()
        return made

    def step(self, engine: Any) -> None:
        """Executes one step of the engine under the name `STEP` in the trace. Stops after `MAX_PROFILED_STEPS`."""
        from torch.profiler import record_function

        with record_function(STEP):
            engine.execute_step()
        self._num_steps += 1
        if self._num_steps == MAX_PROFILED_STEPS:
            self._stop_recording()
            log.warning("the profile stopped by itself after %d steps; write it with /stop_profile", MAX_PROFILED_STEPS)

    def _stop_recording(self) -> None:
        if self.recording:
            self._profile.stop()
            self.recording = False

    def stop(self, number: int, keep: bool) -> None:
        """Stops recording. If `keep`, a thread writes the file. `number`: of the call."""
        if self._profile is None:
            self.send(CallResult(number, error="no profile is running"))
            return
        self._stop_recording()
        made, self._profile = self._profile, None
        if not keep:
            self.send(CallResult(number))
            return
        now = time.time_ns()  # two profiles within one second need different names
        stamp = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now // 10**9))}.{now % 10**9 // 10**6:03}"
        file = self._directory / f"{self.name}-{stamp}-{os.getpid()}.pt.trace.json.gz"
        self._writer = threading.Thread(target=self._write, args=(number, made, file), name="profile", daemon=True)
        self._writer.start()

    def _write(self, number: int, made: Any, file: Path) -> None:
        export, advice = partial(made.export_chrome_trace, str(file)), "check --torch-profiler-dir and its free space"
        _, error = _attempt(export, f"failed to write the profile {file}", advice)
        self._written = CallResult(number, "" if error else str(file), error)

    def poll(self) -> None:
        """Sends the result of a file that has been written. It is called between steps."""
        if self._written is not None:
            self.send(self._written)
            self._written = self._writer = None
