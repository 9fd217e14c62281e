"""API keys: several at once for rotation, compared in constant time, reloaded when their file changes."""

from __future__ import annotations

import hmac
import logging
import threading
import time
from hashlib import sha256

from starlette.requests import Request

from runtime.config.api_keys import SETTLE_SECONDS, Stamp, key_file_stamp, read_key_file
from runtime.errors import ConfigError, RequestError

log = logging.getLogger("unmask.keys")

OPEN_PATHS = frozenset({"/health", "/ready", "/startup", "/metrics"})  # probes and scrapers hold no key


class ApiKeys:
    """The keys that open the server: `fixed` ones, and those `in_file`, which change with it.

    A thread reads the file, as a slow file system must not delay requests. Changed content is used once it is the same
    in two reads, so that a file that is being written has no effect.
    """

    def __init__(self, static: tuple[str, ...], file: str | None = None, in_file: tuple[str, ...] = ()) -> None:
        self.file = file
        self.static_digests = [_digest(key.encode()) for key in static]
        self.digests = self.static_digests + [_digest(key.encode()) for key in in_file]
        self._seen: Stamp | str | None = "never"  # the file's stamp at the last look
        self._taken: Stamp | str | None = "never"  # and when its content was last judged

    @property
    def required(self) -> bool:
        """Whether requests need a key. With an empty file all requests are rejected."""
        return self.file is not None or bool(self.static_digests)

    def check(self, authorization: bytes | None, api_key: bytes | None = None) -> str:
        """A name of the key that is no secret, "" where there is but one.

        Raises RequestError 401 unless `authorization`, that header's value, is ``Bearer`` and one of the keys or,
        where it is None, `api_key` (of the header X-Api-Key, as Anthropic's clients send theirs) is one.
        """
        known = self.digests  # replaced as a whole by the thread that watches the file
        if authorization is None and api_key is not None:
            authorization = b"Bearer " + api_key
        scheme, _, key = (authorization or b"").partition(b" ")
        digest = _digest(key.strip())
        # all are compared, whichever fits
        fits = sum(hmac.compare_digest(digest, one) for one in known)
        if not fits or scheme.lower() != b"bearer":
            what = "API key is missing" if authorization is None else "API key is invalid"
            message = f"{what}; send it in the header Authorization: Bearer <key> or X-Api-Key: <key>"
            raise RequestError(message, status=401, code="invalid_api_key")
        return "" if len(set(known)) == 1 else sha256(digest).hexdigest()[:16]

    def watch(self) -> None:
        """Look at the file from now on, for as long as the process lives."""
        if self.file is not None:
            threading.Thread(target=self._watch, name="keys", daemon=True).start()

    def _watch(self) -> None:
        while True:
            self.reload()
            time.sleep(SETTLE_SECONDS)

    def reload(self) -> None:
        """Take what the file holds, if it is new and was the same at the last look."""
        assert self.file is not None
        stamp = key_file_stamp(self.file)
        before, self._seen = self._seen, stamp
        if stamp != before or stamp == self._taken:
            return
        if stamp is None:
            self._taken = None
            log.error("--api-key-file %s is missing; keeping the current keys. Restore the file", self.file)
            return
        try:
            keys, read = read_key_file(self.file)
        except ConfigError as error:
            self._taken = stamp
            log.error("%s; keeping the current keys. Fix the file", error)
            return
        if read != stamp:
            return  # changed meanwhile: read again later
        self._taken = stamp
        digests = self.static_digests + [_digest(key.encode()) for key in keys]
        if digests == self.digests:
            return
        self.digests = digests
        if keys:
            log.info("--api-key-file %s reloaded: %d keys", self.file, len(keys))
        else:
            effect = "only keys of --api-key are accepted" if self.static_digests else "all requests are rejected (401)"
            log.warning("--api-key-file %s is empty: %s. Add a key to the file", self.file, effect)


def api_key_id(request: Request) -> str:
    """Whose key the request came with, for fair shares; "" on a server without keys."""
    return getattr(request.state, "owner", "")


def _digest(key: bytes) -> bytes:
    return sha256(key).digest()  # of equal length, so that the time of a comparison does not depend on the key
