"""Loads the credentials for the API server: the pod's service account, or a kubeconfig with any login method."""

import asyncio
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config import ConfigException, incluster_config, load_incluster_config, load_kube_config
from kubernetes.aio.config.kube_config import KubeConfigLoader

REFRESH_SECONDS = 60.0  # between reads of a token file; an exec plug-in runs again when its token expires
LOGIN_SECONDS = 30.0  # time limit of an exec plug-in
BEARER = "BearerToken"  # the official client's key for the value of the Authorization header

_UNREADABLE = (ConfigException, OSError, ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError)

log = logging.getLogger(__name__)


class LoginError(Exception):
    """There are no credentials, or they cannot be read."""


@dataclass(frozen=True)
class Identity:
    """The credentials by which the API server identifies the client."""

    authorization: str = field(default="", repr=False)  # value of the header; "" without a token
    tls: tuple[bytes, ...] = field(default=(), repr=False)  # CA certificate, client certificate and its key


class Credentials:
    """The configuration of the official client, updated while the process runs.

    Attributes:
        configuration: For `ApiClient`. `load` and `refresh` change it.
        current: The identity of the last read.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.configuration = Configuration(
            connection_pool_maxsize=0,  # unlimited: the number of workers limits the connections
            client_session_kwargs={"trust_env": False},  # only the kubeconfig configures a proxy
        )
        self.current = Identity()
        self._clock = clock
        self._loader: KubeConfigLoader | None = None
        self._loaded_at = float("-inf")
        self._lock = asyncio.Lock()

    async def load(self) -> None:
        """Reads the credentials, and runs the exec plug-in if the kubeconfig has one.

        Raises:
            LoginError: There are no credentials, or they cannot be read.
        """
        async with self._lock:
            await self._load(None)

    async def refresh(self) -> None:
        """Reads the credentials again if they are a minute old. After a failure the last ones stay in use."""
        if self._clock() - self._loaded_at < REFRESH_SECONDS or self._lock.locked():
            return
        async with self._lock:
            try:
                await self._load(self._loader)
            except LoginError as error:
                log.warning("using the last credentials: %s", error)

    async def renew(self, refused: Identity) -> bool:
        """Reads the credentials again if the current identity is the refused one. Returns whether it has changed.

        Raises:
            LoginError: As `load`.
        """
        async with self._lock:
            if self.current == refused:
                await self._load(None)
            return self.current != refused

    async def _load(self, loader: KubeConfigLoader | None) -> None:
        self._loaded_at = self._clock()  # the next read after a failure waits as long as after a success
        if Path(incluster_config.SERVICE_TOKEN_FILENAME).exists():
            try:
                load_incluster_config(self.configuration, try_refresh_token=False)
            except (ConfigException, OSError) as error:
                raise LoginError(f"the service account's files cannot be read: {error}") from error
        else:
            await self._load_kubeconfig(loader)
        token = self.configuration.api_key.get(BEARER, "").strip()  # a header with a line break is refused
        if token:
            self.configuration.api_key[BEARER] = token
        try:
            self.current = Identity(token, self._tls())
        except OSError as error:
            raise LoginError(f"the certificates cannot be read: {error}") from error

    async def _load_kubeconfig(self, loader: KubeConfigLoader | None) -> None:
        file = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
        if not os.environ.get("KUBECONFIG") and not Path(file).exists():
            fix = "run the operator in a pod with a service account, or set KUBECONFIG"
            raise LoginError(f"no credentials: there is neither a service account's token nor a kubeconfig; {fix}")
        try:
            async with asyncio.timeout(LOGIN_SECONDS):
                if loader is not None and hasattr(loader, "exec_plugin_expiry"):
                    await loader.load_and_set(self.configuration)  # runs the plug-in if its token expires soon
                else:
                    self._loader = await load_kube_config(
                        file, client_configuration=self.configuration, persist_config=False
                    )
        except TimeoutError as error:  # an OSError too
            cause = f"its exec plug-in ran for {LOGIN_SECONDS:g} s without an answer"
            raise LoginError(f"the kubeconfig {file} (KUBECONFIG): {cause}") from error
        except _UNREADABLE as error:
            raise LoginError(f"the kubeconfig {file} (KUBECONFIG) cannot be read: {error}") from error
        secure = self.configuration.host.startswith("https")
        if secure and not self.configuration.api_key.get(BEARER) and not self.configuration.cert_file:
            needs = "its user needs a token, a client certificate or an exec plug-in, whose failure is logged"
            raise LoginError(f"the kubeconfig {file} (KUBECONFIG) has no credentials: {needs}")

    def _tls(self) -> tuple[bytes, ...]:
        files = (self.configuration.ssl_ca_cert, self.configuration.cert_file, self.configuration.key_file)
        return tuple(Path(file).read_bytes() if file else b"" for file in files)
