"""Tests of the names of a checkpoint's repository, from its address, its directory and config.json."""

from pathlib import Path

import pytest

from runtime.errors import ConfigError
from runtime.weights.checkpoint_files import REPOSITORY, file_digests
from runtime.weights.repository import repository_names, write_repository

COMMIT = "0123456789abcdef" * 2 + "01234567"
SNAPSHOT = f"/cache/hub/models--JetLM--SDAR-8B-Chat-b32/snapshots/{COMMIT}"


@pytest.mark.parametrize(
    ("model", "path", "origin", "names"),
    [
        (None, "/package/checkpoint", None, ()),
        (None, "/package/checkpoint", "org/other", ()),
        ("hf://JetLM/SDAR-8B-Chat-b32", "/tmp/x", None, ("JetLM/SDAR-8B-Chat-b32",)),
        ("hf://JetLM/SDAR-8B-Chat-b32@refs/pr/1", "/tmp/x", "", ("JetLM/SDAR-8B-Chat-b32",)),
        ("hf://me/tuned@main", "/tmp/x", "JetLM/SDAR-8B-Chat-b32", ("me/tuned", "JetLM/SDAR-8B-Chat-b32")),
        ("hf://me/tuned", "/tmp/x", "me/tuned", ("me/tuned",)),
        ("/models/my-sdar-b16/", "/models/my-sdar-b16", None, ("my-sdar-b16",)),
        (SNAPSHOT, SNAPSHOT, None, ("JetLM/SDAR-8B-Chat-b32",)),
        ("/m", "/m", SNAPSHOT + "/", ("m", "JetLM/SDAR-8B-Chat-b32")),
        ("/m", "/m", "/data/train/SDAR-b8/", ("m", "SDAR-b8")),
        ("/m", "/m", "./SDAR-b8", ("m", "SDAR-b8")),
        ("/m", "/m", ["no text"], ("m",)),
        ("/cache/models--gpt2/snapshots/main", "/cache/models--gpt2/snapshots/main", None, ("gpt2",)),
        ("/data/snapshots/first", "/data/snapshots/first", None, ("first",)),
    ],
)
def test_names(model, path, origin, names):
    assert repository_names(model, Path(path), {"_name_or_path": origin}) == names


def test_a_relative_directory_and_a_link_have_the_names_of_their_targets(tmp_path, monkeypatch):
    (tmp_path / "SDAR-b16").mkdir()
    (tmp_path / "current").symlink_to("SDAR-b16")
    assert repository_names("current", tmp_path / "current", {}) == ("current", "SDAR-b16")
    monkeypatch.chdir(tmp_path / "SDAR-b16")
    for relative in (".", "../SDAR-b16"):
        assert "SDAR-b16" in repository_names(relative, Path(relative), {})


def test_a_downloaded_directory_keeps_the_name_of_its_repository(tmp_path):
    write_repository(tmp_path, "JetLM/SDAR-8B-Chat-b32")
    names = repository_names("/models/current", tmp_path, {"_name_or_path": "org/other"})
    assert names == ("JetLM/SDAR-8B-Chat-b32", tmp_path.name, "org/other")
    assert file_digests(tmp_path).keys() == {REPOSITORY}, "ranks would decide about different names"
    for wrong in ("", "SDAR", "a/b/c", "JetLM/SDAR\nJetLM/other"):
        (tmp_path / REPOSITORY).write_text(wrong)
        with pytest.raises(ConfigError, match="not the name of a repository, org/name; correct it"):
            repository_names("/models/current", tmp_path, {})
