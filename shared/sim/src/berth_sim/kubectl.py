"""What kubectl asks besides objects: discovery (/api, /apis, /version, OpenAPI), and what its user may do."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from berth_sim.apiserver import schema
from berth_sim.apiserver.kinds import PODS, SERVED_KINDS, SimulatedKind
from berth_sim.apiserver.status import JsonObject

_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]

_READ_VERBS = ["get", "list", "watch"]

_IN_ALL = frozenset(
    {"pods", "services", "replicationcontrollers", "replicasets", "statefulsets", "deployments", "jobs"}
)

VERSION = {
    "major": "1",
    "minor": "36",
    "gitVersion": "v1.36.0+berth.sim",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "",
    "compiler": "",
    "platform": "linux/amd64",
}

_EVERYTHING: Final = ["*"]
_IS_OPEN: Final = "the simulated API server checks no rights"


def _review(group: str, kind: str, status: JsonObject) -> JsonObject:
    return {"kind": kind, "apiVersion": f"{group}/v1", "metadata": {}, "spec": {}, "status": status}


# Answers to `kubectl auth can-i` and `kubectl auth whoami`.
_REVIEWS: Final[Mapping[str, JsonObject]] = {
    "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews": _review(
        "authorization.k8s.io", "SelfSubjectAccessReview", {"allowed": True, "reason": _IS_OPEN}
    ),
    "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews": _review(
        "authorization.k8s.io",
        "SelfSubjectRulesReview",
        {
            "resourceRules": [{"verbs": _EVERYTHING, "apiGroups": _EVERYTHING, "resources": _EVERYTHING}],
            "nonResourceRules": [{"verbs": _EVERYTHING, "nonResourceURLs": _EVERYTHING}],
            "incomplete": False,
        },
    ),
    "/apis/authentication.k8s.io/v1/selfsubjectreviews": _review(
        "authentication.k8s.io", "SelfSubjectReview", {"userInfo": {"username": "simulated"}}
    ),
}


def documents() -> dict[str, bytes]:
    found: dict[str, JsonObject] = {"/api": _api_versions(), "/apis": _groups(), "/version": VERSION, **_REVIEWS}
    for api_version in {kind.api_version for kind in SERVED_KINDS}:
        path = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
        found[path] = _resources(api_version)
    for group in {kind.group for kind in SERVED_KINDS if kind.group}:
        found[f"/apis/{group}"] = {"kind": "APIGroup", "apiVersion": "v1", **_group(group)}
    found |= schema.openapi()
    encoded = {path: msgspec.json.encode(document) for path, document in found.items()}
    return {**encoded, "/openapi/v2": b""}  # by it kubectl would check the items of a List: without types, it does not


def _api_versions() -> dict[str, Any]:
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}


def _groups() -> dict[str, Any]:
    names = dict.fromkeys(kind.group for kind in SERVED_KINDS if kind.group)
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(name) for name in names]}


def _group(name: str) -> dict[str, Any]:
    served = dict.fromkeys(kind.api_version for kind in SERVED_KINDS if kind.group == name)
    # v1 first, because kubectl takes it for a kind that is in both.
    versions = [{"groupVersion": each, "version": each.partition("/")[2]} for each in sorted(served, key=len)]
    return {"name": name, "versions": versions, "preferredVersion": versions[0]}


def _resources(api_version: str) -> dict[str, Any]:
    served = [kind for kind in SERVED_KINDS if kind.api_version == api_version]
    resources = [entry for kind in served for entry in _entries(kind)]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api_version, "resources": resources}


def _entries(kind: SimulatedKind) -> list[dict[str, Any]]:
    entry = {"name": kind.plural, "singularName": kind.name.lower(), "namespaced": kind.namespaced, "kind": kind.name}
    categories = ["all"] if kind.plural in _IN_ALL else []
    entries: list[dict[str, Any]] = [
        {
            **entry,
            "verbs": _READ_VERBS if kind.why_none else _VERBS,
            "shortNames": kind.short_names,
            "categories": categories,
        }
    ]
    if kind.has_status:
        verbs = ["get", "patch", "update"]
        entries.append({**entry, "name": f"{kind.plural}/status", "singularName": "", "verbs": verbs})
    if kind.has_scale:
        scale = {"name": f"{kind.plural}/scale", "singularName": "", "namespaced": True, "kind": "Scale"}
        meaning = {"group": "autoscaling", "version": "v1"}
        entries.append({**scale, **meaning, "verbs": ["get", "patch", "update"]})
    if kind is PODS:
        binding = {"name": "pods/binding", "singularName": "", "namespaced": True, "kind": "Binding"}
        entries.append({**binding, "verbs": ["create"]})
    return entries
