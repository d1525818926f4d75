"""The simulated cluster as a whole: API server, kubelets, nodes and a kubeconfig, for tests and `python -m berth_sim`.

    async with SimulatedCluster(nodes=node_manifests(100)) as cluster:
        cluster.url, cluster.kubeconfig_path, cluster.faults, cluster.resources

It can be filled with the output of ``kubectl get ... -o json|yaml``.
"""

import json
import os
import tempfile
import uuid
from collections.abc import Iterable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import yaml
from aiohttp import web

from berth.api.config.yamlreader import reason_in_a_line, yaml_values
from berth.api.pod import DEFAULT_SCHEDULER
from berth_sim.apiserver.kinds import BY_NAME, NAMESPACES, NODES, PODS, PRIORITY_CLASSES, SimulatedKind
from berth_sim.apiserver.resources import Clock, Resources, incoming, utc_now
from berth_sim.apiserver.status import JsonObject
from berth_sim.apiserver.store import DEFAULT_HISTORY, FIRST_REVISION, Store, StoredObject
from berth_sim.controllers.claims import ClaimController
from berth_sim.controllers.loop import Controllers
from berth_sim.devices import DeviceDriver
from berth_sim.faults import Faults
from berth_sim.nodes import CordonTaints, Kubelet, KubeletSettings
from berth_sim.prometheus import PREFIX
from berth_sim.server import SimulatedApiServer

_FIRST = (NAMESPACES, NODES)


class SnapshotError(ValueError):
    """The file is not a snapshot; the message has its name and the expected format."""


def read(path: Path) -> list[JsonObject]:
    """The objects of a file: a List, one object, or several YAML documents.

    Raises:
        SnapshotError: it cannot be read, or has other contents.
    """
    try:
        text = path.read_bytes()
        documents = [msgspec.json.decode(text)] if text.lstrip()[:1] in b"{[" else list(yaml_values(text.decode()))
    except (OSError, ValueError, TypeError, RecursionError, yaml.YAMLError) as exc:
        raise SnapshotError(f"reading snapshot '{path}': {reason_in_a_line(exc)}") from exc
    objects = [item for document in documents if document for item in _flattened(document)]
    for item in objects:
        if not isinstance(item, dict) or not isinstance(item.get("metadata"), dict):
            raise SnapshotError(
                f"reading snapshot '{path}': want objects as `kubectl get -o json` writes, got {item!r:.80}"
            )
    return objects


def _flattened(document: Any) -> Iterator[Any]:
    if isinstance(document, list):
        for item in document:
            yield from _flattened(item)
    elif isinstance(document, dict) and "items" in document:
        yield from _flattened(document["items"])
    else:
        yield document


def load(resources: Resources, objects: Iterable[JsonObject]) -> dict[str, int]:
    """Put objects into the cluster unchanged, with their status and node; return the number of each kind.

    Kinds that are not simulated are left out, and counted under their name with a `!` before it. Missing namespaces are
    created.
    """
    counts: dict[str, int] = {}
    known: list[tuple[SimulatedKind, JsonObject]] = []
    for item in objects:
        name = str(item.get("kind"))
        kind = BY_NAME.get((str(item.get("apiVersion", "v1")), name))
        counted = name if kind else f"!{name}"
        counts[counted] = counts.get(counted, 0) + 1
        if kind is not None:
            known.append((kind, item))
    for kind, item in sorted(known, key=lambda entry: entry[0] not in _FIRST):
        _keep(resources, kind, item)
    return counts


def _keep(resources: Resources, kind: SimulatedKind, item: JsonObject) -> StoredObject:
    namespace = (item["metadata"].get("namespace") or "default") if kind.namespaced else ""
    if namespace and ("", namespace) not in resources.store.table(NAMESPACES).items:
        resources.create(NAMESPACES, "", {"metadata": {"name": namespace}})
    known = resources.store.table(kind).items.get((namespace, item["metadata"].get("name", "")))
    if known is None:
        clean = {**item["metadata"], "resourceVersion": ""}
        created = resources.create(kind, namespace, {**item, "metadata": clean})
    else:
        created = known
    value = incoming(kind, namespace, item)
    metadata = {**created.value["metadata"], "uid": item["metadata"].get("uid") or created.value["metadata"]["uid"]}
    merged = {**created.value, **value, "metadata": {**metadata, **_kept(item["metadata"])}}
    if kind is PODS:
        merged["spec"] = {**created.value["spec"], **value["spec"]}
        merged["status"] = {**created.value["status"], **(value.get("status") or {})}
    return resources.store.put(kind, created.key, merged)


def _kept(metadata: JsonObject) -> JsonObject:
    return {
        member: metadata[member]
        for member in ("creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds")
        if metadata.get(member) is not None
    }


_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")

_PRIORITY_CLASSES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}

_SHUTDOWN_SECONDS = 1.0

REVISIONS_PER_SECOND = 10_000


class SimulatedCluster:
    """A cluster on a local port. With `kubelet=None` it is an API server alone.

    Then no pod starts or ends, workloads have no pods, and cordoned nodes no taint.

    Args:
        nodes: Nodes that exist from the start (see `berth_sim.nodes`).
        objects: Further objects, stored unchanged, in the form of `kubectl get -o json`.
        host: Address to listen on.
        port: Port to listen on; 0 is any free port.
        kubelet: How pods start and end.
        devices: GPUs of each node, which a played driver publishes.
        history: How many changes of each kind are kept for watches to resume from.
        kubeconfig_path: Where to write a kubeconfig; None is a temporary folder, removed with the cluster.
        clock: The source of time stamps.
        default_scheduler: The schedulerName of pods that name none.
        identity: Makes a restarted cluster, without its objects, the same for its clients: kube-system has the same
            uid, and resource versions go on. Empty: a new cluster each time.
    """

    def __init__(  # noqa: PLR0913 - keyword-only settings, each with its default
        self,
        *,
        nodes: Iterable[JsonObject] = (),
        objects: Iterable[JsonObject] = (),
        host: str = "127.0.0.1",
        port: int = 0,
        kubelet: KubeletSettings | None = KubeletSettings(),  # noqa: B008 - frozen
        devices: int = 0,
        history: int = DEFAULT_HISTORY,
        kubeconfig_path: Path | None = None,
        clock: Clock = utc_now,
        default_scheduler: str = DEFAULT_SCHEDULER,
        identity: str = "",
    ) -> None:
        self.resources = Resources(Store(history, _first_revision(identity, clock)), clock, default_scheduler)
        self.faults = Faults(self.resources.store)
        self.url = ""
        self.loaded = _seed(self.resources, nodes, objects)  # from `objects`, by kind
        if identity:
            load(self.resources, [_known_by(identity)])
        self._host = host
        self._port = port
        self._kubelet = Kubelet(self.resources, kubelet) if kubelet is not None else None
        self._cordon_taints = CordonTaints(self.resources)
        self._controllers = Controllers(self.resources)
        self._claims = ClaimController(self.resources)
        self._driver = DeviceDriver(self.resources, devices)
        self._wanted_kubeconfig_path = kubeconfig_path
        self._stack = AsyncExitStack()

    @property
    def prometheus_url(self) -> str:
        """The address of the simulated Prometheus (see `berth_sim.prometheus`)."""
        return f"{self.url}{PREFIX}"

    @property
    def kubeconfig_path(self) -> Path:
        """A kubeconfig for this cluster: plain HTTP, no credentials.

        Raises:
            RuntimeError: the cluster has not been started.
        """
        if self._wanted_kubeconfig_path is None:
            raise RuntimeError("reading kubeconfig_path: the simulated cluster has not been started")
        return self._wanted_kubeconfig_path

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start listening.

        Raises:
            OSError: the port is taken.
        """
        api = SimulatedApiServer(self.resources, self.faults)
        runner = web.ServerRunner(
            web.Server(api.handle, access_log=None, handler_cancellation=True), shutdown_timeout=_SHUTDOWN_SECONDS
        )
        await runner.setup()
        self._stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, self._host, self._port, backlog=1024).start()
        host, port = runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        if self._kubelet is not None:
            for one in (self._kubelet, self._cordon_taints, self._controllers, self._claims, self._driver):
                one.start()
                self._stack.callback(one.stop)
        self._write_kubeconfig()

    async def stop(self) -> None:
        """Cut the watches, close the port and remove the temporary kubeconfig."""
        self.faults.cut_watches()
        await self._stack.aclose()

    def _write_kubeconfig(self) -> None:
        if self._wanted_kubeconfig_path is None:
            folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="berth-sim-"))
            self._wanted_kubeconfig_path = Path(folder) / "kubeconfig"
        path = self._wanted_kubeconfig_path
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        draft.unlink(missing_ok=True)
        with draft.open("x", encoding="utf-8") as file:  # in a shared folder, somebody may have put a link there
            json.dump(kubeconfig(self.url), file, indent=2)
        draft.replace(path)  # complete as soon as it exists, because others wait for it


def kubeconfig(url: str) -> JsonObject:
    name = "simulated"
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "clusters": [{"name": name, "cluster": {"server": url}}],
        "users": [{"name": name, "user": {}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
    }


def _first_revision(identity: str, clock: Clock) -> int:
    """Higher than every version before the restart, as long as the cluster makes fewer changes a second."""
    return int(clock().timestamp() * REVISIONS_PER_SECOND) if identity else FIRST_REVISION


def _known_by(identity: str) -> JsonObject:
    uid = str(uuid.uuid5(uuid.NAMESPACE_URL, f"berth_sim/{identity}"))
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-system", "uid": uid}}


def _seed(resources: Resources, nodes: Iterable[JsonObject], objects: Iterable[JsonObject]) -> dict[str, int]:
    for name in _NAMESPACES:
        resources.create(NAMESPACES, "", {"metadata": {"name": name}})
    for name, value in _PRIORITY_CLASSES.items():
        body = {"metadata": {"name": name}, "value": value, "preemptionPolicy": "PreemptLowerPriority"}
        resources.create(PRIORITY_CLASSES, "", body)
    for node in nodes:
        resources.create(NODES, "", node)
    return load(resources, objects)
