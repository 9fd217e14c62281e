"""Downloads of Hugging Face hub repositories: files, progress, and reasons of failures."""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import re
import shutil
import sys
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from runtime.errors import ConfigError

NAME = re.compile(r"hf://([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")
# Data only: code of a repository is never downloaded.
TEXT_PATTERNS = ("*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken")
# Other checkpoints, adapters and logs. Templates in a subfolder are read.
SUBFOLDERS = tuple(f"*/{pattern}" for pattern in TEXT_PATTERNS if pattern != "*.jinja")
PROGRESS_SECONDS = 0.5  # seconds between calls of `progress`
# Downloads at once. In a plain directory each one locks a file, which takes long on some network volumes.
FILES_AT_ONCE, CACHED_AT_ONCE = 4, 8

_QUERY = re.compile(r"(https?://[^\s?'\"]+)\?[^\s'\"]+")

Progress = Callable[[str, int, int], None]  # phase, bytes done, bytes in total

_TOKEN = "HF_TOKEN (of a DiffusionLMService: spec.model.tokenSecretRef)"


def download(model: str, patterns: Sequence[str], ignore: Sequence[str] = (), *, named: str = "--model") -> Path:
    """Downloads the files that match `patterns` into huggingface_hub's cache; returns their directory.

    Without a connection to the hub, it returns the directory of an earlier download. It may lack files if the cache
    does not list the files of the repository.

    Args:
        model: ``hf://org/name[@revision]``.
        patterns: File name patterns.
        ignore: Patterns of files that are left out.
        named: The flag or noun that errors name.

    Raises:
        ConfigError: `model` has another form, or the download failed.
    """
    from huggingface_hub import errors

    repository, revision = parse(model, named)
    try:
        return _snapshot(repository, revision, patterns, ignore)
    except Exception as error:  # the hub's client raises many kinds: offline, unknown, gated, disk full
        reason = _why(error, revision)
        if _is_unreachable(error):  # the client does not search the cache for a revision that is a commit
            with contextlib.suppress(errors.LocalEntryNotFoundError):
                try:
                    return _snapshot(repository, revision, patterns, ignore, local_files_only=True)
                except errors.IncompleteSnapshotError as incomplete:
                    lacks = str(incomplete).partition(". ")[0]  # the first sentence names the files
                    reason = f"an earlier download did not end ({lacks}), and {reason}"
        raise failure(error, f"{named} {model!r} could not be fetched: {reason}") from error


def parse(model: str, named: str = "--model") -> tuple[str, str | None]:
    """Returns repository and revision of ``hf://org/name[@revision]``. Raises ConfigError for another form."""
    match = NAME.fullmatch(model)
    if match is None:
        raise ConfigError(f"{named} {model!r} is not of the form hf://org/name or hf://org/name@revision")
    repository, revision = match.groups()
    return repository, revision


@dataclass(frozen=True)
class HubFile:
    """A file of a repository: its size in bytes, and its name in the cache, the hash of its content."""

    size: int
    blob: str

    @property
    def sha256(self) -> str:
        """The sha256 of the content; "" if the hub states only the hash of the git blob."""
        return self.blob if len(self.blob) == hashlib.sha256().digest_size * 2 else ""

    def matches(self, path: Path) -> bool:
        """Whether the content of a file is this one, by its size and hash: sha256, or that of a git blob."""
        if _size(path) != self.size:
            return False
        with path.open("rb") as file:
            if self.sha256:
                return hashlib.file_digest(file, "sha256").hexdigest() == self.blob
            content = file.read()
        return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest() == self.blob


class TemporaryError(ConfigError):
    """A download failed, and may succeed later."""


class AccessError(ConfigError):
    """The hub refuses the token, or needs one."""


class DirectoryError(ConfigError):
    """The directory of a download cannot be written."""


class SpaceError(ConfigError):
    """The disk has no space for a download.

    Attributes:
        problem: The message without the fix.
    """

    def __init__(self, problem: str, fix: str) -> None:
        super().__init__(f"{problem}; {fix}")
        self.problem = problem


class HubUnavailable(Exception):
    """Neither the hub nor the cache lists the files of a repository. The message is the reason, in one line."""


@dataclass(frozen=True)
class Repository:
    """The files of a repository at one commit.

    Attributes:
        model: ``hf://org/name[@revision]``, for messages.
        unavailable: Why the hub did not list the files, so that they are those that the cache lists; "" if it did.
    """

    model: str
    commit: str
    files: Mapping[str, HubFile]
    unavailable: str = ""

    @classmethod
    def resolve(cls, model: str) -> Repository:
        """Lists the files of the revision that `model` names. Raises ConfigError: as `download`."""
        _, revision = parse(model)
        try:
            return cls._listed(model, revision)
        except Exception as error:
            reason = _why(error, revision)
            raise failure(error, f"--model {model!r} could not be fetched: {reason}") from error

    @classmethod
    def of(cls, model: str, commit: str) -> Repository:
        """Lists the files of a repository. Raises HubUnavailable."""
        from huggingface_hub import get_cached_repo_tree
        from huggingface_hub.errors import CachedRepoTreeNotFoundError

        repository, _ = parse(model)
        try:
            return cls._listed(model, commit)
        except Exception as error:
            reason = _why(error, commit)
            try:
                tree = get_cached_repo_tree(repository, revision=commit)
            except CachedRepoTreeNotFoundError:
                raise HubUnavailable(reason) from error
            return cls(model, commit, {file.path: HubFile(file.size, file.blob_id) for file in tree}, reason)

    @classmethod
    def _listed(cls, model: str, revision: str | None) -> Repository:
        from huggingface_hub import HfApi

        info = HfApi().model_info(parse(model)[0], revision=revision, files_metadata=True)
        listed = info.siblings or ()
        blobs = {file.rfilename: (file.lfs.sha256 if file.lfs else file.blob_id) or "" for file in listed}
        files = {file.rfilename: HubFile(file.size or 0, blobs[file.rfilename]) for file in listed}
        return cls(model, info.sha or revision or "", files)

    def text_files(self) -> list[str]:
        """Returns the names of the files other than weights that are read."""
        return sorted(
            name
            for name in self.files
            if any(fnmatchcase(name, pattern) for pattern in TEXT_PATTERNS)
            and not any(fnmatchcase(name, pattern) for pattern in SUBFOLDERS)
        )

    def check_disk(self, names: Collection[str], to: Path | None = None) -> None:
        """Raises SpaceError if the disk of the cache, or of the directory `to`, has no space for these files."""
        from huggingface_hub.constants import HF_HUB_CACHE

        files = {name: self.files[name] for name in names}
        rest = sum(file.size for file in files.values()) - self._present(files, to)
        place = Path(HF_HUB_CACHE) if to is None else to.absolute()
        free = shutil.disk_usage(next(path for path in (place, *place.parents) if path.exists())).free
        if rest > free:
            fix = "set HF_HOME to a directory with more" if to is None else "name another directory"
            problem = f"--model {self.model!r}: {rest / 1e9:.2f} GB are to be downloaded, but {place} has "
            raise SpaceError(f"{problem}{free / 1e9:.2f} GB of free space", f"free some, or {fix}")

    def fetch(self, names: Collection[str], progress: Progress | None = None, to: Path | None = None) -> Path:
        """Downloads files into huggingface_hub's cache, or into the directory `to`. Complete files are not requested.

        Args:
            progress: Called on this thread about twice per second. An exception that it raises ends the wait.

        Returns:
            The directory of the files.

        Raises:
            ConfigError: The disk has no space, or the download failed; TemporaryError if it may succeed later.
        """
        self.check_disk(names, to)
        fetched: Future[Path] = Future()

        def fetch() -> None:
            try:
                fetched.set_result(self._download(names, to))
            except Exception as error:
                fetched.set_exception(error)

        threading.Thread(target=fetch, name="download", daemon=True).start()
        if progress is not None:
            files = {name: self.files[name] for name in names}
            total = sum(file.size for file in files.values())
            while not wait([fetched], PROGRESS_SECONDS).done:
                progress("download", self._present(files, to), total)
        if error := fetched.exception():
            raise self._failed(error) from error
        return fetched.result()

    def _download(self, names: Collection[str], to: Path | None) -> Path:
        patterns = [glob.escape(name) for name in names]
        return _snapshot(parse(self.model)[0], self.commit, patterns, to=to)

    def _failed(self, error: BaseException) -> ConfigError:
        return failure(error, f"--model {self.model!r} could not be fetched: {_why(error, self.commit)}")

    def differing(self, directory: Path, names: Collection[str], progress: Progress | None = None) -> list[str]:
        """Returns which files in a directory differ from those of the hub in size or content, or are missing.

        Args:
            directory: The directory.
            names: The files.
            progress: Called after each file.
        """
        done, total, wrong = 0, sum(self.files[name].size for name in names), []
        with ThreadPoolExecutor(FILES_AT_ONCE) as pool:  # hashes are computed without Python's lock
            matches = pool.map(lambda name: self.files[name].matches(directory / name), sorted(names))
            for name, matched in zip(sorted(names), matches, strict=True):
                done += self.files[name].size
                wrong += [] if matched else [name]
                if progress is not None:
                    progress("verify", done, total)
        return wrong

    def _present(self, files: Mapping[str, HubFile], to: Path | None) -> int:
        """Returns the downloaded bytes, from the disk: other processes of this server download into the same cache."""
        if to is not None:
            done = sum(min(file.size, _size(to / name)) for name, file in files.items())
            parts = (to / ".cache").rglob("*.incomplete")
            return min(done + sum(map(_size, parts)), sum(file.size for file in files.values()))
        from huggingface_hub.constants import HF_HUB_CACHE
        from huggingface_hub.file_download import repo_folder_name

        repository, _ = parse(self.model)
        folder = Path(HF_HUB_CACHE) / repo_folder_name(repo_id=repository, repo_type="model") / "blobs"
        sizes = {file.blob: file.size for file in files.values()}
        largest: dict[str, int] = {}
        for path in folder.glob("*"):
            blob = path.name.split(".")[0]  # an incomplete file has a suffix
            try:
                largest[blob] = max(largest.get(blob, 0), path.stat().st_size)
            except FileNotFoundError:  # it has just been completed and renamed
                largest[blob] = sizes.get(blob, 0)
        return sum(min(file.size, largest.get(file.blob, 0)) for file in files.values())


def _snapshot(
    repository: str,
    revision: str | None,
    patterns: Sequence[str],
    ignore: Sequence[str] = (),
    *,
    local_files_only: bool = False,
    to: Path | None = None,
) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils.tqdm import disable_progress_bars

    if not sys.stderr.isatty():  # in a log, the bar of one process may follow the error of another
        disable_progress_bars()
    path = snapshot_download(
        repository, revision=revision, allow_patterns=list(patterns), ignore_patterns=list(ignore),
        local_files_only=local_files_only, local_dir=to, max_workers=FILES_AT_ONCE if to else CACHED_AT_ONCE,
    )  # fmt: skip
    return Path(path)


def _size(path: Path) -> int:
    """Returns the size of a file in bytes; 0 without one, as an incomplete file may just have been renamed."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def without_queries(text: str) -> str:
    """Removes queries from URLs in a text: in URLs to which a hub redirects, they are signatures."""
    return _QUERY.sub(r"\1", text)


def _why(error: BaseException, revision: str | None) -> str:
    """Returns the reason of a failed download, in one line."""
    from huggingface_hub import errors, get_token
    from huggingface_hub.constants import ENDPOINT

    if isinstance(error, errors.LocalEntryNotFoundError) and error.__cause__ is not None:
        error = error.__cause__  # the cause: why the hub could not be reached
    if isinstance(error, errors.OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE is set; unset it, or give a directory with the files"
    status = error.response.status_code if isinstance(error, errors.HfHubHTTPError) else None
    if isinstance(error, errors.RevisionNotFoundError):
        return f"the repository has no revision {revision or 'main'!r}"
    if status in (401, 403, 404) and get_token() is None:
        return f"the repository does not exist, or it needs a token; check its name, or set {_TOKEN}"
    if isinstance(error, errors.GatedRepoError) or status == 403:
        return f"the token in {_TOKEN} may not read it; ask the repository's owner for access"
    if status == 401:
        return f"the hub does not accept the token in {_TOKEN}"
    if status == 404:
        return f"the repository does not exist, or the token in {_TOKEN} may not see it"
    lines = str(error).strip().splitlines()
    reason = f"{type(error).__name__}: {without_queries(lines[0])}" if lines else type(error).__name__
    if status is not None and status >= 500:
        return f"the hub {ENDPOINT} failed with status {status}; try again later ({reason})"
    if _is_network_error(error):
        return (
            f"the hub {ENDPOINT} cannot be reached ({reason}); check the network, the proxy (HTTPS_PROXY) and "
            "HF_ENDPOINT, or give a directory with the files"
        )
    return reason


def failure(error: BaseException, message: str) -> ConfigError:
    """Returns the error of a failed download, by its cause."""
    from huggingface_hub import errors

    if _is_unreachable(error):
        return TemporaryError(message)
    status = error.response.status_code if isinstance(error, errors.HfHubHTTPError) else None
    if status in (401, 403):
        return AccessError(message)
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.ENOSPC, errno.EDQUOT):
        return SpaceError(message, "free some space")
    return DirectoryError(message) if number in (errno.EACCES, errno.EPERM, errno.EROFS) else ConfigError(message)


def _is_unreachable(error: BaseException) -> bool:
    """Whether the hub did not reply, or with an error of its own."""
    from huggingface_hub import errors

    if isinstance(error, errors.LocalEntryNotFoundError) and error.__cause__ is not None:
        error = error.__cause__
    status = error.response.status_code if isinstance(error, errors.HfHubHTTPError) else 0
    return isinstance(error, errors.OfflineModeIsEnabled) or status >= 500 or _is_network_error(error)


def _is_network_error(error: BaseException) -> bool:
    """Whether no response was received. Clients of the hub raise errors of httpx, and older ones of requests."""
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    names = {f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(error).__mro__}
    return bool(names & {"httpx.TransportError", "requests.ConnectionError", "requests.Timeout"})
