"""berth decides as a real kube-scheduler 1.36.3 decided, in every recorded case (tests/data/oracle)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec
import numpy as np

from berth.api.config.load import load
from berth.api.config.presets import DEFAULT
from berth.api.kinds import PLUGIN_KINDS
from berth.api.meta import ObjectMeta
from berth.api.node import Node
from berth.api.pod import Pod, is_bound
from berth.api.trimming import ReportedPod, with_effective_requests
from berth.api.workloads import Namespace
from berth.cluster.snapshot import Snapshot
from berth.framework.cycle import RankOptions, check, rank
from berth.framework.profile import Profile, build_profiles
from berth.messages.attempts import Candidate
from berth.plugins.registry import BUILT_IN
from harness.builders.objects import first_attempt
from harness.builders.profiles import feasible_nodes
from harness.worlds.oracle import PROFILES, RESIZE, clusters, without_dynamic_resources

CASES, REFUSED, SEVERAL, SCORES = 2_141, 915, 771, 11_290
"""Pods; of these, pods that fit nowhere and pods that fit more than one node; and scores."""
DOUBLED = re.compile(r"(\b[a-z][a-z' ]*[a-z]\b)\W+\1\b|\.\.")
"""Words that come twice in a row, and two full stops."""


@dataclass(frozen=True)
class Case:
    """One pod, the state of the cluster, and the recorded answer."""

    pod: Pod
    snapshot: Snapshot
    profile: Profile
    answer: dict[str, Any]

    @property
    def feasible(self) -> set[str]:
        return set(self.answer["feasible"])


def test_feasible_nodes_are_those_of_kube_scheduler():
    wrong = [case.pod.key for case in cases() if case.feasible != names_of_feasible_nodes(case)]
    assert (len(cases()), wrong) == (CASES, [])


def test_one_node_is_checked_as_all_nodes_are_ranked():
    wrong = [case.pod.key for case in cases() if names_of_feasible_nodes(case) != checked_nodes(case)]
    assert wrong == []


def test_messages_are_those_of_kube_scheduler():
    refused = [case for case in cases() if not case.feasible and not is_gated(case)]
    messages = {case.pod.key: (rank_of(case).message, refusal_of(case)) for case in refused}
    wrong = {pod: ours for pod, (ours, theirs) in messages.items() if ours != theirs}
    assert (len(refused), wrong) == (REFUSED, {})
    assert [ours for ours, _ in messages.values() if DOUBLED.search(ours)] == []


def test_every_score_is_that_of_kube_scheduler():
    several = [case for case in cases() if len(case.feasible) > 1]
    wrong = [case.pod.key for case in several if scores_of(case) != recorded_scores(case)]
    scores = sum(len(by_node) for case in several for by_node in recorded_scores(case).values())
    assert (scores, wrong) == (SCORES, [])


def test_totals_are_kube_schedulers_and_its_choice_is_among_the_best():
    several = [case for case in cases() if len(case.feasible) > 1]
    wrong = [case.pod.key for case in several if totals_of(case) != case.answer["totals"]]
    assert (len(several), wrong) == (SEVERAL, [])
    assert all(case.answer["bound"] in best_nodes(case) for case in several)


def candidates_of(case: Case) -> tuple[Candidate, ...]:
    return rank(
        case.pod, case.snapshot, case.profile, attempt=first_attempt(case.pod), options=RankOptions(best=100)
    ).candidates


def totals_of(case: Case) -> dict[str, int]:
    return {candidate.node: candidate.total for candidate in candidates_of(case)}


def best_nodes(case: Case) -> set[str]:
    totals = totals_of(case)
    return {node for node, total in totals.items() if total == max(totals.values())}


def is_gated(case: Case) -> bool:
    return bool(case.pod.spec.scheduling_gates)


def rank_of(case: Case):
    return rank(case.pod, case.snapshot, case.profile, attempt=first_attempt(case.pod))


def refusal_of(case: Case) -> str:
    return without_dynamic_resources(case.answer["message"])


def names_of_feasible_nodes(case: Case) -> set[str]:
    feasible = feasible_nodes(case.pod, case.snapshot, case.profile)
    if feasible is None or is_gated(case):
        return set()
    return {case.snapshot.rows.names[row] for row in np.flatnonzero(feasible.mask)}


def checked_nodes(case: Case) -> set[str]:
    if is_gated(case):
        return set()
    names = case.snapshot.node_names()
    return {name for name in names if check(case.pod, name, case.snapshot, case.profile).is_success}


def scores_of(case: Case) -> dict[str, dict[str, int]]:
    scores: dict[str, dict[str, int]] = {}
    for candidate in candidates_of(case):
        for plugin, points in candidate.scores.items():
            scores.setdefault(plugin, {})[candidate.node] = points
    return scores


def recorded_scores(case: Case) -> dict[str, dict[str, int]]:
    """Without those of DynamicResources, which are 0: no case has claims, and berth's plugin does not score."""
    return {plugin: points for plugin, points in case.answer["scores"].items() if plugin != "DynamicResources"}


@cache
def cases() -> list[Case]:
    profiles = recorded_profiles()
    return [case for cluster in [*clusters(), *clusters(file=RESIZE)] for case in cases_of(cluster, profiles)]


def cases_of(cluster: dict[str, Any], profiles: dict[str, Profile]) -> Iterator[Case]:
    snapshot = Snapshot()
    pods = map(with_effective_requests, msgspec.convert(cluster["objects"]["pods"], list[ReportedPod]))
    placed = [pod for pod in pods if is_bound(pod)]
    for node in msgspec.convert(cluster["objects"]["nodes"], list[Node]):
        snapshot.set_node(node)
    for name, labels in cluster["objects"]["namespaces"].items():
        snapshot.set_namespace(Namespace(metadata=ObjectMeta(name=name, labels=labels)))
    for kind in PLUGIN_KINDS.values():
        for thing in msgspec.convert(cluster["objects"].get(kind.plural, []), list[kind.struct]):
            key = kind.key_of(uid=thing.metadata.uid, name=thing.metadata.name)
            snapshot.objects(kind.struct).set(key, thing)
    for pod in placed:
        snapshot.place(pod, pod.spec.node_name)
    for answer in cluster["cases"]:
        pod = msgspec.convert(answer["pod"], Pod)
        yield Case(pod, snapshot, profiles[pod.spec.scheduler_name], answer)


def recorded_profiles() -> dict[str, Profile]:
    text = PROFILES.read_text()
    return build_profiles(load(text, known=BUILT_IN, preset=DEFAULT), BUILT_IN)
