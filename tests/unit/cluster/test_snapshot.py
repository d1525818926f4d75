"""The state of a cluster, event by event."""

import gc
import tracemalloc
from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from berth.api.meta import ObjectMeta
from berth.api.node import Node, NodeStatus, Taint
from berth.api.pod import Affinity, PodAffinity, PodAffinityTerm, Volume
from berth.api.workloads import Namespace
from berth.cluster.columns import ABSENT
from berth.cluster.nodes import Nodes, node_info
from berth.cluster.snapshot import Snapshot
from harness.builders.objects import a_container, a_node, a_pod, pod_requesting


@pytest.fixture
def snapshot() -> Snapshot:
    snapshot = Snapshot()
    snapshot.set_node(a_node("n0", labels={"zone": "a"}))
    return snapshot


def used(snapshot: Snapshot, node: str = "n0") -> tuple[int, int, int]:
    info = node_info(snapshot, node)
    return info.pods, info.requested("cpu"), info.nonzero_memory


def test_a_node_is_read_in_millicores_and_bytes(snapshot):
    info = node_info(snapshot, "n0")
    assert (info.allocatable("cpu"), info.allocatable("memory"), info.allowed_pods) == (4000, 8 * 1024**3, 110)
    assert (info.allocatable("example.com/gpu"), info.labels, info.name) == (0, {"zone": "a"}, "n0")


def test_a_recreated_node_counts_as_changed_even_if_it_looks_the_same(snapshot):
    old, new = (ObjectMeta(name="n0", creation_timestamp=f"2026-01-0{day}T00:00:00Z") for day in (1, 2))
    snapshot.set_node(Node(metadata=old))
    version = snapshot.version
    snapshot.set_node(Node(metadata=new))
    assert snapshot.changed_since(version).nodes == {0}


def test_a_placed_pod_takes_room_until_it_is_removed(snapshot):
    pod = pod_requesting(cpu="1", memory="1Gi")
    snapshot.place(pod, "n0")
    assert (used(snapshot), snapshot.node_of(pod.uid), snapshot.pods_on("n0")) == ((1, 1000, 1024**3), "n0", 1)
    snapshot.remove_pod(pod.uid)
    assert (used(snapshot), snapshot.node_of(pod.uid), snapshot.pods_on("n0")) == ((0, 0, 0), None, 0)


def test_placing_a_pod_again_counts_once(snapshot):
    for _ in range(3):
        snapshot.place(pod_requesting(cpu="1"), "n0")
    assert used(snapshot)[:2] == (1, 1000)


def test_placing_a_pod_again_changes_no_row(snapshot):
    snapshot.place(pod_requesting(cpu="1"), "n0")
    version = snapshot.version
    snapshot.place(msgspec.structs.replace(pod_requesting(cpu="1")), "n0")
    assert snapshot.version == version


def test_a_pod_leaves_its_earlier_place_first(snapshot):
    snapshot.set_node(a_node("n1"))
    snapshot.place(pod_requesting(cpu="1"), "n0")
    snapshot.place(pod_requesting(cpu="1"), "n1")
    assert (used(snapshot)[:2], used(snapshot, "n1")[:2]) == ((0, 0), (1, 1000))


def test_a_pod_resized_in_place_counts_with_its_new_requests(snapshot):
    snapshot.place(pod_requesting(cpu="2"), "n0")
    snapshot.place(pod_requesting(cpu="1"), "n0")
    assert used(snapshot)[:2] == (1, 1000)


def test_removing_what_is_unknown_does_nothing(snapshot):
    snapshot.remove_pod("unknown")
    snapshot.remove_node("nowhere")
    snapshot.end_nomination("unknown")
    snapshot.remove_namespace("nothing")
    assert snapshot.node_names() == ["n0"]


def test_a_pod_may_be_placed_before_its_node_exists():
    snapshot = Snapshot()
    snapshot.place(pod_requesting(cpu="1"), "later")
    assert (snapshot.has_node("later"), snapshot.node_names(), node_info(snapshot, "later")) == (False, [], None)
    assert snapshot.pods_on("later") == 1
    snapshot.set_node(a_node("later"))
    assert used(snapshot, "later")[:2] == (1, 1000)


def test_a_row_is_reused_once_its_node_and_pods_are_removed(snapshot):
    snapshot.place(pod_requesting("left"), "n0")
    snapshot.remove_node("n0")
    assert snapshot.pods_on("n0") == 1
    snapshot.set_node(a_node("n1"))
    assert (snapshot.rows.of("n0"), snapshot.rows.of("n1")) == (0, 1)
    snapshot.remove_pod("uid-left")
    snapshot.set_node(a_node("n2"))
    assert (snapshot.rows.of("n0"), snapshot.rows.of("n2"), snapshot.size) == (None, 0, 2)


def test_columns_grow_with_the_cluster(snapshot):
    snapshot.label_column("zone")
    for i in range(1, 300):
        snapshot.set_node(a_node(f"n{i}", labels={"zone": f"z{i}"}))
    nodes = Nodes(snapshot)
    codes, column = nodes.label("zone")
    assert [column.values[code] for code in codes.tolist()] == ["a", *(f"z{i}" for i in range(1, 300))]
    assert nodes.allocatable("cpu").tolist() == [4000.0] * 300


def test_all_rows_are_seen_without_a_copy(snapshot):
    nodes = Nodes(snapshot)
    assert np.shares_memory(nodes.allocatable("cpu"), snapshot.columns.allocatable.of("cpu"))
    assert nodes.allocatable("unheard.of/thing").tolist() == [0.0]


def test_an_invalid_quantity_counts_as_0_and_is_in_problems(snapshot):
    odd_node = Node(metadata=ObjectMeta(name="odd"), status=NodeStatus(allocatable={"cpu": "abc", "memory": "1Gi"}))
    snapshot.set_node(odd_node)
    snapshot.place(pod_requesting("odd", cpu="1", memory="-?"), "odd")
    assert used(snapshot, "odd") == (1, 1000, 0)
    assert list(snapshot.problems) == [
        "node odd: status.allocatable.cpu: want a quantity such as 500m or 2Gi, got 'abc'; counted as 0",
        (
            "pod default/odd: spec.containers[0].resources.requests.memory: "
            "want a quantity such as 500m or 2Gi, got '-?'; counted as 0"
        ),
    ]


def test_a_supposition_adds_no_problems(snapshot):
    with snapshot.supposing(placed=[(pod_requesting("odd", cpu="x"), "n0")]):
        assert snapshot.pods_on("n0") == 1
    assert list(snapshot.problems) == []


def test_problems_are_bounded(snapshot):
    for i in range(1000):
        snapshot.place(pod_requesting(str(i), cpu="x"), "n0")
    assert len(snapshot.problems) == 256


def test_a_node_that_only_got_a_new_version_changed_nothing(snapshot):
    version = snapshot.version
    node = a_node("n0", labels={"zone": "a"})
    newer = msgspec.structs.replace(node, metadata=msgspec.structs.replace(node.metadata, resource_version="7"))
    snapshot.set_node(newer)
    assert (snapshot.version, node_info(snapshot, "n0").node) == (version, newer)


def test_changed_rows_are_returned_by_what_changed(snapshot):
    snapshot.set_node(a_node("n1"))
    version = snapshot.version
    snapshot.place(pod_requesting(), "n0")
    snapshot.set_node(a_node("n1", unschedulable=True))
    changed = snapshot.changed_since(version)
    assert (changed.nodes, changed.pods) == ({1}, {0})


def test_pods_that_came_are_counted_on_rows_of_which_none_left(snapshot):
    for name in ("n1", "n2", "n3"):
        snapshot.set_node(a_node(name))
    snapshot.place(a_pod("leaves"), "n1")
    version = snapshot.version
    for name in ("a", "b"):
        snapshot.place(a_pod(name), "n0")
    snapshot.place(a_pod("a"), "n0", bound_at=1.0)  # an update, which moves no sum
    snapshot.place(a_pod("c"), "n1")
    snapshot.remove_pod("uid-leaves")
    snapshot.place(a_pod("d"), "n2")
    snapshot.set_node(a_node("n2", unschedulable=True))
    snapshot.place(a_pod("e"), "n3")
    snapshot.place(pod_requesting("e", cpu="2"), "n3")  # of another class
    assert snapshot.changed_since(version).came == {0: 2}
    version = snapshot.version
    snapshot.place(a_pod("f"), "n1")
    assert snapshot.changed_since(version).came == {1: 1}


def test_labels_that_the_api_server_adds_to_a_bound_pod_change_its_group_and_no_sum(snapshot):
    snapshot.place(a_pod("web", labels={"app": "web"}), "n0")
    before, version = used(snapshot), snapshot.version
    labels = {"app": "web", "topology.kubernetes.io/zone": "a"}
    snapshot.place(a_pod("web", labels=labels, node_name="n0"), "n0", bound_at=7.0)
    changed = snapshot.changed_since(version)
    assert (used(snapshot), changed.pods, changed.pods_updated) == (before, frozenset(), {0})
    assert [(group.labels, group.counts) for group in snapshot.groups.all()] == [(labels, {0: 1})]
    snapshot.remove_pod("uid-web")
    assert (used(snapshot), [*snapshot.groups.all()]) == ((0, 0, 0), [])


def test_equal_specs_share_a_class_whatever_name_labels_volumes_and_node(snapshot):
    token = Volume(name="kube-api-access-x7k2p")
    one = a_pod("one", labels={"a": "1"}, containers=[a_container(cpu="1")], volumes=[token])
    other = a_pod("other", containers=[a_container(cpu="1")])
    assert snapshot.class_of(one) is snapshot.class_of(other)
    assert snapshot.class_of(one) is not snapshot.class_of(pod_requesting(cpu="2"))
    snapshot.place(one, "n0")
    bound = a_pod("bound", containers=[a_container(cpu="1")], node_name="n0")
    snapshot.place(bound, "n0")
    assert snapshot.placed(one.uid).pod_class is snapshot.placed(bound.uid).pod_class


def test_an_unreferenced_class_is_dropped(snapshot):
    for i in range(1000):
        snapshot.place(pod_requesting("same", cpu=f"{i}m"), "n0")
    assert len(snapshot._classes) == 1


def test_pods_are_counted_by_labels_and_row(snapshot):
    snapshot.set_node(a_node("n1"))
    for i, node in enumerate(["n0", "n0", "n1"]):
        snapshot.place(a_pod(f"web-{i}", labels={"app": "web"}), node)
    going = a_pod("going", labels={"app": "web"})
    metadata = msgspec.structs.replace(going.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
    snapshot.place(msgspec.structs.replace(going, metadata=metadata), "n1")
    groups = {group.terminating: group.counts for group in snapshot.groups.in_namespace("default")}
    assert groups == {False: {0: 2, 1: 1}, True: {1: 1}}


def test_pods_with_affinities_are_counted_with_their_terms(snapshot):
    term = PodAffinityTerm(topology_key="zone")
    affinity = Affinity(pod_anti_affinity=PodAffinity(required_during_scheduling_ignored_during_execution=[term]))
    snapshot.place(a_pod("apart", affinity=affinity), "n0")
    snapshot.place(a_pod("plain"), "n0")
    counted = [(group.affinity, group.counts) for group in snapshot.groups.all()]
    assert counted == [(affinity, {0: 1}), (None, {0: 1})]
    snapshot.remove_pod("uid-apart")
    snapshot.remove_pod("uid-plain")
    assert list(snapshot.groups.all()) == []


def test_a_nominated_pod_takes_no_room(snapshot):
    snapshot.nominate(pod_requesting(cpu="1"), "n0")
    assert (used(snapshot), snapshot.pods_on("n0")) == ((0, 0, 0), 0)
    assert [(n.pod.uid, n.node) for n in snapshot.nominations()] == [("uid-web", "n0")]
    snapshot.end_nomination("uid-web")
    assert list(snapshot.nominations()) == []


def test_a_pod_is_nominated_to_one_node(snapshot):
    snapshot.nominate(pod_requesting(), "n0")
    snapshot.nominate(pod_requesting(), "n1")
    assert ([*snapshot.nominated_nodes], [*snapshot.nominations_to("n0")]) == (["n1"], [])
    assert [each.pod.uid for each in snapshot.nominations_to("n1")] == ["uid-web"]
    snapshot.end_nomination("uid-web")
    assert [*snapshot.nominated_nodes] == []


def test_labels_of_a_namespace(snapshot):
    snapshot.set_namespace(Namespace(metadata=ObjectMeta(name="team", labels={"tier": "1"})))
    assert (snapshot.labels_of_namespace("team"), snapshot.labels_of_namespace("unknown")) == ({"tier": "1"}, {})
    snapshot.remove_namespace("team")
    assert snapshot.labels_of_namespace("team") == {}


def test_a_label_that_changes_all_the_time_does_not_pile_up(snapshot):
    for i in range(5000):
        snapshot.label_column("serial")
        snapshot.set_node(a_node("n0", labels={"serial": str(i)}))
    column = snapshot.label_column("serial")
    assert column.values[column.codes[0]] == "4999"
    assert len(column.values) < 1100


def test_label_columns_are_bounded(snapshot):
    keys = [f"key-{i}" for i in range(400)]
    snapshot.set_node(a_node("n0", labels={"zone": "a", **dict.fromkeys(keys, "")}))
    for key in keys:
        snapshot.label_column(key)
    column = snapshot.label_column("zone")
    assert column.values[column.codes[0]] == "a"
    assert len(snapshot.columns.labels._columns) == 256


def test_a_label_key_that_no_node_has_makes_no_column(snapshot):
    for i in range(400):
        assert snapshot.label_column(f"key-{i}").codes[0] == ABSENT
    assert not snapshot.columns.labels._columns
    snapshot.set_node(a_node("n1", labels={"key-7": "x"}))
    column = snapshot.label_column("key-7")
    assert [column.values[code] if code != ABSENT else None for code in column.codes[:2]] == [None, "x"]
    snapshot.remove_node("n1")
    assert snapshot.label_column("key-7").codes[1] == ABSENT


def names_of_resources(prefix: str, count: int) -> dict[str, str]:
    return {f"example.com/{prefix}{number}": "1" for number in range(count)}


def memory_of(build: Callable[[], object]) -> int:
    """Bytes allocated meanwhile and still in use afterwards."""
    gc.collect()
    tracemalloc.start()
    try:
        build()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


@pytest.fixture
def wide():
    """A Snapshot whose columns have 2,048 rows, so that one for each name would be seen."""
    snapshot = Snapshot()
    for number in range(2000):
        snapshot.set_node(a_node(f"n{number}"))
    return snapshot


def test_resources_end_with_the_last_pod_that_requests_them(wide):
    def come_and_go():
        for number in range(3):
            wide.place(pod_requesting(f"p{number}", **names_of_resources(f"r{number}-", 2000)), "n7")
            wide.remove_pod(f"uid-p{number}")

    assert memory_of(come_and_go) < 3_000_000  # not 3 * 2,000 columns of 16 KB
    assert set(wide.columns.requested) == {"cpu", "memory", "ephemeral-storage"}


def test_resources_end_with_the_last_node_that_has_them(wide):
    def patch():
        for number in range(3):
            wide.set_node(a_node("n7", **names_of_resources(f"r{number}-", 5000)))
        wide.set_node(a_node("n7"))

    assert memory_of(patch) < 3_000_000
    assert set(wide.columns.allocatable) == {"cpu", "memory", "ephemeral-storage"}


def test_columns_of_resources_that_are_asked_for_are_bounded(wide):
    names = names_of_resources("r", 2000)
    wide.place(pod_requesting("p", **names), "n7")
    nodes = Nodes(wide)

    assert memory_of(lambda: [nodes.requested(name).sum() for name in names]) < 300 * 2048 * 8
    assert all(nodes.requested(name)[7] == 1 for name in names)


def test_a_column_of_a_resource_follows_pods_and_nodes(snapshot):
    gpu, nodes = "example.com/gpu", Nodes(snapshot)
    assert nodes.allocatable(gpu).tolist() == nodes.requested(gpu).tolist() == [0.0]

    snapshot.set_node(a_node("n0", **{gpu: 4}))
    for name in ("one", "two"):
        snapshot.place(pod_requesting(name, **{gpu: 1}), "n0")
        assert nodes.allocatable(gpu).tolist() == [4.0]
    assert nodes.requested(gpu).tolist() == [2.0]
    snapshot.remove_pod("uid-one")
    assert nodes.requested(gpu).tolist() == [1.0]
    snapshot.set_node(a_node("n0"))
    assert nodes.allocatable(gpu).tolist() == [0.0]


def test_taints_and_features_end_with_the_last_node_that_has_them(snapshot):
    columns = snapshot.columns
    for number in range(100):
        node = a_node("n0", taints=[Taint(key=f"k{number}", effect="NoSchedule")])
        status = msgspec.structs.replace(node.status, declared_features=[f"feature-{number}"])
        snapshot.set_node(msgspec.structs.replace(node, status=status))
        snapshot.set_node(a_node("n1", taints=[Taint(key="other", effect="NoSchedule")]))
        nodes = Nodes(snapshot)
        assert [nodes.taint_sets[taints][0].key for taints in nodes.taints.tolist()] == [f"k{number}", "other"]
        assert [nodes.feature_sets[features] for features in nodes.declared_features.tolist()] == [
            {f"feature-{number}"},
            set(),
        ]
    assert (len(columns.taint_sets.values), len(columns.feature_sets.values)) == (4, 3)
    snapshot.remove_node("n0")
    snapshot.remove_node("n1")

    assert set(columns.taint_sets.values) == {()}
    assert set(columns.feature_sets.values) == {frozenset()}


@pytest.mark.parametrize("rows", [None, [1, 0]], ids=["of all nodes", "of fewer nodes than lists of taints"])
def test_a_value_by_taints_is_asked_for_once_a_list_and_is_0_without_taints(rows):
    snapshot = Snapshot()
    lists = {"bare": [], "a": ["x"], "b": ["x", "y"], "c": ["x", "y"]}
    for name, keys in lists.items():
        snapshot.set_node(a_node(name, taints=[Taint(key=key, effect="NoSchedule") for key in keys]))
    asked = []
    nodes = Nodes(snapshot, None if rows is None else np.array(rows, dtype=np.intp))
    values = nodes.by_taints(lambda taints: asked.append(taints) or len(taints)).tolist()
    expected = [len(keys) for keys in lists.values()]
    assert values == (expected if rows is None else [expected[row] for row in rows])
    assert all(asked)
    assert len(asked) == len(set(asked))
