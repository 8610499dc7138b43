"""Docker's client library, set up for an engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import docker
import docker.tls
from docker.transport import UnixHTTPAdapter
from urllib3.connection import HTTPConnection
from urllib3.connectionpool import HTTPConnectionPool

from workers.deployments.wire import Endpoint

POOL = 128
"""Connections kept per process: above the threads of any worker, so that no call waits for one (and none is thrown away)."""
SSH_POOL = 8
"""The same through SSH, where each is a process of some megabytes at both ends; more than these are closed after use."""
_UNIX = "http+docker://"
"""How Docker's client spells every address behind a socket file."""


class _Client(docker.APIClient):
    """Docker's client, but for requests' habit of heeding the environment: a proxy, or a bundle of authorities, is not meant for an engine."""

    @property
    def trust_env(self) -> bool:  # an attribute of requests' session, which sets it
        return False

    @trust_env.setter
    def trust_env(self, value: bool) -> None:
        return None


class _OnePool(UnixHTTPAdapter):
    """Docker's way to a socket file, but for its habit of keeping a pool of connections for each path that is asked for.

    Paths hold containers' names, so it would use hardly any connection twice, and keep some dozens of them open.
    """

    def get_connection(self, url: str | bytes, proxies: Any = None) -> Any:
        return super().get_connection(_UNIX, proxies)


class _Connection(HTTPConnection):
    """A connection of `Endpoint`'s own making."""

    def __init__(self, *args: Any, endpoint: Endpoint, **options: Any) -> None:
        super().__init__(*args, **options)
        self._endpoint = endpoint

    def connect(self) -> None:
        self.sock = self._endpoint.connect()


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _BySsh(UnixHTTPAdapter):
    """Our way through SSH. Docker's wants a second implementation of SSH to be installed, though it starts the system's client like we do."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__("http+unix:///ssh", int(endpoint.timeout), pool_connections=1)
        self.pools[_UNIX] = _Pool("localhost", maxsize=SSH_POOL, timeout=endpoint.timeout, endpoint=endpoint)

    def get_connection(self, url: str | bytes, proxies: Any = None) -> Any:
        return self.pools[_UNIX]


class _SshClient(_Client):
    def __init__(self, endpoint: Endpoint) -> None:
        self._by_ssh = _BySsh(endpoint)
        super().__init__(base_url="unix:///ssh", version="auto", timeout=int(endpoint.timeout))

    def mount(self, prefix: str | bytes, adapter: Any) -> None:
        super().mount(prefix, self._by_ssh if prefix == _UNIX else adapter)


def make(endpoint: Endpoint) -> docker.APIClient:
    """Return a client of the engine at `endpoint`, which has been asked for its version. Errors: what docker and requests raise."""
    if endpoint.url.startswith("ssh://"):
        return _SshClient(endpoint)
    client = _Client(
        base_url=endpoint.url,
        version="auto",
        timeout=int(endpoint.timeout),
        num_pools=8,
        max_pool_size=POOL,
        tls=_tls(endpoint.certificates),
    )
    if endpoint.url.startswith("unix://"):
        client.get_adapter(_UNIX).close()
        path = endpoint.url.replace("unix://", "http+unix://", 1)
        client.mount(_UNIX, _OnePool(path, int(endpoint.timeout), pool_connections=1, max_pool_size=POOL))
    return client


def _tls(certificates: Path | None) -> Any:
    """Return what the client library checks the engine against and shows it; False for an engine without TLS."""
    if certificates is None:
        return False
    pair = (str(certificates / "cert.pem"), str(certificates / "key.pem"))
    return docker.tls.TLSConfig(client_cert=pair, ca_cert=str(certificates / "ca.pem"), verify=True)
