"""What kubeconfig files, or the account of a pod, say about the API server and its user.

The client library's loaders would do it as well, but importing them takes 0.5 s of CPU and 40 MB, at each start of two
services and of ``berth up``. They are left to users with an auth-provider, which kubectl has not had since 1.26.
"""

from __future__ import annotations

import atexit
import os
import tempfile
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

KINDS: Final = ("clusters", "contexts", "users")
LIBRARYS_PROVIDERS: Final = ("gcp", "oidc")
ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")

Fields = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiServer:
    """An API server and who asks it. The files are paths of PEM files."""

    host: str
    authority: str | None = None
    certificate: str | None = None
    key: str | None = None
    is_verified: bool = True
    tls_server_name: str | None = None
    proxy: str | None = None
    authorization: str | None = None
    """The header."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """A context's cluster and user, each with the folder from which its paths start."""

    name: str
    cluster: Fields
    cluster_folder: Path
    user: Fields = field(default_factory=dict)
    user_folder: Path = Path()
    namespace: str = ""
    """What kubectl takes unless it is given one; empty is ``default``."""

    @property
    def needs_library(self) -> bool:
        """Whether its user logs in by a way of former kubectls."""
        return (self.user.get("auth-provider") or {}).get("name") in LIBRARYS_PROVIDERS

    @property
    def has_token_file(self) -> bool:
        return "tokenFile" in self.user and "token" not in self.user

    def api_server(self) -> ApiServer:
        """What the context says. An exec plugin has been replaced by the credentials that it gave.

        Raises:
            ValueError: a file that it names does not exist.
        """
        host = self.cluster["server"].rstrip("/")
        uses_tls = host.startswith("https")
        return ApiServer(
            host=host,
            authority=self._file("certificate-authority", self.cluster, self.cluster_folder) if uses_tls else None,
            certificate=self._file("client-certificate", self.user, self.user_folder) if uses_tls else None,
            key=self._file("client-key", self.user, self.user_folder) if uses_tls else None,
            is_verified=not self.cluster.get("insecure-skip-tls-verify"),
            tls_server_name=self.cluster.get("tls-server-name"),
            proxy=self.cluster.get("proxy-url"),
            authorization=self._authorization(),
        )

    def _authorization(self) -> str | None:
        token = self.user.get("token")
        if self.has_token_file:
            token = Path(_found("tokenFile", self.user, self.user_folder)).read_text()
        if token:
            return f"Bearer {token}"
        if "username" in self.user and "password" in self.user:
            pair = f"{self.user['username']}:{self.user['password']}"
            return f"Basic {b64encode(pair.encode()).decode()}"
        return None

    @staticmethod
    def _file(name: str, fields: Fields, folder: Path) -> str | None:
        data = fields.get(f"{name}-data")
        if data:
            return _file_with(b64decode(data))
        if not fields.get(name):
            return None
        return _found(name, fields, folder)


def _found(name: str, fields: Fields, folder: Path) -> str:
    path: str = os.path.normpath(folder / str(fields[name]))
    if not Path(path).is_file():
        raise ValueError(f"{name}: there is no file {path!r}")
    return path


class _ClusterFields(msgspec.Struct):
    server: str | None = None


class _NamedCluster(msgspec.Struct):
    name: str | None = None
    cluster: _ClusterFields | UnsetType = UNSET


class _ContextFields(msgspec.Struct):
    cluster: str | None = None
    user: str | None = None
    namespace: str | None = None


class _NamedContext(msgspec.Struct):
    name: str | None = None
    context: _ContextFields | UnsetType = UNSET


class _NamedUser(msgspec.Struct):
    name: str | None = None
    user: dict[str, Any] | None = None


class _Form(msgspec.Struct, rename={"current_context": "current-context"}):
    """The types of what is read of a kubeconfig. A field may be missing where nobody asks for it: so kubectl has it."""

    clusters: list[_NamedCluster] | None = None
    contexts: list[_NamedContext] | None = None
    users: list[_NamedUser] | None = None
    current_context: str | None = None


def check_form(document: object) -> None:
    """Check that a file's one document has the form of a kubeconfig, as far as it is read.

    Raises:
        ValueError: with the field and what it should be.
    """
    try:
        msgspec.convert(document, _Form)
    except msgspec.ValidationError as exc:
        raise ValueError(f"it does not have the form of a kubeconfig: {exc}") from exc


def context_of(files: Mapping[Path, Fields], name: str | None) -> Context:
    """The context of this name, or the current one. Of several files the first that has something counts.

    Raises:
        ValueError: there is no such context, or its cluster is missing.
    """
    current = (fields["current-context"] for fields in files.values() if fields.get("current-context"))
    name = name or next(current, None)
    if not name:
        raise ValueError("it has no current-context: set one with `kubectl config use-context NAME`")
    context, _ = _named(files, "contexts", name)
    cluster, cluster_path = _named(files, "clusters", context["context"]["cluster"])
    try:
        user, user_path = _named(files, "users", context["context"].get("user") or "")
    except _NoSuchNameError:
        user, user_path = {"user": {}}, cluster_path
    return Context(
        name=name,
        cluster=cluster["cluster"],
        cluster_folder=cluster_path.parent.absolute(),
        user=user["user"] or {},
        user_folder=user_path.parent.absolute(),
        namespace=context["context"].get("namespace") or "",
    )


class _NoSuchNameError(ValueError):
    """No file has such a cluster, context or user."""


def _named(files: Mapping[Path, Fields], kind: str, name: str) -> tuple[Fields, Path]:
    for path, fields in files.items():
        for item in fields.get(kind) or ():
            if item["name"] == name:
                return item, path
    raise _NoSuchNameError(f"Expected object with name {name} in {kind} list")


def account_of_pod() -> ApiServer:
    """The service account that Kubernetes mounts into the pod.

    Raises:
        ValueError: this process does not run in a pod, or the pod mounts no account.
    """
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT")
    if not host or not port:
        raise ValueError("Service host/port is not set.")
    token, authority = ACCOUNT / "token", ACCOUNT / "ca.crt"
    for path in (token, authority):
        if not path.is_file() or not path.stat().st_size:
            raise ValueError(f"File does not exist, or is empty: {path}")
    netloc = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return ApiServer(
        host=f"https://{netloc}", authority=str(authority), authorization=f"Bearer {token.read_text().strip()}"
    )


@lru_cache(maxsize=64)
def _file_with(content: bytes) -> str:
    """A private file: the TLS library reads keys from files only. It is removed at the end of the process."""
    descriptor, path = tempfile.mkstemp(prefix="berth-")
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    atexit.register(Path(path).unlink, missing_ok=True)
    return path
