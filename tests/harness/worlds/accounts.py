"""ServiceAccounts with the rights of docs/rights/berth.yaml, and what each of them may do."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml

from harness.servers.control_plane import ControlPlane
from harness.worlds.kubernetes_api import KubernetesApi

RIGHTS: Final = Path(__file__).parents[3] / "docs/rights/berth.yaml"
NAMESPACE: Final = "berth"
_EXISTS: Final = 409
_GROUPS: Final = {"v1": "/api/v1", "rbac.authorization.k8s.io/v1": "/apis/rbac.authorization.k8s.io/v1"}
_PLURALS: Final = {
    "Namespace": "namespaces",
    "ServiceAccount": "serviceaccounts",
    "ClusterRole": "clusterroles",
    "ClusterRoleBinding": "clusterrolebindings",
    "Role": "roles",
    "RoleBinding": "rolebindings",
}


async def grant(api: KubernetesApi) -> None:
    """Create the file's objects in order; existing ones stay as they are."""
    for made in yaml.safe_load_all(RIGHTS.read_text(encoding="utf-8")):
        answer = await api.post(_collection(made), made)
        assert answer.code in {201, _EXISTS}, answer.body


async def token_of(api: KubernetesApi, account: str) -> str:
    """A token of one of the accounts, by the TokenRequest API."""
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{account}/token"
    answer = await api.post(path, {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}})
    assert answer.code == 201, answer.body
    return str(answer.body["status"]["token"])


async def kubeconfig_of(plane: ControlPlane, api: KubernetesApi, account: str) -> Path:
    """A kubeconfig of one of the accounts."""
    return plane.write_kubeconfig(account, await token_of(api, account))


def _collection(made: dict[str, Any]) -> str:
    namespace = made["metadata"].get("namespace")
    place = f"/namespaces/{namespace}" if namespace else ""
    return f"{_GROUPS[made['apiVersion']]}{place}/{_PLURALS[made['kind']]}"
