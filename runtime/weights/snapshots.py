"""Snapshots of models on a volume that several processes write and many read.

    KEY/COMMIT/         a complete snapshot: plain files, which never change
    KEY/COMMIT.json     its marker, which is written last
    KEY/.partial-NAME/  an incomplete one, with one writer

KEY depends on the repository or the prefix. Nothing is locked, because locks succeed for every process on some network
volumes. Directories are renamed instead, which one process at a time can do.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.weights import bucket, hub

FORMAT = 1  # of a marker
ABANDONED_SECONDS = 900.0  # a writer touches its directory about twice per second
OLD_SECONDS = 86_400.0
PUBLISHING_SECONDS = 5.0  # between the rename of a snapshot and its marker
_PARTIAL = ".partial-"
COMMIT = re.compile(r"[0-9a-f]{40}")
_KEY = re.compile(r"[0-9a-f]{16}")


def key(uri: str) -> str:
    """Returns the KEY of a model without its revision."""
    model = bucket.parse(uri)[0] if bucket.is_address(uri) else f"hf://{hub.parse(uri)[0]}"
    return hashlib.sha256(model.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Snapshot:
    """The snapshot of one commit on a volume.

    Attributes:
        root: Directory of the volume.
        uri: ``hf://org/name``, ``s3://bucket/prefix`` or ``gs://bucket/prefix``, each optionally with ``@revision``.
        commit: The commit; of a bucket, the hash of its list.
        writer: Name of the writer. A later process with the same name continues the work of an earlier one.
    """

    root: Path
    uri: str
    commit: str
    writer: str

    @property
    def path(self) -> Path:
        return self.root / key(self.uri) / self.commit

    @property
    def marker(self) -> Path:
        return self.path.with_name(f"{self.commit}.json")

    @property
    def partial(self) -> Path:
        return self.path.with_name(f"{_PARTIAL}{self.writer}")

    def files(self) -> list[dict[str, Any]] | None:
        """Returns path, size and sha256 of each file of a complete snapshot; None if it is not complete."""
        try:
            listed = json.loads(self.marker.read_text(encoding="utf-8"))
            files: list[dict[str, Any]] = listed["files"] if listed["format"] == FORMAT else []
            complete = files and all((self.path / one["path"]).stat().st_size == one["size"] for one in files)
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return files if complete else None

    def begin(self) -> list[dict[str, Any]] | None:
        """Returns the files as `files`, or creates the directory `partial` with the files of an earlier attempt.

        Raises:
            DirectoryError: The volume cannot be written.
        """
        if (complete := self._published()) is not None:
            return complete
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if not self.partial.exists():
                self._continue_earlier()
            self.partial.mkdir(exist_ok=True)
            for folder in (self.partial, *filter(Path.is_dir, self.partial.rglob("*"))):
                _set_mode(folder, 0o755)
            self.touch()
        except OSError as error:
            groups = ", ".join(map(str, sorted({os.getegid(), *os.getgroups()})))
            raise hub.DirectoryError(
                f"{self.root} cannot be written by user {os.geteuid()} with the groups {groups}: {error.strerror}; "
                "mount it writable, and set fsGroup in the securityContext of the pod to a group that may write there"
            ) from error
        return None

    def _published(self) -> list[dict[str, Any]] | None:
        """Returns the result of `files`. Another process may be about to write the marker."""
        end = time.monotonic() + PUBLISHING_SECONDS
        while (complete := self.files()) is None and self.path.exists() and time.monotonic() < end:
            time.sleep(0.2)
        return complete

    def _continue_earlier(self) -> None:
        """Takes over a snapshot that lacks files or its marker, or the directory of a writer that has ended."""
        for earlier in (self.path, *_untouched(self.path.parent, ABANDONED_SECONDS)):
            with contextlib.suppress(OSError):  # there is none, or another process was faster
                earlier.rename(self.partial)
                if earlier == self.path:
                    self.marker.unlink(missing_ok=True)
                return

    def touch(self) -> None:
        """Shows other processes that this one still works."""
        os.utime(self.partial)

    def publish(self, hashes: Mapping[str, str], version: str) -> list[dict[str, Any]]:
        """Makes the directory `partial` the snapshot, unless another process was faster.

        Args:
            hashes: sha256 of the files of the snapshot, by name; "" if unknown. Other files are removed.
            version: Of this program, for the marker.

        Returns:
            The result of `files`.

        Raises:
            OSError: The volume cannot be written.
        """
        wanted = {self.partial / name for name in hashes}
        for path in sorted(self.partial.rglob("*"), reverse=True):
            if path.is_dir() and not any(path in one.parents for one in wanted):
                shutil.rmtree(path)
            elif not path.is_dir() and path not in wanted:
                path.unlink()
        files = [_described(self.partial, name, hashes[name]) for name in sorted(hashes)]
        for path in (*self.partial.rglob("*"), self.partial):
            _set_mode(path, 0o755 if path == self.partial else 0o555 if path.is_dir() else 0o444)
            _sync(path)
        try:
            self.partial.rename(self.path)
        except OSError:
            if (complete := self._published()) is not None:
                _remove(self.partial)
                return complete
            aside = self.partial.with_name(f"{self.partial.name}.aside")
            self.path.rename(aside)
            self.partial.rename(self.path)
            _remove(aside)
        _set_mode(self.path, 0o555)
        _sync(self.path.parent)
        content = {"format": FORMAT, "uri": self.uri, "commit": self.commit, "files": files, "version": version}
        temporary = self.marker.with_name(f"{self.partial.name}.json")
        temporary.write_text(json.dumps(content), encoding="utf-8")
        _sync(temporary)
        temporary.rename(self.marker)
        _sync(self.path.parent)
        return files


def clean(root: Path, snapshot: Snapshot, keep: Collection[str] | None) -> None:
    """Removes what no process needs from a volume.

    Args:
        root: Directory of the volume.
        snapshot: The snapshot of this process, which stays.
        keep: KEY/COMMIT of the other snapshots to keep. None: all, and directories of writers until they are old.
    """
    for folder in filter(lambda one: _KEY.fullmatch(one.name), _entries(root)):
        for partial in _untouched(folder, OLD_SECONDS if keep is None else ABANDONED_SECONDS):
            _remove(partial)
        if keep is None:
            continue
        for path in filter(lambda one: COMMIT.fullmatch(one.name), _entries(folder)):
            if path != snapshot.path and f"{folder.name}/{path.name}" not in keep:
                path.with_name(f"{path.name}.json").unlink(missing_ok=True)
                _remove(path)


def _untouched(folder: Path, seconds: float) -> Iterator[Path]:
    """Yields the incomplete snapshots that no writer has touched for some time, by the clock of the volume."""
    probe = folder / f"{_PARTIAL}{os.getpid()}.now"
    with contextlib.suppress(OSError):
        probe.touch()
        now = probe.stat().st_mtime
        probe.unlink()
        for path in _entries(folder):
            if path.name.startswith(_PARTIAL) and path.is_dir() and now - path.stat().st_mtime > seconds:
                yield path


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _described(folder: Path, name: str, sha256: str) -> dict[str, Any]:
    if not sha256:
        with (folder / name).open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    return {"path": name, "size": (folder / name).stat().st_size, "sha256": sha256}


def _set_mode(path: Path, mode: int) -> None:
    with contextlib.suppress(OSError):  # some network file systems have no modes
        path.chmod(mode)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if not (path.is_dir() and error.errno in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)):
            raise  # these: a file system that cannot write a directory alone
    finally:
        os.close(descriptor)


def _remove(folder: Path) -> None:
    """Removes a directory, also a read-only one. Another process may remove it too."""
    for path in (folder, *folder.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            _set_mode(path, 0o755)
    shutil.rmtree(folder, ignore_errors=True)
