"""The content of ``tokenizer.json``: the checkpoint's own file, or one converted from the formats that lack it.

A checkpoint may hold `vocab.json` and `merges.txt`, a sentencepiece model or a tiktoken file instead. A child process
(``runtime.weights.tokenizer_conversion``) converts those with transformers, which no serving process imports. The
result is cached by the content of its inputs. Without a writable cache it is a temporary file.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import hashlib
import importlib.metadata
import json
import logging
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from runtime.errors import ConfigError
from runtime.weights import files

log = logging.getLogger(__name__)

FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
SPECIAL_FILE = "special_tokens_map.json"
ADDED_FILE = "added_tokens.json"
# What a tokenizer.json is converted from; each of these formats is sufficient.
BPE_FILES = ("vocab.json", "merges.txt")
SENTENCEPIECE_FILES = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model")  # the first may be tiktoken's
TIKTOKEN_FILE, TIKTOKEN_SUFFIX = "tiktoken.model", ".tiktoken"
SETTING_FILES = (ADDED_FILE, SPECIAL_FILE, CONFIG_FILE, "config.json")

NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
SPECIAL_LISTS = ("additional_special_tokens", "extra_special_tokens")
SPACE = "▁"  # how sentencepiece's pieces spell a space
TOKEN_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")

VERSION = 2  # of the conversion; a new number leaves cached files of older ones unused
CONVERSION_SECONDS = 900.0  # of wall-clock time; the child limits its CPU time by itself
# A directory for converted files where the cache cannot be written. Child processes inherit the variable. Its name does
# not begin as those of flags do.
TEMPORARY_VARIABLE = "CONVERTED_TOKENIZERS_OF_UNMASK"
_HUB_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_HUB_TOKEN", "HUGGINGFACE_TOKEN")

REMEDY = (
    "make tokenizer.json where the tokenizer loads, with "
    "transformers.AutoTokenizer.from_pretrained(...).backend_tokenizer.save('tokenizer.json'), and put it into the "
    "checkpoint's directory"
)

_lock = threading.Lock()


def read_tokenizer(directory: Path) -> dict[str, Any] | None:
    """Returns the content of the checkpoint's ``tokenizer.json``, converted from other formats if there is none.

    Tokens that only ``tokenizer_config.json`` or ``special_tokens_map.json`` declares are among its `added_tokens`.

    Args:
        directory: the checkpoint's.

    Returns:
        The parsed object; None if the checkpoint holds no tokenizer in any known format.

    Raises:
        ConfigError: a file cannot be read, or the tokenizer cannot be converted.
    """
    data = files.read_json(directory, FILE)
    if data is None:
        data = _converted(directory)
    if data is not None:
        _add_declared(data, directory)
    return data


def source_name(directory: Path) -> str:
    """The file that messages about the tokenizer name."""
    if files.has(directory, FILE):
        return str(directory / FILE)
    found = vocabulary_files(directory)
    return f"{directory / FILE} (converted from {' and '.join(found)})" if found else str(directory / FILE)


def vocabulary_files(directory: Path) -> list[str]:
    """Names of the files in `directory` that a tokenizer can be converted from."""
    names = [*BPE_FILES, *SENTENCEPIECE_FILES, TIKTOKEN_FILE]
    return [name for name in names if files.has(directory, name)] + sorted(
        path.name for path in directory.glob(f"*{TIKTOKEN_SUFFIX}")
    )


def lacks_prefix(data: Mapping[str, Any]) -> bool:
    """Whether texts need `with_prefix`: a Metaspace adds no space to a text that begins with one; sentencepiece does.

    Only for converted tokenizers: the ids of a published tokenizer.json are those that the tokenizers library returns.
    """
    splitter = data.get("pre_tokenizer") or {}
    return splitter.get("type") == "Metaspace" and splitter.get("prepend_scheme") == "first"


def with_prefix(text: str) -> str:
    """`text` with the space that sentencepiece would add, if Metaspace does not."""
    return f" {text}" if text.startswith((" ", SPACE)) else text


def token_text(value: Any) -> str | None:
    """The text of a token that a config names, as text or as an object with `content`; None for anything else."""
    value = value.get("content") if isinstance(value, Mapping) else value
    return value if isinstance(value, str) else None


def named_tokens(directory: Path) -> dict[str, str]:
    """Returns the texts of `bos_token` and its like, by their names; a checkpoint may name tokens of its own too.

    ``tokenizer_config.json`` takes precedence over ``special_tokens_map.json``. ConfigError for an unreadable file.
    """
    named: dict[str, str] = {}
    for file in (SPECIAL_FILE, CONFIG_FILE):
        config = files.read_json(directory, file) or {}
        extra = config.get("extra_special_tokens")
        entries = {**(extra if isinstance(extra, dict) else {}), **config}
        named |= {
            name: text
            for name, value in entries.items()
            if name.endswith("_token") and (text := token_text(value)) is not None
        }
    return named


def _special_texts(directory: Path) -> set[str]:
    """Texts of all tokens that the two files declare special, under whatever name."""
    found = set(named_tokens(directory).values())
    for file in (SPECIAL_FILE, CONFIG_FILE):
        config = files.read_json(directory, file) or {}
        for name in SPECIAL_LISTS:
            value = config.get(name)
            entries = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
            found |= {text for entry in entries if (text := token_text(entry)) is not None}
    return found


def declared_tokens(config: Mapping[str, Any], file: str) -> dict[int, dict[str, Any]]:
    """Returns the entries of `added_tokens_decoder` by their ids. ConfigError for a malformed one."""
    entries = config.get("added_tokens_decoder") or {}
    if not isinstance(entries, Mapping):
        raise ConfigError(f"{file}: added_tokens_decoder must be an object, not {type(entries).__name__}; remove it")
    found = {}
    for key, token in entries.items():
        text = token_text(token)
        if not (key.isascii() and key.isdecimal()) or text is None:
            raise ConfigError(f"{file}: added_tokens_decoder[{key!r}] must map a token id to an object with content")
        flags = token if isinstance(token, Mapping) else {}
        found[int(key)] = {"content": text, **{name: bool(flags.get(name)) for name in TOKEN_FLAGS}}
    return found


def _is_token(entry: Any) -> bool:
    return isinstance(entry, Mapping) and isinstance(entry.get("id"), int) and isinstance(entry.get("content"), str)


def _add_declared(data: dict[str, Any], directory: Path) -> None:
    """Extends `added_tokens` by tokens that only the other files declare."""
    entries = data.get("added_tokens") or []
    if not isinstance(entries, list) or not all(_is_token(entry) for entry in entries):
        raise ConfigError(f"{source_name(directory)}: added_tokens must be a list of objects with id and content")
    added = data["added_tokens"] = list(entries)
    known = {token["id"] for token in added}
    texts = {token["content"] for token in added}
    config = files.read_json(directory, CONFIG_FILE) or {}
    for number, token in sorted(declared_tokens(config, str(directory / CONFIG_FILE)).items()):
        if number not in known:
            added.append({"id": number, **token})
            known.add(number)
            texts.add(token["content"])
    model = data.get("model")
    vocabulary = model.get("vocab") if isinstance(model, Mapping) else None
    if not isinstance(vocabulary, Mapping):
        return
    for text in sorted(_special_texts(directory) - texts):
        known_id = vocabulary.get(text)
        if known_id is not None and known_id not in known:
            added.append({"id": known_id, "content": text, **dict.fromkeys(TOKEN_FLAGS, False), "special": True})


def _converted(directory: Path) -> dict[str, Any] | None:
    """The converted tokenizer of the checkpoint, from the cache if it has been converted before."""
    vocabularies = vocabulary_files(directory)
    if not vocabularies:
        return None
    inputs = {name: data for name in (*vocabularies, *SETTING_FILES) if (data := _content(directory, name)) is not None}
    key = _key(inputs)
    with _lock:
        for cache in (cache_directory(), _temporary_directory()):
            found = None if cache is None else _cached(cache / f"{key}.json")
            if found is not None:
                return found
        return _convert_once(directory, inputs, key)


def _content(directory: Path, name: str) -> bytes | None:
    """The bytes of an input file. ConfigError if it is larger than a JSON file may be."""
    with files.opened(directory, name) as descriptor:
        if descriptor is None:
            return None
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read(files.JSON_BYTES + 1)
    if len(data) > files.JSON_BYTES:
        raise ConfigError(f"{directory / name} is larger than {files.JSON_BYTES} bytes, the limit for such a file")
    return data


def _key(inputs: Mapping[str, bytes]) -> str:
    """A digest of what the result depends on: the input files and the versions of the converters."""
    digest = hashlib.sha256(f"{VERSION}".encode())
    for package in ("transformers", "tokenizers", "sentencepiece", "tiktoken"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            digest.update(f"\0{package}={importlib.metadata.version(package)}".encode())
    for name, data in sorted(inputs.items()):
        digest.update(f"\0{name}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()


def cache_directory() -> Path | None:
    """Where converted files are cached; None where the user has no home directory."""
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "unmask" / "tokenizers"
    except RuntimeError:  # of Path.home
        return None


def _temporary_directory() -> Path | None:
    path = os.environ.get(TEMPORARY_VARIABLE)
    return Path(path) if path else None


def use_temporary_directory(path: Path) -> None:
    """Has this process and its children put converted files at `path` where the cache cannot be written."""
    os.environ[TEMPORARY_VARIABLE] = str(path)


def _cached(path: Path) -> dict[str, Any] | None:
    """The object in a cached file; None where there is none, or none that this user wrote."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode) or state.st_uid != os.geteuid():
            return None
        try:
            data = json.loads(file.read())
        except (OSError, ValueError):
            return None
    return data if isinstance(data, dict) else None


def _convert_once(directory: Path, inputs: Mapping[str, bytes], key: str) -> dict[str, Any]:
    """Converts, unless another process that holds the lock of the cache has just done so."""
    with contextlib.ExitStack() as stack:
        target = _writable(stack, key)
        found = None if target is None else _cached(target)
        if found is not None:
            return found
        log.info("converting the tokenizer of %s to tokenizer.json", directory)
        text = _run(directory, inputs)
        if target is None:
            target = _own_temporary_directory() / f"{key}.json"
            log.info("converted tokenizer: temporary file, because no cache directory can be written")
        try:
            _replace(target, text)
        except OSError as error:
            log.warning("converted tokenizer not cached: %s: %s", target, error.strerror)
        data: dict[str, Any] = json.loads(text)
        return data


def _writable(stack: contextlib.ExitStack, key: str) -> Path | None:
    """The file to write in the first directory that takes files, with a lock on it until `stack` closes.

    The lock only saves work: files are replaced in one step, so that processes without a lock do no harm.
    """
    for directory in (cache_directory(), _temporary_directory()):
        if directory is None:
            continue
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = stack.enter_context((directory / f"{key}.lock").open("w"))
        except OSError:
            continue
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        return directory / f"{key}.json"
    return None


def _own_temporary_directory() -> Path:
    """A new directory that this process removes at its end, and that its children find. ConfigError without one."""
    path = Path(_temporary_path(lambda: tempfile.mkdtemp(prefix="unmask-tokenizer-")))
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # a forked child inherits the handler
            shutil.rmtree(path, ignore_errors=True)

    atexit.register(remove)
    use_temporary_directory(path)
    return path


def _temporary_path(create: Callable[[], str]) -> str:
    try:
        return create()
    except OSError:
        raise ConfigError(
            "converting the tokenizer needs a directory for temporary files, and none can be written; set TMPDIR to "
            f"one, or {REMEDY}"
        ) from None


def _replace(target: Path, text: str) -> None:
    """Writes the file in one step: a reader finds the former content or this one."""
    descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}-")
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


@contextlib.contextmanager
def _workspace(inputs: Mapping[str, bytes]) -> Iterator[Path]:
    """A directory with copies of the input files, which the child process reads instead of the checkpoint."""
    path = Path(_temporary_path(lambda: tempfile.mkdtemp(prefix="unmask-conversion-")))
    try:
        (path / "inputs").mkdir()
        for name, data in inputs.items():
            (path / "inputs" / name).write_bytes(data)
        yield path
    except OSError as error:
        raise ConfigError(f"the tokenizer cannot be converted: {path}: {error.strerror}; free space there") from None
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _run(directory: Path, inputs: Mapping[str, bytes]) -> str:
    """The converted tokenizer.json. ConfigError, which names the checkpoint, if the child process did not write it."""
    formats = " and ".join(name for name in inputs if name not in SETTING_FILES)
    with _workspace(inputs) as workspace:
        with open(workspace / "log", "wb") as log_file:
            code: int | None
            try:
                code = subprocess.run(
                    [sys.executable, "-m", "runtime.weights.tokenizer_conversion", str(workspace)],
                    stdin=subprocess.DEVNULL,
                    stdout=log_file,
                    stderr=subprocess.STDOUT,
                    env=_environment(workspace),
                    timeout=CONVERSION_SECONDS,
                    check=False,
                ).returncode
            except subprocess.TimeoutExpired:
                code = None
        result, reason = workspace / FILE, workspace / "reason"
        if code == 0 and result.exists():
            return result.read_text(encoding="utf-8")
        if reason.exists():
            why = reason.read_text(encoding="utf-8")
        elif code is None:
            why = f"the conversion took more than {CONVERSION_SECONDS:g} s"
        else:
            why = f"the converting process ended with code {code}: {_last_line(workspace / 'log')}"
    raise ConfigError(f"{directory}: its tokenizer ({formats}) cannot be converted: {why}; {REMEDY}")


def _environment(workspace: Path) -> dict[str, str]:
    """The child's environment: no tokens, no network, no cache of its own."""
    inherited = {name: value for name, value in os.environ.items() if name not in _HUB_TOKENS}
    root = str(Path(__file__).parents[2])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **inherited,
        "PYTHONPATH": os.pathsep.join(paths),
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(workspace / "hub"),
        "TIKTOKEN_CACHE_DIR": "",
        "TRANSFORMERS_VERBOSITY": "error",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": "1",
    }


def _last_line(path: Path) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else "no output"
