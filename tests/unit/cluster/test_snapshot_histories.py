"""A Snapshot that applied events equals one built from the final state, whatever the order of events."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth.api.kinds import PLUGIN_KINDS
from berth.api.meta import ObjectMeta
from berth.api.selectors import MATCHES_NOTHING, AffinityTerm, AffinityTermKind, LabelMatcher, PodSelector, Requirement
from berth.api.workloads import Namespace
from berth.cluster.columns import EVERY_ADDRESS, AmountColumns, HostPort
from berth.cluster.nodes import node_info
from berth.cluster.placedpods import PlacedPods
from berth.cluster.snapshot import Snapshot
from berth.cluster.topologycounts import PodsMatching, PodsWithTerm
from berth.messages.livedata import NodeSample
from berth.plugins.networktraffic import TrafficEstimates
from harness.builders.objects import a_node, pod_requesting
from harness.builders.random_clusters import QUERY, SOURCE, events, nodes, pods, snapshots
from harness.plugins.long_runs import often

pytestmark = pytest.mark.timeout(600)  # hypothesis shrinks a failure before it reports it
LABELS = ("zone", "disk")
IMAGES = ("app", "app:latest", "reg:5000/db", "reg:5000/db:latest", "db:v2")
PORTS = (HostPort("TCP", 80, "10.0.0.1"), HostPort("TCP", 443, EVERY_ADDRESS))
TIER_1 = LabelMatcher((Requirement("tier", "In", frozenset({"1", "a"})),))
HERE = PodSelector(frozenset({"default"}), MATCHES_NOTHING, TIER_1)
KINDS = (
    PodsMatching((HERE,)),
    PodsMatching((HERE,), living=True),
    PodsMatching((PodSelector(frozenset(), TIER_1, LabelMatcher(())),)),
    PodsWithTerm(AffinityTermKind.REQUIRED_ANTI_AFFINITY, AffinityTerm(HERE, "zone")),
)


@settings(max_examples=often(20))
@given(st.lists(events, max_size=15), st.lists(events, min_size=1, max_size=10), st.lists(events, max_size=10))
def test_a_copy_changes_apart(history, of_the_copy, of_the_original):
    original = Snapshot()
    for key in LABELS:
        original.label_column(key)
    for event in history:
        event(original)
    copy, expected = original.copied(), Snapshot()
    assert picture(copy) == picture(original)
    for event in (*history, *of_the_copy):
        event(expected)
    for event in of_the_copy:
        picture(copy)
        event(copy)
    before = picture(copy)
    assert before == picture(expected)
    for event in of_the_original:
        event(original)
    assert picture(copy) == before
    assert picture(original) == picture(rebuilt(original))


@settings(max_examples=often(20))
@given(st.just([]) | st.builds(lambda snapshot: [snapshot], snapshots()), st.lists(events, min_size=5, max_size=20))
def test_any_history_ends_where_a_fresh_start_would(begun, history):
    followed = begun[0] if begun else Snapshot()
    for key in LABELS:
        followed.label_column(key)  # made early, so that every event must update it
    for event in history:
        picture(followed)  # the same for all other data that events update
        event(followed)
    assert picture(followed) == picture(rebuilt(followed))


@given(
    st.lists(nodes, max_size=4), st.lists(st.tuples(pods, st.sampled_from(["n0", "n1", "n2"])), max_size=6), st.data()
)
def test_pods_before_their_nodes_count_the_same(there, placed, data):
    last_node = {node.metadata.name: node for node in there}
    last_place = {pod.uid: (pod, name) for pod, name in placed}
    steps = [lambda s, n=n: s.set_node(n) for n in last_node.values()]
    steps += [lambda s, p=p, n=n: s.place(p, n) for p, n in last_place.values()]
    one, other = Snapshot(), Snapshot()
    for step in steps:
        step(one)
    for step in data.draw(st.permutations(steps)):
        step(other)
    assert picture(one) == picture(other)


@given(st.lists(events, max_size=15), st.lists(st.tuples(pods, st.sampled_from(["n0", "n9"])), max_size=3), st.data())
def test_a_supposition_leaves_no_trace(history, supposed, data):
    snapshot = Snapshot()
    for event in history:
        event(snapshot)
    before = picture(snapshot)
    removed = data.draw(st.lists(st.sampled_from([f"u{i}" for i in range(8)]), unique=True, max_size=3))
    with snapshot.supposing(placed=supposed, removed=removed):
        for pod, node in supposed:
            assert snapshot.node_of(pod.uid) in {name for other, name in supposed if other.uid == pod.uid} | {node}
    assert picture(snapshot) == before
    assert snapshot.rows.of("n9") is None


@given(st.lists(events, min_size=1, max_size=20), st.integers(0, 20))
def test_every_row_that_differs_is_returned_as_changed(history, cut):
    snapshot = Snapshot()
    for event in history[:cut]:
        event(snapshot)
    version, before = snapshot.version, rows_of(snapshot)
    for event in history[cut:]:
        event(snapshot)
    changed = snapshot.changed_since(version)
    reported = changed.nodes | changed.pods
    assert {row for row, now in rows_of(snapshot).items() if now != before.get(row)} <= reported


def rebuilt(followed: Snapshot) -> Snapshot:
    fresh = Snapshot()
    for name in ("default", "other"):
        fresh.set_namespace(Namespace(metadata=ObjectMeta(name=name, labels=dict(followed.labels_of_namespace(name)))))
    for name in reversed(followed.node_names()):
        fresh.set_node(node_info(followed, name).node)
    for row, name in enumerate(followed.rows.names):
        for placed in followed.placed_on_row(row):
            fresh.place(placed.pod, name, bound_at=placed.bound_at)
    for nominated in followed.nominations():
        fresh.nominate(nominated.pod, nominated.node)
    copy_objects(followed, fresh)
    copy_live_data(followed, fresh)
    return fresh


def copy_objects(followed: Snapshot, fresh: Snapshot) -> None:
    for kind in PLUGIN_KINDS.values():
        for namespace in ("", "default", "other"):
            for thing in followed.objects(kind.struct).in_namespace(namespace):
                fresh.objects(kind.struct).set(f"{namespace}/{thing.metadata.name}", thing)


def copy_live_data(followed: Snapshot, fresh: Snapshot) -> None:
    for node, sample in followed.live.samples(QUERY.token).samples().items():
        fresh.live.set_sample(QUERY.token, node, sample)
    for node, fact in followed.live.facts(SOURCE).items():
        fresh.live.set_fact(SOURCE, node, fact, stored_at=followed.live.now)
    fresh.live.observe_time(followed.live.now)


def rows_of(snapshot: Snapshot) -> dict[int, object]:
    columns = snapshot.columns
    return {
        row: (
            name,
            bool(columns.exists[row]),
            columns.pods[row],
            columns.allowed_pods[row],
            columns.nonzero_cpu[row],
            columns.nonzero_memory[row],
            bool(columns.unschedulable[row]),
            columns.taint_sets.values[columns.taints[row]],
            amounts(columns.allocatable, row),
            amounts(columns.requested, row),
            {key: label(snapshot, key, row) for key in LABELS},
            {name: snapshot.images.size_on(name, row) for name in IMAGES},
            {name: int(snapshot.images.sizes(name, columns.capacity)[row]) for name in IMAGES},
            [snapshot.host_ports.are_free([port], row) for port in PORTS],
            {(group.key, group.counts[row]) for group in snapshot.groups.all() if row in group.counts},
        )
        for row, name in enumerate(snapshot.rows.names)
        if name
    }


def picture(snapshot: Snapshot) -> dict[str, object]:
    """Everything that plugins can read, by the node's name, and what is not about one node."""
    tallies = [snapshot.groups.count_pods(kind).counts for kind in KINDS]
    by_node = {
        snapshot.rows.names[row]: (shown, [int(counts[row]) for counts in tallies], live_on(snapshot, row))
        for row, shown in rows_of(snapshot).items()
    }
    return {"nodes": by_node, **elsewhere(snapshot)}


def live_on(snapshot: Snapshot, row: int) -> object:
    """The live data and estimates of rows with a node."""
    if not snapshot.columns.exists[row]:
        return None
    known = snapshot.live.samples(QUERY.token)
    pods = snapshot.derived(PlacedPods, lambda: PlacedPods(snapshot))
    pods.refresh()
    times = sorted(pods.since[pods.rows == row].tolist())
    estimates = snapshot.derived(
        QUERY, lambda: TrafficEstimates(snapshot, known, range_seconds=300, amount=lambda _: 1)
    )
    columns = (known.receive, known.transmit, known.capacity, known.sampled_at, estimates.column())
    return [str(column[row]) for column in columns], times, snapshot.live.fact(SOURCE, snapshot.rows.names[row])


def elsewhere(snapshot: Snapshot) -> dict[str, object]:
    kinds = PLUGIN_KINDS.values()
    return {
        "placed": {
            placed.pod.uid: (name, placed.pod.metadata, placed.pod.spec.volumes, placed.bound_at)
            for row, name in enumerate(snapshot.rows.names)
            for placed in snapshot.placed_on_row(row)
        },
        "objects": {
            (kind.kind, namespace, thing.metadata.name): thing
            for kind in kinds
            for namespace in ("", "default", "other")
            for thing in snapshot.objects(kind.struct).in_namespace(namespace)
        },
        "number of objects": {kind.kind: len(snapshot.objects(kind.struct)) for kind in kinds},
        "nodes with an image": {name: snapshot.images.nodes_with(name) for name in IMAGES},
        "nominated": {one.pod.uid: (one.pod, one.node) for one in snapshot.nominations()},
        "nominated to a node": {
            name: {one.pod.uid for one in snapshot.nominations_to(name)} for name in snapshot.nominated_nodes
        },
        "terms": {
            (point, tier): set(snapshot.groups.terms_matching(point, "default", (("tier", tier),)))
            for point in AffinityTermKind
            for tier in ("1", "a", "b")
        },
    }


def amounts(columns: AmountColumns, row: int) -> dict[str, tuple[float, float]]:
    """In the one row, and in the column of all rows."""
    found = {name: (columns.item(name, row), float(columns.of(name)[row])) for name in columns}
    return {name: both for name, both in found.items() if any(both)}


def label(snapshot: Snapshot, key: str, row: int) -> str | None:
    column = snapshot.label_column(key)
    code = column.codes[row]
    return None if code < 0 else column.values[code]


def test_amounts_beyond_exact_floats_leave_no_trace():
    """2**60 + 1 is no float64: adding and subtracting one by one would leave a remainder."""
    snapshot, small, huge = Snapshot(), pod_requesting("small", memory="1"), pod_requesting("huge", memory=str(2**60))
    snapshot.set_node(a_node("n0"))
    snapshot.place(small, "n0")
    snapshot.place(huge, "n0")
    snapshot.remove_pod(huge.uid)
    assert node_info(snapshot, "n0").requested("memory") == 1
    assert node_info(snapshot, "n0").nonzero_memory == 1


def test_a_proposed_pod_counts_with_its_new_time_once_bound():
    """A proposed pod is bound: it stays on its node, and its share that the average lacks shrinks."""
    snapshot, pod = Snapshot(), pod_requesting("web")
    snapshot.set_node(a_node("n0"))
    sampled_at = datetime(2026, 1, 1, 0, 5, tzinfo=UTC)
    snapshot.live.set_sample("q", "n0", NodeSample(receive=1.0, sampled_at=sampled_at))
    estimates = TrafficEstimates(snapshot, snapshot.live.samples("q"), range_seconds=300, amount=lambda _: 1)
    snapshot.place(pod, "n0")
    assert estimates.column()[0] == 1
    snapshot.place(pod, "n0", bound_at=sampled_at.timestamp() - 240)
    assert estimates.column()[0] == pytest.approx(0.2)


def test_a_removed_namespace_removes_its_labels_from_every_count():
    snapshot, by_namespace = Snapshot(), KINDS[2]
    snapshot.set_namespace(Namespace(metadata=ObjectMeta(name="default", labels={"tier": "1"})))
    snapshot.set_node(a_node("n0"))
    snapshot.place(pod_requesting("web"), "n0")
    assert snapshot.groups.count_pods(by_namespace).counts[0] == 1
    snapshot.remove_namespace("default")
    assert snapshot.groups.count_pods(by_namespace).counts[0] == 0
