"""PodGroups on a real API server: by the definition in deploy/kubernetes, or Kubernetes' own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import yaml

from berth.api.podgroups import GROUP_LABEL
from harness.worlds.cluster_user import ClusterUser, cluster_user
from harness.worlds.kubernetes_api import KubernetesApi

DEFINITION: Final = Path(__file__).parents[3] / "deploy/kubernetes/components/podgroups/podgroups.yaml"
DEFINITIONS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
GROUP: Final = "scheduling.x-k8s.io"
SECONDS: Final = 30.0

UPSTREAM: Final = "scheduling.k8s.io/v1alpha2"
_GATES: Final = (
    "GenericWorkload",
    "GangScheduling",
    "TopologyAwareWorkloadScheduling",
    "WorkloadAwarePreemption",
)
GATES: Final = ("--feature-gates=" + ",".join(f"{gate}=true" for gate in _GATES),)
"""Flags of kube-scheduler for Kubernetes' own PodGroups."""
SERVED: Final = (f"--runtime-config={UPSTREAM}=true", *GATES)
"""The same of kube-apiserver."""


def podgroups_path(namespace: str) -> str:
    """The path of the namespace's PodGroups."""
    return f"/apis/{GROUP}/v1alpha1/namespaces/{namespace}/podgroups"


async def add_podgroup(seen: ClusterUser, name: str, minimum: int, **spec: object) -> None:
    """Create a PodGroup; pods name it by `in_podgroup(name)`."""
    made = {"apiVersion": f"{GROUP}/v1alpha1", "kind": "PodGroup", "metadata": {"name": name}}
    answer = await seen.api.post(podgroups_path(seen.namespace), {**made, "spec": {"minMember": minimum, **spec}})
    assert answer.code == 201, answer.body


def in_podgroup(name: str) -> dict[str, str]:
    """The label of its pods."""
    return {GROUP_LABEL: name}


async def define_podgroups_at(kubeconfig: Path) -> None:
    """The API server of this kubeconfig serves PodGroups from now on."""
    async with cluster_user(kubeconfig) as seen:
        await define_podgroups_for_good(seen.api)


async def define_podgroups_for_good(api: KubernetesApi) -> None:
    """The API server serves PodGroups from now on."""
    body = yaml.safe_load(DEFINITION.read_text(encoding="utf-8"))
    async with asyncio.timeout(SECONDS):
        # A former one may still be being removed.
        while (code := (await api.post(DEFINITIONS, body)).code) == 409:  # noqa: ASYNC110 - nobody reports its end
            await asyncio.sleep(0.1)
    assert code == 201
    await _until_served(api, wanted=True)


@asynccontextmanager
async def define_podgroups(api: KubernetesApi) -> AsyncIterator[None]:
    """The API server serves PodGroups in this block."""
    try:
        await define_podgroups_for_good(api)
        yield
    finally:
        await api.delete(f"{DEFINITIONS}/podgroups.{GROUP}")
        await _until_served(api, wanted=False)


async def _until_served(api: KubernetesApi, *, wanted: bool) -> None:
    async with asyncio.timeout(SECONDS):
        while await is_served(api) is not wanted:  # noqa: ASYNC110 - the server reports it to nobody
            await asyncio.sleep(0.05)


async def is_served(api: KubernetesApi) -> bool:
    """Whether the API server serves PodGroups of Coscheduling."""
    groups = (await api.get("/apis")).body["groups"]
    return any(group["name"] == GROUP for group in groups)
