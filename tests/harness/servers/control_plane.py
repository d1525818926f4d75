"""A real control plane for tests: etcd and kube-apiserver from the folder that KUBEBUILDER_ASSETS names.

    with control_plane(assets_folder()) as plane:
        plane.url, plane.token, plane.ca_path, plane.kubeconfig_path

No controllers run in it: nodes, their status and Running pods are the test's to make; a deleted pod that has a node
stays until something deletes it with gracePeriodSeconds=0. Both programs die with the process that started them.
"""

import base64
import dataclasses
import json
import os
import shutil
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from berth_cli.pipeline.access import is_running
from harness.servers.child_processes import free_ports, overload, spawn, stop

ASSETS_VARIABLE = "KUBEBUILDER_ASSETS"
HOW_TO_GET_IT = f"{ASSETS_VARIABLE} names no folder with etcd and kube-apiserver: `setup-envtest use 1.36.x` gives one"
START_TRIES = 5
READY_SECONDS = 60.0
TRANSACTION = 128
"""Changes in one transaction: etcd takes no more."""
OBJECTS = (b"/registry/", b"/registry0")
"""The first key of an object, and the first beyond them. Without its other keys the API server ends after minutes."""
KEPT_ALIVE = (b"/registry/masterleases/", b"/registry/leases/kube-system/apiserver-")
"""Keys that the API server renews."""
Stored = dict[str, tuple[str, str]]
"""Revision and value by key. Keys and values are in base64."""
FOLDER_PREFIX = "berth-control-plane-"


class StartError(RuntimeError):
    """The control plane did not become ready; the message ends with the programs' last output."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """A user that the API server accepts by a token; groups as in RBAC (`system:masters` has all rights)."""

    name: str
    token: str
    groups: tuple[str, ...] = ()


ADMIN = User(name="admin", token="admin-token", groups=("system:masters",))  # noqa: S106 - of a throw-away server
NOBODY = User(name="nobody", token="nobody-token")  # noqa: S106 - of a temporary server; it has no rights


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ControlPlane:
    """A running API server; `token` is the admin's, `folder` is removed when it stops."""

    url: str
    etcd_url: str
    ca_path: Path
    folder: Path
    token: str = ADMIN.token
    processes: list[subprocess.Popen[bytes]]
    """etcd, then kube-apiserver."""
    api_command: Sequence[str]
    at_start: Stored = dataclasses.field(default_factory=dict, repr=False)
    """The objects in etcd when the API server was ready."""

    @property
    def kubeconfig_path(self) -> Path:
        """The admin's kubeconfig."""
        return self.folder / f"{ADMIN.name}.kubeconfig"

    def write_kubeconfig(self, user: str, token: str) -> Path:
        """Write a kubeconfig for a token, such as one of the TokenRequest API or NOBODY's; return its path."""
        path = self.folder / f"{user}.kubeconfig"
        path.write_text(json.dumps(kubeconfig(self.url, self.ca_path, user, token), indent=2))
        return path

    def kill_api_server(self) -> None:
        """End kube-apiserver as `kill -9` does; etcd goes on."""
        self.processes[-1].kill()
        self.processes[-1].wait()

    def start_api_server(self, *flags: str) -> None:
        """Start kube-apiserver again on its port, with further flags, and wait until it is ready.

        On a busy machine it may end itself: its first checks must succeed within a minute. A kubelet starts it again.
        """
        for left in reversed(range(START_TRIES)):
            log = self.folder / f"kube-apiserver-{time.time_ns()}.log"
            self.processes[-1] = spawn([*self.api_command, *flags], log)
            try:
                _wait_until_ready(self, self.processes, self.folder)
                break
            except StartError:
                if not left or self.processes[-1].poll() is None:
                    raise

    def compact(self) -> None:
        """Make etcd forget every revision but the present one: older lists and watches end in 410."""
        revision = self._etcd("kv/range", {"key": "AA=="})["header"]["revision"]
        self._etcd("kv/compaction", {"revision": revision, "physical": True})

    def empty(self) -> None:
        """Give etcd the objects that it had at the start. The API server takes it for changes by others."""
        now = self.stored(keys_only=True)
        changes: list[dict] = [{"request_delete_range": {"key": key}} for key in now.keys() - self.at_start.keys()]
        for key, (version, value) in self.at_start.items():
            if key not in now or now[key][0] != version:
                changes.append({"request_put": {"key": key, "value": value}})
        for first in range(0, len(changes), TRANSACTION):
            self._etcd("kv/txn", {"success": changes[first : first + TRANSACTION]})

    def stored(self, *, keys_only: bool = False) -> Stored:
        """Return the API server's objects in etcd."""
        first, beyond = (base64.b64encode(key).decode() for key in OBJECTS)
        found = self._etcd("kv/range", {"key": first, "range_end": beyond, "keys_only": keys_only})["kvs"]
        by_key = {one["key"]: (one["mod_revision"], one.get("value", "")) for one in found}
        return {key: one for key, one in by_key.items() if not base64.b64decode(key).startswith(KEPT_ALIVE)}

    def _etcd(self, call: str, body: object) -> dict:
        request = urllib.request.Request(f"{self.etcd_url}/v3/{call}", data=json.dumps(body).encode())  # noqa: S310 - our own
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - our own etcd
            return json.load(answer)


def kubeconfig(url: str, ca_path: Path, user: str, token: str) -> dict:
    """Return a kubeconfig with one cluster, one user and one context."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": user,
        "clusters": [{"name": "real", "cluster": {"server": url, "certificate-authority": str(ca_path)}}],
        "users": [{"name": user, "user": {"token": token}}],
        "contexts": [{"name": user, "context": {"cluster": "real", "user": user}}],
    }


def assets_folder() -> Path | None:
    """Return the folder with both programs, or None when KUBEBUILDER_ASSETS names no such folder."""
    folder = Path(os.environ.get(ASSETS_VARIABLE) or "/nowhere")
    present = all((folder / program).is_file() for program in ("etcd", "kube-apiserver"))
    return folder if present else None


@contextmanager
def control_plane(
    assets: Path, users: Sequence[User] = (ADMIN, NOBODY), api_flags: Sequence[str] = ()
) -> Iterator[ControlPlane]:
    """Start etcd and kube-apiserver, yield them once /readyz says ok, stop them and remove their folder.

    `api_flags` are further flags of kube-apiserver.
    When another process has taken a port meanwhile, it starts again with other ports, `START_TRIES` times.

    Raises:
        StartError: neither try ended in a ready API server.
    """
    remove_folders_of_killed_runs()
    folder = Path(tempfile.mkdtemp(prefix=f"{FOLDER_PREFIX}{os.getpid()}-"))
    try:
        with _started(assets, folder, users, api_flags) as plane:
            yield plane
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_folders_of_killed_runs() -> None:
    """Remove the folders of test processes that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*"):
        owner = folder.name.removeprefix(FOLDER_PREFIX).partition("-")[0]
        if owner.isdigit() and not is_running(int(owner)):
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _started(assets: Path, folder: Path, users: Sequence[User], api_flags: Sequence[str]) -> Iterator[ControlPlane]:
    _write_credentials(folder, users)
    problem = ""
    for number in range(START_TRIES):
        processes: list[subprocess.Popen[bytes]] = []
        attempt = folder / str(number)
        attempt.mkdir()
        try:
            plane = _start(assets, attempt, processes, api_flags)
        except StartError as exc:
            problem = str(exc)
            stop(processes)
            continue
        except BaseException:
            stop(processes)
            raise
        try:
            yield _with_kubeconfigs(plane, users)
        finally:
            stop(processes)
        return
    raise StartError(problem)


def _with_kubeconfigs(plane: ControlPlane, users: Sequence[User]) -> ControlPlane:
    for user in users:
        plane.write_kubeconfig(user.name, user.token)
    return plane


def _write_credentials(folder: Path, users: Sequence[User]) -> None:
    rows = [f'{user.token},{user.name},{user.name},"{",".join(user.groups)}"\n' for user in users]
    (folder / "tokens.csv").write_text("".join(rows))
    if shutil.which("openssl") is None:
        raise StartError("making the service account key: `openssl` is not on the PATH: install it")
    command = ["openssl", "genrsa", "-out", str(folder / "service-account.key"), "2048"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)


def _start(
    assets: Path, folder: Path, processes: list[subprocess.Popen[bytes]], api_flags: Sequence[str]
) -> ControlPlane:
    client_port, peer_port, api_port = free_ports(3)
    etcd_url = f"http://127.0.0.1:{client_port}"
    processes.append(spawn(_etcd_command(assets, folder, etcd_url, peer_port), folder / "etcd.log"))
    command = [*_api_server_command(assets, folder, etcd_url, api_port), *api_flags]
    processes.append(spawn(command, folder / "kube-apiserver.log"))
    plane = ControlPlane(
        url=f"https://127.0.0.1:{api_port}",
        etcd_url=etcd_url,
        ca_path=folder / "certs" / "apiserver.crt",
        folder=folder.parent,
        processes=processes,
        api_command=command,
    )
    _wait_until_ready(plane, processes, folder)
    return dataclasses.replace(plane, at_start=plane.stored())


def _etcd_command(assets: Path, folder: Path, url: str, peer_port: int) -> list[str]:
    peer = f"http://127.0.0.1:{peer_port}"
    return [
        f"{assets}/etcd",
        f"--data-dir={folder}/etcd",
        "--unsafe-no-fsync",
        f"--listen-client-urls={url}",
        f"--advertise-client-urls={url}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--log-level=error",
    ]


def _api_server_command(assets: Path, folder: Path, etcd_url: str, port: int) -> list[str]:
    key = folder.parent / "service-account.key"
    return [
        f"{assets}/kube-apiserver",
        f"--etcd-servers={etcd_url}",
        f"--secure-port={port}",
        "--bind-address=127.0.0.1",
        f"--cert-dir={folder}/certs",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={key}",
        f"--service-account-signing-key-file={key}",
        "--authorization-mode=RBAC",
        f"--token-auth-file={folder.parent}/tokens.csv",
        "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
        "--service-cluster-ip-range=10.0.0.0/24",
    ]


def _wait_until_ready(plane: ControlPlane, processes: list[subprocess.Popen[bytes]], folder: Path) -> None:
    began = time.monotonic()
    while time.monotonic() < began + READY_SECONDS * overload():
        if any(process.poll() is not None for process in processes):
            break
        if _is_ready(plane):
            return
        time.sleep(0.05)
    raise StartError(f"starting the control plane in {folder}: not ready; {_last_words(folder)}")


def _is_ready(plane: ControlPlane) -> bool:
    if not plane.ca_path.exists():
        return False
    try:
        trust = ssl.create_default_context(cafile=str(plane.ca_path))
        request = urllib.request.Request(f"{plane.url}/readyz", headers={"Authorization": f"Bearer {plane.token}"})  # noqa: S310 - our own
        with urllib.request.urlopen(request, timeout=5, context=trust) as answer:  # noqa: S310 - our own server
            return answer.status == 200 and _namespaces_exist(plane, trust)
    except OSError:  # refused, 500 while starting, certificate half written: look again
        return False


def _namespaces_exist(plane: ControlPlane, trust: ssl.SSLContext) -> bool:
    for name in ("default", "kube-system"):
        request = urllib.request.Request(  # noqa: S310 - our own server
            f"{plane.url}/api/v1/namespaces/{name}", headers={"Authorization": f"Bearer {plane.token}"}
        )
        try:
            urllib.request.urlopen(request, timeout=5, context=trust).close()  # noqa: S310 - our own server
        except urllib.error.HTTPError:
            return False
    return True


def _last_words(folder: Path) -> str:
    tails = [f"{log.name}: {log.read_text(errors='replace')[-600:]!r}" for log in sorted(folder.glob("*.log"))]
    return "; ".join(tails)
