"""API keys: several at once so that they can be rotated, compared in constant time, re-read when their file changes."""

from __future__ import annotations

import hmac
import logging
import os
import re
from hashlib import sha256
from pathlib import Path

from runtime.errors import RequestError

log = logging.getLogger("unmask.keys")

OPEN_PATHS = frozenset({"/health", "/ready", "/startup", "/metrics"})  # probes and scrapers hold no key


class Keys:
    """The keys that open the server. `keys` are those known at start, the file's among them."""

    def __init__(self, keys: tuple[str, ...], file: str | None) -> None:
        self.file = file
        self.stamp = self._stamp()
        in_file = set(self._read() or ())
        self.fixed = [_digest(key.encode()) for key in keys if key not in in_file]
        self.digests = [_digest(key.encode()) for key in keys]

    @property
    def needed(self) -> bool:
        return bool(self.digests)

    def check(self, authorization: bytes | None) -> str:
        """A name of the key that is no secret, "" where there is but one. Raises RequestError 401 unless the header's
        value is ``Bearer`` and one of the keys."""
        self._refresh()
        scheme, _, key = (authorization or b"").partition(b" ")
        given = _digest(key.strip())
        # all are compared, whichever fits
        fits = sum(hmac.compare_digest(given, known) for known in self.digests)
        if not fits or scheme.lower() != b"bearer":
            what = "no API key was given" if authorization is None else "the API key is wrong"
            message = f"{what}; send it as the header Authorization: Bearer <key>"
            raise RequestError(message, status=401, code="invalid_api_key")
        return "" if len(set(self.digests)) == 1 else sha256(given).hexdigest()[:16]

    def _refresh(self) -> None:
        if self.file is None or (stamp := self._stamp()) == self.stamp:
            return
        self.stamp = stamp
        keys = self._read()
        if keys is None:
            log.error("--api-key-file %s cannot be read or holds no key; the keys read before stay valid", self.file)
            return
        self.digests = self.fixed + [_digest(key.encode()) for key in keys]
        log.info("--api-key-file %s was read again: %d keys", self.file, len(keys))

    def _stamp(self) -> tuple[int, int, int] | None:
        if self.file is None:
            return None
        try:
            stat = os.stat(self.file)
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_ino, stat.st_size

    def _read(self) -> list[str] | None:
        if self.file is None:
            return None
        try:
            text = Path(self.file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return None
        return [key.strip() for key in re.split(r"[,\n]", text) if key.strip()] or None


def _digest(key: bytes) -> bytes:
    return sha256(key).digest()  # of one length, so that a comparison's time tells nothing of the key's
