"""Tests of `runtime.bench warm`: it compiles recorded specializations without a GPU, for several kinds of GPUs."""

from pathlib import Path

import pytest

pytest.importorskip("triton")

import runtime
from runtime.bench import warm
from runtime.bench.__main__ import main
from runtime.kernels.compiler import missing_from_cache, read_specialization
from tests.kernels.test_compiler import HOPPER, rms_norm


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unsets the variables that the tool sets for its process, and restores them."""
    for name in ("TRITON_CACHE_DIR", "TRITON_STORE_BINARY_ONLY", "TRITON_LIBCUDA_PATH"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def test_recorded_kernels_are_compiled_with_their_launchers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [rms_norm(width)[0] for width in (64, 128)]
    warm.write_specializations(tmp_path / "recorded.json", texts)
    command = ["warm", "--cache", str(tmp_path / "cache"), "--specializations", str(tmp_path / "recorded.json")]
    assert main([*command, "--capabilities", "90", "100"]) == 0
    out = capsys.readouterr().out
    assert "sm_90: compiled 2 kernels" in out
    assert "sm_100: compiled 2 kernels" in out
    assert "not compiled" not in out
    names = [path.name for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert sum(name.endswith(".cubin") for name in names) == 4
    assert sum(name.startswith("__triton_launcher") for name in names) == 1  # the same for both kernels
    assert not any(name.endswith((".ptx", ".llir", ".ttir")) for name in names)
    # Pods read the cache of the image like this.
    monkeypatch.delenv("TRITON_STORE_BINARY_ONLY")
    monkeypatch.setenv("TRITON_CACHE_MANAGER", "runtime.kernels.cache_manager:LayeredCacheManager")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "empty"))
    monkeypatch.setenv("UNMASK_KERNEL_CACHE", str((tmp_path / "cache").rename(tmp_path / "image")))
    assert missing_from_cache(texts, HOPPER) == []
    assert not (tmp_path / "empty").exists()


def test_shipped_specializations_are_of_kernels_that_exist() -> None:
    paths = sorted((Path(runtime.__file__).parent / "kernels" / "specializations").glob("*.json"))
    assert paths
    for path in paths:
        for text in warm.read_specializations(path):
            source, _ = read_specialization(text)
            assert list(source.signature) == source.fn.arg_names, source.name
