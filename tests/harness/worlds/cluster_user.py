"""A cluster as users, kubelets and other schedulers use it: by plain HTTP, without berth's own clients."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import aiohttp

from berth_sim.nodes import node_manifest, pod_manifest
from harness.worlds.kubernetes_api import STRATEGIC_PATCH, Answer, KubernetesApi, kubernetes_api

T = TypeVar("T")

AT_ONCE = 16
BOUND_SECONDS = 60.0
LABEL = "berth.test/of"
NO_GRACE = {"gracePeriodSeconds": 0}
NEVER_IDLE = aiohttp.ClientTimeout(total=None, sock_read=None)


class ClusterUser:
    """A namespace and the nodes of one test; `close` removes both from the cluster."""

    def __init__(self, api: KubernetesApi) -> None:
        self.api = api
        self.nodes: list[str] = []
        self.priority_classes: list[str] = []

    @property
    def namespace(self) -> str:
        """Where the test's pods are."""
        return self.api.namespace

    async def add_nodes(self, count: int, **form: object) -> list[str]:
        """Create equal nodes for this test only; `form` as in `node_manifest`."""
        names = [f"{self.namespace}-{len(self.nodes) + number}" for number in range(count)]
        await self.create(node_manifest(name, **self._labelled(form)) for name in names)
        return names

    def _labelled(self, form: dict) -> dict:
        return {**form, "labels": {LABEL: self.namespace, **form.get("labels", {})}}

    async def add_pods(self, count: int, prefix: str = "web", **form: object) -> list[str]:
        """Create pods that select the test's nodes only; `form` as in `pod_manifest`."""
        names = [f"{prefix}-{number}" for number in range(count)]
        await self.create(self.pod(name, **form) for name in names)
        return names

    def pod(self, name: str, *, spec: dict | None = None, **form: object) -> dict:
        """Return a pod that selects the test's nodes only."""
        wanted = {"nodeSelector": {LABEL: self.namespace}, **(spec or {})}
        return pod_manifest(name, namespace=self.namespace, spec=wanted, **form)

    async def create(self, objects: Iterable[dict]) -> None:
        """Create nodes and pods, some at a time."""
        waiting = iter(objects)

        async def work() -> None:
            for made in waiting:
                await self._create(made)

        await asyncio.gather(*(work() for _ in range(AT_ONCE)))

    async def _create(self, made: dict) -> None:
        if made["kind"] == "Node":
            self.nodes.append(made["metadata"]["name"])
        answer = await self.api.post("/api/v1/nodes" if made["kind"] == "Node" else self.api.pods, made)
        assert answer.code == 201, answer.body

    async def add_priority_class(self, word: str, value: int, **members: str) -> str:
        """Create a priority class, with further members such as preemptionPolicy; return its name when usable."""
        name = f"{self.namespace}-{word}"
        made = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
        answer = await self.api.post(_PRIORITY_CLASSES, {**made, "value": value, **members})
        assert answer.code == 201, answer.body
        self.priority_classes.append(name)
        await eventually(lambda: self._is_admitted(self.pod("any", priority_class=name)), f"class {name} to be known")
        return name

    async def _is_admitted(self, pod: dict) -> bool:
        """Whether the API server accepts the pod; a new class takes effect a little after its creation."""
        return (await self.api.call("POST", self.api.pods, pod, query={"dryRun": "All"})).code == 201

    async def pods(self) -> dict[str, dict]:
        """The test's pods by name."""
        answer = await self.api.get(self.api.pods)
        return {item["metadata"]["name"]: item for item in answer.body["items"]}

    async def placed(self) -> dict[str, str]:
        """The node of each pod that has one."""
        return {name: node for name, pod in (await self.pods()).items() if (node := node_of(pod))}

    async def all_bound(self, names: Iterable[str], seconds: float = BOUND_SECONDS) -> dict[str, str]:
        """Wait until each of these pods has a node; return where all of the test's pods are."""
        wanted = set(names)

        async def missing() -> dict[str, str] | None:
            placed = await self.placed()
            return placed if wanted <= placed.keys() else None

        return await eventually(missing, f"{len(wanted)} pods to be bound", seconds)

    async def bind(self, name: str, node: str) -> Answer:
        """Bind a pod as another scheduler would."""
        return await self.api.bind(name, node)

    async def condition(self, name: str) -> dict:
        """The PodScheduled condition of a pod, empty when it has none."""
        return condition_of((await self.api.get(f"{self.api.pods}/{name}")).body)

    async def events(self, reason: str) -> list[dict]:
        """The Events of the test's pods with this reason."""
        answer = await self.api.get(self.api.new_events)
        return [item for item in answer.body["items"] if item.get("reason") == reason]

    async def ungate(self, name: str) -> None:
        """Remove a pod's scheduling gates."""
        answer = await self.api.patch(f"{self.api.pods}/{name}", {"spec": {"schedulingGates": []}})
        assert answer.code == 200, answer.body

    async def report_status(self, node: str, status: dict) -> None:
        """Report a node's status as its kubelet does."""
        answer = await self.api.patch(f"/api/v1/nodes/{node}/status", {"status": status}, STRATEGIC_PATCH)
        assert answer.code == 200, answer.body

    async def delete_pod(self, name: str) -> None:
        """Delete a pod at once."""
        answer = await self.api.delete(f"{self.api.pods}/{name}", NO_GRACE)
        assert answer.code in {200, 404}, answer.body

    @asynccontextmanager
    async def changes(self, path: str, version: str) -> AsyncIterator[AsyncIterator[bytes]]:
        """Watch from this resourceVersion on, also through minutes without an event; each line is an event."""
        query = {"watch": "true", "resourceVersion": version, "allowWatchBookmarks": "true", "timeoutSeconds": "600"}
        async with self.api._session.get(path, params=query, timeout=NEVER_IDLE) as response:
            assert response.status == 200, await response.text()
            try:
                yield response.content
            finally:
                if response.connection is not None and response.connection.transport is not None:
                    response.connection.transport.abort()  # closing TLS in order would outlive the test's event loop

    async def close(self) -> None:
        """Remove the test's objects: the next test needs an empty cluster."""
        for path in (self.api.pods, self.api.new_events):
            await self.api.delete(path, NO_GRACE)
        paths = [f"/api/v1/nodes/{name}" for name in self.nodes]
        paths += [f"{_PRIORITY_CLASSES}/{name}" for name in self.priority_classes]
        for start in range(0, len(paths), AT_ONCE):
            await asyncio.gather(*(self.api.delete(path) for path in paths[start : start + AT_ONCE]))


_PRIORITY_CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"


def condition_of(pod: dict) -> dict:
    """The PodScheduled condition, empty when the pod has none."""
    return next((each for each in pod["status"].get("conditions", []) if each["type"] == "PodScheduled"), {})


def node_of(pod: dict) -> str:
    """Where a pod is bound; empty when it waits."""
    return pod["spec"].get("nodeName", "")


async def eventually(ask: Callable[[], Awaitable[T | None]], what: str, seconds: float = BOUND_SECONDS) -> T:
    """Call until the result is true, and return it."""
    try:
        async with asyncio.timeout(seconds):
            while not (answer := await ask()):  # noqa: ASYNC110 - another process's state has no event to wait for
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"waited {seconds} s for {what}") from None
    return answer


@asynccontextmanager
async def cluster_user(kubeconfig: Path, *, cleans_up: bool = True) -> AsyncIterator[ClusterUser]:
    """Use the cluster of a kubeconfig, with a namespace of its own; `cleans_up`: at the end its objects are removed."""
    server, token, trust = _access(kubeconfig)
    async with kubernetes_api(server, _nothing, token=token, trust=trust) as api:
        seen = ClusterUser(api)
        try:
            yield seen
        finally:
            if cleans_up:
                await seen.close()


async def _nothing() -> None:
    """No test needs this server to forget its history."""


def _access(kubeconfig: Path) -> tuple[str, str, ssl.SSLContext | None]:
    content = json.loads(kubeconfig.read_text())
    cluster, user = content["clusters"][0]["cluster"], content["users"][0]["user"]
    return cluster["server"], user.get("token", ""), trust_of(cluster)


def trust_of(cluster: dict) -> ssl.SSLContext | None:
    """What the server's certificate is checked against; None for plain HTTP."""
    if path := cluster.get("certificate-authority"):
        return ssl.create_default_context(cafile=path)
    if text := cluster.get("certificate-authority-data"):
        return ssl.create_default_context(cadata=base64.b64decode(text).decode())
    return None
