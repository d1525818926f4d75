"""What clients ask before they ask for objects: /api, /apis, /version and health; enough for kubectl."""

from typing import Any

import msgspec

from berth.sim.kinds import KINDS, PODS, Kind

_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
_IN_ALL = frozenset({"pods", "services", "replicationcontrollers", "replicasets", "statefulsets"})
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


def documents() -> dict[str, bytes]:
    """Return every discovery document by its path."""
    found = {"/api": _api_versions(), "/apis": _groups(), "/version": VERSION}
    for api_version in {kind.api_version for kind in KINDS}:
        path = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
        found[path] = _resources(api_version)
    for group in {kind.group for kind in KINDS if kind.group}:
        found[f"/apis/{group}"] = {"kind": "APIGroup", "apiVersion": "v1", **_group(group)}
    found |= _schemas()
    return {path: msgspec.json.encode(document) for path, document in found.items()}


def _schemas() -> dict[str, dict[str, Any]]:
    """Return just enough OpenAPI for kubectl to leave validation to the server."""
    roots = {f"apis/{kind.api_version}" if kind.group else "api/v1" for kind in KINDS}
    index = {"paths": {root: {"serverRelativeURL": f"/openapi/v3/{root}"} for root in roots}}
    return {"/openapi/v3": index, **{f"/openapi/v3/{root}": _schema(root) for root in roots}}


def _schema(root: str) -> dict[str, Any]:
    kinds = [kind for kind in KINDS if root in (f"apis/{kind.api_version}", f"api/{kind.api_version}")]
    paths = {f"/{root}/{kind.plural}/{{name}}": {"patch": _patch_operation(kind)} for kind in kinds}
    return {"openapi": "3.0.0", "info": {"title": "berth.sim", "version": "v1"}, "paths": paths}


def _patch_operation(kind: Kind) -> dict[str, Any]:
    meaning = {"group": kind.group, "version": kind.version, "kind": kind.name}
    field_validation = {"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}
    return {
        "x-kubernetes-group-version-kind": meaning,
        "parameters": [field_validation],
        "responses": {"200": {"description": "OK"}},
    }


def _api_versions() -> dict[str, Any]:
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}


def _groups() -> dict[str, Any]:
    names = dict.fromkeys(kind.group for kind in KINDS if kind.group)
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(name) for name in names]}


def _group(name: str) -> dict[str, Any]:
    version = {"groupVersion": f"{name}/v1", "version": "v1"}
    return {"name": name, "versions": [version], "preferredVersion": version}


def _resources(api_version: str) -> dict[str, Any]:
    served = [kind for kind in KINDS if kind.api_version == api_version]
    resources = [entry for kind in served for entry in _entries(kind)]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api_version, "resources": resources}


def _entries(kind: Kind) -> list[dict[str, Any]]:
    entry = {"name": kind.plural, "singularName": kind.name.lower(), "namespaced": kind.namespaced, "kind": kind.name}
    categories = ["all"] if kind.plural in _IN_ALL else []
    entries: list[dict[str, Any]] = [
        {**entry, "verbs": _VERBS, "shortNames": kind.short_names, "categories": categories}
    ]
    if kind.has_status:
        verbs = ["get", "patch", "update"]
        entries.append({**entry, "name": f"{kind.plural}/status", "singularName": "", "verbs": verbs})
    if kind is PODS:
        binding = {"name": "pods/binding", "singularName": "", "namespaced": True, "kind": "Binding"}
        entries.append({**binding, "verbs": ["create"]})
    return entries
