"""Tests that the directory of a server's sockets is removed, whatever ends the server."""

import tempfile
from pathlib import Path

import pytest

from runtime.server.engine_client.ipc_sockets import LOCK, remove_abandoned, socket_dir


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_the_directory_is_private_and_removed_at_the_end(folder: Path) -> None:
    with socket_dir() as path:
        assert path.parent == folder
        assert path.stat().st_mode & 0o077 == 0
        (path / "commands").touch()
    assert list(folder.iterdir()) == []


def test_directories_of_killed_servers_are_removed_and_those_of_running_ones_are_not(folder: Path) -> None:
    abandoned = folder / "unmask-killed_1"
    abandoned.mkdir()
    for name in (LOCK, "events", "commands", "0.12", "parent"):
        (abandoned / name).touch()
    for name in ("tokenizers", "compiled"):
        (abandoned / name).mkdir()
    with socket_dir() as living:
        assert not abandoned.exists()
        with socket_dir() as other:
            assert living.exists()
            assert other != living
        remove_abandoned()
        assert (living / LOCK).exists()


def test_nothing_else_is_removed(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / LOCK).touch()
    (folder / "unmask-link_1_2").symlink_to(elsewhere)
    (folder / "unmask-bench-1").mkdir()  # of another program, as it has no lock
    (folder / "unmask-file").touch()
    for name in ("unmask-of_users", "unmask-mine"):  # a person's, by its content or its name
        (folder / name).mkdir()
        (folder / name / LOCK).touch()
    (folder / "unmask-of_users" / "data").touch()
    linked = folder / "unmask-lockfile"
    linked.mkdir()
    (linked / LOCK).symlink_to(elsewhere / LOCK)
    (folder / "other").mkdir()
    (folder / "other" / LOCK).touch()
    before = sorted(folder.rglob("*"))
    remove_abandoned()
    assert sorted(folder.rglob("*")) == before
    assert (elsewhere / LOCK).exists()
