"""The recorded decisions of a real kube-scheduler (tests/data/oracle), as files that ``berth simulate`` reads."""

from __future__ import annotations

import json
import lzma
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[2] / "data" / "oracle"
PROFILES = DATA / "profiles.yaml"
CYCLE, RESIZE = "cycle.jsonl.xz", "resize.jsonl.xz"
Json = dict[str, Any]


def clusters(count: int | None = None, *, file: str = CYCLE) -> Iterator[Json]:
    """The recorded clusters, with the cases that berth decides as kube-scheduler 1.36.3."""
    with lzma.open(DATA / file, "rt") as lines:
        for cluster in map(json.loads, islice(lines, count)):
            yield {**cluster, "cases": [case for case in cluster["cases"] if not _spreads_all_pods(case["pod"])]}


def _spreads_all_pods(pod: Json) -> bool:
    """Whether a spread constraint has an empty selector: kube-scheduler 1.36.3 counts no pods (ADR 48)."""
    selectors = (each.get("labelSelector") for each in pod["spec"].get("topologySpreadConstraints") or ())
    return any(selector is not None and not any(selector.values()) for selector in selectors)


def preemptions() -> Iterator[Json]:
    """The recorded clusters on which an important pod arrived."""
    with lzma.open(DATA / "preemption.jsonl.xz", "rt") as lines:
        yield from map(json.loads, lines)


def objects_of(cluster: Json) -> list[Json]:
    """All of a cluster's objects, namespaces as objects too."""
    namespaces = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
        for name, labels in cluster["objects"].get("namespaces", {}).items()
    ]
    others = (thing for kind, things in cluster["objects"].items() if kind != "namespaces" for thing in things)
    return [*namespaces, *others]


def pods_of(cluster: Json) -> list[Json]:
    """The pods whose decisions were recorded."""
    return [case["pod"] for case in cluster["cases"]]


def list_of(objects: list[Json]) -> Json:
    """A List as kubectl prints it."""
    return {"apiVersion": "v1", "kind": "List", "items": objects, "metadata": {"resourceVersion": ""}}


def written(path: Path, objects: list[Json]) -> Path:
    """Write the List to the path, and return the path."""
    path.write_text(json.dumps(list_of(objects)))
    return path


def decision_of(case: Json) -> Json:
    """The decision, as far as ``berth simulate`` prints it and it was not random.

    DynamicResources and the message of its PostFilter are left out: berth does not have it, and no case has claims.
    """
    scores = {plugin: points for plugin, points in case["scores"].items() if plugin != "DynamicResources"}
    decided = {"feasible": case["feasible"], "scores": scores, "totals": case["totals"]}
    return {**decided, "message": message_of(case)}


def message_of(case: Json) -> str:
    """The reason for having no node; empty when there is one."""
    return without_dynamic_resources(case.get("message") or "")


def without_dynamic_resources(message: str) -> str:
    """kube-scheduler's message without the text of DynamicResources' PostFilter, which berth does not have.

    "not found" is that plugin's error where another plugin's PreFilter has rejected the pod.
    """
    return re.sub(r"(?<=\.) not found$", "", message.replace("no new claims to deallocate, ", ""))


def simulated_of(line: Json) -> Json:
    """The decision in a line of ``berth simulate -o json``."""
    return {**{member: line[member] for member in ("feasible", "scores", "totals")}, "message": line["message"] or ""}
