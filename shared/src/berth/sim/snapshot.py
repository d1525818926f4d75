"""Loads what `kubectl get ... -o json|yaml` wrote into the simulated cluster."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import yaml

from berth.sim.kinds import BY_NAME, NAMESPACES, NODES, PODS, Kind
from berth.sim.resources import Resources, incoming
from berth.sim.status import JsonObject
from berth.sim.store import Stored

_FIRST = (NAMESPACES, NODES)


class SnapshotError(ValueError):
    """The file is no snapshot; the message names it and says what was wanted."""


def read(path: Path) -> list[JsonObject]:
    """Return the objects of a file: a List, one object, or several YAML documents.

    Raises:
        SnapshotError: it cannot be read or holds something else.
    """
    try:
        text = path.read_bytes()
        documents = [msgspec.json.decode(text)] if text.lstrip()[:1] in b"{[" else list(yaml.safe_load_all(text))
    except (OSError, ValueError, yaml.YAMLError) as exc:
        raise SnapshotError(f"reading snapshot '{path}': {exc}") from exc
    objects = [item for document in documents if document for item in _flattened(document)]
    for item in objects:
        if not isinstance(item, dict) or not isinstance(item.get("metadata"), dict):
            raise SnapshotError(
                f"reading snapshot '{path}': want objects as `kubectl get -o json` writes, got {item!r}"
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
    """Put objects into the cluster as they are, status and node included; return how many of each kind.

    Kinds that are not simulated are passed over and counted under their name with a `!` before it. Namespaces that
    objects are in and that the snapshot lacks are made.
    """
    counts: dict[str, int] = {}
    known: list[tuple[Kind, JsonObject]] = []
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


def _keep(resources: Resources, kind: Kind, item: JsonObject) -> Stored:
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
