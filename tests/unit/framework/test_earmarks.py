"""Earmarked nodes in a cycle: newcomers of equal or lower priority are kept off them, by scorers and binder alike."""

from __future__ import annotations

from typing import Any

import pytest

from berth.api.pod import Pod
from berth.api.podgroups import GROUP_LABEL, Dialect
from berth.cluster.snapshot import Snapshot
from berth.framework.cycle import check, feasible_nodes, rank
from berth.framework.events import EARMARK_ENDED
from berth.groups.planner import plan_at_once
from berth.messages.earmarks import FILTER, Earmark
from berth.messages.subjects import Attempt, Term, Uid
from harness.builders.groups import a_question, members, nodes_of, racks
from harness.builders.objects import a_pod
from harness.builders.profiles import default_profile

PROFILE = default_profile()


def an_earmark(*nodes: str, **parts: Any) -> Earmark:
    group = {"dialect": Dialect.COSCHEDULING, "namespace": "default", "name": "gang", "uid": "uid-gang"}
    return Earmark(**{**group, "profile": "berth", "nodes": [*nodes], **parts})


@pytest.fixture
def snapshot() -> Snapshot:
    """Two empty nodes, one of them earmarked."""
    found = racks([0, 0])
    found.earmarks = {"berth": an_earmark("r0n0")}
    return found


def ranked(pod: Pod, snapshot: Snapshot) -> Any:
    return rank(pod, snapshot, PROFILE, attempt=Attempt(uid=Uid(pod.uid), term=Term(1), n=1))


NEWCOMER = a_pod("newcomer", cpu="1")


@pytest.mark.parametrize(
    ("pod", "nodes"),
    [
        pytest.param(NEWCOMER, ["r0n1"], id="of equal priority"),
        pytest.param(a_pod("low", cpu="1", priority=-1), ["r0n1"], id="of lower priority"),
        pytest.param(a_pod("high", cpu="1", priority=1), ["r0n0", "r0n1"], id="of higher priority"),
        pytest.param(a_pod("m", cpu="1", labels={GROUP_LABEL: "gang"}), ["r0n0", "r0n1"], id="of the group"),
        pytest.param(a_pod("o", cpu="1", labels={GROUP_LABEL: "other"}), ["r0n1"], id="of another group"),
        pytest.param(
            a_pod("p", cpu="1", status={"nominated_node_name": "r0n0"}), ["r0n0", "r0n1"], id="nominated before"
        ),
    ],
)
def test_scorer_and_binder_keep_the_same_pods_off_the_nodes(snapshot, pod, nodes):
    assert feasible_nodes(pod, snapshot, PROFILE) == nodes
    assert [name for name in ("r0n0", "r0n1") if check(pod, name, snapshot, PROFILE).is_success] == nodes


def test_a_pod_that_has_its_room_there_keeps_it(snapshot):
    assert check(NEWCOMER, "r0n0", snapshot, PROFILE, has_room=True).is_success


def test_the_reason_names_the_group_and_evictions_do_not_help(snapshot):
    snapshot.earmarks = {"berth": an_earmark("r0n0", "r0n1")}
    snapshot.place(a_pod("lower", cpu="4", priority=-10), "r0n0")
    found = ranked(NEWCOMER, snapshot)
    assert "2 node(s) are earmarked for group default/gang" in found.message
    assert [(each.plugin, each.nodes, each.resolvable) for each in found.rejections] == [(FILTER, 2, False)]
    assert found.unschedulable_plugins == (FILTER,)
    assert found.nomination is None


def test_a_copy_has_the_earmarks_too(snapshot):
    assert feasible_nodes(NEWCOMER, snapshot.copied(), PROFILE) == ["r0n1"]


def test_an_unknown_node_is_left_out(snapshot):
    snapshot.earmarks = {"berth": an_earmark("r0n0", "gone")}
    assert feasible_nodes(NEWCOMER, snapshot, PROFILE) == ["r0n1"]


def test_its_end_and_new_nodes_may_help():
    assert next(hint.event for hint in PROFILE.event_hints[FILTER] or ()) == EARMARK_ENDED


def test_a_fresh_group_keeps_off_the_nodes_and_the_rest_of_a_begun_one_does_not(snapshot):
    pods = members(4, cpu="1")
    assert {*nodes_of(plan_at_once(a_question(pods, name="fresh"), snapshot, PROFILE)).values()} == {"r0n1"}
    assert not plan_at_once(a_question(members(5, cpu="1"), name="fresh"), snapshot, PROFILE).is_found
    rest = a_question(members(8, cpu="1"), name="begun", bound=["b1"])
    assert {*nodes_of(plan_at_once(rest, snapshot, PROFILE)).values()} == {"r0n0", "r0n1"}
    assert [*snapshot.earmarks] == ["berth"]
