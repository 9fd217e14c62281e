"""The requests to the API server, over one aiohttp session: login, waits that the server asks for, and one error."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import aiohttp

from unmask_operator.client.errors import ApiError, api_error
from unmask_operator.client.kinds import LEASES
from unmask_operator.client.login import Login, LoginError
from unmask_operator.objects import FIELD_MANAGER, Obj

TIMEOUT_SECONDS = 30.0
TOKEN_SECONDS = 60.0  # how long a token is used before its file is read again
THROTTLED_TRIES = 4  # how often a request that the server put off (429) is sent before its caller hears of it
LONGEST_WAIT_SECONDS = 30.0  # the longest Retry-After that is waited for here; the work queue waits longer ones

JSON = "application/json"


class Session:
    """Whoever `login` says we are.

    Every method raises ApiError when the server refuses or does not answer. A 429 is waited for and sent again here,
    since the server did nothing yet; nothing else is repeated, for only the caller knows what a second time would do.
    """

    def __init__(self, login: Callable[[], Login], user_agent: str = FIELD_MANAGER) -> None:
        self._login = login
        self._who = login()
        self._read_at = time.monotonic()
        self._agent = user_agent
        self._session: aiohttp.ClientSession | None = None
        self.last_answer = 0.0  # monotonic seconds of the last answer below 500
        self.may_write: Callable[[], bool] = lambda: True  # asked in the moment each write but the Lease's is sent

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def request(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = JSON,
        timeout: float = TIMEOUT_SECONDS,
    ) -> Obj:
        for _ in range(THROTTLED_TRIES - 1):
            try:
                return await self._send(method, path, params, body, content_type, timeout)
            except ApiError as error:
                if error.status == 401 and await self._renew_login():
                    continue
                wait = error.retry_after or 1.0
                if error.status != 429 or error.refusal or wait > LONGEST_WAIT_SECONDS:
                    raise
                await asyncio.sleep(wait)
        return await self._send(method, path, params, body, content_type, timeout)

    async def _send(
        self, method: str, path: str, params: Mapping[str, str] | None, body: Any, content_type: str, timeout: float
    ) -> Obj:
        session = await self._open()
        url = self._who.server + path
        may_write = (lambda: True) if path.startswith(LEASES.root) else self.may_write
        data = None if body is None else _Fenced(encode(body), may_write)
        headers = {**self._who.headers(), "Content-Type": content_type, "Accept": JSON}
        if data is not None:
            headers["Content-Length"] = str(len(data.body))
        try:
            async with session.request(
                method, url, params=params, data=data, headers=headers, timeout=aiohttp.ClientTimeout(total=timeout)
            ) as answer:
                raw, status, said = await answer.read(), answer.status, answer.headers
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            if data is not None and data.kept_back:
                raise ApiError(0, "NotLeading", f"{method} {path}: not sent, for another pod may lead by now") from None
            raise await self._unanswered(method, path, error) from error
        self._note(status)
        if status >= 400:
            raise api_error(status, raw, said)
        try:
            parsed: Obj = json.loads(raw)
        except ValueError:
            raise ApiError(status, "Unreadable", f"{method} {path}: the answer is not JSON") from None
        return parsed

    def _note(self, status: int) -> None:
        if status < 500:
            self.last_answer = time.monotonic()

    async def _unanswered(self, method: str, path: str, error: Exception) -> ApiError:
        if isinstance(error, aiohttp.ClientSSLError):
            await self.close()  # the cluster's CA may have been replaced: the next session reads it again
        sentence = f"{method} {path}: no answer from the API server: {str(error) or type(error).__name__}"
        return ApiError(0, "Unreachable", sentence)

    async def _open(self) -> aiohttp.ClientSession:
        if self._who.token and time.monotonic() - self._read_at > TOKEN_SECONDS:
            await self._renew_login()
        if self._session is None:
            # No limit to connections: the work queue's workers are the limit.
            connector = aiohttp.TCPConnector(limit=0, ssl=self._who.tls())
            self._session = aiohttp.ClientSession(connector=connector, headers={"User-Agent": self._agent})
        return self._session

    async def _renew_login(self) -> bool:
        """Read the login again; True when it has changed. A new CA or certificate needs a new session."""
        try:
            old, self._who, self._read_at = self._who, self._login(), time.monotonic()
        except LoginError as error:
            raise ApiError(0, "NoLogin", str(error)) from error
        if (old.ca, old.certificate) != (self._who.ca, self._who.certificate):
            await self.close()
        return old != self._who


class _Fenced:
    """A request's body that asks whether it may go when it goes; a request without its whole body changes nothing.

    A process that was frozen goes on wherever it was, before any task of its own could tell it that another leads by
    now. Between the call of a request and its first byte lie several turns of the event loop, also without a new
    connection: a check at the call is too early. So every write has a body.
    """

    def __init__(self, body: bytes, may_go: Callable[[], bool]) -> None:
        self.body = body
        self.kept_back = False
        self._may_go = may_go

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self.kept_back = not self._may_go()
        if self.kept_back:
            raise RuntimeError("another pod may lead")
        yield self.body


def encode(body: Any) -> bytes:
    """JSON in the very bytes that the API server makes of it: members sorted, no spaces, <, > and & escaped.

    It keeps a ControllerRevision's data as it got them, encodes them anew at any later patch, be it of a label, and
    refuses the patch as a change of immutable data where the bytes differ.
    """
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text.encode()
