"""The HTTP session of kopf's watches: the operator's own login, and what each answer says beside its content."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace

import aiohttp
from yarl import URL

from unmask_operator.client.login import Login

LONGEST_PAUSE_SECONDS = 30.0  # between logins with credentials that were refused
FORGET_SECONDS = 300.0  # after which a refusal says nothing about the next login

log = logging.getLogger(__name__)


@dataclass
class WatchLogin:
    """Opens a session per login. kopf requests a new one whenever the API server refuses the last one's credentials.

    Args:
        login: Reads who the operator is, from the service account's files or a kubeconfig.
        user_agent: The header of each request.
        on_list: Called with the path of a URL whose objects were listed.
        on_error: Called with the HTTP status of a request that failed; 0 without an answer.
    """

    login: Callable[[], Login]
    user_agent: str
    on_list: Callable[[str], None]
    on_error: Callable[[int], None]
    clock: Callable[[], float] = time.monotonic
    _last: Login | None = field(default=None, init=False)
    _opened_at: float = field(default=float("-inf"), init=False)
    _refusals: int = field(default=0, init=False)

    async def open(self) -> tuple[str, aiohttp.ClientSession]:
        """Logs in.

        Credentials that have not changed since the last login are tried again after a growing pause: their file may be
        about to be replaced.

        Returns:
            The API server's address and the session, which kopf closes.

        Raises:
            LoginError: There is no login, or it cannot be read.
        """
        who = self.login()
        recent = self.clock() - self._opened_at < FORGET_SECONDS
        if who == self._last and recent:
            log.warning("the API server refused the credentials of a watch")
            await asyncio.sleep(min(2.0 ** min(self._refusals, 10), LONGEST_PAUSE_SECONDS))
            self._refusals += 1
            who = self.login()
        else:
            self._refusals = 0
        self._last, self._opened_at = who, self.clock()
        return who.server, self._session(who)

    def _session(self, who: Login) -> aiohttp.ClientSession:
        prefix = URL(who.server).path.rstrip("/")

        async def answered(
            session: aiohttp.ClientSession, context: SimpleNamespace, params: aiohttp.TraceRequestEndParams
        ) -> None:
            if params.response.status >= 400:
                self.on_error(params.response.status)
            elif "watch" not in params.url.query:
                self.on_list(params.url.path.removeprefix(prefix))

        async def failed(
            session: aiohttp.ClientSession, context: SimpleNamespace, params: aiohttp.TraceRequestExceptionParams
        ) -> None:
            if isinstance(params.exception, (aiohttp.ClientError, OSError)):
                self.on_error(0)
            if isinstance(params.exception, aiohttp.ClientSSLError):
                await session.close()  # the cluster's CA may have been replaced: kopf logs in again, which reads it

        trace = aiohttp.TraceConfig()
        trace.on_request_end.append(answered)
        trace.on_request_exception.append(failed)
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=who.tls()),  # each watch occupies a connection
            headers={**who.headers(), "User-Agent": self.user_agent},
            trace_configs=[trace],
        )
