"""Opens the HTTP session of kopf's watches, which uses the operator's credentials and reports lists and failures."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from kubernetes.aio.client.rest import RESTClientObject
from yarl import URL

from unmask_operator.kube.credentials import Credentials, Identity

LONGEST_PAUSE_SECONDS = 30.0  # longest pause between logins with refused credentials
FORGET_SECONDS = 300.0  # a refusal does not delay a login after this time

log = logging.getLogger(__name__)


@dataclass
class WatchLogin:
    """Opens one session per login. kopf logs in again whenever the API server refuses the credentials.

    Args:
        credentials: The operator's credentials.
        user_agent: The User-Agent header of each request.
        on_list: Called with the path of the URL after each list.
        on_error: Called with the HTTP status of each failed request; 0 without an answer.
        clock: Returns monotonic seconds.
    """

    credentials: Credentials
    user_agent: str
    on_list: Callable[[str], None]
    on_error: Callable[[int], None]
    clock: Callable[[], float] = time.monotonic
    _last: Identity | None = field(default=None, init=False)
    _opened_at: float = field(default=float("-inf"), init=False)
    _refusals: int = field(default=0, init=False)

    async def open(self) -> tuple[str, aiohttp.ClientSession]:
        """Logs in.

        Credentials that have not changed since the last login are used again after an increasing pause, because their
        file may be replaced soon.

        Returns:
            The API server's address, and the session. kopf closes it.

        Raises:
            LoginError: There are no credentials, or they cannot be read.
        """
        await self.credentials.load()
        recent = self.clock() - self._opened_at < FORGET_SECONDS
        if self.credentials.current == self._last and recent:
            log.warning("the API server refused the credentials of a watch, logging in again")
            await asyncio.sleep(min(2.0 ** min(self._refusals, 10), LONGEST_PAUSE_SECONDS))
            self._refusals += 1
            await self.credentials.load()
        else:
            self._refusals = 0
        self._last, self._opened_at = self.credentials.current, self.clock()
        return self.credentials.configuration.host, self._session()

    def _session(self) -> aiohttp.ClientSession:
        configuration = self.credentials.configuration
        return aiohttp.ClientSession(
            # Unlimited, because each watch occupies a connection.
            connector=aiohttp.TCPConnector(limit=0, ssl=RESTClientObject(configuration).ssl_context),
            headers={"User-Agent": self.user_agent},
            middlewares=(self._authenticate,),
            proxy=configuration.proxy,
            trace_configs=[self._trace(URL(configuration.host).path.rstrip("/"))],
        )

    async def _authenticate(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """Adds the current token, because a session outlives a token."""
        await self.credentials.refresh()
        if authorization := self.credentials.current.authorization:
            request.headers["Authorization"] = authorization
        if name := self.credentials.configuration.tls_server_name:
            request.server_hostname = name
        return await handler(request)

    def _trace(self, prefix: str) -> aiohttp.TraceConfig:
        async def answered(session: Any, context: Any, params: aiohttp.TraceRequestEndParams) -> None:
            if params.response.status >= 400:
                self.on_error(params.response.status)
            elif "watch" not in params.url.query:
                self.on_list(params.url.path.removeprefix(prefix))

        async def failed(session: Any, context: Any, params: aiohttp.TraceRequestExceptionParams) -> None:
            if isinstance(params.exception, (aiohttp.ClientError, OSError)):
                self.on_error(0)
            if isinstance(params.exception, aiohttp.ClientSSLError):
                await session.close()  # the cluster's CA may have been replaced; kopf's next login reads it

        trace = aiohttp.TraceConfig()
        trace.on_request_end.append(answered)
        trace.on_request_exception.append(failed)
        return trace
