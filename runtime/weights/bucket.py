"""Downloads of checkpoints from object stores, ``s3://`` and ``gs://``.

obstore reads the credentials, the region and the endpoint from the environment.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from runtime.errors import ConfigError
from runtime.weights.hub import (
    FILES_AT_ONCE,
    AccessError,
    HubFile,
    Progress,
    Repository,
    TemporaryError,
    failure,
    without_queries,
)

if TYPE_CHECKING:
    from obstore import GetOptions
    from obstore.store import ObjectStore

ADDRESS = re.compile(r"((?:s3|gs)://[a-z0-9][a-z0-9._-]*(?:/[A-Za-z0-9_][A-Za-z0-9_.-]*)+)(?:@([0-9a-f]{40}))?")
PIECE = 8 * 2**20
_STATUS = re.compile(r"status code: (\d{3})")  # obstore has an error of its own for few of them
_METADATA_SERVER = "http://169.254.169.254/"  # the last place in which obstore looks for credentials
_CREDENTIALS = (
    "check the Secret of spec.model.credentialsSecretRef, or the permissions of the ServiceAccount of the pods"
)


def is_address(uri: str) -> bool:
    """Returns whether a URI has the scheme of an object store."""
    return uri.startswith(("s3://", "gs://"))


def parse(uri: str) -> tuple[str, str | None]:
    """Returns address and revision of ``s3://bucket/prefix[@revision]`` or ``gs://``. Raises ConfigError otherwise."""
    match = ADDRESS.fullmatch(uri)
    if match is None:
        raise ConfigError(f"model {uri!r} is not of the form s3://bucket/prefix or gs://bucket/prefix")
    address, revision = match.groups()
    return address, revision


def repository_name(uri: str) -> str:
    """Returns the last two components of an address, which are ``org/name`` for a copy of a hub's repository."""
    return "/".join(parse(uri)[0].split("/")[-2:])


@dataclass(frozen=True)
class BucketFile(HubFile):
    """An object: its size in bytes, and its entity tag, which is the hash of the content for some objects only."""

    @property
    def sha256(self) -> str:
        return ""

    def matches(self, path: Path) -> bool:
        return path.stat().st_size == self.size


@dataclass(frozen=True)
class Bucket(Repository):
    """The objects below a prefix. The commit is a hash of their names, sizes and entity tags."""

    @classmethod
    def resolve(cls, model: str) -> Bucket:
        """Lists the objects.

        Raises:
            ConfigError: There are none, they are not those of the revision in `model`, or the store refuses the
                request; TemporaryError if another attempt may succeed.
        """
        address, revision = parse(model)
        store = _store(address)
        import obstore

        try:
            listed = [one for page in obstore.list(store) for one in page]
        except Exception as error:
            raise _failure(error, model) from error
        files = {
            one["path"]: BucketFile(one["size"], one["e_tag"] or f"modified {one['last_modified'].isoformat()}")
            for one in listed
            if one["path"] and not any(part.startswith(".") for part in PurePosixPath(one["path"]).parts)
        }
        if not files:
            raise ConfigError(f"model {model!r}: the bucket has no object below this prefix; correct model.uri")
        content = json.dumps([[name, file.size, file.blob] for name, file in sorted(files.items())])
        commit = hashlib.sha256(content.encode()).hexdigest()[:40]
        if revision not in (None, commit):
            raise ConfigError(
                f"model {address!r} has changed: its revision is {commit}, and no longer {revision}; restart the "
                "service to use the new one"
            )
        return cls(address, commit, files)

    def differing(self, directory: Path, names: Collection[str], progress: Progress | None = None) -> list[str]:
        """As that of the base class. Raises TemporaryError if an object of the prefix has changed since `resolve`."""
        if Bucket.resolve(self.model).commit != self.commit:
            raise TemporaryError(f"model {self.model!r} changed during the download; another attempt has the new files")
        return super().differing(directory, names, progress)

    def _download(self, names: Collection[str], to: Path | None) -> Path:
        if to is None:
            raise ValueError("objects are downloaded into a directory only")
        store = _store(self.model)
        with ThreadPoolExecutor(FILES_AT_ONCE) as pool:
            for _ in pool.map(lambda name: _fetch(store, name, self.files[name], to), sorted(names)):
                pass
        return to

    def _failed(self, error: BaseException) -> ConfigError:
        return _failure(error, self.model)


def _fetch(store: ObjectStore, name: str, file: HubFile, to: Path) -> None:
    """Downloads an object unless the directory has it. Continues the incomplete file of an earlier attempt."""
    import obstore

    target, part, tag = to / name, to / ".cache" / f"{name}.incomplete", to / ".cache" / f"{name}.tag"
    part.parent.mkdir(parents=True, exist_ok=True)
    if not tag.exists() or tag.read_text(encoding="utf-8") != file.blob:  # the tag is that of both files
        for path in (target, part):
            path.unlink(missing_ok=True)
        tag.write_text(file.blob, encoding="utf-8")
    if target.exists() and file.matches(target):
        return
    with part.open("ab") as output:
        if (start := output.tell()) < file.size:
            options: GetOptions = {"range": {"offset": start}}
            if '"' in file.blob:
                options["if_match"] = file.blob
            for piece in obstore.get(store, name, options=options).stream(min_chunk_size=PIECE):
                output.write(piece)
    if not file.matches(part):
        part.unlink()
        raise ConnectionError(f"{name} has another size than {file.size} bytes")
    target.parent.mkdir(parents=True, exist_ok=True)
    part.replace(target)


def _store(address: str) -> ObjectStore:
    try:
        from obstore.store import from_url
    except ModuleNotFoundError:
        raise ConfigError(f"{address!r} needs the package obstore; install unmask[stores]") from None
    return from_url(address)


def _failure(error: BaseException, model: str) -> ConfigError:
    """Returns the error of a failed request or download, by its cause."""
    from obstore.exceptions import BaseError, InvalidPathError, PreconditionError

    text = without_queries(next(iter(str(error).strip().splitlines()), type(error).__name__))
    message = f"model {model!r} could not be fetched: "
    if isinstance(error, ConfigError):
        return error
    # obstore raises Python's error for an absent object, which then is not one of the system.
    is_absent = isinstance(error, FileNotFoundError) and error.errno is None
    if is_absent or isinstance(error, PreconditionError):
        return TemporaryError(f"{message}an object changed during the download; another attempt has the new one")
    if not isinstance(error, BaseError):
        return failure(error, message + text)
    found = _STATUS.search(text)
    status = int(found[1]) if found else 0
    if _METADATA_SERVER in text:
        return AccessError(f"{message}no credentials were found; {_CREDENTIALS} ({text})")
    if status in (401, 403):
        return AccessError(f"{message}the store refuses the credentials; {_CREDENTIALS} ({text})")
    if status == 404:
        return ConfigError(f"{message}the bucket does not exist; correct model.uri ({text})")
    permanent = (300 <= status < 500 and status not in (408, 429)) or isinstance(error, InvalidPathError)
    return (ConfigError if permanent else TemporaryError)(message + text)
