"""DefaultPreemption: the victims, the nominated node, and when no pod is evicted."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import numpy as np
import pytest

from berth.api.meta import LabelSelector, ObjectMeta
from berth.api.pod import Affinity, Pod, PodAffinity, PodAffinityTerm, PodCondition, PodStatus, TopologySpreadConstraint
from berth.api.workloads import BudgetStatus, PodDisruptionBudget, SelectorSpec
from berth.cluster.nodes import RowIndex, info_of_row, node_info
from berth.cluster.snapshot import Snapshot
from berth.framework.cycle import Ranking, rank
from berth.framework.disruptionbudgets import DisruptionBudgets
from berth.framework.interface import FilterPlugin, Nomination, PreFilterPlugin, PreFilterResult
from berth.framework.preemption import best_eviction, confirm, dry_run_of, eviction_candidates
from berth.framework.status import SUCCESS, Diagnosis, Status
from berth.plugins.defaultpreemption.plugin import NOT_HELPFUL, DefaultPreemption, DefaultPreemptionArgs, validate
from berth.plugins.defaultpreemption.victims import Victims, victims_on
from berth.plugins.interpodaffinity.plugin import InterPodAffinity, InterPodAffinityArgs
from berth.plugins.noderesources.fit import NodeResourcesFit, NodeResourcesFitArgs
from harness.builders.objects import a_container, a_node, a_pod, first_attempt
from harness.builders.profiles import default_profile, feasible_nodes, profile_of
from harness.plugins.long_runs import often

NOON = "2026-01-01T12:00:{:02d}Z"
HOSTNAME = "kubernetes.io/hostname"


def running(name: str, *, priority: int = 0, cpu: str = "1", second: int = 0, **more: Any) -> Pod:
    """A pod that started so many seconds after noon."""
    labels = more.pop("labels", None)
    pod = a_pod(name, labels=labels, priority=priority, containers=[a_container(cpu=cpu)], **more)
    return msgspec.structs.replace(pod, status=PodStatus(phase="Running", start_time=NOON.format(second)))


def important(cpu: str = "1", priority: int = 1000, **spec: Any) -> Pod:
    return a_pod("vip", priority=priority, containers=[a_container(cpu=cpu)], **spec)


def cluster(cpu: str = "2", **nodes: list[Pod]) -> Snapshot:
    """Nodes by name, each with its pods."""
    snapshot = Snapshot()
    for name, pods in nodes.items():
        snapshot.set_node(a_node(name, labels={HOSTNAME: name, "zone": name[0]}, cpu=cpu))
        for pod in pods:
            snapshot.place(pod, name)
    return snapshot


def budget(snapshot: Snapshot, app: str, allowed: int, **disrupted: str) -> None:
    selector = LabelSelector(match_labels={"app": app})
    snapshot.objects(PodDisruptionBudget).set(
        app,
        PodDisruptionBudget(
            metadata=ObjectMeta(name=app, namespace="default", uid=app),
            spec=SelectorSpec(selector=selector),
            status=BudgetStatus(disruptions_allowed=allowed, disrupted_pods=disrupted or None),
        ),
    )


def ranked(pod: Pod, snapshot: Snapshot) -> Ranking:
    return rank(pod, snapshot, default_profile(), attempt=first_attempt(pod))


def evicted(pod: Pod, snapshot: Snapshot) -> tuple[str, list[str]] | None:
    """The node and the names of the victims, most important first."""
    nomination = ranked(pod, snapshot).nomination
    return nomination and (nomination.node, [uid.removeprefix("uid-") for uid in nomination.victims])


# On one node.


def test_as_few_pods_as_needed_are_evicted():
    snapshot = cluster(n=[running("a"), running("b")])
    assert evicted(important(cpu="1"), snapshot) == ("n", ["b"])
    assert evicted(important(cpu="2"), snapshot) == ("n", ["a", "b"])


def test_the_pod_of_lower_priority_is_evicted():
    assert evicted(important(), cluster(n=[running("a", priority=1), running("b", priority=2)])) == ("n", ["a"])


def test_of_equal_pods_the_younger_one_is_evicted():
    assert evicted(important(), cluster(n=[running("a", second=5), running("b", second=3)])) == ("n", ["a"])


def test_a_pod_without_start_time_is_the_youngest():
    snapshot = cluster(n=[a_pod("new", containers=[a_container(cpu="1")]), running("old", second=59)])
    assert evicted(important(), snapshot) == ("n", ["new"])


def test_pods_of_the_same_priority_are_not_evicted():
    ranking = ranked(important(priority=5), cluster(n=[running("a", priority=5, cpu="2")]))
    assert ranking.nomination is None
    assert ranking.message == (
        "0/1 nodes are available: 1 Insufficient cpu."
        " preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod."
    )


def test_a_plugin_that_rejects_the_node_also_after_evictions_is_a_blocker():
    """Evictions help as soon as the other pod leaves: that, too, must wake the pod."""
    apart = PodAffinity(
        required_during_scheduling_ignored_during_execution=[
            PodAffinityTerm(topology_key=HOSTNAME, label_selector=LabelSelector(match_labels={"app": "other"}))
        ]
    )
    pods = [running("low"), running("other", priority=2000, labels={"app": "other"})]
    ranking = ranked(important(affinity=Affinity(pod_anti_affinity=apart)), cluster(n=pods))
    assert ranking.message.endswith("1 node(s) didn't match pod anti-affinity rules.")
    assert ranking.unschedulable_plugins == ("InterPodAffinity", "NodeResourcesFit")


def test_a_pod_protected_by_a_budget_stays_when_another_can_be_evicted():
    snapshot = cluster(n=[running("a", labels={"app": "web"}), running("b", priority=5)])
    budget(snapshot, "web", allowed=0)
    assert evicted(important(), snapshot) == ("n", ["b"])


def test_a_budget_protects_only_as_many_pods_as_it_must():
    pods = [running(name, labels={"app": "web"}, second=second) for second, name in enumerate("abc")]
    snapshot = cluster("3", n=[*pods, running("d", priority=5, cpu="0")])
    budget(snapshot, "web", allowed=1)
    # The oldest uses up what is allowed, so it counts as free to go, and it is taken back last.
    assert evicted(important(), snapshot) == ("n", ["a"])


def test_an_already_counted_disruption_is_not_protected():
    snapshot = cluster(n=[running("a", labels={"app": "web"}), running("b", priority=5)])
    budget(snapshot, "web", allowed=0, a=NOON.format(0))
    assert evicted(important(), snapshot) == ("n", ["a"])


def test_a_pod_with_anti_affinity_to_the_preemptor_is_evicted():
    apart = PodAffinityTerm(topology_key=HOSTNAME, label_selector=LabelSelector(match_labels={"app": "noisy"}))
    affinity = Affinity(pod_anti_affinity=PodAffinity(required_during_scheduling_ignored_during_execution=[apart]))
    snapshot = cluster("4", n=[running("noisy", labels={"app": "noisy"}, priority=7), running("quiet")])
    assert evicted(important(affinity=affinity), snapshot) == ("n", ["noisy"])


def test_in_a_zone_that_exceeds_the_skew_a_matching_pod_is_evicted():
    kind = LabelSelector(match_labels={"app": "web"})
    constraint = TopologySpreadConstraint(
        max_skew=1, topology_key="zone", when_unsatisfiable="DoNotSchedule", label_selector=kind
    )
    web = [running(name, labels={"app": "web"}) for name in ("w1", "w2")]
    snapshot = cluster("4", a1=web, b1=[running("big", priority=2000, cpu="4")])
    vip = important(topology_spread_constraints=[constraint])
    vip = msgspec.structs.replace(vip, metadata=msgspec.structs.replace(vip.metadata, labels={"app": "web"}))
    assert evicted(vip, snapshot) == ("a1", ["w1", "w2"])


def test_the_snapshot_is_restored():
    snapshot = cluster(n=[running("a"), running("b")], m=[running("c", cpu="2")])
    ranked(important(cpu="2"), snapshot)
    assert [snapshot.node_of(f"uid-{name}") for name in "abc"] == ["n", "n", "m"]
    assert [node_info(snapshot, name).requested("cpu") for name in ("n", "m")] == [2000, 2000]


# Between nodes, one criterion after another: each test has the better node second, and the one before equal.


CRITERIA = [
    pytest.param(
        {"n": [running("a", labels={"app": "web"}, cpu="2")], "m": [running("b", priority=9, cpu="2")]},
        ("m", ["b"]),
        id="no budget is violated",
    ),
    pytest.param(
        {"n": [running("a", priority=2, cpu="2")], "m": [running("b", priority=1, second=1), running("c", priority=1)]},
        ("m", ["c", "b"]),
        id="the most important victim is less important",
    ),
    pytest.param(
        {
            "n": [running("a", priority=2, second=1), running("b", priority=1, second=1)],
            "m": [running("c", priority=2, second=1), running("d", priority=0)],
        },
        ("m", ["c", "d"]),
        id="the priorities add up to less",
    ),
    pytest.param(
        {
            "n": [running("a", priority=-5), running("b", priority=-5, second=1)],
            "m": [running("c", priority=-5, cpu="2")],
        },
        ("m", ["c"]),
        id="fewer victims, whatever the sign of their priorities",
    ),
    pytest.param(
        {
            "n": [running("a", second=4), running("b", second=1)],
            "m": [running("c", second=3), running("d", second=2)],
        },
        ("m", ["d", "c"]),
        id="the first of the most important ones started later",
    ),
]


@pytest.mark.parametrize(("nodes", "expected"), CRITERIA)
def test_the_nominated_node_is_the_one_where(nodes, expected):
    snapshot = cluster(**nodes)
    budget(snapshot, "web", allowed=0)
    assert evicted(important(cpu="2"), snapshot) == expected


def test_ties_are_broken_by_the_same_hash_everywhere():
    nodes = {f"n{i}": [running(f"a{i}", cpu="2")] for i in range(8)}
    chosen = [
        evicted(a_pod(f"vip{i}", priority=9, containers=[a_container(cpu="2")]), cluster(**nodes)) for i in range(30)
    ]
    again = [
        evicted(a_pod(f"vip{i}", priority=9, containers=[a_container(cpu="2")]), cluster(**nodes)) for i in range(30)
    ]
    assert chosen == again
    assert len({node for node, _ in chosen}) > 4


def test_a_node_where_preemption_does_not_help_is_left_out():
    snapshot = cluster(n=[running("a", cpu="2")], m=[running("b", priority=9, cpu="2")])
    snapshot.set_node(a_node("n", cpu="2", unschedulable=True))
    assert evicted(important(cpu="2"), snapshot) == ("m", ["b"])


def test_nominated_pods_of_higher_priority_are_respected():
    snapshot = cluster(n=[running("a", cpu="2")], m=[running("b", priority=9, cpu="2")])
    snapshot.nominate(a_pod("other", priority=2000, containers=[a_container(cpu="2")]), "n")
    assert evicted(important(cpu="2"), snapshot) == ("m", ["b"])


# The search among many nodes.


def random_cluster(seed: int) -> tuple[Snapshot, Pod]:
    """Full nodes with pods of all sorts, some budgets, and a pod that may want to be apart from some of them."""
    chance = random.Random(seed)
    snapshot = cluster("4", **{f"{chance.choice('abc')}{i}": [] for i in range(chance.randint(1, 12))})
    for node in snapshot.node_names():
        for i in range(chance.randint(0, 6)):
            pod = running(
                f"{node}-{i}",
                priority=chance.choice([0, 0, 10, 10, 50, 3000]),
                cpu=chance.choice(["500m", "1", "2"]),
                second=chance.randrange(20),
                labels={"app": chance.choice(["web", "db", "batch"])},
            )
            snapshot.place(pod, node)
    for app in chance.sample(["web", "db"], chance.randint(0, 2)):
        budget(snapshot, app, allowed=chance.randint(0, 2))
    return snapshot, important(
        cpu=chance.choice(["1", "2500m", "4"]), affinity=chance.choice([None, None, APART_FROM_DB])
    )


APART_FROM_DB = Affinity(
    pod_anti_affinity=PodAffinity(
        required_during_scheduling_ignored_during_execution=[
            PodAffinityTerm(topology_key="zone", label_selector=LabelSelector(match_labels={"app": "db"}))
        ]
    )
)


def victims_everywhere(pod: Pod, snapshot: Snapshot) -> list[Victims]:
    """The victims that a dry run of each node finds, without the bounds."""
    profile = default_profile()
    dry_run = dry_run_of(pod, snapshot, profile)
    found = [
        victims_on(node_info(snapshot, name), dry_run, DisruptionBudgets(snapshot)) for name in snapshot.node_names()
    ]
    return [each for each in found if isinstance(each, Victims)]


APART_FROM_VIPS = Affinity(
    pod_anti_affinity=PodAffinity(
        required_during_scheduling_ignored_during_execution=[
            PodAffinityTerm(topology_key="zone", label_selector=LabelSelector(match_labels={"app": "vip"}))
        ]
    )
)
SPREAD = TopologySpreadConstraint(
    max_skew=1,
    topology_key="zone",
    when_unsatisfiable="DoNotSchedule",
    label_selector=LabelSelector(match_labels={"app": "web"}),
)


def hopeless_cluster(seed: int) -> tuple[Snapshot, Pod]:
    """Most pods have a higher priority than the pending one, and many nodes reject it because of their pods."""
    chance = random.Random(seed)
    snapshot = cluster("9", **{f"{chance.choice('abc')}{i}": [] for i in range(chance.randint(1, 8))})
    for node in snapshot.node_names():
        for i in range(chance.randint(0, 4)):
            affinity = chance.choice([None, None, None, APART_FROM_VIPS])
            labels = {"app": chance.choice(["web", "db"])}
            priority = chance.choice([0, 10, 3000])
            snapshot.place(running(f"{node}-{i}", priority=priority, labels=labels, affinity=affinity), node)
    constraints = chance.choice([{"affinity": APART_FROM_DB}, {"topology_spread_constraints": [SPREAD]}, {}])
    labels = {"app": "vip", **chance.choice([{}, {"app": "web"}])}
    pod = important(cpu=chance.choice(["1", "1", "8"]), **constraints)
    return snapshot, msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, labels=labels))


def message_of_every_node(pod: Pod, snapshot: Snapshot, resolvable: RowIndex) -> str | None:
    """The message of dry runs of all these nodes; None when one of them helps."""
    profile, diagnosis = default_profile(), Diagnosis(snapshot.node_count)
    dry_run = dry_run_of(pod, snapshot, profile)
    for row in resolvable.tolist():
        found = victims_on(info_of_row(snapshot, row), dry_run, DisruptionBudgets(snapshot))
        if isinstance(found, Victims):
            return None
        diagnosis.add(found, np.array([row]))
    diagnosis.add(NOT_HELPFUL, np.arange(snapshot.node_count - len(resolvable)))
    return diagnosis.message()


def diagnosis_of(pod: Pod, snapshot: Snapshot) -> Diagnosis:
    feasible = feasible_nodes(pod, snapshot, default_profile())
    assert feasible is not None
    return feasible.diagnosis()


def test_where_nothing_helps_the_message_is_that_of_a_full_dry_run():
    compared = 0
    for seed in range(100):
        snapshot, pod = hopeless_cluster(seed)
        ranking = ranked(pod, snapshot)
        if ranking.candidates:
            continue
        message = message_of_every_node(pod, snapshot, diagnosis_of(pod, snapshot).resolvable_rows())
        assert (ranking.nomination is None) == (message is not None), seed
        if message is not None:
            compared += 1
            assert ranking.message.split(" preemption: ")[1] == message, seed
    assert compared > 5


@pytest.mark.parametrize("seed", range(often(10)))
def test_no_node_costs_less_than_the_nominated_one(seed):
    snapshot, pod = random_cluster(seed)
    ranking = ranked(pod, snapshot)
    every = [] if ranking.candidates else victims_everywhere(pod, snapshot)
    if not every:
        assert ranking.nomination is None
        return
    chosen = next(each for each in every if snapshot.rows.names[each.row] == ranking.nomination.node)
    assert chosen.cost == min(each.cost for each in every)
    assert ranking.nomination.victims == tuple(placed.pod.uid for placed in chosen.pods)


def test_the_random_clusters_cover_all_outcomes():
    rankings = [ranked(pod, snapshot) for snapshot, pod in map(random_cluster, range(150))]
    nominated = [ranking for ranking in rankings if ranking.nomination]
    assert len(nominated) > 40
    assert len([ranking for ranking in nominated if len(ranking.nomination.victims) > 1]) > 20


@pytest.mark.parametrize(
    ("arguments", "nodes", "wanted"),
    [({}, 20, 20), ({}, 500, 100), ({}, 5000, 500), ({"min_candidate_nodes_percentage": 0}, 5000, 100)],
)
def test_how_many_candidates_are_enough(arguments, nodes, wanted):
    assert DefaultPreemptionArgs(**arguments).enough(nodes) == wanted


@pytest.mark.parametrize(("enough", "chosen"), [(1, ("n", ["db"])), (100, ("m", ["other"]))])
def test_the_search_ends_when_enough_candidates_were_found(enough, chosen):
    # By the sums, evicting the unimportant pod is enough on n; the dry run finds that the database must be evicted.
    noisy = [running("db", priority=50, labels={"app": "db"}), running("small")]
    snapshot = cluster(n=noisy, m=[running("other", priority=10, cpu="2")])
    args = DefaultPreemptionArgs(min_candidate_nodes_percentage=0, min_candidate_nodes_absolute=enough)
    plugins = (NodeResourcesFit(NodeResourcesFitArgs()), InterPodAffinity(InterPodAffinityArgs()))
    pod = important(affinity=APART_FROM_DB)
    nomination = rank(
        pod, snapshot, profile_of(*plugins, DefaultPreemption(args)), attempt=first_attempt(pod)
    ).nomination
    assert (nomination.node, [uid.removeprefix("uid-") for uid in nomination.victims]) == chosen


def test_arguments_without_any_candidate_are_rejected():
    args = DefaultPreemptionArgs(min_candidate_nodes_percentage=0, min_candidate_nodes_absolute=0)
    assert validate(args, "args") == [
        "args.minCandidateNodesPercentage: want more than 0, or minCandidateNodesAbsolute more than 0, got 0"
    ]
    out_of_range = DefaultPreemptionArgs(min_candidate_nodes_percentage=101, min_candidate_nodes_absolute=-1)
    assert validate(out_of_range, "args") == [
        "args.minCandidateNodesPercentage: want 0..100, got 101",
        "args.minCandidateNodesAbsolute: want 0 or more, got -1",
    ]


class Busy(PreFilterPlugin):
    """Refuses every pod for the time being, before any node is looked at."""

    name = "Busy"

    def pre_filter(self, state, pod, snapshot):
        return PreFilterResult(Status.unschedulable("busy"))


def test_preemption_does_not_help_after_a_pre_filter_rejection():
    plugins = (Busy(), NodeResourcesFit(NodeResourcesFitArgs()), DefaultPreemption(DefaultPreemptionArgs()))
    snapshot = cluster(n=[running("a", cpu="2")], m=[])
    ranking = rank(important(), snapshot, profile_of(*plugins), attempt=first_attempt(important()))
    assert ranking.nomination is None
    assert ranking.message == (
        "0/2 nodes are available: busy."
        " preemption: 0/2 nodes are available: 1 No preemption victims found for incoming pod, 1 busy."
    )


# Who may preempt.


def test_preemption_policy_never_evicts_no_pod():
    ranking = ranked(important(preemption_policy="Never"), cluster(n=[running("a", cpu="2")]))
    assert ranking.nomination is None
    assert ranking.message.endswith("Insufficient cpu. preemption: not eligible due to preemptionPolicy=Never.")
    assert not ranking.clears_nomination


def going(pod: Pod, reason: str = "PreemptionByScheduler") -> Pod:
    condition = PodCondition(type="DisruptionTarget", status="True", reason=reason)
    metadata = msgspec.structs.replace(pod.metadata, deletion_timestamp=NOON.format(59))
    return msgspec.structs.replace(
        pod, metadata=metadata, status=msgspec.structs.replace(pod.status, conditions=[condition])
    )


def nominated(pod: Pod, node: str) -> Pod:
    return msgspec.structs.replace(pod, status=PodStatus(nominated_node_name=node))


def test_no_further_eviction_while_victims_terminate():
    snapshot = cluster(n=[going(running("a", cpu="2"))], m=[running("b", cpu="2")])
    ranking = ranked(nominated(important(), "n"), snapshot)
    assert ranking.nomination == Nomination("n")
    assert ranking.message.endswith("preemption: not eligible due to a terminating pod on the nominated node.")


def test_a_pod_terminating_for_another_reason_is_not_waited_for():
    snapshot = cluster(n=[going(running("a", cpu="2"), "DeletionByTaintManager")])
    assert evicted(nominated(important(), "n"), snapshot) == ("n", ["a"])


def test_a_pod_whose_nominated_node_is_unresolvable_preempts_elsewhere():
    snapshot = cluster(n=[going(running("a", cpu="2"))], m=[running("b", cpu="2")])
    snapshot.set_node(a_node("n", cpu="2", unschedulable=True))
    assert evicted(nominated(important(), "n"), snapshot) == ("m", ["b"])


def test_where_nothing_helps_the_nomination_is_cleared():
    ranking = ranked(nominated(important(), "n"), cluster(n=[running("a", priority=5000, cpu="2")]))
    assert (ranking.nomination, ranking.clears_nomination) == (None, True)


def test_without_preemption_the_nomination_is_cleared():
    fit = NodeResourcesFit(NodeResourcesFitArgs())
    snapshot = cluster(n=[running("a", cpu="2")])
    ranking = rank(important(), snapshot, profile_of(fit), attempt=first_attempt(important()))
    assert (ranking.nomination, ranking.clears_nomination, ranking.message) == (
        None,
        True,
        "0/1 nodes are available: 1 Insufficient cpu.",
    )


# A nominated pod.


def test_a_nominated_pod_is_ranked_on_its_node_alone():
    snapshot = cluster(n=[running("a")], m=[])
    ranking = ranked(nominated(important(), "n"), snapshot)
    assert [candidate.node for candidate in ranking.candidates] == ["n"]


def test_a_pod_whose_nominated_node_is_full_is_ranked_on_all_nodes():
    snapshot = cluster(n=[running("a", cpu="2")], m=[])
    assert [candidate.node for candidate in ranked(nominated(important(), "n"), snapshot).candidates] == ["m"]


# Asked again by the binder.


def test_confirm_returns_the_present_victims():
    snapshot = cluster(n=[running("a"), running("b", second=1)])
    assert confirm(important(), "n", snapshot, default_profile()) == Nomination("n", ("uid-b",))


@pytest.mark.parametrize(
    ("pod", "node"),
    [
        pytest.param(important(), "elsewhere", id="no such node"),
        pytest.param(important(cpu="3"), "n", id="too large for the node"),
        pytest.param(important(preemption_policy="Never"), "n", id="may not preempt"),
        pytest.param(important(priority=0), "n", id="not important enough"),
    ],
)
def test_confirm_returns_none_without_victims(pod, node):
    assert confirm(pod, node, cluster(n=[running("a", cpu="2")]), default_profile()) is None


class OnlyOn(FilterPlugin):
    """Rejects all nodes but one, by a rule that no sum shows."""

    name = "OnlyOn"

    def __init__(self, node: str) -> None:
        self._node = node
        self.asked: set[str] = set()

    def filter(self, state, pod, node):
        self.asked.add(node.name)
        return SUCCESS if node.name == self._node else Status.unschedulable("not here")


def test_binders_search_is_bounded_and_begins_with_the_proposed_node():
    snapshot = cluster(**{f"n{number}": [running(f"p{number}", cpu="2", priority=number)] for number in range(9)})
    enough = DefaultPreemptionArgs(min_candidate_nodes_percentage=0, min_candidate_nodes_absolute=3)
    profile = profile_of(NodeResourcesFit(NodeResourcesFitArgs()), only := OnlyOn("n8"), DefaultPreemption(enough))
    ranking = rank(important(), snapshot, profile, attempt=first_attempt(important()))
    assert ranking.nomination == Nomination("n8", ("uid-p8",))
    assert best_eviction(important(), "n8", snapshot, profile) == Nomination("n8", ("uid-p8",))
    only.asked.clear()
    assert best_eviction(important(), "n5", snapshot, profile) is None
    assert only.asked == {"n5", "n0", "n1", "n2"}


def test_candidates_are_in_the_order_of_what_they_cost_and_not_of_what_they_may_cost():
    """Sums alone say that evicting ``cheap`` is enough on n1; the anti-affinity takes an important pod there too."""
    term = PodAffinityTerm(topology_key=HOSTNAME, label_selector=LabelSelector(match_labels={"app": "x"}))
    apart = Affinity(pod_anti_affinity=PodAffinity(required_during_scheduling_ignored_during_execution=[term]))
    snapshot = cluster(
        cpu="1",
        n1=[running("cheap", priority=1, cpu="900m"), running("x", priority=5, cpu="100m", labels={"app": "x"})],
        n2=[running("middle", priority=3)],
    )
    vip = important("900m", affinity=apart)
    found = eviction_candidates(vip, "", snapshot, default_profile(), ())
    assert [each.node for each in found] == ["n2", "n1"]
    assert [len(each.victims) for each in found] == [1, 2]
    assert rank(vip, snapshot, default_profile(), attempt=first_attempt(vip)).nomination == found[0]
