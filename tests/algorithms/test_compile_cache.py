"""Tests that torch.compile never runs code from a directory that another user can write."""

import os
import stat

import pytest

from runtime.algorithms import compile_cache
from runtime.algorithms.compile_cache import VARIABLE, use_private_cache
from runtime.config.flags import SERVER_COMPILE_CACHE
from runtime.server.engine_client.ipc_sockets import socket_dir


@pytest.fixture(autouse=True)
def unset(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(SERVER_COMPILE_CACHE, raising=False)
    compile_cache._temporary.cache_clear()


def test_the_directory_is_the_users_own(tmp_path):
    use_private_cache()
    assert os.environ[VARIABLE] == str(tmp_path / "unmask" / "inductor")
    assert stat.S_IMODE(os.stat(os.environ[VARIABLE]).st_mode) == 0o700


def test_a_directory_that_is_set_stays(monkeypatch):
    monkeypatch.setenv(VARIABLE, "/elsewhere")
    use_private_cache()
    assert os.environ[VARIABLE] == "/elsewhere"


@pytest.mark.parametrize("shared", ["unmask", "unmask/inductor"])
def test_a_directory_that_others_can_write_is_not_used(shared, tmp_path):
    (tmp_path / "unmask" / "inductor").mkdir(parents=True)
    (tmp_path / shared).chmod(0o777)
    use_private_cache()
    assert "unmask-inductor-" in os.environ[VARIABLE]
    assert stat.S_IMODE(os.stat(os.environ[VARIABLE]).st_mode) == 0o700


def test_a_directory_of_another_user_is_not_used(tmp_path, monkeypatch):
    (tmp_path / "unmask" / "inductor").mkdir(parents=True)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    use_private_cache()
    assert "unmask-inductor-" in os.environ[VARIABLE]


def test_without_a_cache_of_the_user_it_is_in_the_directory_of_the_server(tmp_path, monkeypatch):
    """A backend that is killed removes nothing, and the server removes its directory."""
    (tmp_path / "unmask").write_text("")
    with socket_dir() as directory:
        monkeypatch.setenv(SERVER_COMPILE_CACHE, str(directory / "compiled"))
        for _ in range(2):  # backends
            compile_cache._temporary.cache_clear()
            use_private_cache()
            assert os.environ.pop(VARIABLE) == str(directory / "compiled")
        assert stat.S_IMODE((directory / "compiled").stat().st_mode) == 0o700


def test_a_link_or_a_file_is_not_followed(tmp_path):
    (tmp_path / "unmask").mkdir(mode=0o700)
    (tmp_path / "unmask" / "inductor").write_text("")
    use_private_cache()
    assert "unmask-inductor-" in os.environ[VARIABLE]
