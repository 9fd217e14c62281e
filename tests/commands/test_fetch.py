"""Tests of `python -m runtime.fetch`: what it downloads from a stub of the hub, and what is on the volume after it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.process import free_ports
from e2e.stubs.hub import checkpoint, identity
from runtime.weights import snapshots
from runtime.weights.checkpoint_files import REPOSITORY
from tests.server.harness import ROOT
from tests.wait import TIMEOUT, wait_until
from tests.weights.test_before_download import DEMO, OTHERS, Stub, commit, stub

__all__ = ["stub"]
FILES = checkpoint(DEMO)
SHARD = "model-00002-of-00004.safetensors"
KEY = snapshots.key("hf://org/private")
# Patches of the process; the last one fills the disk.
CODE = "import sys; from runtime.fetch import main; code = main(); assert 'torch' not in sys.modules; sys.exit(code)"
FULL = "import shutil; shutil.disk_usage = lambda path: type('Usage', (), {'free': 1000}); "
NO_SPACE = "import os; os.fsync = lambda fd: (_ for _ in ()).throw(OSError(28, 'No space left on device')); "
SIMPLE = """
import os, pathlib, stat
sync = os.fsync
def fsync(fd):
    if stat.S_ISDIR(os.fstat(fd).st_mode):
        raise OSError(22, "Invalid argument")
    sync(fd)
def chmod(*_):
    raise OSError(95, "Operation not supported")
os.fsync, pathlib.Path.chmod = fsync, chmod
"""
IMPATIENT = "from runtime.weights import snapshots; snapshots.PUBLISHING_SECONDS = 0.1; "
BAD_DISK = "import os; os.fsync = lambda fd: (_ for _ in ()).throw(OSError(5, 'Input/output error')); "


class Volume:
    """A volume, and processes that write it."""

    def __init__(self, stub: Stub, path: Path) -> None:
        self.stub, self.root, self.home = stub, path / "volume", path / "home"
        self.root.mkdir()

    def start(self, uri: str, *arguments: str, patch: str = "", **variables: str) -> subprocess.Popen[str]:
        self.result = self.root.parent / "result"
        command = [sys.executable, "-c", patch + CODE, uri, "--to", str(self.root), "--port=0", *arguments]
        command += ["--result", str(self.result)]
        environ, pipe = self.stub.environ(self.home, **variables), subprocess.PIPE
        return subprocess.Popen(command, cwd=ROOT, env=environ, stdout=pipe, stderr=pipe, text=True)

    def fetch(self, uri: str, *arguments: str, patch: str = "", **variables: str) -> tuple[int, Any, str]:
        """Returns the exit code, the result and the last line of stderr."""
        with self.start(uri, *arguments, patch=patch, **variables) as process:
            _, errors = process.communicate(timeout=TIMEOUT)
        return process.returncode, json.loads(self.result.read_text()), (errors.splitlines() or [""])[-1]

    def paths(self) -> list[str]:
        """Returns the snapshots, markers and incomplete snapshots."""
        return sorted(path.relative_to(self.root).as_posix() for path in self.root.glob("*/*"))

    def snapshot(self, name: str) -> dict[str, bytes]:
        folder = self.root / KEY / commit(name)
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def volume(stub: Stub, tmp_path: Path) -> Iterator[Volume]:
    yield Volume(stub, tmp_path)
    subprocess.run(["chmod", "-R", "u+w", str(tmp_path)], check=True)


def test_a_snapshot_has_what_the_server_reads_and_is_downloaded_once(stub: Stub, volume: Volume) -> None:
    uri = stub.add("model", FILES | OTHERS)
    code, result, _ = volume.fetch(uri)
    files = FILES | {REPOSITORY: b"org/private\n"}
    size = sum(map(len, files.values()))
    assert (code, result) == (0, {"commit": commit("model"), "bytes": size, "files": len(files)})
    assert volume.paths() == [f"{KEY}/{commit('model')}", f"{KEY}/{commit('model')}.json"]
    assert volume.snapshot("model") == files
    assert sorted(stub.asked) == sorted([*FILES, *FILES]), "one HEAD and one GET each"
    marker = json.loads((volume.root / KEY / f"{commit('model')}.json").read_text())
    listed = [{"path": name, "size": len(text), "sha256": identity(text)} for name, text in sorted(files.items())]
    assert (marker["format"], marker["uri"], marker["files"]) == (1, uri, listed)
    if os.geteuid():
        with pytest.raises(PermissionError):
            (volume.root / KEY / commit("model") / SHARD).open("ab")

    stub.asked.clear()
    assert volume.fetch(uri, HF_ENDPOINT="http://127.0.0.1:9")[:2] == (0, result)
    stub.hub.commits["main"] = FILES
    assert stub.asked == []


# Damage of a complete snapshot, and the files that are downloaded again.
DAMAGE: dict[str, tuple[Callable[[Path, Path], None], set[str]]] = {
    "no marker": (lambda path, marker: marker.unlink(), set()),
    "a marker that is cut off": (lambda path, marker: (marker.write_text("{"), None)[1], set()),
    "a file is missing": (lambda path, marker: (path / SHARD).unlink(), {SHARD}),
    "a file is cut off": (lambda path, marker: os.truncate(path / SHARD, 7), {SHARD}),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_snapshot_is_repaired(stub: Stub, volume: Volume, case: str) -> None:
    uri = stub.add("model", FILES)
    volume.fetch(uri)
    whole, path = volume.snapshot("model"), volume.root / KEY / commit("model")
    path.chmod(0o755)
    (path / SHARD).chmod(0o644)
    damage, again = DAMAGE[case]
    damage(path, path.with_name(f"{path.name}.json"))
    stub.asked.clear()
    gets = Gets(stub)
    assert (
        volume.fetch(uri, patch="from runtime.weights import snapshots; snapshots.PUBLISHING_SECONDS = 0.1; ")[0] == 0
    )
    assert volume.snapshot("model") == whole
    assert volume.paths() == [f"{KEY}/{path.name}", f"{KEY}/{path.name}.json"]
    assert gets.names == again


class Gets:
    """Records the names of files of weights whose content the hub sends."""

    def __init__(self, stub: Stub) -> None:
        self.names, sent = set[str](), stub.hub.pieces

        def pieces(commit: str, content: bytes) -> Iterator[bytes]:
            self.names |= {name for name, text in FILES.items() if text is content and name.endswith(".safetensors")}
            return sent(commit, content)

        stub.hub.pieces = pieces  # type: ignore[method-assign]


@pytest.mark.parametrize("writer", ["same", "other"])
def test_an_attempt_that_was_killed_is_continued(stub: Stub, volume: Volume, writer: str) -> None:
    uri = stub.add("model", FILES)
    stub.hub.released.clear()  # from the half on, a byte per second is sent
    (port,) = free_ports(1)
    with volume.start(uri, "--writer=same", f"--port={port}") as process:
        partial = volume.root / KEY / ".partial-same"

        def halfway() -> Any:
            try:
                urllib.request.urlopen(f"http://localhost:{port}/startup", timeout=5)
            except urllib.error.HTTPError as error:
                report = json.loads(error.read())
                return error.code == 503 and report["phase"] == "download" and report["percent"] > 10 and report
            except OSError:
                return None

        assert wait_until(halfway)["total_bytes"] == sum(map(len, FILES.values()))
        complete = {path.name for path in partial.glob("*.safetensors")}
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, errors.splitlines()[-1]) == (1, "error: terminated; the next attempt continues")
    assert complete
    stub.hub.released.set()
    if writer == "other":
        os.utime(partial, (0, time.time() - snapshots.ABANDONED_SECONDS - 60))
    gets = Gets(stub)
    assert volume.fetch(uri, f"--writer={writer}")[0] == 0
    assert volume.snapshot("model") == FILES | {REPOSITORY: b"org/private\n"}
    assert volume.paths() == [f"{KEY}/{commit('model')}", f"{KEY}/{commit('model')}.json"]
    assert gets.names == {name for name in FILES if name.endswith(".safetensors")} - complete


def test_two_writers_at_once_make_one_snapshot(stub: Stub, volume: Volume) -> None:
    uri = stub.add("model", FILES)
    stub.hub.released.clear()
    with volume.start(uri, "--writer=a") as first, volume.start(uri, "--writer=b") as second:
        wait_until(lambda: len([path for path in volume.paths() if ".partial-" in path]) == 2)
        stub.hub.released.set()
        for process in (first, second):
            _, errors = process.communicate(timeout=TIMEOUT)
            assert process.returncode == 0, errors
    assert volume.paths() == [f"{KEY}/{commit('model')}", f"{KEY}/{commit('model')}.json"]
    assert volume.snapshot("model") == FILES | {REPOSITORY: b"org/private\n"}


@pytest.mark.parametrize("own", [True, False])
def test_only_with_keep_other_snapshots_are_removed(stub: Stub, volume: Volume, own: bool) -> None:
    for name in ("old", "kept", "new"):
        stub.add(name, FILES)
    for name in ("old", "kept"):
        volume.fetch(f"hf://org/private@{commit(name)}")
    ages = {"live": 60.0, "left": snapshots.ABANDONED_SECONDS + 60, "old": snapshots.OLD_SECONDS + 60}
    for name, age in ages.items():
        (other := volume.root / snapshots.key("hf://org/other") / f".partial-{name}").mkdir(parents=True)
        os.utime(other, (0, time.time() - age))
    (volume.root / "lost+found").mkdir()
    (volume.root / "notes.txt").touch()
    keep = ["--keep", f"{KEY}/{commit('kept')}"] if own else []
    assert volume.fetch(f"hf://org/private@{commit('new')}", *keep)[0] == 0
    present = [name for name in ("old", "kept", "new") if f"{KEY}/{commit(name)}.json" in volume.paths()]
    assert present == (["kept", "new"] if own else ["old", "kept", "new"])
    assert {f"{KEY}/{commit(name)}" for name in present} <= {*volume.paths()}
    partial = [path.partition(".partial-")[2] for path in volume.paths() if ".partial-" in path]
    assert partial == (["live"] if own else ["left", "live"])
    assert (volume.root / "lost+found").is_dir()
    assert (volume.root / "notes.txt").is_file()


def test_a_file_system_without_modes_and_syncs_of_directories_is_enough(stub: Stub, volume: Volume) -> None:
    assert volume.fetch(stub.add("model", FILES), patch=SIMPLE)[0] == 0
    assert volume.snapshot("model") == FILES | {REPOSITORY: b"org/private\n"}


def test_a_wrong_byte_is_never_published(stub: Stub, volume: Volume) -> None:
    uri, sent = stub.add("model", FILES), stub.hub.pieces

    def flipped(commit: str, content: bytes) -> Iterator[bytes]:
        if content is FILES[SHARD]:
            content = content[:-1] + bytes([content[-1] ^ 1])
        return sent(commit, content)

    stub.hub.pieces = flipped  # type: ignore[method-assign]
    code, result, line = volume.fetch(uri, "--writer=a")
    assert (code, result["reason"]) == (1, "FetchFailed")
    assert line == f"error: {result['message']}"
    assert f"{SHARD!r} differed from the hub" in line
    assert volume.paths() == [f"{KEY}/.partial-a"]
    stub.hub.pieces = sent  # type: ignore[method-assign]
    assert volume.fetch(uri, "--writer=a")[0] == 0


def test_errors_are_one_line_with_a_reason_and_say_whether_to_try_again(
    stub: Stub, volume: Volume, tmp_path: Path
) -> None:
    uri, missing = stub.add("model", FILES), f"hf://org/private@{commit('nothing')}"
    (file := tmp_path / "file").touch()
    refused = {"hf://org/gated": (403, "GatedRepo"), "hf://org/nobody": (404, "RepoNotFound")}
    stub.hub.refusal = lambda repository, authorization: refused.get(f"hf://{repository}")  # type: ignore[method-assign]
    cases: list[tuple[str, list[str], dict[str, Any], int, str, str]] = [
        ("demo://", [], {}, 2, "FetchFailed", "model 'demo://' is not of the form hf://org/name"),
        (missing, [], {}, 2, "FetchFailed", "the repository has no revision"),
        ("hf://org/nobody", [], {"HF_TOKEN": "hf_x"}, 2, "FetchFailed", "the repository does not exist"),
        ("hf://org/gated", [], {"HF_TOKEN": "hf_x"}, 2, "AccessDenied", "ask the repository's owner for access"),
        (uri, [f"--to={file}/x"], {}, 2, "NotWritable", f"cannot be written by user {os.geteuid()} with the groups"),
        (uri, [], {"patch": FULL}, 2, "NotEnoughSpace", "GB of free space; enlarge the claim"),
        (uri, [], {"patch": NO_SPACE}, 2, "NotEnoughSpace", "No space left on device; enlarge the claim"),
        (uri, [], {"patch": BAD_DISK}, 1, "FetchFailed", "Input/output error"),
        (uri, [], {"HF_ENDPOINT": "http://127.0.0.1:9"}, 1, "FetchFailed", "cannot be reached"),
    ]
    for uri, arguments, more, code, reason, says in cases:
        found, result, line = volume.fetch(uri, *arguments, **more)
        assert (found, result["reason"]) == (code, reason), (says, result)
        assert line == f"error: {result['message']}"
        assert says in line
        assert not list(volume.root.glob("*/*.json"))
    shutil.rmtree(volume.root)
