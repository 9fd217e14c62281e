"""Downloads of Hugging Face hub repositories: files, progress, and reasons of failures."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from fnmatch import fnmatch
from pathlib import Path

from runtime.errors import ConfigError

NAME = re.compile(r"hf://([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")
# Data only: code of a repository is never downloaded.
TEXT_PATTERNS = ("*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken")
PATTERNS = (*TEXT_PATTERNS, "*.safetensors")
PROGRESS_SECONDS = 0.5  # seconds between calls of `progress`

_QUERY = re.compile(r"(https?://[^\s?'\"]+)\?[^\s'\"]+")

Progress = Callable[[str, int, int], None]  # phase, bytes done, bytes in total

_TOKEN = "HF_TOKEN (of a DiffusionLMService: spec.model.tokenSecretRef)"


def download(model: str, patterns: Sequence[str], progress: Progress | None = None, *, named: str = "--model") -> Path:
    """Downloads the files that match `patterns` into huggingface_hub's cache; returns their directory.

    Args:
        model: ``hf://org/name[@revision]``.
        patterns: File name patterns.
        progress: Called on this thread about twice per second. An exception that it raises ends the wait.
        named: The flag or noun that errors name.

    Raises:
        ConfigError: `model` has another form, or the download failed.
    """
    match = NAME.fullmatch(model)
    if match is None:
        raise ConfigError(f"{named} {model!r} is not of the form hf://org/name or hf://org/name@revision")
    repository, revision = match.groups()
    fetched: Future[str] = Future()

    def fetch() -> None:
        try:
            from huggingface_hub import snapshot_download

            fetched.set_result(snapshot_download(repository, revision=revision, allow_patterns=list(patterns)))
        except Exception as error:  # the hub's client raises many kinds: offline, unknown, gated, disk full
            fetched.set_exception(error)

    threading.Thread(target=fetch, name="download", daemon=True).start()
    if progress is not None:
        files = _files(repository, revision, patterns)
        while not wait([fetched], PROGRESS_SECONDS).done:
            progress("download", _present(repository, files), sum(files.values()))
    if error := fetched.exception():
        raise ConfigError(f"{named} {model!r} could not be fetched: {_why(error, revision)}") from error
    return Path(fetched.result())


def without_queries(text: str) -> str:
    """Removes queries from URLs in a text: in URLs to which a hub redirects, they are signatures."""
    return _QUERY.sub(r"\1", text)


def _files(repository: str, revision: str | None, patterns: Sequence[str]) -> Mapping[str, int]:
    """Returns blob name in the cache -> size; {} if the hub does not return it."""
    from huggingface_hub import HfApi

    try:
        files = HfApi().model_info(repository, revision=revision, files_metadata=True).siblings or ()
    except Exception:  # the download raises the same error, or finds the files in the cache
        return {}
    matching = (file for file in files if any(fnmatch(file.rfilename, pattern) for pattern in patterns))
    return {(file.lfs.sha256 if file.lfs else file.blob_id) or "": file.size or 0 for file in matching}


def _present(repository: str, files: Mapping[str, int]) -> int:
    """Returns the downloaded bytes, from the disk: other processes of this server download into the same cache."""
    from huggingface_hub.constants import HF_HUB_CACHE
    from huggingface_hub.file_download import repo_folder_name

    folder = Path(HF_HUB_CACHE) / repo_folder_name(repo_id=repository, repo_type="model") / "blobs"
    largest: dict[str, int] = {}
    for path in folder.glob("*"):
        name = path.name.split(".")[0]  # an incomplete file has a suffix
        try:
            largest[name] = max(largest.get(name, 0), path.stat().st_size)
        except FileNotFoundError:  # it has just been completed and renamed
            largest[name] = files.get(name, 0)
    return sum(min(size, largest.get(name, 0)) for name, size in files.items())


def _why(error: BaseException, revision: str | None) -> str:
    """Returns the reason of a failed download, in one line."""
    from huggingface_hub import errors, get_token
    from huggingface_hub.constants import ENDPOINT

    if isinstance(error, errors.LocalEntryNotFoundError) and error.__cause__ is not None:
        error = error.__cause__  # the cause: why the hub could not be reached
    if isinstance(error, errors.OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE is set, and the cache does not have the repository; unset it, or give a directory"
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


def _is_network_error(error: BaseException) -> bool:
    """Whether no response was received. Clients of the hub raise errors of httpx, and older ones of requests."""
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    names = {f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(error).__mro__}
    return bool(names & {"httpx.TransportError", "requests.ConnectionError", "requests.Timeout"})
