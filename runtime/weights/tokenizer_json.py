"""Reads ``tokenizer.json``: the checkpoint's own, or one that is converted from other formats.

A checkpoint may have `vocab.json` and `merges.txt`, a sentencepiece model or a tiktoken file instead. A child process
(``runtime.weights.tokenizer_conversion``) converts those with transformers, which no serving process imports. The
result is cached by the content of its inputs. Without a writable cache it is a temporary file.
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import fcntl
import hashlib
import importlib.metadata
import json
import logging
import os
import re
import shutil
import stat
import subprocess
import tempfile
import threading
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.child_process import module_command
from runtime.errors import ConfigError
from runtime.weights import checkpoint_files

FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
SPECIAL_FILE = "special_tokens_map.json"
ADDED_FILE = "added_tokens.json"
# Sources of conversion; each of these formats is sufficient.
BPE_FILES = ("vocab.json", "merges.txt")
SENTENCEPIECE_FILES = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model")  # the first may be tiktoken's
TIKTOKEN_FILE, TIKTOKEN_SUFFIX = "tiktoken.model", ".tiktoken"
SETTING_FILES = (ADDED_FILE, SPECIAL_FILE, CONFIG_FILE, "config.json")

NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
SPECIAL_LISTS = ("additional_special_tokens", "extra_special_tokens")
MAX_ID_DIGITS = 9  # maximum digits of a token id
SPACE = "▁"  # a space in the pieces of sentencepiece
TOKEN_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")

# Directory for converted files if the cache is not writable, inherited by child processes. The name must not begin with
# the prefix of flags.
TEMPORARY_VARIABLE = "CONVERTED_TOKENIZERS_OF_UNMASK"

REMEDY = (
    "make tokenizer.json where the tokenizer loads, with "
    "transformers.AutoTokenizer.from_pretrained(...).backend_tokenizer.save('tokenizer.json'), and put it into the "
    "checkpoint's directory"
)


VERSION = 3  # version of the conversion; a new number invalidates cached files
CONVERSION_SECONDS = 900.0  # wall time; the child limits its CPU time itself
_HUB_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_HUB_TOKEN", "HUGGINGFACE_TOKEN")
_SERVER_VARIABLES = ("UNMASK_", "OTEL_")  # the first ones may have keys, the second ones credentials
TRAILING_SPACES = {"Regex": rf"[ {SPACE}]+\z"}  # pattern of the normalizer that removes them
_MARKUP = re.compile(r"[<\[{|].+[>\]}|]", re.DOTALL)


log = logging.getLogger(__name__)
_lock = threading.Lock()


def vocabulary_files(directory: Path) -> list[str]:
    """Returns the files in `directory` that a tokenizer can be converted from."""
    names = [*BPE_FILES, *SENTENCEPIECE_FILES, TIKTOKEN_FILE]
    return [name for name in names if checkpoint_files.has(directory, name)] + sorted(
        path.name for path in directory.glob(f"*{TIKTOKEN_SUFFIX}")
    )


def token_text(value: Any) -> str | None:
    """Returns the text of a token in a config, a string or an object with `content`; None for anything else."""
    value = value.get("content") if isinstance(value, Mapping) else value
    return value if isinstance(value, str) else None


def listed_tokens(config: Mapping[str, Any], name: str) -> list[str]:
    """Returns the texts of the tokens in a list or object of a config; of anything else there are none."""
    value = config.get(name)
    entries = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return [text for entry in entries if (text := token_text(entry)) is not None]


def added_token(number: int, text: str, *, special: bool) -> dict[str, Any]:
    """Returns an entry of `added_tokens` of tokenizer.json."""
    return {"id": number, "content": text, **dict.fromkeys(TOKEN_FLAGS, False), "special": special}


def declared_tokens(config: Mapping[str, Any], file: str) -> dict[int, dict[str, Any]]:
    """Returns the entries of `added_tokens_decoder` by id. Raises ConfigError for a malformed one."""
    entries = config.get("added_tokens_decoder") or {}
    if not isinstance(entries, Mapping):
        raise ConfigError(f"{file}: added_tokens_decoder must be an object, not {type(entries).__name__}; remove it")
    found = {}
    for key, token in entries.items():
        text = token_text(token)
        is_id = key.isascii() and key.isdecimal() and len(key) <= MAX_ID_DIGITS
        if not is_id or text is None:
            raise ConfigError(
                f"{file}: added_tokens_decoder[{key[:40]!r}] must map a token id to an object with content"
            )
        flags = token if isinstance(token, Mapping) else {}
        found[int(key)] = {"content": text, **{name: bool(flags.get(name)) for name in TOKEN_FLAGS}}
    return found


@dataclass(frozen=True)
class Prefix:
    """What a converted sentencepiece tokenizer leaves to the caller at the start of a text.

    Metaspace prepends a space only to a text that begins with other characters than spaces and added tokens. It finds
    the start of a text by its offset, so that no normalizer can strip the spaces before. A published tokenizer.json has
    the ids of the tokenizers library instead.

    Attributes:
        starts: Texts that begin with one of these need a space.
        strips: Leading spaces are removed.
        normalizer: Replaces characters, for example tabs by spaces; None keeps them.
    """

    starts: tuple[str, ...]
    strips: bool
    normalizer: Any

    @classmethod
    def of(cls, data: Mapping[str, Any], names: Mapping[str, str]) -> Prefix | None:
        """Returns the rule of a converted tokenizer.json; None if it needs none. `names`: other texts of tokens."""
        from tokenizers.normalizers import Precompiled  # the server sets a variable before the library is imported

        splitter = data.get("pre_tokenizer") or {}
        splitters = splitter.get("pretokenizers", [splitter])
        if not any(each.get("prepend_scheme") == "first" for each in splitters):
            return None
        ordinary = [token["content"] for token in data["added_tokens"] if not token.get("special")]
        normalizers = (data.get("normalizer") or {}).get("normalizers", [])
        charsmap = next(
            (each["precompiled_charsmap"] for each in normalizers if each.get("precompiled_charsmap")), None
        )
        normalizer = None if charsmap is None else Precompiled(base64.b64decode(charsmap))
        starts = (" ", SPACE, *ordinary, *(names[text] for text in ordinary if text in names))
        return cls(starts, any(each.get("pattern") == TRAILING_SPACES for each in normalizers), normalizer)

    def add(self, text: str) -> str:
        """Returns the text to encode."""
        if self.strips:
            text = text.lstrip(" ")
            if self.normalizer is not None:
                text = text[self._leading(text) :]
        return f" {text}" if text.startswith(self.starts) else text

    def _leading(self, text: str) -> int:
        """Returns the number of leading characters that are spaces, or nothing, after normalization."""
        kept = (n for n, char in enumerate(text) if self.normalizer.normalize_str(char).strip(" "))
        return next(kept, len(text))


def use_temporary_directory(path: Path) -> None:
    """Sets the directory for converted files of this process and its children, if the cache is not writable."""
    os.environ[TEMPORARY_VARIABLE] = str(path)


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
    data = checkpoint_files.read_json(directory, FILE)
    if data is None and (vocabularies := vocabulary_files(directory)):
        data = converted(directory, vocabularies)
    if data is not None:
        _add_declared(data, directory)
    return data


def source_name(directory: Path) -> str:
    """Returns the file that messages about the tokenizer name."""
    if checkpoint_files.has(directory, FILE):
        return str(directory / FILE)
    found = vocabulary_files(directory)
    return f"{directory / FILE} (converted from {' and '.join(found)})" if found else str(directory / FILE)


def named_tokens(directory: Path) -> dict[str, str]:
    """Returns name -> text of `bos_token` and similar entries; a checkpoint may name further tokens.

    ``tokenizer_config.json`` takes precedence over ``special_tokens_map.json``. Raises ConfigError for an unreadable
    file.
    """
    named: dict[str, str] = {}
    for file in (SPECIAL_FILE, CONFIG_FILE):
        config = checkpoint_files.read_json(directory, file) or {}
        extra = config.get("extra_special_tokens")
        entries = {**(extra if isinstance(extra, dict) else {}), **config}
        named |= {
            name: text
            for name, value in entries.items()
            if name.endswith("_token") and (text := token_text(value)) is not None
        }
    return named


def _special_texts(directory: Path) -> set[str]:
    """Returns the texts of all tokens that the two files declare special, by any name."""
    found = set(named_tokens(directory).values())
    for file in (SPECIAL_FILE, CONFIG_FILE):
        config = checkpoint_files.read_json(directory, file) or {}
        for name in SPECIAL_LISTS:
            found.update(listed_tokens(config, name))
    return found


def _is_token(entry: Any) -> bool:
    return isinstance(entry, Mapping) and isinstance(entry.get("id"), int) and isinstance(entry.get("content"), str)


def _add_declared(data: dict[str, Any], directory: Path) -> None:
    """Adds tokens to `added_tokens` that only the other files declare, and flags those that they declare special."""
    entries = data.get("added_tokens") or []
    if not isinstance(entries, list) or not all(_is_token(entry) for entry in entries):
        raise ConfigError(f"{source_name(directory)}: added_tokens must be a list of objects with id and content")
    added = data["added_tokens"] = list(entries)
    known = {token["id"] for token in added}
    texts = {token["content"] for token in added}
    config = checkpoint_files.read_json(directory, CONFIG_FILE) or {}
    for number, token in sorted(declared_tokens(config, str(directory / CONFIG_FILE)).items()):
        if number not in known:
            added.append({"id": number, **token})
            known.add(number)
            texts.add(token["content"])
    special = _special_texts(directory) - {token["content"] for token in added if token.get("special")}
    special -= _ordinary(special, data.get("model"))
    data["added_tokens"] = [{**token, "special": True} if token["content"] in special else token for token in added]
    vocabulary = data["model"].get("vocab") if special else None
    if not isinstance(vocabulary, Mapping):
        return
    for text in sorted(special - texts):
        if text in vocabulary:
            data["added_tokens"].append(added_token(vocabulary[text], text, special=True))


def _ordinary(texts: set[str], model: Any) -> set[str]:
    """Returns those of `texts` that encode ordinary text, such as a padding token "!".

    They cannot become special, because the text could not be encoded without them.
    """
    if not texts or not isinstance(model, Mapping):
        return set(texts)
    if model.get("type") != "BPE":
        return {text for text in texts if not _MARKUP.fullmatch(text)}
    found = {text for text in texts if len(text) < 2}
    for merge in model.get("merges") or ():
        merged = "".join(merge) if isinstance(merge, list) else merge.replace(" ", "", 1)
        if merged in texts:
            found.add(merged)
    return found


def is_control(token: Mapping[str, Any]) -> bool:
    """Returns whether llguidance (1.9.1) excludes an added token from text, also without the flag `special`."""
    text: str = token["content"]
    return bool(token.get("special")) or (text.startswith("<") and text.endswith(">"))


def control_texts(data: Mapping[str, Any]) -> set[str]:
    """Returns the texts of tokens that llguidance excludes from text, without those that ordinary text needs."""
    texts = {token["content"] for token in data["added_tokens"] if is_control(token)}
    return texts - _ordinary(texts, data["model"])


def with_new_names(data: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Returns tokenizer.json with other texts of special tokens, so that the old ones are encoded as ordinary text.

    Args:
        data: content of tokenizer.json.
        names: text -> new text.
    """
    added = [
        {**token, "content": names[token["content"]], "normalized": False} if token["content"] in names else token
        for token in data["added_tokens"]
    ]
    model = dict(data["model"])
    vocab = model.get("vocab", {})
    if isinstance(vocab, dict):
        model["vocab"] = {names.get(text, text): id for text, id in vocab.items()}
    else:
        model["vocab"] = [[names.get(piece, piece), score] for piece, score in vocab]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    return {**data, "added_tokens": added, "model": model, "post_processor": None}


def converted(directory: Path, vocabularies: Sequence[str]) -> dict[str, Any]:
    """Returns the tokenizer in the files `vocabularies` of a checkpoint, from the cache if it was converted before.

    Raises:
        ConfigError: a file cannot be read, or the tokenizer cannot be converted.
    """
    inputs = {name: data for name in (*vocabularies, *SETTING_FILES) if (data := _content(directory, name)) is not None}
    key = _key(inputs)
    with _lock:
        return _find(key) or _convert_once(directory, inputs, key)


def _find(key: str) -> dict[str, Any] | None:
    """Returns the converted tokenizer from the cache or the temporary directory."""
    for directory in (cache_directory(), _temporary_directory()):
        found = None if directory is None else _cached(directory / f"{key}.json")
        if found is not None:
            return found
    return None


def _content(directory: Path, name: str) -> bytes | None:
    """Reads an input file, without what text editors add to it: a byte order mark, and empty lines of merges.txt.

    Raises ConfigError if it is larger than a JSON file may be.
    """
    data = checkpoint_files.read_bytes(directory, name, checkpoint_files.JSON_BYTES)
    if data is None:
        return None
    data = data.removeprefix(BOM_UTF8)
    if name == BPE_FILES[1]:
        data = b"".join(line + b"\n" for line in data.replace(b"\r\n", b"\n").split(b"\n") if line)
    return data


def _key(inputs: Mapping[str, bytes]) -> str:
    """Returns the cache key: a digest of the input files and the versions of the converters."""
    digest = hashlib.sha256(f"{VERSION}".encode())
    for package in ("transformers", "tokenizers", "sentencepiece", "tiktoken"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            digest.update(f"\0{package}={importlib.metadata.version(package)}".encode())
    for name, data in sorted(inputs.items()):
        digest.update(f"\0{name}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()


def cache_directory() -> Path | None:
    """Returns the cache directory; None if the user has no home directory."""
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "unmask" / "tokenizers"
    except RuntimeError:  # Path.home found no home directory
        return None


def _temporary_directory() -> Path | None:
    path = os.environ.get(TEMPORARY_VARIABLE)
    return Path(path) if path else None


def _cached(path: Path) -> dict[str, Any] | None:
    """Returns the object in a cached file; None if there is none, or another user wrote it."""
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
    """Converts the tokenizer, unless another process did so while this one waited for the lock of the cache."""
    with contextlib.ExitStack() as stack:
        target = _writable(stack, key)
        if found := _find(key):  # written by the process that held the lock
            return found
        log.info("converting the tokenizer of %s to tokenizer.json", directory)
        text = _run(directory, inputs)
        _store(text, target, key)
        data: dict[str, Any] = json.loads(text)
        return data


def _store(text: str, target: Path | None, key: str) -> None:
    """Writes a converted tokenizer to the cache, or else to a temporary file, which other processes read too.

    Args:
        target: file of the cache, whose file system may be full; None if no cache directory can be written.
    """
    if target is None:
        log.info("converted tokenizer: temporary file, because no cache directory can be written")
    else:
        try:
            _replace(target, text)
            return
        except OSError as error:
            log.warning("converted tokenizer not cached: %s: %s", target, error.strerror)
    directory = _temporary_directory() or _own_temporary_directory()
    if target is not None and target.parent == directory:
        return
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        _replace(directory / f"{key}.json", text)
    except OSError as error:
        log.warning("converted tokenizer not stored, each process converts it: %s: %s", directory, error.strerror)


def _writable(stack: contextlib.ExitStack, key: str) -> Path | None:
    """Returns the file to write, in the first writable directory, locked until `stack` closes.

    The lock only saves work: files are replaced atomically, so processes without a lock do no harm.
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
    """Creates a directory that this process removes at exit, and that its children use. Raises ConfigError."""
    path = Path(_temporary_path(lambda: tempfile.mkdtemp(prefix="unmask-tokenizer-")))
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # forked children inherit the handler
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
    """Writes the file atomically."""
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
    """Yields a directory with copies of the input files, which the child process reads instead of the checkpoint.

    It is inside the server's temporary directory, if there is one, which is removed even if the server was killed.
    """
    parent = _temporary_directory()

    def create() -> str:
        if parent is not None:
            parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return tempfile.mkdtemp(prefix="unmask-conversion-", dir=parent)

    path = Path(_temporary_path(create))
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
    """Runs the child process; returns the converted tokenizer.json. Raises ConfigError if there is none."""
    formats = " and ".join(name for name in inputs if name not in SETTING_FILES)
    with _workspace(inputs) as workspace:
        with open(workspace / "log", "wb") as log_file:
            code: int | None
            try:
                code = subprocess.run(
                    [*module_command("runtime.weights.tokenizer_conversion"), str(workspace)],
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
    """Returns the child's environment: no tokens or keys, no network, no shared cache."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in _HUB_TOKENS and not name.startswith(_SERVER_VARIABLES)
    }
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
