"""Kubeconfigs and pods' service accounts: berth selects the context, kubernetes_asyncio logs in.

The library's loader gets the cluster and the user of one context, with absolute paths; its merger of files is not used
(docs/adr/0007). Importing the library takes 0.2 s of CPU, so that happens only when credentials are read.
"""

from __future__ import annotations

import asyncio
import os
import sys
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType
from yaml import YAMLError

from berth.api.config.yamlreader import reason_in_a_line, yaml_values
from berth.kube.credentials import Access, AccessSource, access_of
from berth.kube.errors import KubeconfigError

# Maximum age of a token from a file. The kubelet renews a projected token when a fifth of its hour is left.
TOKEN_FILE_AGE = timedelta(minutes=1)
# A token is renewed this long before it expires, so that it is still valid when a request arrives.
EXPIRY_MARGIN = timedelta(minutes=1)
# Minimum time between two starts of an exec plugin, even if its tokens expire sooner.
SHORTEST_AGE = timedelta(seconds=10)
# An exec plugin that runs longer is killed with its children. Plugins of cloud providers take 1 to 5 s.
PLUGIN_DEADLINE = timedelta(seconds=30)
# Maximum bytes of a kubeconfig. 500 clusters with their certificates take half.
MOST_FILE_BYTES = 4 << 20
# Quoted characters of an exception, such as an exec plugin's output.
QUOTED = 500
ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
# Fields that name a file; the field with the content takes precedence.
_FILES: Final = {
    "certificate-authority": "certificate-authority-data",
    "client-certificate": "client-certificate-data",
    "client-key": "client-key-data",
    "tokenFile": "token",
}


class Kubeconfig:
    """A kubeconfig: the given path, else the files in KUBECONFIG, else ``~/.kube/config``."""

    def __init__(self, path: str | Path | None = None, *, context: str | None = None) -> None:
        self._paths = str(path) if path else os.environ.get("KUBECONFIG") or "~/.kube/config"
        self._context = context

    def __str__(self) -> str:
        return f"kubeconfig {self._paths!r}"

    async def read(self) -> Access:
        """Read the files, and run the exec plugin if there is one.

        Raises:
            KubeconfigError: no file, no current context, or a missing file.
        """
        async with _in_one_sentence(f"reading {self}"):
            context = await asyncio.to_thread(lambda: _context_of(self._files(), self._context))
            return await _logged_in(context)

    @property
    def exists(self) -> bool:
        return any(path.is_file() for path in self._every_path())

    def namespace(self) -> str:
        """The namespace of the current context, or empty."""
        try:
            return _context_of(self._files(), self._context).namespace
        except (ValueError, KeyError, OSError):
            return ""

    def _every_path(self) -> list[Path]:
        return [Path(path).expanduser() for path in self._paths.split(os.pathsep) if path]

    def _files(self) -> dict[Path, _Config]:
        paths = self._every_path()
        if not self.exists:
            what = "is a directory" if any(path.is_dir() for path in paths) else "no such file"
            raise ValueError(f"{what}: name a file with --kubeconfig")
        return {path: _read_file(path) for path in paths if path.is_file()}


class InClusterAccount:
    """The service account that Kubernetes mounts into the pod."""

    def __str__(self) -> str:
        return "this pod's service account"

    async def read(self) -> Access:
        """Read the mounted token and certificate.

        Raises:
            KubeconfigError: not in a pod, or the pod mounts no account.
        """
        from kubernetes_asyncio.client import Configuration  # noqa: PLC0415 - heavy, see above
        from kubernetes_asyncio.config.incluster_config import InClusterConfigLoader  # noqa: PLC0415 - the same

        async with _in_one_sentence("reading the service account of this pod"):
            configuration = Configuration()
            # Without the loader's renewal: KubeCredentials renews, so that both clients get the same token.
            loader = InClusterConfigLoader(f"{ACCOUNT}/token", f"{ACCOUNT}/ca.crt", try_refresh_token=False)
            loader.load_and_set(configuration)
            return access_of(configuration, token_age=TOKEN_FILE_AGE)


def is_configured() -> bool:
    """Whether a cluster can be found without a given kubeconfig."""
    return Kubeconfig().exists or "KUBERNETES_SERVICE_HOST" in os.environ


def source_for(kubeconfig: str | Path | None) -> AccessSource:
    """The kubeconfig from the given path, KUBECONFIG or its default path; else the pod's service account."""
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
    except KeyError as exc:
        raise KubeconfigError(f"{doing}: field {str(exc.args[0])!r} is missing") from exc
    except Exception as exc:
        cause = " ".join((str(exc) or type(exc).__name__).split())
        raise KubeconfigError(f"{doing}: {cause:.{QUOTED}}") from exc


class _Named(msgspec.Struct):
    # A cluster, context or user. Unused ones may lack fields, as in kubectl.

    name: str
    cluster: dict[str, Any] | None = None
    context: dict[str, Any] | None = None
    user: dict[str, Any] | UnsetType | None = UNSET


class _Config(msgspec.Struct, rename={"current_context": "current-context"}):
    clusters: list[_Named] | None = None
    contexts: list[_Named] | None = None
    users: list[_Named] | None = None
    current_context: str | None = None


def _read_file(path: Path) -> _Config:
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
    try:
        return msgspec.convert(documents[0] if len(documents) == 1 else documents, _Config)
    except msgspec.ValidationError as exc:
        raise ValueError(f"it does not have the form of a kubeconfig: {exc}") from exc


@dataclass(frozen=True, slots=True, kw_only=True)
class _Context:
    """The fields of a context's cluster and user that have a value, with absolute paths."""

    cluster: dict[str, Any]
    user: dict[str, Any]
    namespace: str  # kubectl's default for this context; empty: `default`.


def _context_of(files: Mapping[Path, _Config], name: str | None) -> _Context:
    """The context of this name, or the current one. Of several files the first with a value counts.

    Raises:
        ValueError, KeyError: no such context, or a missing part.
    """
    name = name or next((each.current_context for each in files.values() if each.current_context), None)
    if not name:
        raise ValueError("it has no current-context: set one with `kubectl config use-context NAME`")
    contexts, clusters, users = (_by_name(files, kind) for kind in ("contexts", "clusters", "users"))
    if name not in contexts:
        raise ValueError(f"contexts: want one named {name!r}")
    context = contexts[name][0].context or {}
    cluster_name, user_name = context["cluster"], context.get("user")
    if cluster_name not in clusters:
        raise ValueError(f"clusters: want one named {cluster_name!r}, as context {name!r} does")
    cluster, cluster_file = clusters[cluster_name]
    user, user_file = users.get(user_name or "", (_Named(name="", user={}), cluster_file))
    if user.user is UNSET:
        raise KeyError("user")
    if not isinstance(server := (cluster.cluster or {})["server"], str):
        raise ValueError(f"its cluster has the server {server!r}: want a URL")  # noqa: TRY004 - the file's fault
    return _Context(
        cluster=_with_whole_paths(cluster.cluster or {}, cluster_file),
        user=_with_whole_paths(user.user or {}, user_file),
        namespace=str(context.get("namespace") or ""),
    )


def _by_name(files: Mapping[Path, _Config], kind: str) -> dict[str, tuple[_Named, Path]]:
    found: dict[str, tuple[_Named, Path]] = {}
    for path, config in files.items():
        for each in getattr(config, kind) or ():
            found.setdefault(each.name, (each, path))
    return found


def _with_whole_paths(fields: Mapping[str, Any], file: Path) -> dict[str, Any]:
    given = {name: value for name, value in fields.items() if value not in (None, "")}
    for name, content in _FILES.items():
        if content in given:
            given.pop(name, None)
        elif name in given:
            given[name] = os.path.normpath(file.parent.absolute() / str(given[name]))
            if not Path(given[name]).is_file():
                raise ValueError(f"{name}: there is no file {given[name]!r}")
    return given


async def _logged_in(context: _Context) -> Access:
    from kubernetes_asyncio.client import Configuration  # noqa: PLC0415 - heavy, see above
    from kubernetes_asyncio.config.kube_config import KubeConfigLoader  # noqa: PLC0415 - the same

    user, expiry = context.user, None
    if "exec" in user:
        given, expiry = await _given_by(user["exec"])
        user = {**{name: value for name, value in user.items() if name != "exec"}, **given}
    config = {
        "current-context": "it",
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
        "clusters": [{"name": "it", "cluster": context.cluster}],
        "users": [{"name": "it", "user": user}],
    }
    configuration = Configuration()
    await KubeConfigLoader(config_dict=config).load_and_set(configuration)
    return access_of(
        configuration, token_age=_token_age(expiry, has_token_file="tokenFile" in user and "token" not in user)
    )


def _token_age(expiry: datetime | None, *, has_token_file: bool) -> timedelta | None:
    """How long the token may be used: until its expiry (exec), a fixed time (file), else until it is refused."""
    if expiry is not None:
        return max(expiry - datetime.now(UTC) - EXPIRY_MARGIN, SHORTEST_AGE)
    return TOKEN_FILE_AGE if has_token_file else None


async def _given_by(plugin: Any) -> tuple[dict[str, str], datetime | None]:
    """Fields of the user from an exec plugin, and their expiry."""
    from kubernetes_asyncio.config.dateutil import parse_rfc3339  # noqa: PLC0415 - heavy, see above
    from kubernetes_asyncio.config.exec_provider import ExecProvider  # noqa: PLC0415 - the same
    from kubernetes_asyncio.config.kube_config import ConfigNode  # noqa: PLC0415 - the same

    # Not by the loader: it reads only a token's expiry, and accepts an answer without token and certificate.
    status = await ExecProvider(ConfigNode("exec", _supervised(plugin))).run()
    expiry = status.get("expirationTimestamp")
    if status.get("token"):
        given = {"token": str(status["token"])}
    elif status.get("clientCertificateData") and status.get("clientKeyData"):
        pems = {"client-certificate-data": "clientCertificateData", "client-key-data": "clientKeyData"}
        given = {field: b64encode(str(status[name]).encode()).decode() for field, name in pems.items()}
    else:
        raise ValueError("exec: want a token, or clientCertificateData and clientKeyData")
    return given, parse_rfc3339(expiry) if expiry else None


# Runs an exec plugin with a deadline and without the terminal's input; the library's own call has neither.
_SUPERVISOR: Final = """
import contextlib, os, signal, subprocess, sys
seconds, *command = sys.argv[1:]
info = os.environ["KUBERNETES_EXEC_INFO"]
os.environ["KUBERNETES_EXEC_INFO"] = info.replace('"interactive": true', '"interactive": false')
try:
    plugin = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
except OSError as exc:
    sys.exit(f"{command[0]}: {exc.strerror}")
try:
    sys.exit(plugin.wait(float(seconds)))
except subprocess.TimeoutExpired:
    sys.exit(f"{command[0]!r} gave no answer within {seconds} s")
finally:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(plugin.pid, signal.SIGKILL)
"""


def _supervised(plugin: Any) -> Any:
    """The plugin with a deadline, after which it is killed with its children."""
    if not isinstance(plugin, dict) or "command" not in plugin:
        return plugin  # ExecProvider reports the fault
    command = [plugin["command"], *(plugin.get("args") or ())]
    arguments = ["-ISc", _SUPERVISOR, f"{PLUGIN_DEADLINE.total_seconds():g}", *map(str, command)]
    return {**plugin, "command": sys.executable, "args": arguments}
