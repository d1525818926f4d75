"""The actions that the update of a node or pod consists of; what keeps queueing hints cheap."""

import msgspec
import pytest

from berth.api.node import NodeCondition, Taint
from berth.api.pod import PodSchedulingGate, Toleration
from berth.framework.events import (
    NO_ACTION,
    Action,
    ClusterEvent,
    IdentityCache,
    Resource,
    ValueIndex,
    encoded,
    node_update_actions,
    pod_update_actions,
)
from harness.builders.objects import a_container, a_node, a_pod


def with_status(node, **fields):
    return msgspec.structs.replace(node, status=msgspec.structs.replace(node.status, **fields))


@pytest.mark.parametrize(
    ("new", "actions"),
    [
        pytest.param(a_node("n"), NO_ACTION, id="nothing"),
        pytest.param(a_node("n", cpu="8"), Action.UPDATE_NODE_ALLOCATABLE, id="allocatable"),
        pytest.param(a_node("n", labels={"a": "b"}), Action.UPDATE_NODE_LABEL, id="labels"),
        pytest.param(a_node("n", labels={}), NO_ACTION, id="no labels are no labels"),
        pytest.param(a_node("n", taints=[Taint(key="k", effect="NoSchedule")]), Action.UPDATE_NODE_TAINT, id="taints"),
        pytest.param(a_node("n", unschedulable=True), Action.UPDATE_NODE_TAINT, id="cordoned"),
        pytest.param(
            with_status(a_node("n"), conditions=[NodeCondition(type="Ready", status="True")]),
            Action.UPDATE_NODE_CONDITION,
            id="condition",
        ),
        pytest.param(
            a_node("n", cpu="8", labels={"a": "b"}),
            Action.UPDATE_NODE_ALLOCATABLE | Action.UPDATE_NODE_LABEL,
            id="several",
        ),
    ],
)
def test_parts_of_a_node(new, actions):
    assert node_update_actions(a_node("n"), new) == actions


def test_an_annotation_of_a_node():
    node = a_node("n")
    annotated = msgspec.structs.replace(node, metadata=msgspec.structs.replace(node.metadata, annotations={"a": "b"}))
    assert node_update_actions(node, annotated) == Action.UPDATE_NODE_ANNOTATION


GATED = a_pod(containers=[a_container(cpu="2")], scheduling_gates=[PodSchedulingGate(name="wait")])


@pytest.mark.parametrize(
    ("new", "actions"),
    [
        pytest.param(GATED, NO_ACTION, id="nothing"),
        pytest.param(
            a_pod(containers=[a_container(cpu="2")]), Action.UPDATE_POD_SCHEDULING_GATES_ELIMINATED, id="gates gone"
        ),
        pytest.param(
            a_pod(containers=[a_container(cpu="1")], scheduling_gates=GATED.spec.scheduling_gates),
            Action.UPDATE_POD_SCALE_DOWN,
            id="less",
        ),
        pytest.param(
            a_pod(containers=[a_container(cpu="3")], scheduling_gates=GATED.spec.scheduling_gates),
            Action.UPDATE_POD_SCALE_UP,
            id="more",
        ),
        pytest.param(
            a_pod(
                containers=[a_container(cpu="2")],
                scheduling_gates=GATED.spec.scheduling_gates,
                labels={"a": "b"},
                tolerations=[Toleration(operator="Exists")],
            ),
            Action.UPDATE_POD_LABEL | Action.UPDATE_POD_TOLERATIONS,
            id="several",
        ),
    ],
)
def test_parts_of_a_pod(new, actions):
    assert pod_update_actions(GATED, new) == actions


def test_an_event_matches_when_it_shares_an_action_of_the_same_resource():
    wanted = ClusterEvent(Resource.NODE, Action.ADD | Action.UPDATE_NODE_LABEL)
    assert wanted.matches(ClusterEvent(Resource.NODE, Action.UPDATE_NODE_LABEL | Action.UPDATE_NODE_TAINT))
    assert not wanted.matches(ClusterEvent(Resource.NODE, Action.UPDATE_NODE_TAINT))
    assert not wanted.matches(ClusterEvent(Resource.POD, Action.ADD))


def test_result_is_computed_once_for_an_object_and_again_for_an_equal_one():
    computed = []
    length = IdentityCache(lambda items: computed.append(items) or len(items), capacity=10)
    one, equal = [1, 2], [1, 2]

    assert [length(one), length(one), length(equal)] == [2, 2, 2]
    assert len(computed) == 2


def test_cache_drops_what_was_not_used_for_longest_by_weight():
    computed = []
    # [1,1,1] has 7 bytes and its result 3; the others 13 + 6 and 15 + 7
    kept = IdentityCache(lambda items: computed.append(items) or items, capacity=32, weigh=len)
    small, medium, large = [1] * 3, [1] * 6, [1] * 7

    for items in (small, medium, small, large, small):
        kept(items)
    assert computed == [small, medium, large]
    kept(medium)

    assert computed == [small, medium, large, medium]


def test_cache_of_small_results_keeps_few_large_objects():
    kept = IdentityCache(len, capacity=9_100)
    large = [["x" * 900] for _ in range(100)]

    for items in large:
        kept(items)

    assert len(kept) == 10


def test_result_that_alone_exceeds_the_capacity_is_kept_until_the_next():
    kept = IdentityCache(list, capacity=1, weigh=len)
    large = [1, 2, 3]

    assert kept(large) is kept(large)


def test_pods_are_found_by_the_values_of_the_event_in_the_order_in_which_they_came():
    index = ValueIndex(lambda pod: pod.metadata.labels, lambda _old, new: new)
    index.add("both", a_pod(labels={"a": "", "b": ""}))
    index.add("any", a_pod())
    index.add("b", a_pod(labels={"b": ""}))

    assert list(index.find(None, ["b"])) == ["any", "both", "b"]
    assert list(index.find(None, ["a"])) == ["any", "both"]
    assert list(index.find(None, None)) == ["both", "any", "b"]
    index.remove("both")
    index.remove("any")
    assert list(index.find(None, ["a", "b"])) == ["b"]


def test_long_keys_are_digests():
    assert len(encoded("x" * 10_000)) == 64
    assert encoded({"a": 1, "b": 2}) == encoded({"b": 2, "a": 1})
    assert encoded("x" * 10_000) != encoded("x" * 10_001)
