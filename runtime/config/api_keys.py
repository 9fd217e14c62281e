"""API keys: their format in a file, checks, and reading a file that may be changing."""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Sequence
from typing import NamedTuple

from runtime.errors import ConfigError

MIN_KEY_CHARACTERS = 16  # shorter keys can be guessed, or are the beginning of a key that is being written
KEY_FILE_BYTES = 1 << 20  # maximum size of a key file
SETTLE_SECONDS = 1.0  # a file that did not change for this time is complete
_TRIES = 10  # attempts at start; each waits SETTLE_SECONDS

Stamp = tuple[int, int, int, int]  # changes with every write of a file


def check_keys(keys: tuple[str, ...], where: str) -> tuple[str, ...]:
    """Checks keys and removes duplicates. Raises ConfigError, without the key, for an invalid one."""
    valid, problems = _sorted_out(keys, where)
    if problems:
        raise ConfigError(problems[0])
    return valid


def _sorted_out(keys: Sequence[str], where: str) -> tuple[tuple[str, ...], list[str]]:
    """Returns the valid keys without duplicates, and what is wrong with the others, without the keys."""
    problems = dict[str, str]()
    for number, key in enumerate(keys, 1):
        which = f"{where}: key {number} of {len(keys)}"
        if not key.isascii() or not key.isprintable() or " " in key:
            problems[key] = f"{which} may hold printable ASCII characters only, and no spaces; make another"
        elif len(key) < MIN_KEY_CHARACTERS:
            problems[key] = (
                f"{which} has {len(key)} characters, fewer than {MIN_KEY_CHARACTERS}; "
                "make one with: openssl rand -hex 24"
            )
    return tuple(key for key in dict.fromkeys(keys) if key not in problems), [*problems.values()]


def key_file_stamp(file: str) -> Stamp | None:
    """Returns a value that changes with the file; None without a file."""
    try:
        return _stamp(os.stat(file))
    except OSError:
        return None


class KeyFile(NamedTuple):
    """Content of a key file.

    Attributes:
        keys: Valid keys, possibly none.
        problems: What is wrong with the other keys, as sentences without them.
        stamp: Stamp of the file.
    """

    keys: tuple[str, ...]
    problems: list[str]
    stamp: Stamp


def read_key_file(file: str) -> KeyFile:
    """Returns the content of the file.

    Raises:
        ConfigError: The file is not readable, not a regular file, or too large.
    """
    where = f"--api-key-file: {file}"
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ConfigError(
                    f"{where} is not a regular file; name one that stays, it is read again when it changes"
                )
            with open(descriptor, "rb", closefd=False) as opened:
                data = opened.read(KEY_FILE_BYTES + 1)
            stamp = _stamp(os.fstat(descriptor))
        finally:
            os.close(descriptor)
    except OSError as error:
        raise ConfigError(f"{where} cannot be read: {error.strerror}") from None
    if len(data) > KEY_FILE_BYTES:
        raise ConfigError(f"{where} is larger than {KEY_FILE_BYTES} bytes; remove keys")
    text = data.decode("utf-8-sig", errors="replace")  # a key with a replaced character is invalid
    keys, problems = _sorted_out([key.strip() for key in re.split(r"[,\n]", text) if key.strip()], where)
    return KeyFile(keys, problems, stamp)


def read_settled_key_file(file: str) -> tuple[str, ...]:
    """Returns the keys in the file, once it is complete.

    Raises:
        ConfigError: As `read_key_file`, or a key is invalid.
    """
    for _ in range(_TRIES):
        before = key_file_stamp(file)
        if before is None or abs(time.time() - before[0] / 1e9) > SETTLE_SECONDS:
            return _keys_at_start(read_key_file(file))
        time.sleep(SETTLE_SECONDS)
        if key_file_stamp(file) == before:
            content = read_key_file(file)
            if content.stamp == before:
                return _keys_at_start(content)
    raise ConfigError(f"--api-key-file: {file} changed during every read; write it once, before the start")


def _keys_at_start(content: KeyFile) -> tuple[str, ...]:
    if content.problems:
        raise ConfigError(content.problems[0])
    return content.keys


def _stamp(found: os.stat_result) -> Stamp:
    return found.st_mtime_ns, found.st_ino, found.st_dev, found.st_size
