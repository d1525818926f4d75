"""The address of the API server and berth's credentials: from a kubeconfig, or from the service account of the pod."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import ssl
from asyncio.subprocess import DEVNULL, PIPE
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit, urlunsplit
from urllib.request import getproxies, proxy_bypass

from yaml import YAMLError

from berth.api.config.yamlreader import reason_in_a_line, yaml_values
from berth.clock import Clock, SteadyClock
from berth.kube.errors import KubeconfigError
from berth.kube.kubeconfig import KINDS, ApiServer, Context, account_of_pod, check_form, context_of
from berth.tls import client_context

logger = logging.getLogger(__name__)

TOKEN_FILE_AGE = timedelta(minutes=1)
"""Maximum age of a token from a file. The kubelet renews a projected token when a fifth of its hour is left."""
EXPIRY_MARGIN = timedelta(minutes=1)
"""A token is renewed this long before it expires, so that it is still valid when a request arrives."""
SHORTEST_AGE = timedelta(seconds=10)
"""Shortest time between two starts of an exec plugin, also when its tokens expire sooner."""
PLUGIN_DEADLINE = timedelta(seconds=30)
"""An exec plugin that runs longer is killed, with what it has started. Those of the clouds take 1 to 5 s."""
PATIENCE = timedelta(seconds=1)
"""How long a request waits for a new token while it has a former one: a Lease is to be renewed within 10 s."""
MOST_PLUGIN_BYTES = 1 << 20
MOST_FILE_BYTES = 4 << 20
"""Of a kubeconfig. One with 500 clusters and their certificates has half of that."""


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
        self._reading: asyncio.Task[KubeconfigError | None] | None = None
        self._is_slow = False
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

    def __str__(self) -> str:
        """Where they are from."""
        return str(self._source)

    @property
    def server(self) -> str:
        """The API server's URL, without user and password, and without a slash at its end."""
        return self._access.server

    async def headers(self) -> dict[str, str]:
        """The authentication headers. A token older than its age is read again first.

        While that takes long, and when it fails, the old token stays in use. If the API server refuses it, the client
        calls ``renew``.
        """
        if self._is_old():
            reading = self._read_again()
            if not self._is_slow:
                _, unfinished = await asyncio.wait([reading], timeout=PATIENCE.total_seconds())
                self._is_slow = bool(unfinished)
        return self._headers

    async def renew(self, refused: dict[str, str]) -> dict[str, str]:
        """The API server refused these headers: read everything again, unless another task has done so since.

        Raises:
            KubeconfigError: the new content cannot be used.
        """
        if self._headers is refused:
            error = await asyncio.shield(self._read_again())
            if error is not None:
                raise KubeconfigError(str(error)) from error
        return self._headers

    def _read_again(self) -> asyncio.Task[KubeconfigError | None]:
        """The task that reads, a new one unless one is under way. It goes on when no caller waits for it any more."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read(), name="credentials")
        return self._reading

    async def _read(self) -> KubeconfigError | None:
        try:
            self._take(await self._source.read())
        except KubeconfigError as exc:
            self._old_at = self._clock.now() + SHORTEST_AGE.total_seconds() if self._old_at is not None else None
            logger.warning("%s: still using the former credentials", exc)
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


class Kubeconfig:
    """A kubeconfig: the given path, else the files in KUBECONFIG, else ``~/.kube/config``."""

    def __init__(self, path: str | Path | None = None, *, context: str | None = None) -> None:
        self._paths = str(path) if path else os.environ.get("KUBECONFIG") or "~/.kube/config"
        self._context = context

    def __str__(self) -> str:
        return f"kubeconfig {self._paths!r}"

    async def read(self) -> Access:
        """Read the files, and run the exec plugin when they configure one.

        Raises:
            KubeconfigError: no file, no current context, or a file that it refers to is missing.
        """
        self._want_a_file()
        with_what = f"reading kubeconfig {self._paths!r}"
        async with _in_one_sentence(with_what):
            return await self._read()

    @property
    def exists(self) -> bool:
        """Whether there is a file."""
        return any(path.is_file() for path in self._every_path())

    def namespace(self) -> str:
        """The namespace of the current context; empty: it names none, or there is no usable file."""
        try:
            return str(context_of(self._files(), self._context).namespace)
        except (ValueError, TypeError, AttributeError, KeyError, OSError):
            return ""

    def _every_path(self) -> list[Path]:
        return [Path(path).expanduser() for path in self._paths.split(os.pathsep) if path]

    def _want_a_file(self) -> None:
        paths = self._every_path()
        if not self.exists:
            what = "is a directory" if any(path.is_dir() for path in paths) else "no such file"
            raise KubeconfigError(f"reading kubeconfig {self._paths!r}: {what}: name a file with --kubeconfig")

    async def _read(self) -> Access:
        files = await asyncio.to_thread(self._files)
        context = context_of(files, self._context)
        if context.needs_library:
            return await self._read_with_library(context.name)
        expiry = None
        if "exec" in context.user:
            given, expiry = await _run_plugin(context.user["exec"])
            others = {name: value for name, value in context.user.items() if name != "exec"}
            context = replace(context, user={**others, **given})
        return _access(context.api_server(), token_age=_token_age(context, expiry))

    def _files(self) -> dict[Path, Any]:
        """What the files say, in their order."""
        return {path: _read_file(path) for path in self._every_path() if path.is_file()}

    async def _read_with_library(self, context: str) -> Access:
        """The client library logs in for the user, and keeps its tokens up to date in the file."""
        from kubernetes_asyncio.client import Configuration  # noqa: PLC0415 - heavy, see berth.kube.kubeconfig
        from kubernetes_asyncio.config.kube_config import (  # noqa: PLC0415 - the same
            KubeConfigLoader,
            KubeConfigMerger,
        )

        merged: Any = await asyncio.to_thread(lambda: KubeConfigMerger(self._paths).config)
        for kind in KINDS:
            for item in merged.value[kind]:
                item.name = (
                    f"{kind}[name={item.value['name']}]"  # the merger's own name, shown in errors, has the tokens
                )
        loader = KubeConfigLoader(config_dict=merged, config_base_path=None, active_context=context)
        configuration = Configuration()
        logging.getLogger("kubernetes_asyncio.config.kube_config").disabled = True  # it would log errors again
        await loader.load_and_set(configuration)
        server = ApiServer(
            host=str(configuration.host),
            authority=configuration.ssl_ca_cert,
            certificate=configuration.cert_file,
            key=configuration.key_file,
            is_verified=bool(configuration.verify_ssl),
            tls_server_name=configuration.tls_server_name,
            proxy=configuration.proxy,
            authorization=configuration.api_key.get("BearerToken"),
        )
        return _access(server, token_age=None)


class InClusterAccount:
    """The service account that Kubernetes mounts into the pod."""

    def __str__(self) -> str:
        return "this pod's service account"

    async def read(self) -> Access:
        """Read the mounted token and certificate.

        Raises:
            KubeconfigError: this process does not run in a pod, or the pod mounts no account.
        """
        async with _in_one_sentence("reading the service account of this pod"):
            return _access(account_of_pod(), token_age=TOKEN_FILE_AGE)


def is_configured() -> bool:
    """Whether there is a cluster to ask without being given a kubeconfig."""
    return Kubeconfig().exists or "KUBERNETES_SERVICE_HOST" in os.environ


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
    try:
        yield
    except KubeconfigError:
        raise
    except KeyError as exc:
        raise KubeconfigError(f"{doing}: field {str(exc.args[0])!r} is missing") from exc
    except Exception as exc:
        cause = " ".join((str(exc) or type(exc).__name__).split())
        raise KubeconfigError(f"{doing}: {cause}") from exc


def _read_file(path: Path) -> Any:
    with path.open("rb") as file:
        data = file.read(MOST_FILE_BYTES + 1)
    if len(data) > MOST_FILE_BYTES:
        raise ValueError(f"{path}: want at most {MOST_FILE_BYTES} bytes")
    try:
        documents = list(yaml_values(data.decode()))
    except YAMLError as exc:
        raise ValueError(f"not YAML: {reason_in_a_line(exc)}") from exc
    if not documents:
        raise ValueError("it is empty: want clusters, contexts and users, as `kubectl config view` shows them")
    document = documents[0] if len(documents) == 1 else documents
    check_form(document)
    return document


async def _run_plugin(plugin: Mapping[str, Any]) -> tuple[Mapping[str, str], datetime | None]:
    """The credentials that a user's exec plugin gives, as a kubeconfig has them, and when they expire."""
    for name in ("command", "apiVersion"):
        if name not in plugin:
            raise ValueError(f"exec: malformed request. missing key '{name}'")
    version = str(plugin["apiVersion"])
    info = {"apiVersion": version, "kind": "ExecCredential", "spec": {"interactive": False}}
    added = {str(each["name"]): str(each["value"]) for each in plugin.get("env") or ()}
    environment = {**os.environ, **added, "KUBERNETES_EXEC_INFO": json.dumps(info)}
    command = [str(plugin["command"]), *map(str, plugin.get("args") or ())]
    status = _status(await _output_of(command, environment), version)
    given = {"token": str(status["token"])} if status.get("token") else _certificate(status)
    expiry = status.get("expirationTimestamp")
    return given, _time(str(expiry)) if expiry else None


def _time(text: str) -> datetime:
    try:
        time = datetime.fromisoformat(text)
    except ValueError as exc:
        raise ValueError("exec: want expirationTimestamp as in RFC 3339") from exc
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def _status(answer: bytes, version: str) -> dict[str, Any]:
    try:
        given = json.loads(answer)
    except (ValueError, RecursionError) as exc:
        raise ValueError("exec: its output is no JSON") from exc
    if not isinstance(given, dict) or given.get("apiVersion") != version or not isinstance(given.get("status"), dict):
        raise ValueError(f"exec: want an ExecCredential of {version} with a status")
    status: dict[str, Any] = given["status"]
    return status


def _certificate(status: Mapping[str, Any]) -> dict[str, str]:
    certificate, key = status.get("clientCertificateData"), status.get("clientKeyData")
    if not certificate or not key:
        raise ValueError("exec: want a token, or clientCertificateData and clientKeyData")
    return {
        "client-certificate-data": b64encode(str(certificate).encode()).decode(),
        "client-key-data": b64encode(str(key).encode()).decode(),
    }


async def _output_of(command: list[str], environment: Mapping[str, str]) -> bytes:
    """What the program writes to its standard output. At the deadline it is killed, with all that it has started."""
    process = await asyncio.create_subprocess_exec(
        *command, env=environment, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, start_new_session=True
    )
    assert process.stdout is not None  # noqa: S101 - both are pipes
    assert process.stderr is not None  # noqa: S101 - the same
    try:
        async with asyncio.timeout(PLUGIN_DEADLINE.total_seconds()):
            output, complaint = await asyncio.gather(_bounded(process.stdout), _bounded(process.stderr))
            code = await process.wait()
    except TimeoutError:
        raise ValueError(f"exec: {command[0]!r} gave no answer within {PLUGIN_DEADLINE.total_seconds():g} s") from None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    if code != 0:
        raise ValueError(f"exec: process returned {code}. {complaint.decode(errors='replace').strip():.300}")
    return output


async def _bounded(stream: asyncio.StreamReader) -> bytes:
    data = bytearray()
    while chunk := await stream.read(1 << 16):
        data += chunk
        if len(data) > MOST_PLUGIN_BYTES:
            raise ValueError(f"exec: want at most {MOST_PLUGIN_BYTES} bytes of output")
    return bytes(data)


def _access(api_server: ApiServer, *, token_age: timedelta | None) -> Access:
    given = api_server.host.rstrip("/")
    if not given.startswith(("http://", "https://")):
        shown = "***" if "@" in given else given
        raise ValueError(f"its cluster has the server {shown!r}: want a URL that begins with https:// or http://")
    server, basic = _without_user(given)
    authorization = api_server.authorization
    return Access(
        server=server,
        tls=_tls(api_server) if server.startswith("https://") else None,
        server_name=api_server.tls_server_name,
        proxy=_proxy(api_server.proxy or _proxy_of_the_environment(server)),
        authorization=" ".join(authorization.split()) if authorization else basic,
        token_age=token_age,
    )


def _without_user(url: str) -> tuple[str, str | None]:
    """The URL as it may be shown, and what its user and password are as a header, if it has them."""
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
    """HTTPS_PROXY and NO_PROXY as in other Kubernetes clients; never a proxy for the local machine."""
    url = urlsplit(server)
    host = url.hostname or ""
    if host == "localhost" or host.startswith("127.") or host == "::1" or proxy_bypass(host):
        return None
    return getproxies().get(url.scheme)


def _tls(api_server: ApiServer) -> ssl.SSLContext:
    files = (api_server.authority, api_server.certificate, api_server.key)
    return _tls_of(tuple(_as_it_stands(file) for file in files), verify=api_server.is_verified)


def _as_it_stands(file: str | None) -> tuple[str, int] | None:
    return (file, Path(file).stat().st_mtime_ns) if file else None


@lru_cache(maxsize=8)
def _tls_of(files: tuple[tuple[str, int] | None, ...], *, verify: bool) -> ssl.SSLContext:
    """The same context while the files are unchanged: pooled connections depend on it, and a new one would end them."""
    authority, certificate, key = (file and file[0] for file in files)
    context = client_context(authority)
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if certificate:
        context.load_cert_chain(certificate, key)
    return context


def _token_age(context: Context, expiry: datetime | None) -> timedelta | None:
    """How long the token may be used: until its expiry (exec), for a fixed age (file), else until it is refused."""
    if expiry is not None:
        return max(expiry - datetime.now(UTC) - EXPIRY_MARGIN, SHORTEST_AGE)
    return TOKEN_FILE_AGE if context.has_token_file else None
