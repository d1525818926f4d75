"""The nodes to earmark: where the group fits once the youngest pods of no higher priority have ended."""

from __future__ import annotations

from typing import Any

from berth.api.pod import Pod
from berth.cluster.snapshot import Snapshot
from berth.groups.earmarks import plan_earmark
from berth.groups.question import GroupQuestion
from harness.builders.groups import a_question, members, nodes_of, racks
from harness.builders.objects import a_pod
from harness.builders.profiles import default_profile

PROFILE = default_profile()


def planned(question: GroupQuestion, snapshot: Snapshot, priority: int = 0) -> set[str] | None:
    planning = plan_earmark(question, snapshot, PROFILE, priority=priority, groups={})
    while True:
        try:
            next(planning)
        except StopIteration as end:
            return None if end.value is None else {*nodes_of(end.value).values()}


def placed(snapshot: Snapshot, name: str, node: str, **pod: Any) -> Pod:
    made = a_pod(name, **{"cpu": "4", "priority": 0, **pod})
    snapshot.place(made, node)
    return made


def test_nodes_of_the_youngest_pods_of_equal_priority_are_taken():
    snapshot = racks([0, 0, 0])
    for number in range(3):
        placed(
            snapshot, f"p{number}", f"r0n{number}", metadata={"creation_timestamp": f"2026-01-0{number + 1}T00:00:00Z"}
        )
    assert planned(a_question(members(8, cpu="1")), snapshot) == {"r0n1", "r0n2"}
    assert snapshot.pod_count == 3


def test_pods_of_lower_priority_go_first():
    snapshot = racks([0, 0])
    placed(snapshot, "equal", "r0n0", metadata={"creation_timestamp": "2026-01-02T00:00:00Z"})
    placed(snapshot, "lower", "r0n1", priority=-1, metadata={"creation_timestamp": "2026-01-01T00:00:00Z"})
    assert planned(a_question(members(4, cpu="1")), snapshot) == {"r0n1"}


def test_there_are_none_beside_pods_of_higher_priority():
    snapshot = racks([0, 0])
    placed(snapshot, "higher", "r0n0", priority=1)
    assert planned(a_question(members(8, cpu="1")), snapshot) is None
    assert planned(a_question(members(4, cpu="1")), snapshot) == {"r0n1"}


def test_there_are_none_for_a_group_that_never_fits():
    assert planned(a_question(members(9, cpu="1")), racks([4, 4])) is None


def test_the_nodes_are_of_one_domain_where_it_is_required():
    snapshot = racks([0, 0], [0, 0])
    for place, node in enumerate(("r0n0", "r1n0", "r0n1", "r1n1")):
        placed(snapshot, f"p{place}", node, metadata={"creation_timestamp": f"2026-01-0{place + 1}T00:00:00Z"})
    found = planned(a_question(members(8, cpu="1"), rack="required"), snapshot)
    assert found in ({"r0n0", "r0n1"}, {"r1n0", "r1n1"})
