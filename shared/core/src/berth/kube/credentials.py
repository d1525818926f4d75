"""Credentials for the API server, shared by both of its clients, with TLS and proxy."""

from __future__ import annotations

import asyncio
import ssl
from base64 import b64encode
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote, urlsplit, urlunsplit
from urllib.request import getproxies, proxy_bypass

from berth.clock import Clock, SteadyClock
from berth.kube.errors import KubeconfigError
from berth.log import get_logger
from berth.tls import client_context

if TYPE_CHECKING:
    from kubernetes_asyncio.client import Configuration

log = get_logger()

# Seconds until credentials are read again after a failure.
RETRY_SECONDS = 10.0
# A request waits this long for a new token before it uses the former one: a Lease is renewed within 10 s.
PATIENCE = timedelta(seconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Credentials, once read. ``token_age``: how long the token may be used; ``None``: until it is refused."""

    server: str
    tls: ssl.SSLContext | None = None
    server_name: str | None = None  # In the certificate, if it differs from the URL's host.
    proxy: str | None = None
    authorization: str | None = None
    token_age: timedelta | None = None


class AccessSource(Protocol):
    """Source of credentials, read repeatedly."""

    async def read(self) -> Access: ...


class KubeCredentials:
    """Current credentials for one API server. One task reads them at a time; other callers wait for its result."""

    def __init__(self, source: AccessSource, access: Access, *, clock: Clock | None = None) -> None:
        self._source = source
        self._clock = clock or SteadyClock()
        self._reading: asyncio.Task[KubeconfigError | None] | None = None
        self._is_slow = False
        self._old_at: float | None = None
        self._take(access)

    @classmethod
    async def from_source(cls, source: AccessSource, *, clock: Clock | None = None) -> KubeCredentials:
        """Read once, so that errors are found at start-up.

        Raises:
            KubeconfigError: unusable configuration.
        """
        return cls(source, await source.read(), clock=clock)

    @property
    def access(self) -> Access:
        return self._access

    def __str__(self) -> str:
        return str(self._source)

    @property
    def server(self) -> str:
        """URL of the API server, without user, password and trailing slash."""
        return self._access.server

    async def headers(self) -> dict[str, str]:
        """Authentication headers. A token older than its age is read again first.

        The old token stays in use if reading is slow or fails. If the API server refuses it, the client calls
        ``renew``.
        """
        if self._is_old():
            reading = self._read_again()
            if not self._is_slow:
                _, unfinished = await asyncio.wait([reading], timeout=PATIENCE.total_seconds())
                self._is_slow = bool(unfinished)
        return self._headers

    async def renew(self, refused: dict[str, str]) -> dict[str, str]:
        """Read again after the API server refused these headers, unless another task has done so since.

        Raises:
            KubeconfigError: unusable new content.
        """
        if self._headers is refused:
            error = await asyncio.shield(self._read_again())
            if error is not None:
                raise KubeconfigError(str(error)) from error
        return self._headers

    def _read_again(self) -> asyncio.Task[KubeconfigError | None]:
        # One task at a time; it continues when its caller is cancelled.
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read(), name="credentials")
        return self._reading

    async def _read(self) -> KubeconfigError | None:
        try:
            self._take(await self._source.read())
        except KubeconfigError as exc:
            self._old_at = self._clock.now() + RETRY_SECONDS if self._old_at is not None else None
            log.warning("cannot renew the credentials, the former ones stay in use", error=str(exc))
            return exc
        finally:
            self._is_slow = False
        return None

    def _take(self, access: Access) -> None:
        self._access = access
        self._headers = {"Authorization": access.authorization} if access.authorization else {}
        age = access.token_age
        self._old_at = None if age is None else self._clock.now() + age.total_seconds()

    def _is_old(self) -> bool:
        return self._old_at is not None and self._clock.now() >= self._old_at


def access_of(configuration: Configuration, *, token_age: timedelta | None) -> Access:
    """Check the library's configuration, and add the proxy of the environment.

    Raises:
        ValueError, OSError: an invalid URL or certificate.
    """
    given = (configuration.host or "").rstrip("/")
    if not given.startswith(("http://", "https://")):
        shown = "***" if "@" in given else given
        raise ValueError(f"its cluster has the server {shown!r}: want a URL that begins with https:// or http://")
    server, basic = _without_user(given)
    authorization = configuration.api_key.get("BearerToken")
    return Access(
        server=server,
        tls=_tls(configuration) if server.startswith("https://") else None,
        server_name=configuration.tls_server_name,
        proxy=_proxy(configuration.proxy or _proxy_of_the_environment(server)),
        authorization=" ".join(authorization.split()) if authorization else basic,
        token_age=token_age,
    )


def _without_user(url: str) -> tuple[str, str | None]:
    # Returns the URL for errors and logs, and user and password as a header.
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    if not at:
        return url, None
    return urlunsplit(parts._replace(netloc=host)), f"Basic {b64encode(unquote(user).encode()).decode()}"


def _proxy(address: str | None) -> str | None:
    if not address:
        return None
    url = address if "://" in address else f"http://{address}"
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        raise ValueError(f"the proxy {url.rpartition('@')[2]!r}: want one that begins with http:// or https://")
    return url


def _proxy_of_the_environment(server: str) -> str | None:
    # HTTPS_PROXY and NO_PROXY as in other Kubernetes clients, but never a proxy for the local machine.
    url = urlsplit(server)
    host = url.hostname or ""
    if host == "localhost" or host.startswith("127.") or host == "::1" or proxy_bypass(host):
        return None
    return getproxies().get(url.scheme)


def _tls(configuration: Configuration) -> ssl.SSLContext:
    files = (configuration.ssl_ca_cert, configuration.cert_file, configuration.key_file)
    return _tls_of(tuple(_as_it_stands(file) for file in files), verify=configuration.verify_ssl)


def _as_it_stands(file: str | None) -> tuple[str, int] | None:
    return (file, Path(file).stat().st_mtime_ns) if file else None


@lru_cache(maxsize=8)
def _tls_of(files: tuple[tuple[str, int] | None, ...], *, verify: bool) -> ssl.SSLContext:
    # Unchanged files give the same context, because a new one would close the pooled connections.
    authority, certificate, key = (file and file[0] for file in files)
    context = client_context(authority)
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if certificate:
        context.load_cert_chain(certificate, key)
    return context
