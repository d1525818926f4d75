"""berth simulate with PodGroups: both dialects, domains, evictions, and the words for those that wait."""

import json
from pathlib import Path

import msgspec
import pytest
import yaml

from berth.profiles.configuration import profiles_of, read_configuration
from berth_cli.simulate.engine import PodReport, Simulation
from berth_cli.simulate.groups import PodGroupReport
from berth_cli.simulate.inputs import InputError, read_inputs

EXAMPLE = Path(__file__).parents[3] / "docs/examples/gangs/pods.yaml"
PROFILES = dict(profiles_of(read_configuration(None)))


def node(name, cpu="4", **labels):
    allocatable = {"cpu": cpu, "memory": "16Gi", "pods": "110"}
    metadata = {"name": name, "labels": {"kubernetes.io/hostname": name, **labels}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": {"allocatable": allocatable}}


def pod(name, cpu="2", *, group="", upstream="", labels=None, status=None, **spec):
    wanted = {"schedulerName": "berth", "containers": [{"name": "main", "resources": {"requests": {"cpu": cpu}}}]}
    wanted |= {"schedulingGroup": {"podGroupName": upstream}} if upstream else {}
    labels = {**(labels or {}), **({"scheduling.x-k8s.io/pod-group": group} if group else {})}
    metadata = {"name": name, "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {**wanted, **spec}, "status": status or {}}


def pods(count, name="train", **more):
    return [pod(f"{name}-{number}", **more) for number in range(count)]


def group(name="train", minimum=4, annotations=None):
    metadata = {"name": name, "annotations": annotations or {}}
    return {
        "apiVersion": "scheduling.x-k8s.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": metadata,
        "spec": {"minMember": minimum},
    }


def upstream_group(name="train", minimum=4, version="v1alpha2", **spec):
    policy = {"schedulingPolicy": {"gang": {"minCount": minimum}}}
    return {
        "apiVersion": f"scheduling.k8s.io/{version}",
        "kind": "PodGroup",
        "metadata": {"name": name},
        "spec": {**policy, **spec},
    }


@pytest.fixture
def read(tmp_path):
    def inputs(cluster, to_place, *, with_pending=False):
        paths = [tmp_path / "cluster.json", tmp_path / "pods.json"]
        for path, items in zip(paths, (cluster, to_place), strict=True):
            path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
        return read_inputs([str(paths[0])], [str(paths[1])], list(PROFILES), with_pending=with_pending)

    return inputs


@pytest.fixture
def simulate(read):
    def run(cluster, to_place, *, independently=False, with_pending=False):
        inputs = read(cluster, to_place, with_pending=with_pending)
        simulation = Simulation(snapshot=inputs.snapshot, profiles=PROFILES)
        place = simulation.independently if independently else simulation.in_queue_order
        reports = list(place(inputs.pods))
        assert simulation.failures == {}
        return Reports(reports, inputs.notes)

    return run


class Reports:
    def __init__(self, reports, notes):
        self.all, self.notes = reports, notes
        self.groups = {each.group: each for each in reports if isinstance(each, PodGroupReport)}
        self.pods = {each.pod.removeprefix("default/"): each for each in reports if isinstance(each, PodReport)}

    @property
    def nodes(self):
        return {name: each.bound for name, each in self.pods.items()}


def test_the_first_gang_of_the_example_fits_and_the_second_waits_in_the_words_of_why(simulate):
    there = list(yaml.safe_load_all(EXAMPLE.read_text()))
    found = simulate([node("n1"), node("n2")], there)
    first, second = found.groups.values()
    assert (first.group, first.placed, first.members, first.message) == ("default/first", 4, 4, None)
    assert (second.group, second.placed) == ("default/second", 0)
    assert second.message == (
        "0 of 4 have a place; 4 like second-0 do not fit: 0/2 nodes are available: 2 Insufficient cpu; "
        "there is no room for all of them: 4 more ask for 8 cpu"
    )
    assert [(each.members, each.placed, each.example) for each in second.classes] == [(4, 0, "second-0")]
    assert sorted(filter(None, found.nodes.values())) == ["n1", "n1", "n2", "n2"]
    assert found.pods["second-3"].message == second.message
    assert found.pods["second-3"].group == "default/second"


def test_a_group_without_room_for_all_leaves_it_to_pods_that_fit(simulate):
    gang = [group(), *pods(4, group="train"), pod("alone")]
    found = simulate([node("n1", cpu="6")], gang)
    assert found.nodes == {**{f"train-{number}": None for number in range(4)}, "alone": "n1"}
    assert found.groups["default/train"].message.startswith("3 of 4 have a place; 1 like train-3 does not fit")


@pytest.mark.parametrize("version", ["v1alpha2", "v1beta1"])
def test_groups_of_both_dialects_with_one_name_are_two(simulate, version):
    there = [group("a", 2), *pods(2, "x", group="a"), upstream_group("a", 2, version), *pods(2, "y", upstream="a")]
    found = simulate([node("n1"), node("n2")], there)
    assert [(each.dialect, each.placed) for each in found.all if isinstance(each, PodGroupReport)] == [
        ("scheduling.x-k8s.io", 2),
        ("scheduling.k8s.io", 2),
    ]


def test_a_required_domain_is_named(simulate):
    racks = [node("a1", rack="a"), node("b1", rack="b"), node("b2", rack="b")]
    there = [group(annotations={"berth/topology": "rack"}), *pods(4, group="train")]
    found = simulate(racks, there).groups["default/train"]
    assert (found.topology_key, found.domain, found.placed) == ("rack", "b", 4)
    found = simulate(racks[:2], there).groups["default/train"]
    assert found.message.startswith("2 of 4 have a place in the best domain, rack a; 2 like train-2 do not fit: ")


def test_evictions_for_a_whole_group_are_named_and_its_members_nominated(simulate):
    low = [pod(f"low-{number}", nodeName=f"n{number + 1}", priority=0) for number in range(2)]
    there = [group(minimum=3), *pods(3, group="train", priority=1000), pod("late")]
    found = simulate([node("n1"), node("n2"), *low], there)
    (only,) = found.groups.values()
    assert (only.placed, len(only.victims)) == (0, 1)
    assert only.victims[0].startswith("default/low-")
    assert only.message.startswith("2 of 3 have a place; 1 like train-2 does not fit: ")
    nominated = [found.pods[f"train-{number}"].nominated for number in range(3)]
    assert sorted(nominated) in (["n1", "n1", "n2"], ["n1", "n2", "n2"])
    assert found.nodes["late"] is None  # the room is the group's, which is of higher priority


def test_a_group_that_goes_as_one_is_evicted_whole(simulate):
    low = [pod(f"low-{number}", cpu="1", nodeName="n1", upstream="old", priority=0) for number in range(2)]
    there = [group(minimum=2), *pods(2, group="train", priority=1000)]
    cluster = [node("n1"), *low]
    assert simulate([*cluster, upstream_group("old", 1)], there).groups["default/train"].victims == [
        "default/low-0",
        "default/low-1",
    ]
    kept = simulate([*cluster, upstream_group("old", 1), pod("idle", "1", nodeName="n1")], [group(minimum=1), there[1]])
    assert kept.groups == {}  # a minimum of one: an ordinary pod


def test_no_pod_is_evicted_for_a_group_that_does_not_fit_even_so(simulate):
    low = pod("low", nodeName="n1", priority=0)
    found = simulate([node("n1"), low], [group(minimum=3), *pods(3, group="train", priority=1000), pod("last")])
    assert found.groups["default/train"].victims == []
    assert found.nodes["last"] == "n1"


def test_members_above_the_minimum_follow_as_ordinary_pods(simulate):
    found = simulate([node("n1")], [group(minimum=2), *pods(3, group="train")])
    assert (found.groups["default/train"].placed, found.groups["default/train"].message) == (2, None)
    assert found.nodes == {"train-0": "n1", "train-1": "n1", "train-2": None}
    rest = found.pods["train-2"]
    assert (rest.group, rest.message[:38]) == (msgspec.UNSET, "0/1 nodes are available: 1 Insufficien")


def test_members_above_the_minimum_stay_in_the_domain_of_the_others(simulate):
    racks = [node("a1", rack="a"), node("b1", cpu="2", rack="b")]
    found = simulate(racks, [group(minimum=2, annotations={"berth/topology": "rack"}), *pods(3, group="train")])
    assert found.nodes == {"train-0": "a1", "train-1": "a1", "train-2": None}


def test_a_begun_group_needs_what_its_minimum_lacks(simulate):
    bound = [pod(f"train-{number}", group="train", nodeName="n1") for number in range(2)]
    found = simulate([node("n1"), node("n2"), *bound], [group(minimum=3), *pods(4, group="train")[2:]])
    only = found.groups["default/train"]
    assert (only.bound, only.members, only.placed, only.message) == (2, 2, 2, None)


@pytest.mark.parametrize(
    ("there", "message"),
    [
        pytest.param([group(), *pods(3, group="train")], "3 of 4 members exist", id="members are missing"),
        pytest.param(
            [group(), *pods(3, group="train"), pod("gated", group="train", schedulingGates=[{"name": "x"}])],
            "3 of 4 members can be tried; 1 of its pods has scheduling gates",
            id="a gated member",
        ),
        pytest.param(
            [group("other"), *pods(4, group="train")],
            'no PodGroup "train" in scheduling.x-k8s.io',
            id="another PodGroup",
        ),
        pytest.param(
            [group(minimum=0), *pods(4, group="train")], "spec.minMember: want 1 or more, got 0", id="a wrong PodGroup"
        ),
    ],
)
def test_a_group_that_is_not_complete_waits(simulate, there, message):
    found = simulate([node("n1", cpu="64")], there)
    assert found.groups["default/train"].message == message
    assert {found.pods[f"train-{number}"].message for number in range(3)} == {message}
    assert set(found.nodes.values()) == {None}


def test_without_a_podgroup_of_the_dialect_pods_are_placed_one_by_one(simulate):
    found = simulate([node("n1")], pods(3, group="train"))
    assert [each for each in found.nodes.values() if each] == ["n1", "n1"]
    (note,) = found.notes
    assert note.startswith("3 pods with a PodGroup of scheduling.x-k8s.io, and the files have none of these: ")


def test_independently_each_group_has_the_cluster_to_itself(simulate):
    there = list(yaml.safe_load_all(EXAMPLE.read_text()))
    found = simulate([node("n1"), node("n2")], there, independently=True)
    assert [each.placed for each in found.groups.values()] == [4, 4]


def test_pending_members_of_the_cluster_are_placed_when_asked_for(simulate):
    waiting = [group(), *pods(3, group="train")]
    last = pod("last", group="train")
    cluster = [node("n1"), node("n2"), *waiting]
    assert simulate(cluster, [last], with_pending=True).groups["default/train"].placed == 4
    assert simulate(cluster, [last]).groups["default/train"].message == "1 of 4 members exist"


def test_the_more_important_group_goes_first(simulate):
    there = [group("low", 2), *pods(2, "a", group="low"), group("high", 2), *pods(2, "b", group="high", priority=7)]
    found = simulate([node("n1")], there)
    assert [(each.group, each.placed) for each in found.groups.values()] == [("default/high", 2), ("default/low", 0)]


def test_a_new_group_of_kubernetes_gets_the_priority_of_its_class(simulate):
    low = pod("low", nodeName="n1", priority=50)
    high = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}, "value": 100}
    members = pods(2, upstream="train", priority=1000)
    cluster = [node("n1"), low, high]
    found = simulate(cluster, [upstream_group(minimum=2, priorityClassName="high"), *members])
    assert found.groups["default/train"].victims == ["default/low"]
    found = simulate(cluster, [upstream_group(minimum=2), *members])  # the API server fills in 0
    assert found.groups["default/train"].victims == []


def test_members_that_want_one_volume_are_placed_all_or_none(simulate):
    claims = [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": f"c{number}"},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": "local",
                "resources": {"requests": {"storage": "1Gi"}},
            },
        }
        for number in range(2)
    ]
    storage = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": "local"},
        "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer",
    }
    volumes = [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": f"v{number}"},
            "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "local"},
            "status": {"phase": "Available"},
        }
        for number in range(2)
    ]
    members = [
        pod(f"train-{at}", group="train", volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": f"c{at}"}}])
        for at in range(2)
    ]
    cluster = [node("n1"), storage, *claims]
    found = simulate([*cluster, volumes[0]], [group(minimum=2), *members, pod("next", cpu="4")])
    assert set(list(found.nodes.values())[:2]) == {None}
    assert found.groups["default/train"].message
    assert found.nodes["next"] == "n1"  # nothing of the group is left there
    assert simulate([*cluster, *volumes], [group(minimum=2), *members]).groups["default/train"].message is None


def test_a_podgroup_of_another_version_or_of_none_is_named(read):
    old = {**group(), "apiVersion": "scheduling.sigs.k8s.io/v1alpha1"}
    bare = {key: value for key, value in group().items() if key != "apiVersion"}
    volcano = {**group("v"), "apiVersion": "scheduling.volcano.sh/v1beta1"}
    for odd, got in ((old, "'scheduling.sigs.k8s.io/v1alpha1'"), (bare, "'v1'")):
        with pytest.raises(InputError) as caught:
            read([node("n1")], [odd])
        wanted = "'scheduling.k8s.io/v1beta1' or 'scheduling.x-k8s.io/v1alpha1'"
        assert str(caught.value).endswith(f"apiVersion: want {wanted} for a PodGroup, got {got}")
    assert read([node("n1")], [volcano, pod("a")]).notes == (
        "--pods: left out 1 object, neither pods nor objects that come with pods: 1 PodGroup.scheduling.volcano.sh",
    )
