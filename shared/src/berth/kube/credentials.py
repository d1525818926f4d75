"""The address of the API server and berth's credentials: from a kubeconfig, or from the service account of the pod.

kubernetes_asyncio's loaders read the files. They are imported only when needed: the import takes 0.7 s and 73 MB, which
a process that uses only NATS should not pay.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from berth.kube.clock import Clock, SteadyClock
from berth.kube.errors import KubeconfigError

if TYPE_CHECKING:
    from kubernetes_asyncio.client import Configuration

logger = logging.getLogger(__name__)

TOKEN_FILE_AGE = timedelta(minutes=1)
"""Maximum age of a token from a file. The kubelet renews a projected token when a fifth of its hour is left."""
EXPIRY_MARGIN = timedelta(minutes=1)
"""A token is renewed this long before it expires, so that it is still valid when a request arrives."""
SHORTEST_AGE = timedelta(seconds=10)
"""Shortest time between two starts of an exec plugin, also when its tokens expire sooner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The result of reading the files once. ``token_age``: how long the token may be used; ``None``: until refused."""

    server: str
    tls: ssl.SSLContext | None = None
    server_name: str | None = None
    """The name in the server's certificate, when it differs from the host of the URL."""
    proxy: str | None = None
    authorization: str | None = None
    token_age: timedelta | None = None


class AccessSource(Protocol):
    """A source of credentials that can be read repeatedly."""

    async def read(self) -> Access: ...


class KubeCredentials:
    """Current credentials for one API server. Only one task reads them at a time; other callers wait for its result."""

    def __init__(self, source: AccessSource, access: Access, *, clock: Clock | None = None) -> None:
        self._source = source
        self._clock = clock or SteadyClock()
        self._lock = asyncio.Lock()
        self._old_at: float | None = None
        self._take(access)

    @classmethod
    async def from_source(cls, source: AccessSource, *, clock: Clock | None = None) -> KubeCredentials:
        """Read once, so that errors are found at start-up.

        Raises:
            KubeconfigError: what is there cannot be used.
        """
        return cls(source, await source.read(), clock=clock)

    @property
    def access(self) -> Access:
        """The result of the last read."""
        return self._access

    @property
    def server(self) -> str:
        """The API server's URL, without a slash at its end."""
        return self._access.server

    async def headers(self) -> dict[str, str]:
        """The authentication headers. A token older than its age is read again first.

        When that fails, the old token stays in use. If the API server refuses it, the client calls ``renew``.
        """
        if self._is_old():
            try:
                await self._read_unless(lambda: not self._is_old())
            except KubeconfigError as exc:
                self._old_at = self._clock.now() + SHORTEST_AGE.total_seconds()
                logger.warning("%s: still using the former token", exc)
        return self._headers

    async def renew(self, refused: dict[str, str]) -> dict[str, str]:
        """The API server refused these headers: read everything again, unless another task has done so since.

        Raises:
            KubeconfigError: the new content cannot be used.
        """
        await self._read_unless(lambda: self._headers is not refused)
        return self._headers

    async def _read_unless(self, settled: Callable[[], bool]) -> None:
        async with self._lock:
            if not settled():
                self._take(await self._source.read())

    def _take(self, access: Access) -> None:
        self._access = access
        self._headers = {"Authorization": access.authorization} if access.authorization else {}
        age = access.token_age
        self._old_at = None if age is None else self._clock.now() + age.total_seconds()

    def _is_old(self) -> bool:
        return self._old_at is not None and self._clock.now() >= self._old_at


class Kubeconfig:
    """A kubeconfig: the given path, else the files in KUBECONFIG, else ``~/.kube/config``."""

    def __init__(self, path: str | Path | None = None, *, context: str | None = None) -> None:
        self._paths = str(path) if path else os.environ.get("KUBECONFIG") or "~/.kube/config"
        self._context = context

    async def read(self) -> Access:
        """Read the files, and run the exec plugin when they configure one.

        Raises:
            KubeconfigError: no file, no current context, or a file that it refers to is missing.
        """
        self._want_a_file()
        with_what = f"reading kubeconfig {self._paths!r}"
        async with _in_one_sentence(with_what):
            return await self._read()

    def _want_a_file(self) -> None:
        paths = [Path(path).expanduser() for path in self._paths.split(os.pathsep) if path]
        if not any(path.is_file() for path in paths):
            raise KubeconfigError(f"reading kubeconfig {self._paths!r}: no such file: name one with --kubeconfig")

    async def _read(self) -> Access:
        from kubernetes_asyncio.client import Configuration  # noqa: PLC0415 - heavy, see the module's docstring
        from kubernetes_asyncio.config.kube_config import (  # noqa: PLC0415 - the same
            KubeConfigLoader,
            KubeConfigMerger,
        )

        merged = KubeConfigMerger(self._paths).config
        context = self._context or (merged and merged.safe_get("current-context"))
        if not context:
            raise ValueError("it has no current-context: set one with `kubectl config use-context NAME`")
        loader = KubeConfigLoader(config_dict=merged, config_base_path=None, active_context=context)
        configuration = Configuration()
        await loader.load_and_set(configuration)
        return _access(configuration, token_age=_token_age(loader))


class InClusterAccount:
    """The service account that Kubernetes mounts into the pod."""

    async def read(self) -> Access:
        """Read the mounted token and certificate.

        Raises:
            KubeconfigError: this process does not run in a pod, or the pod mounts no account.
        """
        async with _in_one_sentence("reading the service account of this pod"):
            from kubernetes_asyncio.client import Configuration  # noqa: PLC0415 - heavy, see the module's docstring
            from kubernetes_asyncio.config.incluster_config import load_incluster_config  # noqa: PLC0415 - the same

            configuration = Configuration()
            load_incluster_config(configuration)  # type: ignore[no-untyped-call]  # it has no types
            return _access(configuration, token_age=TOKEN_FILE_AGE)


def source_for(kubeconfig: str | Path | None) -> AccessSource:
    """The kubeconfig from the given path, KUBECONFIG or its default path; otherwise the pod's service account."""
    named = kubeconfig or os.environ.get("KUBECONFIG")
    in_a_pod = "KUBERNETES_SERVICE_HOST" in os.environ
    if named or not in_a_pod:
        return Kubeconfig(kubeconfig)
    return InClusterAccount()


@asynccontextmanager
async def _in_one_sentence(doing: str) -> AsyncIterator[None]:
    """Turn the loaders' dozen exception types, assertions included, into one readable sentence."""
    logging.getLogger("kubernetes_asyncio.config.kube_config").disabled = True  # it would log the same error again
    try:
        yield
    except KubeconfigError:
        raise
    except (TypeError, AttributeError, KeyError, AssertionError) as exc:
        raise KubeconfigError(f"{doing}: it does not have the form of a kubeconfig ({exc!r})") from exc
    except Exception as exc:
        cause = str(exc) or type(exc).__name__
        raise KubeconfigError(f"{doing}: {' '.join(cause.split())}") from exc


def _access(configuration: Configuration, *, token_age: timedelta | None) -> Access:
    bearer = configuration.api_key.get("BearerToken")
    server = str(configuration.host).rstrip("/")
    if not server.startswith(("http://", "https://")):
        raise ValueError(f"its cluster has the server {server!r}: want a URL that begins with https:// or http://")
    return Access(
        server=server,
        tls=_tls(configuration) if server.startswith("https://") else None,
        server_name=configuration.tls_server_name,
        proxy=configuration.proxy or _proxy_of_the_environment(server),
        authorization=" ".join(bearer.split()) if bearer else None,
        token_age=token_age,
    )


def _proxy_of_the_environment(server: str) -> str | None:
    """HTTPS_PROXY and NO_PROXY as in other Kubernetes clients; never a proxy for the local machine."""
    url = urlsplit(server)
    host = url.hostname or ""
    if host == "localhost" or host.startswith("127.") or host == "::1" or proxy_bypass(host):
        return None
    return getproxies().get(url.scheme)


def _tls(configuration: Configuration) -> ssl.SSLContext:
    files = (configuration.ssl_ca_cert, configuration.cert_file, configuration.key_file)
    return _tls_of(tuple(_as_it_stands(file) for file in files), verify=bool(configuration.verify_ssl))


def _as_it_stands(file: str | None) -> tuple[str, int] | None:
    return (file, Path(file).stat().st_mtime_ns) if file else None


@lru_cache(maxsize=8)
def _tls_of(files: tuple[tuple[str, int] | None, ...], *, verify: bool) -> ssl.SSLContext:
    """The same context while the files are unchanged: pooled connections depend on it, and a new one would end them."""
    authority, certificate, key = (file and file[0] for file in files)
    context = ssl.create_default_context(cafile=authority)
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if certificate:
        context.load_cert_chain(certificate, key)
    return context


def _token_age(loader: Any) -> timedelta | None:
    """How long the token may be used: until its expiry (exec), for a fixed age (file), else until it is refused."""
    expiry: datetime | None = getattr(loader, "exec_plugin_expiry", None)
    if expiry is not None:
        return max(expiry - datetime.now(UTC) - EXPIRY_MARGIN, SHORTEST_AGE)
    user = loader._user  # noqa: SLF001 - the loader has no public attribute for the source of its token
    return TOKEN_FILE_AGE if user and "tokenFile" in user and "token" not in user else None
