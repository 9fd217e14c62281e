"""Tests of the kernel compiler, which compiles recorded specializations into the cache in other processes."""

import errno
import fcntl
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch

triton = pytest.importorskip("triton")
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.backends.nvidia.compiler import CUDABackend  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402
from triton.runtime.jit import serialize_specialization_data  # noqa: E402

from runtime.bench.warm import write_libcuda_stub  # noqa: E402
from runtime.kernels import compiler, layernorm  # noqa: E402
from runtime.kernels.compiler import (  # noqa: E402
    CompileJob,
    KernelCompiler,
    KernelNotCached,
    available_cores,
    compile_all,
    import_kernels,
    missing_from_cache,
    read_specialization,
    record_specializations,
    require_cached_kernels,
)
from runtime.kernels.fused_moe import grouped_gemm  # noqa: E402
from runtime.kernels.fused_moe.moe_align import moe_align_block_size_reference  # noqa: E402
from runtime.kernels.fused_moe.tile_config import GROUPED  # noqa: E402
from runtime.kernels.quantized_tensor import quantize_fp8_reference  # noqa: E402
from tests.wait import wait_until  # noqa: E402

HOPPER = GPUTarget("cuda", 90, 32)


def rms_norm(width: int, name: str = "_rms_norm") -> tuple[str, ASTSource]:
    """Returns a specialization as Triton records it, and the source that Triton compiles for it."""
    kernel = layernorm._rms_norm
    order = kernel.arg_names
    pointers = dict.fromkeys(("x_ptr", "residual_ptr", "weight_ptr", "out_ptr", "sum_ptr"), "*bf16")
    types = pointers | {"eps": "fp32", "rows": "i32"}
    constants = {"SIZE": width, "SIZE_P2": triton.next_power_of_2(width), "ADD": True, "WEIGHTED": True, "SPLITS": 1}
    signature = {each: types.get(each, "constexpr") for each in order}
    aligned = {(order.index(each),): [["tt.divisibility", 16]] for each in pointers}
    values = {(order.index(each),): value for each, value in constants.items()}
    options = CUDABackend(HOPPER).parse_options({"num_warps": 4})
    text = serialize_specialization_data(
        f"runtime.kernels.layernorm.{name}", signature, values, aligned, options, "key"
    )
    return text, ASTSource(kernel, signature, values, aligned)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("UNMASK_KERNEL_CACHE", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Replaces Triton's driver by one that reports a Hopper GPU and has a stub of libcuda."""
    monkeypatch.setenv("TRITON_LIBCUDA_PATH", str(write_libcuda_stub(tmp_path)))
    active = SimpleNamespace(
        get_current_target=lambda: HOPPER, get_current_device=lambda: 0, get_current_stream=lambda device: 0
    )
    driver = SimpleNamespace(active=active)
    monkeypatch.setattr(triton.runtime, "driver", driver)
    monkeypatch.setattr("triton.runtime.jit.driver", driver)


@pytest.fixture
def two_processes(hopper: None) -> KernelCompiler:
    made = KernelCompiler(torch.device("cuda"))
    made.processes = 2
    return made


def rms_norms(count: int, name: str = "_rms_norm") -> list[str]:
    return [rms_norm(16 << n, name)[0] for n in range(count)]


def test_a_specialization_is_read_as_the_source_that_triton_compiles(cache: Path) -> None:
    text, source = rms_norm(256)
    read, options = read_specialization(text)
    assert read.hash() == source.hash()
    backend = CUDABackend(HOPPER)
    assert backend.parse_options(options).hash() == backend.parse_options({"num_warps": 4}).hash()


def test_processes_compile_what_the_cache_does_not_have(cache: Path) -> None:
    (narrow, source), (wide, _), (unknown, _) = rms_norm(64), rms_norm(128), rms_norm(64, name="_absent")
    assert missing_from_cache([narrow, wide], HOPPER) == [narrow, wide]
    result = compile_all(CompileJob([narrow, wide, unknown], 90, processes=2, launcher=False))
    assert result.compiled == 2
    (error,) = result.errors
    assert error.startswith("runtime.kernels.layernorm._absent: AttributeError")
    assert missing_from_cache([narrow, wide], HOPPER) == []
    files = set(cache.rglob("*.cubin"))
    assert len(files) == 2
    triton.compile(source, target=HOPPER, options={"num_warps": 4})
    assert set(cache.rglob("*.cubin")) == files  # found, not compiled again


def test_a_killed_process_leaves_its_kernels_to_their_launch(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "compile_specialization", lambda *_, **options: os._exit(1))
    texts = [rms_norm(width)[0] for width in (64, 128)]
    result = compile_all(CompileJob(texts, 90, processes=2, launcher=False))
    assert result.compiled == 0
    assert [error.split(":")[1] for error in result.errors] == [" BrokenProcessPool"] * 2


def test_kernels_that_cannot_be_imported_are_left_to_their_launch(cache: Path) -> None:
    nested, absent = (rms_norm(64, name=name)[0] for name in ("make.<locals>.kernel", "_absent"))
    assert missing_from_cache([nested, absent], HOPPER) == []


def test_another_target_has_kernels_of_its_own(cache: Path) -> None:
    text, _ = rms_norm(64)
    assert compile_all(CompileJob([text], 80, processes=1, launcher=False)).errors == []
    assert missing_from_cache([text], GPUTarget("cuda", 80, 32)) == []
    assert missing_from_cache([text], HOPPER) == [text]


def test_launches_are_recorded_without_running(cache: Path, hopper: None, monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = torch.ones(4, 64, dtype=torch.bfloat16), torch.ones(64, dtype=torch.bfloat16)
    kernel = layernorm._rms_norm
    with record_specializations() as found:
        for rows in (1, 2):
            for width in (32, 64):
                out = torch.empty_like(x)
                kernel[(rows,)](x, x, weight, out, out, 1e-6, rows, width, width, False, True, 1)
                assert not out.any()
    assert len(found) == 2  # `rows` is not specialized
    assert missing_from_cache(list(found), HOPPER) == list(found)
    assert compile_all(CompileJob(list(found), 90, processes=1, launcher=False)).errors == []
    assert missing_from_cache(list(found), HOPPER) == []
    assert not kernel.device_caches[0][0]  # the next launch compiles, or loads from the cache
    kernel.device_caches.clear()


@pytest.mark.usefixtures("hopper")
def test_gluon_kernels_are_recorded_and_compiled(cache: Path) -> None:
    """Triton's and Gluon's source of a kernel have the same hash, so a full cache would hide the wrong one."""
    x, gate_up, down = (quantize_fp8_reference(torch.ones(shape)) for shape in ((3, 256), (2, 512, 256), (2, 256, 256)))
    config = next(config for table in GROUPED.values() for _, config in table if config is not None)
    aligned = moe_align_block_size_reference(torch.zeros(3, 1, dtype=torch.int32), 2, config.gate_up.pairs)
    with record_specializations() as found:
        inner = grouped_gemm.run_grouped_gate_up(x, gate_up, aligned, 1, config.gate_up, "silu")
        grouped_gemm.run_grouped_down(inner, down, torch.empty(3, 256, dtype=torch.bfloat16), aligned, config.down)
    assert len(found) == 2
    assert missing_from_cache(list(found), HOPPER) == list(found)
    assert compile_all(CompileJob(list(found), 90, processes=1, launcher=False)).errors == []
    assert missing_from_cache(list(found), HOPPER) == []
    for kernel in (grouped_gemm._grouped_gate_up, grouped_gemm._grouped_down):
        kernel.device_caches.clear()


@pytest.mark.usefixtures("hopper")
def test_a_launch_of_a_kernel_that_is_not_cached_is_refused(cache: Path) -> None:
    x, weight = torch.ones(4, 64, dtype=torch.bfloat16), torch.ones(64, dtype=torch.bfloat16)
    kernel = layernorm._rms_norm
    with pytest.raises(KernelNotCached, match=r"^runtime\.kernels\.layernorm\._rms_norm$"), require_cached_kernels():
        kernel[(1,)](x, x, weight, x, x, 1e-6, 1, 64, 64, False, True, 1)
    assert not list(cache.rglob("*.cubin"))
    assert triton.knobs.runtime.jit_cache_hook is None
    text, _ = rms_norm(64)
    assert compile_all(CompileJob([text], 90, processes=1, launcher=False)).errors == []
    with require_cached_kernels():
        assert not triton.knobs.runtime.jit_cache_hook(compile={"specialization_data": text})
    kernel.device_caches.clear()


@pytest.mark.parametrize("locks", [True, False])
def test_one_process_compiles_into_a_cache_at_a_time(
    locks: bool, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory of temporary files has the lock if that of the cache cannot be locked."""
    flock, temporary = fcntl.flock, tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))

    def locked(descriptor: int, operation: int) -> None:
        if not locks and os.path.samestat(os.fstat(descriptor), cache.stat()):
            raise OSError(errno.ENOLCK, "No locks available")
        flock(descriptor, operation)

    def lock_again(*_: object, **options: object) -> None:
        descriptor = os.open(cache if locks else temporary, os.O_RDONLY | os.O_DIRECTORY)
        try:
            flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(descriptor)

    import_kernels()
    monkeypatch.setattr(fcntl, "flock", locked)
    monkeypatch.setattr(compiler, "compile_specialization", lock_again)
    (error,) = compile_all(CompileJob([rms_norm(64)[0]], 90, processes=1, launcher=False)).errors
    assert "BlockingIOError" in error
    lock_again()  # free again


def test_kernels_are_compiled_without_a_lock_where_there_is_none(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert compile_all(CompileJob([rms_norm(64)[0]], 90, processes=1, launcher=False)).compiled == 1


def test_memory_of_kernels_that_are_not_launched_is_zero() -> None:
    with record_specializations() as found:
        for made in (torch.empty(64), torch.empty_like(torch.ones(64)), torch.ones(1).new_empty(64)):
            assert not made.any()
        assert torch.empty(3, device="meta").shape == (3,)
    assert not found
    assert triton.knobs.runtime.jit_cache_hook is None


@pytest.mark.usefixtures("hopper")
def test_few_kernels_are_left_to_their_launch(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KernelCompiler, "_start", lambda self: pytest.fail("a worker was started"))
    made = KernelCompiler(torch.device("cuda"))
    made.submit([rms_norm(64)[0]])
    made.wait()
    assert not cache.exists()


@pytest.mark.parametrize("prints", [False, pytest.param(True, marks=pytest.mark.matrix)])
def test_a_worker_compiles_each_specialization_once(
    prints: bool, cache: Path, tmp_path: Path, two_processes: KernelCompiler, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    if prints:  # packages that print when they are imported do not spoil the results
        (tmp_path / "sitecustomize.py").write_text("print('loaded', flush=True)\n")
        monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    texts = rms_norms(7)
    caplog.set_level("INFO", logger=compiler.__name__)
    two_processes.submit(texts[:6])
    two_processes.submit(texts)
    two_processes.wait()
    assert "Compiled 7 kernels" in caplog.text
    assert two_processes.missing(texts) == []


WORKER_PARENT = """
import subprocess, sys
worker = subprocess.Popen([sys.executable, "-m", "runtime.kernels.compile_worker", "2"], stdin=subprocess.PIPE)
print(worker.pid, flush=True)
worker.wait()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the signal is Linux's")
def test_a_worker_ends_with_its_parent_while_it_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = tmp_path / "started"
    (tmp_path / "torch.py").write_text(f"import time\nopen({str(started)!r}, 'w').close()\ntime.sleep(3600)\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    with subprocess.Popen([sys.executable, "-c", WORKER_PARENT], stdout=subprocess.PIPE, text=True) as parent:
        worker = psutil.Process(int(parent.stdout.readline()))
        wait_until(started.exists)
        parent.kill()
        wait_until(
            lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE, ignore=psutil.NoSuchProcess
        )


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(("kernels", "exited"), [(compiler.MIN_KERNELS, False), (1, True)])
def test_a_worker_that_exits_leaves_kernels_to_their_launch(
    kernels: int, exited: bool, two_processes: KernelCompiler, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """It exits after or before a job is submitted. A small job stays in the pipe's buffer until the pipe is closed."""
    monkeypatch.setattr(compiler, "WORKER_COMMAND", ("false",))
    if exited:
        two_processes._start()
        two_processes._worker.wait()
    two_processes.submit(rms_norms(kernels))
    two_processes.wait()
    assert "the compile worker has exited" in caplog.text


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("name", ["_rms_norm", "_rms_norm" * 20_000])
def test_a_worker_that_hangs_is_killed_and_reported(
    name: str, two_processes: KernelCompiler, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compiler, "WORKER_COMMAND", ("sleep", "3600"))
    monkeypatch.setattr(compiler, "WAIT_SECONDS", 0.2)
    two_processes.submit(rms_norms(compiler.MIN_KERNELS, name))
    two_processes.wait()
    assert "the compile worker had no result after 0 s and was killed" in caplog.text
    assert "python -m runtime.bench warm" in caplog.text


def test_a_worker_starts_early_only_if_nothing_is_cached(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    monkeypatch.setattr(KernelCompiler, "_start", lambda self: started.append(str(self.device)))
    monkeypatch.setattr(compiler, "available_cores", lambda: 4)
    hashed: list[str] = []
    monkeypatch.setattr(compiler, "_hash_triton", lambda: hashed.append("hashed"))
    KernelCompiler(torch.device("cpu")).start()
    assert started == hashed == []
    made = KernelCompiler(torch.device("cuda"))
    made.start()
    made.wait_until_hashed()
    assert hashed == ["hashed"]
    assert started == ["cuda"]
    (cache / "KEY").mkdir(parents=True)
    KernelCompiler(torch.device("cuda")).start()
    assert started == ["cuda"]


@pytest.mark.parametrize(("limit", "cores"), [("250000 100000", 3), ("max 100000", 8), ("50000 100000", 1), ("", 8)])
def test_the_cpu_limit_of_the_container_bounds_the_processes(
    limit: str, cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler.os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(compiler, "CGROUP_CPU_LIMIT", tmp_path / "cpu.max")
    (tmp_path / "cpu.max").write_text(limit)
    assert available_cores() == cores
    assert KernelCompiler(torch.device("cuda")).processes == cores
