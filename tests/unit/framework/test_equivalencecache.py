"""The equivalence cache never changes a decision, and is bounded."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from random import Random

import msgspec
import numpy as np
import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from berth.api.meta import ObjectMeta
from berth.api.node import ContainerImage, NodeStatus
from berth.api.pod import Container, Pod
from berth.api.trimming import as_placed
from berth.cluster.snapshot import Snapshot
from berth.framework.cycle import Ranking, RankOptions, check, rank
from berth.framework.equivalencecache import EquivalenceCache
from berth.framework.interface import (
    FilterPlugin,
    KeyedPlugin,
    LivePlugin,
    NormalizePlugin,
    Reads,
    RowChanges,
    ScorePlugin,
    VectorScorePlugin,
)
from berth.framework.profile import Profile, WeightedScore
from berth.framework.status import SUCCESS, Status
from berth.messages.subjects import Attempt, Term, Uid
from berth.plugins.registry import BUILT_IN
from berth.profiles.configuration import profiles_of, read_configuration
from berth.settings.presets import every_gate
from harness.builders.objects import ROOM, a_node, a_pod, first_attempt, pod_requesting
from harness.builders.plugin_arguments import arguments_of
from harness.builders.profiles import default_profile, profile_of
from harness.builders.random_clusters import Event, events, histories, placing, pods, replayed, snapshots, times
from harness.builders.random_objects import NODE_NAMES
from harness.plugins.long_runs import often

OF_1_18 = read_configuration(
    None, provider="DefaultProvider", gates=",".join(f"{gate.name}=true" for gate in every_gate())
)

pytestmark = pytest.mark.timeout(600)  # hypothesis shrinks a failure before it reports it


def every_plugin() -> Profile:
    """All of today's plugins in one profile, including those that no preset has."""
    factories = [factory for name, factory in BUILT_IN.items() if name == factory.name]
    return profile_of(*(each.build(next(iter(arguments_of(each.name, each).values()))) for each in factories))


def every_score() -> Profile:
    """The scores of all of today's plugins. Together their filters leave hardly ever two nodes to be scored."""
    return replace(every_plugin(), pre_filters=(), filters=())


def of_1_18() -> Profile:
    """The plugins of kube-scheduler 1.18, with those of every feature gate."""
    return profiles_of(OF_1_18)["berth"]


def twice_as_heavy() -> Profile:
    """The default plugins with twice their weights."""
    profile = default_profile()
    return replace(profile, scores=tuple(WeightedScore(each.plugin, 2 * each.weight) for each in profile.scores))


PROFILES = [pytest.param(make, id=make.__name__) for make in (default_profile, every_plugin, every_score, of_1_18)]


@st.composite
def steps(draw: st.DrawFn, waiting: list[Pod], there: list[str]) -> list[Event]:
    """Random events, and placements of pods like the pending ones: these change the cached results."""
    like_them = [msgspec.structs.replace(pod, metadata=named(pod, f"like-{n}")) for n, pod in enumerate(waiting)]
    coming = st.builds(placing, st.sampled_from(like_them), st.sampled_from(there), times)
    return draw(st.lists(st.one_of(events, coming, coming), min_size=3, max_size=8))


def named(pod: Pod, uid: str) -> ObjectMeta:
    return msgspec.structs.replace(pod.metadata, name=uid, uid=uid)


@pytest.mark.parametrize("profile", [default_profile, every_score, of_1_18])
def test_random_clusters_have_nodes_that_are_scored(profile):
    """Else equal results would say nothing about cached scores."""

    def is_scored(drawn: tuple) -> bool:
        history, pod = drawn
        return len(rank(pod, replayed(history), profile(), attempt=first_attempt(pod)).candidates) > 1

    first = settings(phases=[Phase.generate], max_examples=500, database=None)  # the smallest one takes minutes
    find(st.tuples(histories(), pods), is_scored, settings=first)


@pytest.mark.parametrize("profile", PROFILES)
@settings(max_examples=often(5))
@given(begun=histories(), waiting=st.lists(pods, min_size=3, max_size=3), data=st.data())
def test_cached_results_equal_new_ones(profile, begun, waiting, data):
    """Profile and Snapshot have caches: the expected results come from new ones."""
    cached, followed, past = profile(), replayed(begun), list(begun)
    for event in data.draw(steps(waiting, followed.node_names() or NODE_NAMES)):
        event(followed)
        past.append(event)
        fresh = replayed(past)
        for pod in waiting:
            attempt = first_attempt(pod)
            with_cache = rank(pod, followed, cached, attempt=attempt)
            assert with_cache == rank(pod, fresh, profile(), attempt=attempt)


class AsMirrored(Snapshot):
    """Has pods on nodes, and nominated ones, in the form in which the mirror has large ones."""

    def place(self, pod: Pod, node: str, *, bound_at: float | None = None) -> None:
        super().place(as_placed(pod), node, bound_at=bound_at)

    def nominate(self, pod: Pod, node: str) -> None:
        super().nominate(as_placed(pod), node)


@pytest.mark.parametrize("profile", PROFILES)
@settings(max_examples=often(8))
@given(history=histories(), waiting=st.lists(pods, min_size=3, max_size=3))
def test_no_plugin_reads_of_a_placed_pod_what_its_form_in_the_mirror_lacks(profile, history, waiting):
    whole, mirrored = replayed(history), AsMirrored()
    for event in history:
        event(mirrored)
    for pod in waiting:
        rankings = [rank(pod, each, profile(), attempt=first_attempt(pod)) for each in (whole, mirrored)]
        assert rankings[0] == rankings[1]


@pytest.mark.parametrize("seed", range(often(1)))
@pytest.mark.parametrize("profile", [default_profile, of_1_18, twice_as_heavy])
def test_scores_follow_the_pods_of_single_nodes(profile, seed):
    """Pods of three classes come to roomy nodes one by one and leave them, so that nearly all scores are old ones."""
    random, cached, followed, placed = Random(seed), profile(), Snapshot(), []
    names = [f"n{number}" for number in range(20)]
    for number, name in enumerate(names):
        followed.set_node(a_node(name, cpu=str(2 + number % 3 * 2), labels={"zone": f"z{number % 3}"}))
    for number in range(60):
        pod = pod_requesting(f"p{number}", cpu=random.choice(["300m", "500m", "1"]), memory="1Gi")
        attempt = first_attempt(pod)
        found = rank(pod, followed, cached, attempt=attempt, options=RankOptions(best=8))
        again = Snapshot()
        for name in names:
            again.set_node(followed.node_at(followed.rows.of(name)))
        for each, node in placed:
            again.place(each, node)
        assert found == rank(pod, again, profile(), attempt=attempt, options=RankOptions(best=8)), number
        placed.append((pod, found.candidates[0].node))
        followed.place(*placed[-1])
        if number % 7 == 6:
            followed.remove_pod(placed.pop(random.randrange(len(placed)))[0].uid)
        if number % 20 == 19:
            name = random.choice(names)
            followed.set_node(a_node(name, cpu="8", labels={"zone": "z0", "disk": "ssd"}))


@given(snapshot=snapshots(), pod=pods)
def test_a_node_is_a_candidate_when_its_check_succeeds(snapshot, pod):
    profile = default_profile()
    snapshot.remove_pod(pod.uid)
    ranking = rank(pod, snapshot, profile, attempt=first_attempt(pod), options=RankOptions(best=100))
    passing = {name for name in snapshot.node_names() if check(pod, name, snapshot, profile).is_success}
    assert {candidate.node for candidate in ranking.candidates} == passing


class Counting(FilterPlugin):
    name = "Counting"
    reads = Reads.NODE

    def __init__(self) -> None:
        self.evaluated: list[str] = []

    def filter(self, state, pod, node):
        self.evaluated.append(node.name)
        return SUCCESS


def test_only_changed_nodes_are_evaluated_again():
    plugin, snapshot = Counting(), Snapshot()
    profile = profile_of(plugin)
    for i in range(4):
        snapshot.set_node(a_node(f"n{i}"))
    for number in range(3):
        rank(pod_requesting(f"p{number}"), snapshot, profile, attempt=first_attempt(pod_requesting()))
    snapshot.set_node(a_node("n2", labels={"disk": "ssd"}))
    snapshot.place(pod_requesting("placed"), "n3")
    rank(pod_requesting("last"), snapshot, profile, attempt=first_attempt(pod_requesting()))
    assert plugin.evaluated == ["n0", "n1", "n2", "n3", "n2"]


class ByFreePlaces(VectorScorePlugin, KeyedPlugin):
    """Scores by the places that pods have left, with a head start for n0."""

    name = "ByFreePlaces"
    reads = Reads.NODE | Reads.PODS
    counts_others = True

    def __init__(self) -> None:
        self.scored: list[str] = []  # the rows that were scored one by one, without others
        self.foreseen = 0  # how often the scores of one row were computed ahead

    def pod_key(self, pod):
        return (pod.metadata.labels or {}).get("tier")

    def score(self, state, pod, node):
        if not node.others:
            self.scored.append(node.name)
        return int(80 * (node.name == "n0") + (node.allowed_pods + 10 - node.pods) // 6)

    def score_all(self, state, pod, nodes):
        self.foreseen += nodes.size > len(set(nodes.names))
        return (80 * nodes.named("n0") + (nodes.allowed_pods + 10 - nodes.pods) // 6).astype(np.int64)


def busy_node(plugin: ByFreePlaces | None = None) -> tuple[ByFreePlaces, Profile, Snapshot]:
    """n0 is the best for many pods, some of which it has."""
    plugin, snapshot = plugin or ByFreePlaces(), Snapshot()
    for number in range(40):
        snapshot.set_node(a_node(f"n{number}", cpu="30", memory="90Gi"))
    profile = profile_of(plugin)
    come(profile, snapshot, 4)
    plugin.scored.clear()
    return plugin, profile, snapshot


def coming(name: str, cpu: str = "100m", tier: str = "") -> Pod:
    return a_pod(name, cpu=cpu, labels={"tier": tier})


def come(profile: Profile, snapshot: Snapshot, count: int, cpu: str = "100m", tier: str = "") -> None:
    """Pods that are ranked as without a cache, and placed on the best node, which is n0."""
    for number in range(count):
        pod = coming(f"{snapshot.version}-{number}", cpu, tier)
        assert compared(pod, profile, snapshot).candidates[0].node == "n0"
        snapshot.place(pod, "n0")


def compared(pod: Pod, profile: Profile, snapshot: Snapshot) -> Ranking:
    """The ranking, which equals one without a cache."""
    kept, new = (rank(pod, each, profile, attempt=first_attempt(pod)) for each in (snapshot, snapshot.copied()))
    assert kept == new
    return kept


def test_scores_are_foreseen_on_a_node_that_keeps_getting_pods_of_a_class():
    plugin, profile, snapshot = busy_node()
    come(profile, snapshot, 15)
    assert not plugin.scored
    come(profile, snapshot, 30)  # and again, once those that were foreseen are used up
    assert len(plugin.scored) == 1


OTHERWISE = [
    pytest.param(lambda snapshot: snapshot.place(pod_requesting("o", cpu="1"), "n0"), id="a pod of another class"),
    pytest.param(lambda snapshot: snapshot.remove_pod(snapshot.newest_on_row(0, 1)[0].pod.uid), id="a pod leaves"),
    pytest.param(lambda snapshot: snapshot.set_node(a_node("n0", cpu="30", pods="90")), id="the node changes"),
    pytest.param(
        lambda snapshot: [snapshot.place(pod_requesting(f"o{n}", cpu="100m"), "n0") for n in range(90)], id="many come"
    ),
    pytest.param(
        lambda snapshot: snapshot.place(pod_requesting("o", cpu="100m"), "n0"), id="a pod of the class with another key"
    ),
]


@pytest.mark.parametrize("happen", OTHERWISE)
def test_what_was_foreseen_ends_when_anything_else_changes_the_node(happen):
    plugin, profile, snapshot = busy_node()
    come(profile, snapshot, 3)
    compared(coming("last"), profile, snapshot)
    assert not plugin.scored
    happen(snapshot)
    come(profile, snapshot, 1)
    assert plugin.scored == ["n0"]
    come(profile, snapshot, 2)


class CountingTwice:
    """What one more pod costs is twice of what it will have cost."""

    def score(self, state, pod, node):
        return super().score(state, pod, node) - node.others

    def score_all(self, state, pod, nodes):
        return super().score_all(state, pod, nodes) - np.int64(nodes.others)


class CountingOthersTwice(CountingTwice, ByFreePlaces):
    """What its last base says of scores is not about these."""


class AlsoInTurn(CountingOthersTwice):
    def score(self, state, pod, node):
        return super().score(state, pod, node)


class Normalizing(CountingOthersTwice, NormalizePlugin):
    counts_others = True

    def normalize(self, state, pod, scores, nodes):
        return scores


@pytest.mark.parametrize("plugin", [CountingOthersTwice(), AlsoInTurn(), Normalizing()], ids=type)
def test_nothing_is_foreseen_by_a_plugin_that_may_count_others_in_another_way(plugin):
    _, profile, snapshot = busy_node(plugin)
    come(profile, snapshot, 12)


def test_pods_without_requests_come_to_nodes_that_are_full_for_scores():
    snapshot, profile = Snapshot(), default_profile()
    for name in ("n0", "n1"):
        snapshot.set_node(a_node(name, cpu="1", memory="1Gi"))
    for number in range(30):
        pod = a_pod(f"p{number}")
        snapshot.place(pod, compared(pod, profile, snapshot).candidates[0].node)


class ByLiveWeight(ByFreePlaces, LivePlugin):
    """The same with a number that changes beside the pods."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.changes = 1, []  # of n0; the rows that it moved, None for all

    def row_changes(self, snapshot, since):
        rows = self.changes[max(since, 0) :]
        return RowChanges(len(self.changes), None if since < 0 or None in rows else rows)

    def score(self, state, pod, node):
        return super().score(state, pod, node) // (self.weight if node.name == "n0" else 1)

    def score_all(self, state, pod, nodes):
        return super().score_all(state, pod, nodes) // np.where(nodes.named("n0"), self.weight, 1)


@pytest.mark.parametrize("rows", [[0], [None], np.array([0])], ids=["of the row", "of all rows", "as an array"])
@pytest.mark.parametrize("comes", [True, False], ids=["with a pod", "before a pod"])
def test_what_was_foreseen_ends_when_live_data_change(rows, comes):
    plugin, profile, snapshot = busy_node(ByLiveWeight())
    come(profile, snapshot, 4)
    compared(coming("last"), profile, snapshot)
    plugin.weight, plugin.changes = 4, rows
    if comes:
        snapshot.place(pod_requesting("o", cpu="100m"), "n0")
    come(profile, snapshot, 3)


def test_a_score_out_of_range_is_a_failure_once_its_pod_has_come():
    plugin = ByFreePlaces()
    plugin.score_all = lambda _state, _pod, nodes: (95 + nodes.pods).astype(np.int64)
    plugin.score = lambda _state, _pod, node: 95 + node.pods
    snapshot = Snapshot()
    for name in ("n0", "n1"):
        snapshot.set_node(a_node(name, cpu="30", memory="90Gi"))
    profile, pod = profile_of(plugin), pod_requesting(cpu="100m")
    for number in range(6):
        assert not rank(pod, snapshot, profile, attempt=first_attempt(pod)).error
        snapshot.place(pod_requesting(f"p{number}", cpu="100m"), "n0")
    assert "invalid score 101" in rank(pod, snapshot, profile, attempt=first_attempt(pod)).error


def test_the_time_of_a_binding_ends_nothing_that_was_foreseen():
    plugin, profile, snapshot = busy_node()
    for number in range(5):
        come(profile, snapshot, 1)
        (newest,) = snapshot.newest_on_row(0, 1)
        snapshot.place(newest.pod, "n0", bound_at=float(number))
    assert not plugin.scored


class Failing(ByFreePlaces):
    """Another plugin, which fails to score single nodes while ``fails``."""

    name = "Failing"
    counts_others = True
    fails = False

    def score(self, state, pod, node):
        if self.fails:
            raise ValueError(node.name)
        return 1

    def score_all(self, state, pod, nodes):
        return np.ones(len(nodes), dtype=np.int64)


def test_pods_that_came_are_not_counted_twice_after_a_failure():
    plugin, failing = ByFreePlaces(), Failing()
    profile, snapshot = profile_of(plugin, failing), busy_node()[2]
    come(profile, snapshot, 3)
    plugin.scored.clear()
    snapshot.place(coming("o"), "n0")
    snapshot.place(coming("p"), "n1")  # scored once what is foreseen of n0 is written
    failing.fails, pod = True, coming("q")
    assert "Failing" in rank(pod, snapshot, profile, attempt=first_attempt(pod)).error
    failing.fails = False
    come(profile, snapshot, 12)
    assert "n0" not in plugin.scored


def test_a_plugin_that_fails_for_pods_that_are_still_to_come_fails_no_other():
    plugin = ByFreePlaces()

    def score_all(_state, _pod, nodes):
        if (nodes.pods > 12).any():
            raise ValueError
        return ByFreePlaces.score_all(plugin, _state, _pod, nodes)

    plugin.score_all = score_all
    _, profile, snapshot = busy_node(plugin)
    come(profile, snapshot, 4)


def test_a_placed_pod_without_a_key_ends_what_was_foreseen_and_fails_no_other():
    plugin, profile, snapshot = busy_node()
    plugin.pod_key = lambda pod: pod.metadata.labels["tier"]
    come(profile, snapshot, 3)
    snapshot.place(pod_requesting("o", cpu="100m"), "n0")
    come(profile, snapshot, 3)


def test_pods_of_two_classes_in_turn_foresee_nothing_wrong():
    plugin, profile, snapshot = busy_node()
    for _ in range(6):
        come(profile, snapshot, 3, cpu="200m")
        come(profile, snapshot, 3)
        come(profile, snapshot, 3, tier="web")
    assert plugin.foreseen > 6


def test_a_node_that_pods_of_other_classes_share_is_not_foreseen_again_and_again():
    plugin, profile, snapshot = busy_node()
    come(profile, snapshot, 3, cpu="200m")
    before = plugin.foreseen
    for _ in range(9):
        come(profile, snapshot, 2)
        come(profile, snapshot, 2, cpu="200m")
    assert plugin.foreseen == before


def test_the_number_of_rows_that_are_foreseen_is_bounded(monkeypatch: pytest.MonkeyPatch):
    plugin, profile, snapshot = busy_node()
    monkeypatch.setattr("berth.framework.equivalencecache._MOST_FORESEEN", 0)
    come(profile, snapshot, 30)
    assert len(plugin.scored) > 3  # each row is forgotten at once


class NormalizedCounting(NormalizePlugin):
    name = "NormalizedCounting"
    reads = Reads.NODE

    def __init__(self) -> None:
        self.normalized = 0

    def score(self, state, pod, node):
        return node.row

    def normalize(self, state, pod, scores, nodes):
        self.normalized += 1
        return scores


def test_scores_are_normalized_again_when_nodes_have_changed_and_not_for_a_placed_pod():
    plugin, snapshot = NormalizedCounting(), Snapshot()
    profile = profile_of(plugin)
    for number in range(4):
        snapshot.set_node(a_node(f"n{number}"))
    for number in range(3):
        pod = pod_requesting(f"p{number}")
        best = rank(pod, snapshot, profile, attempt=first_attempt(pod)).candidates[0]
        snapshot.place(pod, best.node)
    assert plugin.normalized == 1
    snapshot.set_node(a_node("n4"))
    rank(pod_requesting("last"), snapshot, profile, attempt=first_attempt(pod_requesting()))
    assert plugin.normalized == 2


def test_a_plugin_that_reads_more_than_its_row_is_never_cached():
    plugin, snapshot = Counting(), Snapshot()
    plugin.reads = Reads.ANYTHING
    profile = profile_of(plugin)
    snapshot.set_node(a_node("n0"))
    for number in range(3):
        rank(pod_requesting(f"p{number}"), snapshot, profile, attempt=first_attempt(pod_requesting()))
    assert plugin.evaluated == ["n0"] * 3


class ByTier(KeyedPlugin, ScorePlugin):
    """Scores by a label of the pod."""

    name = "ByTier"
    reads = Reads.NODE

    def __init__(self) -> None:
        self.scored: list[str] = []

    def pod_key(self, pod):
        return (pod.metadata.labels or {}).get("tier", [])

    def score(self, state, pod, node):
        self.scored.append(pod.metadata.name)
        return 100 if pod.metadata.labels["tier"] == node.name else 0


def in_tier(name: str, tier: str) -> Pod:
    pod = pod_requesting(name)
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, labels={"tier": tier}))


def test_pods_with_an_equal_spec_and_other_keys_share_no_answer():
    plugin, snapshot = ByTier(), Snapshot()
    profile = profile_of(plugin)
    for name in ("n0", "n1"):
        snapshot.set_node(a_node(name))

    def best(name: str, tier: str) -> str:
        pod = in_tier(name, tier)
        return rank(pod, snapshot, profile, attempt=first_attempt(pod)).candidates[0].node

    assert [best("a", "n0"), best("b", "n1"), best("c", "n0"), best("d", "n1")] == ["n0", "n1", "n0", "n1"]
    assert plugin.scored == ["a", "a", "b", "b"]


def test_a_key_without_a_hash_is_a_failure_of_its_plugin():
    snapshot, pod = Snapshot(), pod_requesting()
    snapshot.set_node(a_node("n0"))
    error = rank(pod, snapshot, profile_of(ByTier()), attempt=first_attempt(pod)).error
    assert error.startswith('running PodKey plugin "ByTier": TypeError')


def test_the_number_of_cached_classes_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("berth.framework.equivalencecache._MAX_BYTES", 10_000)
    profile, snapshot = default_profile(), Snapshot()
    snapshot.set_node(a_node("n0"))
    cache = EquivalenceCache.of(snapshot, profile)
    for milli in range(1, 40):
        rank(pod_requesting(cpu=f"{milli}m"), snapshot, profile, attempt=first_attempt(pod_requesting()))
    assert len(cache) == cache.bound < 39


def test_the_specs_of_cached_classes_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("berth.framework.equivalencecache._MAX_SPEC_BYTES", 10_000)
    snapshot = Snapshot()
    snapshot.set_node(a_node("n1"))
    cache = EquivalenceCache.of(snapshot, default_profile())

    for number in range(20):
        cache.results_of(pod_requesting(**{f"example.com/{number}-{'x' * 2000}": "1"}))

    assert len(cache) == 4
    cache.results_of(pod_requesting(**{f"example.com/{'x' * 20_000}": "1"}))
    assert len(cache) == 1  # the newest is kept in any case


def test_everything_is_evaluated_again_when_the_log_is_too_short():
    plugin, snapshot = Counting(), Snapshot()
    profile = profile_of(plugin)
    snapshot.set_node(a_node("n0"))
    rank(pod_requesting("first"), snapshot, profile, attempt=first_attempt(pod_requesting()))
    for number in range(9000):
        snapshot.place(pod_requesting(str(number)), "n0")
    assert snapshot.changed_since(1) is None
    rank(pod_requesting("last"), snapshot, profile, attempt=first_attempt(pod_requesting()))
    assert plugin.evaluated == ["n0"] * 2


def test_an_image_on_one_more_node_changes_scores_where_it_was():
    """ImageLocality depends on how many nodes have an image: nodes that did not change are scored again."""
    snapshot, profile, pod = Snapshot(), default_profile(), a_pod(containers=[Container(name="c", image="app:v1")])
    image = ContainerImage(names=["app:v1"], size_bytes=500 << 20)
    has_it = NodeStatus(allocatable=ROOM, images=[image])
    snapshot.set_node(msgspec.structs.replace(a_node("n0"), status=has_it))
    snapshot.set_node(a_node("n1"))

    def points_of_n0() -> int:
        candidates = rank(pod, snapshot, profile, attempt=first_attempt(pod)).candidates
        return next(each.scores["ImageLocality"] for each in candidates if each.node == "n0")

    # 500 MiB on 1 of 2 nodes: (250 - 23) * 100 // (1000 - 23) = 23; on 2 of 2: (500 - 23) * 100 // 977 = 48
    assert points_of_n0() == 23
    snapshot.set_node(msgspec.structs.replace(a_node("n1"), status=has_it))
    assert points_of_n0() == 48


def test_an_unused_snapshot_is_freed():
    """Each reconnect makes a new Snapshot: a profile must not keep the old one."""
    profile = profiles_of(read_configuration(None))["berth"]
    pod = Pod(metadata=ObjectMeta(name="web", namespace="default", uid="u"))
    attempt = Attempt(uid=Uid("u"), term=Term(1), n=1)
    first, second = Snapshot(), Snapshot()
    rank(pod, first, profile, attempt=attempt)
    forgotten = weakref.ref(first)
    rank(pod, second, profile, attempt=attempt)
    del first
    gc.collect()
    assert forgotten() is None


class ByLiveData(LivePlugin, FilterPlugin):
    """Scores by numbers that come from outside, and rejects nodes without one."""

    name = "ByLiveData"
    reads = Reads.PODS

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.changes: list[int | None] = []  # rows, or None for all

    def row_changes(self, snapshot, since):
        rows = self.changes[max(since, 0) :]
        return RowChanges(len(self.changes), None if since < 0 or None in rows else rows)

    def filter(self, state, pod, node):
        return SUCCESS if node.name in self.numbers else Status.unschedulable("no number")

    def score(self, state, pod, node):
        return self.numbers.get(node.name, 0) // (1 + node.others)


def test_rows_are_evaluated_again_when_live_data_is_reported_to_have_changed_them():
    plugin, snapshot = ByLiveData(), Snapshot()
    profile, pod = profile_of(plugin), pod_requesting()
    for number in range(3):
        snapshot.set_node(a_node(f"n{number}"))

    def found() -> dict[str, tuple[int, float]]:
        ranking = rank(pod, snapshot, profile, attempt=first_attempt(pod))
        return {each.node: (each.total, each.loss) for each in ranking.candidates}

    plugin.numbers = {"n0": 10, "n1": 20}
    assert found() == {"n0": (10, 2.0), "n1": (20, 4.0)}  # of 4 pods beside, 8 and 16 points
    plugin.numbers |= {"n1": 40, "n2": 30}
    assert found() == {"n0": (10, 2.0), "n1": (20, 4.0)}
    plugin.changes.append(snapshot.rows.of("n1"))
    assert found() == {"n0": (10, 2.0), "n1": (40, 8.0)}
    plugin.numbers["n0"] = 20
    plugin.changes.append(None)
    assert found() == {"n0": (20, 4.0), "n1": (40, 8.0), "n2": (30, 6.0)}


class OfNodes(ByLiveData):
    """The same without a look at pods."""

    reads = Reads.NODE


def test_live_data_change_a_node_to_which_a_pod_has_come_too():
    plugin, snapshot = OfNodes(), Snapshot()
    profile, pod = profile_of(plugin), pod_requesting()
    for number in range(3):
        snapshot.set_node(a_node(f"n{number}"))
    plugin.numbers = dict.fromkeys(("n0", "n1", "n2"), 10)
    rank(pod, snapshot, profile, attempt=first_attempt(pod))
    plugin.numbers, plugin.changes = {"n1": 40, "n2": 10}, [0, 1]
    for number in range(2):
        snapshot.place(pod_requesting(f"p{number}"), f"n{number}")
    compared(pod, profile, snapshot)
