"""The operator's credentials at the API server: a pod's service account, or a kubeconfig with any of its methods."""

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

REFRESH_SECONDS = 60.0  # between two reads of a token's file. An exec plug-in runs again when its token expires.
LOGIN_SECONDS = 30.0  # that an exec plug-in may take
BEARER = "BearerToken"  # the official client's name of the Authorization header's value

_UNREADABLE = (ConfigException, OSError, ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError)

log = logging.getLogger(__name__)


class LoginError(Exception):
    """There are no credentials, or they cannot be read."""


@dataclass(frozen=True)
class Identity:
    """What the API server knows a client by."""

    authorization: str = field(default="", repr=False)  # the header's value; "" without a token
    tls: tuple[bytes, ...] = field(default=(), repr=False)  # the CA's, the client's certificate and its key


class Credentials:
    """The official client's configuration, read again while the process runs.

    Attributes:
        configuration: For `ApiClient`. `load` and `refresh` change it.
        current: The identity that was read last.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.configuration = Configuration(
            connection_pool_maxsize=0,  # unlimited: the work queue's workers are the limit
            client_session_kwargs={"trust_env": False},  # a proxy is the kubeconfig's to name
        )
        self.current = Identity()
        self._clock = clock
        self._loader: KubeConfigLoader | None = None
        self._loaded_at = float("-inf")
        self._lock = asyncio.Lock()

    async def load(self) -> None:
        """Reads the credentials, and runs the exec plug-in if the kubeconfig names one.

        Raises:
            LoginError: There are none, or they cannot be read.
        """
        async with self._lock:
            await self._load(None)

    async def refresh(self) -> None:
        """Reads the credentials again if they are a minute old. A failure leaves them as they are."""
        if self._clock() - self._loaded_at < REFRESH_SECONDS or self._lock.locked():
            return
        async with self._lock:
            try:
                await self._load(self._loader)
            except LoginError as error:
                log.warning("using the last credentials: %s", error)

    async def renew(self, refused: Identity) -> bool:
        """Replaces an identity that the API server refused. Returns whether there is another one.

        Raises:
            LoginError: As `load`.
        """
        async with self._lock:
            if self.current == refused:
                await self._load(None)
            return self.current != refused

    async def _load(self, loader: KubeConfigLoader | None) -> None:
        self._loaded_at = self._clock()  # a failure is tried again as late as a success
        if Path(incluster_config.SERVICE_TOKEN_FILENAME).exists():
            self._load_service_account()
        else:
            await self._load_kubeconfig(loader)
        token = self.configuration.api_key.get(BEARER, "").strip()  # a header with a line break is refused
        if token:
            self.configuration.api_key[BEARER] = token
        try:
            self.current = Identity(token, self._tls())
        except OSError as error:
            raise LoginError(f"the certificates cannot be read: {error}") from error

    def _load_service_account(self) -> None:
        try:
            load_incluster_config(self.configuration, try_refresh_token=False)
        except (ConfigException, OSError) as error:
            raise LoginError(f"the service account's files cannot be read: {error}") from error

    async def _load_kubeconfig(self, loader: KubeConfigLoader | None) -> None:
        file = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
        if not os.environ.get("KUBECONFIG") and not Path(file).exists():
            raise LoginError("found neither a service account's token (in a pod) nor a kubeconfig (KUBECONFIG)")
        try:
            async with asyncio.timeout(LOGIN_SECONDS):
                if loader is not None and hasattr(loader, "exec_plugin_expiry"):
                    await loader.load_and_set(self.configuration)  # runs the plug-in if its token expires soon
                else:
                    self._loader = await load_kube_config(
                        file, client_configuration=self.configuration, persist_config=False
                    )
        except TimeoutError as error:  # an OSError too
            raise LoginError(
                f"the kubeconfig {file} (KUBECONFIG): its exec plug-in ran for {LOGIN_SECONDS:g} s without an answer"
            ) from error
        except _UNREADABLE as error:
            raise LoginError(f"the kubeconfig {file} (KUBECONFIG) cannot be read: {error}") from error
        secure = self.configuration.host.startswith("https")
        if secure and not self.configuration.api_key.get(BEARER) and not self.configuration.cert_file:
            raise LoginError(
                f"the kubeconfig {file} (KUBECONFIG) has no credentials: its user needs a token, a client certificate "
                "or an exec plug-in, whose failure is logged"
            )

    def _tls(self) -> tuple[bytes, ...]:
        files = (self.configuration.ssl_ca_cert, self.configuration.cert_file, self.configuration.key_file)
        return tuple(Path(file).read_bytes() if file else b"" for file in files)
