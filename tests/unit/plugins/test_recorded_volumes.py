"""berth decides about volumes as a real kube-scheduler 1.36.3 decided (tests/data/oracle/volumes.jsonl.xz)."""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

from berth.api.kinds import PLUGIN_KINDS
from berth.api.node import Node
from berth.api.pod import Pod, is_bound
from berth.cluster.snapshot import Snapshot
from berth.framework.cycle import check, rank
from berth.framework.profile import Profile
from harness.builders.objects import first_attempt
from harness.builders.profiles import default_profile
from harness.worlds.oracle import without_dynamic_resources

CASES, ANSWERS, REFUSALS = 1_968, 8_936, 5_929
DATA = Path(__file__).parents[2] / "data" / "oracle" / "volumes.jsonl.xz"
OTHERS = "node(s) didn't satisfy plugin(s) [NodeAffinity]"
"""The reason of nodes that were not evaluated for a pod."""


@dataclass(frozen=True)
class Case:
    """One pod, the cluster, and the message for all nodes and for each."""

    pod: Pod
    snapshot: Snapshot
    profile: Profile
    message: str
    nodes: dict[str, str]


@pytest.mark.slow
def test_messages_are_those_of_kube_scheduler():
    wrong = {case.pod.uid: message for case in cases() if (message := message_of(case)) != case.message}
    assert (len(cases()), wrong) == (CASES, {})


@pytest.mark.slow
def test_each_node_is_rejected_for_the_same_reasons():
    asked = [(case, node) for case in cases() for node in case.nodes]
    wrong = [(case.pod.uid, node) for case, node in asked if reasons_on(case, node) != recorded_reasons(case, node)]
    assert (len(asked), wrong) == (ANSWERS, [])
    assert sum(bool(case.nodes[node]) for case, node in asked) == REFUSALS


def message_of(case: Case) -> str:
    ranking = rank(case.pod, case.snapshot, case.profile, attempt=first_attempt(case.pod))
    assert not ranking.error
    return "" if ranking.candidates else ranking.message


def before_preemption(message: str) -> str:
    return message.split(" preemption:", maxsplit=1)[0]


def reasons_on(case: Case, node: str) -> list[str]:
    return sorted(check(case.pod, node, case.snapshot, case.profile).reasons)


def recorded_reasons(case: Case, node: str) -> list[str]:
    """``0/4 nodes are available: 1 <reason>, 3 <of the others>.``, or one reason for all nodes and ``. not found``."""
    if not case.nodes[node]:
        return []
    message = before_preemption(case.nodes[node]).split(": ", 1)[1]
    if message.endswith(". not found"):
        return [message.removesuffix(". not found")]
    counted = [entry.partition(" ")[2] for entry in message.rstrip(".").split(", ")]
    return sorted(reason for reason in counted if reason != OTHERS)


@cache
def cases() -> list[Case]:
    with lzma.open(DATA, "rt") as lines:
        return [case for line in lines for case in cases_of(json.loads(line))]


def cases_of(cluster: dict[str, Any]) -> Iterator[Case]:
    snapshot, profile, objects = Snapshot(), default_profile(), cluster["objects"]
    for node in msgspec.convert(objects["nodes"], list[Node]):
        snapshot.set_node(node)
    for kind in PLUGIN_KINDS.values():
        for thing in msgspec.convert(objects.get(kind.plural, []), list[kind.struct]):
            key = kind.key_of(uid=thing.metadata.uid, name=thing.metadata.name)
            snapshot.objects(kind.struct).set(key, thing)
    for pod in msgspec.convert(objects["pods"], list[Pod]):
        if is_bound(pod):
            snapshot.place(pod, pod.spec.node_name)
    for case in cluster["cases"]:
        message = without_dynamic_resources(case["message"])
        yield Case(msgspec.convert(case["pod"], Pod), snapshot, profile, message, case["nodes"])
