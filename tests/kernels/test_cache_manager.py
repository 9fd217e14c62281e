"""Tests of the layered Triton cache: it reads the shipped directory first and writes only to TRITON_CACHE_DIR."""

import shutil
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")
from triton.runtime.cache import get_cache_manager

from runtime.kernels.compiler import KernelCompiler

KEY = "ab" * 32


@pytest.fixture(autouse=True)
def layered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_MANAGER", "runtime.kernels.cache_manager:LayeredCacheManager")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "own"))
    monkeypatch.setenv("UNMASK_KERNEL_CACHE", str(tmp_path / "shipped"))


def fill(text: str) -> None:
    manager = get_cache_manager(KEY)
    paths = {name: manager.put(text, name) for name in ("k.cubin", "k.json")}
    manager.put_group("k.json", paths)


def ship(tmp_path: Path) -> None:
    """Moves the compiled kernels to the shipped directory and makes it read-only."""
    shutil.move(tmp_path / "own", tmp_path / "shipped")
    for path in (tmp_path / "shipped", *(tmp_path / "shipped").rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)


def test_shipped_kernels_are_read_without_a_copy(tmp_path: Path) -> None:
    fill("shipped")
    ship(tmp_path)
    manager = get_cache_manager(KEY)
    group = manager.get_group("k.json")
    assert {Path(path) for path in group.values()} == set((tmp_path / "shipped").rglob("k.*"))
    assert Path(manager.get_file("k.cubin") or "").read_text() == "shipped"
    assert not (tmp_path / "own").exists()  # reading creates nothing


def test_new_kernels_are_written_to_the_own_directory(tmp_path: Path) -> None:
    assert get_cache_manager(KEY).get_group("k.json") is None
    fill("own")
    assert not (tmp_path / "shipped").exists()
    group = get_cache_manager(KEY).get_group("k.json")
    assert Path(group["k.cubin"]).is_relative_to(tmp_path / "own")


def test_a_shipped_kernel_comes_before_an_own_one(tmp_path: Path) -> None:
    fill("shipped")
    ship(tmp_path)
    fill("own")
    group = get_cache_manager(KEY).get_group("k.json")
    assert Path(group["k.cubin"]).read_text() == "shipped"


def test_an_incomplete_shipped_kernel_is_not_used(tmp_path: Path) -> None:
    fill("shipped")
    next((tmp_path / "own").rglob("k.cubin")).unlink()
    ship(tmp_path)
    assert get_cache_manager(KEY).get_group("k.json") is None


def test_an_engine_reads_the_shipped_directory_without_a_setting_of_triton(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRITON_CACHE_MANAGER")
    fill("shipped")
    ship(tmp_path)
    assert get_cache_manager(KEY).get_group("k.json") is None
    KernelCompiler(torch.device("cuda"))
    assert get_cache_manager(KEY).get_group("k.json")


def test_without_a_shipped_directory_the_cache_is_tritons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UNMASK_KERNEL_CACHE")
    fill("own")
    assert get_cache_manager(KEY).get_group("k.json")
