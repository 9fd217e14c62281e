"""Keys of clients: how they are written in a file, which are refused, and how a file that may be changing is read."""

from __future__ import annotations

import os
import re
import stat
import time

from runtime.errors import ConfigError

MIN_KEY_CHARACTERS = 16  # below that a key can be guessed, or is the beginning of one that was still being written
KEY_FILE_BYTES = 1 << 20  # of a file of keys
SETTLE_SECONDS = 1.0  # a file that has stayed the same for so long is not being written any more
_TRIES = 10  # at start, of so many seconds

Stamp = tuple[int, int, int, int]  # of a file's content: it changes with every writing


def check_keys(keys: tuple[str, ...], where: str) -> tuple[str, ...]:
    """The keys, each once. ConfigError, without any of them in it, if one is none."""
    for number, key in enumerate(keys, 1):
        which = f"{where}: key {number} of {len(keys)}"
        if not key.isascii() or not key.isprintable() or " " in key:
            raise ConfigError(f"{which} may hold printable ASCII characters only, and no spaces; make another")
        if len(key) < MIN_KEY_CHARACTERS:
            raise ConfigError(
                f"{which} has {len(key)} characters, fewer than {MIN_KEY_CHARACTERS}; "
                "make one with: openssl rand -hex 24"
            )
    return tuple(dict.fromkeys(keys))


def key_file_stamp(file: str) -> Stamp | None:
    """What changes when the file does; None while there is none."""
    try:
        return _stamp(os.stat(file))
    except OSError:
        return None


def read_key_file(file: str) -> tuple[tuple[str, ...], Stamp]:
    """The keys in the file, none where it is empty, and its stamp when they were read.

    Raises:
        ConfigError: it cannot be read, is no plain file, too large, no text, or holds what is no key.
    """
    where = f"--api-key-file: {file}"
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ConfigError(f"{where} is no plain file; name one that stays, it is read again when it changes")
            with open(descriptor, "rb", closefd=False) as opened:
                data = opened.read(KEY_FILE_BYTES + 1)
            stamp = _stamp(os.fstat(descriptor))
        finally:
            os.close(descriptor)
        text = data.decode("utf-8")
    except OSError as error:
        raise ConfigError(f"{where} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{where} cannot be read: it is not UTF-8 text") from None
    if len(data) > KEY_FILE_BYTES:
        raise ConfigError(f"{where} is larger than {KEY_FILE_BYTES} bytes; remove keys")
    return check_keys(tuple(key.strip() for key in re.split(r"[,\n]", text) if key.strip()), where), stamp


def read_settled_key_file(file: str) -> tuple[str, ...]:
    """The keys in the file, as `read_key_file` gives them, once nobody writes it any more."""
    for _ in range(_TRIES):
        before = key_file_stamp(file)
        if before is None or abs(time.time() - before[0] / 1e9) > SETTLE_SECONDS:
            return read_key_file(file)[0]
        time.sleep(SETTLE_SECONDS)
        if key_file_stamp(file) == before:
            keys, stamp = read_key_file(file)
            if stamp == before:
                return keys
    raise ConfigError(f"--api-key-file: {file} is being written all the time; write it once, before the start")


def _stamp(found: os.stat_result) -> Stamp:
    return found.st_mtime_ns, found.st_ino, found.st_dev, found.st_size
