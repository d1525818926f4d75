"""Policies of a real API server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from harness.worlds.cluster_user import eventually
from harness.worlds.kubernetes_api import KubernetesApi

_POLICIES = "/apis/admissionregistration.k8s.io/v1"


@asynccontextmanager
async def refusing_bindings(api: KubernetesApi, *, ending: str = "") -> AsyncIterator[None]:
    """The API server refuses Bindings of pods in the namespace whose names end so."""
    name = f"no-bindings-{api.namespace}"
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods/binding"]}
    here = {"matchLabels": {"kubernetes.io/metadata.name": api.namespace}}
    policy = {
        "metadata": {"name": name},
        "spec": {
            "matchConstraints": {"resourceRules": [rule], "namespaceSelector": here},
            "validations": [{"expression": f"!request.name.endsWith('{ending}')", "message": "no Bindings today"}],
        },
    }
    binding = {"metadata": {"name": name}, "spec": {"policyName": name, "validationActions": ["Deny"]}}
    kinds = {"validatingadmissionpolicies": policy, "validatingadmissionpolicybindings": binding}
    for plural, body in kinds.items():
        assert (await api.post(f"{_POLICIES}/{plural}", body)).code == 201
    probe = f"probe{ending}"
    await api.add_pod(probe, schedulerName="other")
    probed = {"metadata": {"name": probe}, "target": {"kind": "Node", "name": "n"}}

    async def refuses() -> bool:
        answer = await api.call("POST", f"{api.pods}/{probe}/binding", probed, query={"dryRun": "All"})
        return answer.code == 422

    try:
        await eventually(refuses, "Bindings to be refused")
        yield
    finally:
        for plural in kinds:
            await api.delete(f"{_POLICIES}/{plural}/{name}")
