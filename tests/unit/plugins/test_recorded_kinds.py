"""berth answers as a real kube-scheduler 1.36.3 about odd quantities, Gt and Lt, and declared features (tests/data)."""

from __future__ import annotations

import json
import lzma
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from berth.api.node import Node
from berth.api.pod import Pod
from berth.api.resources import MEMORY
from berth.cluster.nodes import Nodes
from berth.cluster.snapshot import Snapshot
from berth.framework.cycle import RankOptions, check, rank
from berth.framework.profile import Profile
from berth_cli.simulate.engine import Simulation
from harness.builders.objects import first_attempt
from harness.builders.profiles import default_profile

VERDICTS = {"quantities": 744, "taints": 754, "features": 384}
"""By theme, how many nodes were asked about."""
CHOICES = 214
"""Pods with a node whose choice is compared."""
OVERFLOWS = 2**63 // 100
"""Above it, the hundredfold that kube-scheduler's scores divide overflows."""
DATA = Path(__file__).parents[2] / "data" / "oracle" / "kinds.jsonl.xz"


@cache
def clusters() -> list[dict[str, Any]]:
    with lzma.open(DATA, "rt") as lines:
        return [json.loads(line) for line in lines]


def cases() -> Iterator[tuple[str, dict[str, Any], Pod, Snapshot, Profile]]:
    profile = default_profile()
    for cluster in clusters():
        snapshot = Snapshot()
        for node in msgspec.convert(cluster["nodes"], list[Node]):
            snapshot.set_node(node)
        for case in cluster["cases"]:
            yield cluster["theme"], case, msgspec.convert(case["pod"], Pod), snapshot, profile


def test_every_node_is_accepted_or_refused_as_by_kube_scheduler():
    asked, wrong = Counter[str](), []
    for theme, case, pod, snapshot, profile in cases():
        ranking = rank(pod, snapshot, profile, attempt=first_attempt(pod))
        feasible = {candidate.node for candidate in ranking.candidates}
        for node, message in case["nodes"].items():
            asked[theme] += 1
            answers = node in feasible, check(pod, node, snapshot, profile).is_success
            if answers != (not message, not message):
                wrong.append((theme, pod.key, node, message, answers))
    assert (asked, wrong) == (VERDICTS, [])


def test_messages_are_kube_schedulers():
    wrong = []
    for theme, case, pod, snapshot, profile in cases():
        ranking = rank(pod, snapshot, profile, attempt=first_attempt(pod))
        message = case["message"].replace("no new claims to deallocate, ", "")
        if message != ("" if ranking.candidates else ranking.message):
            wrong.append((theme, pod.key, message, ranking.message))
    assert wrong == []


def test_its_choice_is_among_the_best():
    choices, wrong = 0, []
    for theme, case, pod, snapshot, profile in cases():
        if case["bound"] is None or Nodes(snapshot).allocatable(MEMORY).max() > OVERFLOWS:
            continue
        choices += 1
        ranking = rank(pod, snapshot, profile, attempt=first_attempt(pod), options=RankOptions(best=100))
        best = [each.node for each in ranking.candidates if each.total == ranking.candidates[0].total]
        if case["bound"] not in best:
            wrong.append((theme, pod.key, case["bound"], best))
    assert (choices, wrong) == (CHOICES, [])


def test_simulate_answers_alike():
    wrong = []
    for theme, case, pod, snapshot, profile in cases():
        simulation = Simulation(snapshot=snapshot, profiles={pod.spec.scheduler_name: profile})
        (report,) = simulation.independently([pod])
        accepted = sorted(node for node, message in case["nodes"].items() if not message)
        if report.feasible != accepted:
            wrong.append((theme, pod.key, report.feasible, accepted))
    assert wrong == []
