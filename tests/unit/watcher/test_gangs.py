"""Groups in the watcher's core: one message for a group, and what becomes of its members."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from berth.api.meta import ObjectMeta
from berth.api.pod import Pod
from berth.api.podgroups import GROUP_LABEL, CoschedulingPodGroup, CoschedulingSpec, Dialect
from berth.kube.listwatch import Current, Deleted, Listed
from berth.messages.attempts import Outcome, Positions, Preemption, Reason, Victim
from berth.messages.queue import GROUPED, INCOMPLETE, UNUSABLE, WITH_GROUP, GroupCounts, PageRequest, PodRequest
from berth_watcher.events import (
    AttemptLookedUp,
    CountWholeGroup,
    FoundDecision,
    FoundInFlight,
    LookUpAttempt,
    PodGroupsSought,
    SeekPodGroups,
    StreamsRead,
    Warn,
)
from berth_watcher.metrics import stats_of
from berth_watcher.queue.answers import PODS_SCANNED
from berth_watcher.settings import AttemptSettings
from berth_watcher.stages.pods import HEAD_START_SECONDS
from harness.worlds.watcher_world import EPOCH, WatcherUnderTest, a_node, a_pod, attempt

KINDS = ("node", "podgroup", "coschedulingpodgroup", "pod")
GANG = "~gang"
COSCHEDULING = Dialect.COSCHEDULING
ABSENT = Current(kind="coschedulingpodgroup", resource_version="0", is_served=False)


def a_pod_group(name: str = "gang", minimum: int = 4, *, uid: str = "", version: int = 1) -> CoschedulingPodGroup:
    metadata = ObjectMeta(name=name, namespace="default", uid=uid or f"uid-~{name}", resource_version=str(version))
    return CoschedulingPodGroup(metadata=metadata, spec=CoschedulingSpec(min_member=minimum))


def members(count: int, group: str = "gang", **pod: Any) -> list[Pod]:
    return [a_member(f"{group}-{number}", group, **pod) for number in range(count)]


def a_member(name: str, group: str = "gang", **pod: Any) -> Pod:
    return a_pod(name, labels={GROUP_LABEL: group}, **pod)


def bound(pod: Pod, node: str = "n1") -> Pod:
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name=node))


def a_watcher(*things: Any, floor: int = 64, **world: Any) -> WatcherUnderTest:
    watcher = WatcherUnderTest(kinds=KINDS, settings=AttemptSettings(window_floor=floor), **world)
    return watcher.lead(a_node("n1"), *things)


def names(watcher: WatcherUnderTest, place: int = -1) -> list[str]:
    """The members in a message."""
    return [member.name for member in watcher.groups_published[place].message.bundle.members]


def message_of(watcher: WatcherUnderTest, uid: str) -> str:
    queued = watcher.core.find(uid)
    assert queued is not None
    return queued.message


def in_flight(watcher: WatcherUnderTest) -> int:
    return watcher.core.figures(watcher.now).in_flight["berth"]


# --- one message


def test_a_group_is_one_message_once_its_minimum_exists():
    watcher = a_watcher(a_pod_group(minimum=4))
    watcher.show(*members(3))
    assert (watcher.groups_published, watcher.published) == ([], [])
    assert message_of(watcher, "uid-gang-0") == "3 of 4 members exist"
    watcher.show(a_member("gang-3"))
    [published] = watcher.groups_published
    message = published.message
    assert (message.attempt, message.need, message.group.minimum) == ("uid-~gang.7.1", 4, 4)
    assert names(watcher) == [f"gang-{number}" for number in range(4)]
    assert [member.n for member in message.bundle.members] == [1] * 4
    assert watcher.published == []
    assert in_flight(watcher) == 4
    assert [message_of(watcher, uid) for uid in (f"uid-{GANG}", "uid-gang-0", "uid-gang-3")] == [""] * 3


def test_groups_are_counted_by_what_they_do():
    watcher = a_watcher(a_pod_group(minimum=4), a_pod_group("short", minimum=2), a_pod_group("torn", minimum=3))

    def counts() -> dict[str, int]:
        return dict(watcher.core.figures(watcher.now).groups)

    assert counts() == {}
    watcher.show(*members(1, "short"), *members(1, "nameless"))
    assert counts() == {"waiting": 2, "begun": 0, "in flight": 0}
    watcher.show(*members(4), bound(a_member("torn-0", "torn")), a_member("torn-1", "torn"))
    assert counts() == {"waiting": 2, "begun": 1, "in flight": 1}
    watcher.show(a_member("torn-2", "torn"))
    assert counts()["in flight"] == 2
    watcher.show(*map(bound, members(2, "without")))
    assert counts()["waiting"] == 2
    watcher.show(a_member("without-2", "without"))
    assert counts()["waiting"] == 3


def test_pods_of_a_group_that_cannot_be_read_say_so_and_keep_no_other_group_waiting():
    metadata = ObjectMeta(name="odd", namespace="default", uid="uid-~odd", resource_version="1")
    odd = CoschedulingPodGroup(metadata=metadata, spec=CoschedulingSpec(left_out="cannot be read: x"))
    watcher = a_watcher(odd, *members(2, "odd"), a_pod_group(minimum=2), *members(2))
    assert message_of(watcher, "uid-odd-0") == "the PodGroup cannot be read: x"
    assert [names(watcher, place) for place in range(len(watcher.groups_published))] == [["gang-0", "gang-1"]]
    [warning] = watcher.of(Warn)
    assert (warning.fields["name"], warning.fields["reason"]) == ("default/odd", "cannot be read: x")


def test_pods_whose_group_comes_late_wait_for_it():
    watcher = a_watcher(*members(4))
    assert (watcher.published, message_of(watcher, "uid-gang-0")) == ([], 'no PodGroup "gang" in scheduling.x-k8s.io')
    watcher.show(a_pod_group(minimum=4))
    assert len(watcher.groups_published) == 1


def test_pods_of_a_group_with_a_minimum_of_one_are_ordinary_pods():
    watcher = a_watcher(a_pod_group(minimum=1), *members(2))
    assert (watcher.pods_published, watcher.groups_published) == (["gang-0", "gang-1"], [])


def without_pod_groups(*objects: Any) -> WatcherUnderTest:
    """A watcher of a cluster whose API server did not serve Coscheduling's PodGroups when it was asked."""
    watcher = WatcherUnderTest(kinds=KINDS)
    watcher.list_objects(a_node("n1"), *objects)
    watcher.store.apply(ABSENT)
    watcher.take_over()
    watcher.read_bucket()
    watcher.send(StreamsRead())
    return watcher


def test_where_the_api_server_has_no_pod_groups_the_label_has_no_effect():
    watcher = without_pod_groups(*members(2))
    assert (watcher.pods_published, watcher.of(SeekPodGroups)) == ([], [SeekPodGroups(dialect=COSCHEDULING)])
    watcher.send(ABSENT, PodGroupsSought(dialect=COSCHEDULING))
    assert watcher.pods_published == ["gang-0", "gang-1"]
    watcher.send(Listed(kind="coschedulingpodgroup", objects=[], resource_version="20"))
    watcher.show(a_member("late"))
    assert watcher.pods_published == ["gang-0", "gang-1"]


def test_pods_whose_pod_groups_the_api_server_serves_since_a_moment_ago_are_a_group():
    watcher = without_pod_groups()
    assert watcher.of(SeekPodGroups) == []
    watcher.show(*members(2))
    assert "not known yet" in message_of(watcher, "uid-gang-0")
    watcher.send(Listed(kind="coschedulingpodgroup", objects=[a_pod_group(minimum=2)], resource_version="20"))
    watcher.send(PodGroupsSought(dialect=COSCHEDULING))
    assert (watcher.pods_published, len(watcher.groups_published)) == ([], 1)


def test_a_pod_that_comes_while_pod_groups_are_sought_waits_for_the_next_answer():
    watcher = without_pod_groups(*members(1))
    watcher.show(a_member("gang-1"), a_member("other-0", "other"))
    assert len(watcher.of(SeekPodGroups)) == 1
    watcher.send(ABSENT, PodGroupsSought(dialect=COSCHEDULING))
    assert (watcher.pods_published, len(watcher.of(SeekPodGroups))) == ([], 2)
    watcher.send(ABSENT, PodGroupsSought(dialect=COSCHEDULING))
    assert sorted(watcher.pods_published) == ["gang-0", "gang-1", "other-0"]
    watcher.show(a_member("gang-1", version=2))
    assert len(watcher.of(SeekPodGroups)) == 2


def test_a_kind_that_berth_may_no_longer_ask_for_is_not_absent():
    watcher = without_pod_groups(*members(1))
    watcher.send(ABSENT, PodGroupsSought(dialect=COSCHEDULING))
    watcher.send(Current(kind="coschedulingpodgroup", resource_version="0", unread="berth may not read them"))
    watcher.show(a_member("late", "other"))
    watcher.send(PodGroupsSought(dialect=COSCHEDULING))
    assert watcher.pods_published == ["gang-0"]
    assert "not known yet" in message_of(watcher, "uid-late")


def test_pods_wait_while_pod_groups_cannot_be_read():
    watcher = a_watcher(a_pod_group(minimum=1))
    watcher.send(Current(kind="coschedulingpodgroup", resource_version="0", unread="berth may not read them"))
    watcher.show(a_member("gang-0"))
    assert "not known yet" in message_of(watcher, "uid-gang-0")
    watcher.send(Current(kind="coschedulingpodgroup", resource_version="9"))
    assert watcher.pods_published == ["gang-0"]


def test_group_messages_wait_until_binder_and_scorers_read_them():
    lacking = ["scorer 's' cannot read messages about groups: update it"]
    watcher = a_watcher(a_pod_group(minimum=2), *members(2), lacks_groups=lambda _: lacking[0])
    assert (watcher.groups_published, message_of(watcher, "uid-gang-0")) == ([], lacking[0])
    lacking[0] = ""
    watcher.advance(1.1)
    assert len(watcher.groups_published) == 1


def test_a_pod_that_joins_a_group_while_in_flight_is_decided_first():
    watcher = a_watcher(a_pod_group(minimum=2), a_pod("x"), a_member("gang-0"))
    watcher.show(a_member("x", version=2))
    assert (watcher.pods_published, watcher.groups_published) == (["x", "x"], [])  # with its new label
    watcher.decide("x", Outcome.CONFLICT)
    assert names(watcher) == ["gang-0", "x"]
    assert [member.n for member in watcher.groups_published[-1].message.bundle.members] == [1, 3]


# --- the window


@pytest.mark.parametrize("wanted", ["", "ordinary"])
def test_a_waiting_pod_that_leaves_its_group_is_tried_alone(wanted: str):
    groups = a_pod_group(minimum=3), a_pod_group("ordinary", minimum=1)
    watcher = a_watcher(*groups, *members(2), a_member("o", "ordinary"))
    assert watcher.pods_published == ["o"]
    watcher.show(a_member("gang-0", wanted, version=2))
    assert watcher.pods_published == ["o", "gang-0"]


def test_a_pod_that_leaves_its_group_in_flight_is_tried_alone_after_it():
    watcher = a_watcher(a_pod_group(minimum=3), *members(4))
    watcher.show(a_pod("gang-0", version=2))
    assert (len(watcher.groups_published), watcher.pods_published) == (1, [])
    watcher.decide(GANG, Outcome.CONFLICT)
    assert watcher.pods_published == ["gang-0"]


def test_a_group_at_the_head_waits_for_its_slots_and_what_is_behind_waits_with_it():
    watcher = a_watcher(a_pod_group(minimum=4), a_pod("a", age_seconds=60), floor=4)
    watcher.show(*members(4, age_seconds=30))
    watcher.show(a_pod("b", age_seconds=-10), a_pod("urgent", priority=9))
    assert (watcher.pods_published, watcher.groups_published) == (["a", "urgent"], [])
    watcher.decide("a", Outcome.BOUND)
    watcher.decide("urgent", Outcome.BOUND)
    assert (len(watcher.groups_published), watcher.pods_published) == (1, ["a", "urgent"])


def test_a_begun_group_goes_before_its_older_equals():
    busy = [a_pod(f"busy-{number}", age_seconds=200) for number in range(2)]
    watcher = a_watcher(a_pod_group("old", 2), *busy, *members(2, "old", age_seconds=100), floor=2)
    watcher.show(a_pod_group(minimum=2))
    watcher.show(bound(a_member("gang-0")))
    watcher.show(a_member("gang-1"))
    assert not watcher.groups_published
    for pod in busy:
        watcher.decide(pod.metadata.name, Outcome.BOUND)
    assert names(watcher, 0) == ["gang-1"]


def test_a_begun_group_goes_before_an_equal_that_failed_earlier_where_both_back_offs_end_early():
    watcher = a_watcher(
        a_pod_group("old", 2), *members(2, "old"), a_pod_group(minimum=2), bound(a_member("gang-0")), floor=4
    )
    watcher.show(a_member("gang-1"))
    watcher.decide("~old", Outcome.UNSCHEDULABLE, blockers=["NodeResourcesFit"], positions=covering(watcher))
    before = covering(watcher)
    watcher.advance(0.1)
    watcher.show(a_node("n2", cpu="64"))
    assert len(watcher.groups_published) == 2
    watcher.decide(GANG, Outcome.UNSCHEDULABLE, blockers=["NodeResourcesFit"], positions=before)
    assert names(watcher, 2) == ["gang-1"]


def test_a_group_that_has_failed_falls_behind_equals_that_came_later():
    """Else a group that never fits is always first."""
    watcher = a_watcher(a_pod_group("old", 2), a_pod_group(minimum=2), *members(2, "old", age_seconds=100), floor=3)
    watcher.decide("~old", Outcome.UNSCHEDULABLE, blockers=["NodeResourcesFit"], positions=covering(watcher))
    busy = [a_pod(f"busy-{number}") for number in range(3)]
    watcher.show(*busy)
    watcher.show(*members(2, age_seconds=50), a_member("old-2", "old"))
    watcher.advance(2.0)
    assert len(watcher.groups_published) == 1
    for pod in busy:
        watcher.decide(pod.metadata.name, Outcome.BOUND)
    assert (names(watcher, 0), names(watcher, 1)) == (["old-0", "old-1"], ["gang-0", "gang-1"])


def just_tried() -> WatcherUnderTest:
    """The group ``old`` has failed, and was tried again twice, when nodes came; then another one came."""
    watcher = a_watcher(a_pod_group("old", 2), *members(2, "old", age_seconds=100), a_pod_group(minimum=2))
    for node in ("n2", "n3", "n4"):
        watcher.decide("~old", Outcome.UNSCHEDULABLE, blockers=["NodeResourcesFit"], positions=covering(watcher))
        watcher.advance(0.1)
        watcher.show(a_node(node, cpu="64"))
    return watcher


def test_a_group_that_has_just_been_tried_goes_before_an_equal_that_comes_with_the_room():
    """Else a group that comes again as soon as it has ended takes its room each time."""
    watcher = just_tried()
    assert len(watcher.groups_published) == 3
    watcher.show(*members(2))
    assert names(watcher, 3) == ["old-0", "old-1"]
    assert len(watcher.groups_published) == 4, "another scorer could place the one that comes before the other"
    watcher.advance(HEAD_START_SECONDS)
    assert names(watcher, 4) == ["gang-0", "gang-1"]


def test_a_group_gives_way_once_however_often_others_are_helped():
    watcher = just_tried()
    watcher.show(*members(2))
    watcher.decide("~old", Outcome.UNSCHEDULABLE, blockers=["NodeResourcesFit"], positions=covering(watcher))
    watcher.show(a_node("n5", cpu="64"))
    watcher.advance(HEAD_START_SECONDS)
    assert [names(watcher, place) for place in (4, 5)] == [["old-0", "old-1"], ["gang-0", "gang-1"]]


def test_a_group_that_has_just_been_tried_does_not_go_before_the_rest_of_a_begun_one():
    watcher = just_tried()
    watcher.show(bound(a_member("gang-0")), a_member("gang-1"))
    assert [names(watcher, place) for place in range(3, len(watcher.groups_published))] == [["gang-1"]]


@pytest.mark.parametrize("fresh", [{"priority": 100}, {"age_seconds": 50}], ids=["more important", "complete earlier"])
def test_a_group_that_has_just_been_tried_does_not_go_before_one_whose_place_is_before_it(fresh):
    watcher = just_tried()
    watcher.show(*members(2, **fresh))
    assert [names(watcher, place) for place in range(3, len(watcher.groups_published))] == [["gang-0", "gang-1"]]


def test_a_group_whose_plan_took_long_goes_before_none_that_comes():
    watcher = a_watcher(a_pod_group("old", 2), *members(2, "old", age_seconds=100), a_pod_group(minimum=2))
    refusal = {"blockers": ["NodeResourcesFit"], "positions": covering(watcher)}
    watcher.decide("~old", Outcome.UNSCHEDULABLE, **refusal, plan_seconds=0.05)
    watcher.advance(0.1)
    watcher.show(a_node("n2", cpu="64"))
    watcher.show(*members(2, age_seconds=-5))
    assert [names(watcher, place) for place in (0, 1)] == [["old-0", "old-1"], ["gang-0", "gang-1"]]
    assert len(watcher.groups_published) == 2


def test_a_group_that_backs_off_after_an_error_goes_before_none_that_comes():
    watcher = just_tried()
    watcher.advance(1.1)
    watcher.decide("~old", Outcome.ERROR)
    watcher.show(*members(2, age_seconds=-5))
    assert names(watcher, 4) == ["gang-0", "gang-1"]


def test_a_group_larger_than_the_window_goes_alone():
    watcher = a_watcher(a_pod_group(minimum=8), a_pod("a", age_seconds=60), floor=4)
    watcher.show(*members(8))
    assert watcher.groups_published == []
    watcher.decide("a", Outcome.BOUND)
    assert (len(watcher.groups_published), in_flight(watcher)) == (1, 8)


def test_a_group_whose_gate_was_closed_for_others_reasons_goes_before_pods_that_came_later():
    lacking = ["no binder of the profile has announced itself"]
    watcher = a_watcher(a_pod_group(minimum=2), a_pod("a", age_seconds=90), floor=1, lacks_groups=lambda _: lacking[0])
    watcher.show(*members(2, age_seconds=60), a_pod("b", age_seconds=30))
    lacking[0] = ""
    watcher.advance(1.1)
    watcher.decide("a", Outcome.BOUND)
    assert (watcher.pods_published, len(watcher.groups_published)) == (["a"], 1)


def test_a_new_leader_has_groups_that_wait_before_pods_that_came_later():
    watcher = a_watcher(a_pod_group(minimum=2), *members(2, age_seconds=60), a_pod("b", age_seconds=30), floor=1)
    assert (len(watcher.groups_published), watcher.pods_published) == (1, [])


def test_a_group_has_the_place_of_the_member_that_makes_it_complete():
    ages = {"gang-0": 90, "gang-1": 60, "gang-2": 10}
    pods = [a_member(name, age_seconds=age) for name, age in ages.items()]
    watcher = a_watcher(a_pod_group(minimum=2), *pods, a_pod("a", age_seconds=75), a_pod("b", age_seconds=30), floor=1)
    assert (watcher.pods_published, watcher.groups_published) == (["a"], [])
    watcher.decide("a", Outcome.BOUND)
    assert (watcher.pods_published, len(watcher.groups_published)) == (["a"], 1)


# --- Decisions


def test_a_bound_group_leaves_the_queue_and_the_members_beyond_its_minimum_are_ordinary_pods():
    pods = members(5)
    watcher = a_watcher(a_pod_group(minimum=4), *pods)
    for number in range(4):
        watcher.decide(f"gang-{number}", Outcome.BOUND, attempt=f"uid-gang-{number}.7.1", of_group="uid-~gang.7.1")
    watcher.decide(GANG, Outcome.BOUND)
    assert (in_flight(watcher), watcher.published) == (0, [])
    watcher.show(*map(bound, pods[:4]))
    assert (watcher.pods_published, len(watcher.groups_published)) == (["gang-4"], 1)
    assert watcher.stage("~gang") == "gone"


def test_an_unschedulable_group_waits_for_an_event_and_its_back_off():
    watcher = a_watcher(a_pod_group(minimum=4), *members(4))
    watcher.decide(
        GANG, Outcome.UNSCHEDULABLE, message="no room", blockers=["NodeResourcesFit"], positions=covering(watcher)
    )
    assert (watcher.stage(GANG), watcher.stage("gang-0"), in_flight(watcher)) == ("unschedulable", "grouped", 0)
    assert message_of(watcher, "uid-gang-0") == "no room"
    watcher.advance(60)
    assert len(watcher.groups_published) == 1
    watcher.show(a_node("n2", cpu="64"))
    assert [each.message.attempt for each in watcher.groups_published] == ["uid-~gang.7.1", "uid-~gang.7.2"]
    assert [member.n for member in watcher.groups_published[-1].message.bundle.members] == [2] * 4


def test_a_new_member_helps_and_a_condition_of_a_member_does_not():
    pods = members(4)
    watcher = a_watcher(a_pod_group(minimum=4), *pods)
    watcher.decide(GANG, Outcome.UNSCHEDULABLE, blockers=["NodeResourcesFit"], positions=covering(watcher))
    watcher.advance(60)
    watcher.show(
        *[
            msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, resource_version="9"))
            for pod in pods
        ]
    )
    assert len(watcher.groups_published) == 1
    watcher.show(a_member("gang-4"))
    assert len(names(watcher)) == 5


def test_what_changes_in_flight_is_in_the_next_attempt():
    pods = members(4)
    watcher = a_watcher(a_pod_group(minimum=4), *pods)
    watcher.delete(pods[0])
    watcher.show(a_member("other"))
    assert len(watcher.groups_published) == 1
    watcher.decide(GANG, Outcome.CONFLICT)
    assert names(watcher) == ["gang-1", "gang-2", "gang-3", "other"]


def test_what_changes_in_flight_helps_a_group_that_finds_no_room():
    watcher = a_watcher(a_pod_group(minimum=4), *members(4))
    watcher.show(a_pod_group(minimum=2, version=2))
    watcher.decide(GANG, Outcome.UNSCHEDULABLE, blockers=["NodeResourcesFit"], positions=covering(watcher))
    watcher.advance(20)
    assert [each.message.need for each in watcher.groups_published] == [4, 2]


def test_a_group_of_which_a_part_is_bound_goes_on_at_once_with_the_rest():
    pods = members(4)
    watcher = a_watcher(a_pod_group(minimum=4), *pods)
    watcher.decide("gang-0", Outcome.BOUND, attempt="uid-gang-0.7.1", of_group="uid-~gang.7.1")
    watcher.decide(GANG, Outcome.CONFLICT, reason=Reason.BEGUN)
    assert len(watcher.groups_published) == 1  # the watch has not shown the bound one yet
    watcher.show(bound(pods[0]))
    message = watcher.groups_published[-1].message
    assert (names(watcher), message.need, message.bound) == (["gang-1", "gang-2", "gang-3"], 3, ["uid-gang-0"])


def test_a_member_that_is_refused_backs_off_alone():
    pods = members(4)
    watcher = a_watcher(a_pod_group(minimum=3), *pods)
    watcher.decide("gang-0", Outcome.ERROR, attempt="uid-gang-0.7.1", of_group="uid-~gang.7.1")
    watcher.decide(GANG, Outcome.CONFLICT, reason=Reason.BEGUN)
    assert (watcher.stage("gang-0"), names(watcher)) == ("backoff", ["gang-1", "gang-2", "gang-3"])


def test_after_three_conflicts_a_group_backs_off():
    watcher = a_watcher(a_pod_group(minimum=2), *members(2))
    for _ in range(3):
        assert watcher.stage(GANG) == "in flight"
        watcher.decide(GANG, Outcome.CONFLICT)
    assert watcher.stage(GANG) == "backoff"


def test_a_group_backs_off_for_ten_times_its_plan():
    watcher = a_watcher(a_pod_group(minimum=2), *members(2))
    watcher.decide(GANG, Outcome.ERROR, plan_seconds=2.0)
    watcher.advance(19)
    assert len(watcher.groups_published) == 1
    watcher.advance(2)
    assert len(watcher.groups_published) == 2


def test_a_group_goes_once_its_victims_are_gone_however_long_their_search_took():
    victim = a_pod("victim", node="n1", cpu="1")
    watcher = a_watcher(a_pod_group(minimum=2), *members(2), victim)
    preempting = {"blockers": ["NodeResourcesFit"], "positions": covering(watcher), "plan_seconds": 2.0}
    watcher.decide(GANG, Outcome.PREEMPTING, **preempting)
    watcher.advance(2)
    assert len(watcher.groups_published) == 1
    watcher.delete(victim)
    watcher.advance(0)
    assert len(watcher.groups_published) == 2


@pytest.mark.parametrize("cpus", [("1", "1"), ("1", "2")], ids=["equal members", "members that differ"])
def test_a_group_waits_until_the_last_of_its_victims_is_gone(cpus: tuple[str, str]):
    victims = [a_pod(f"victim-{number}", node="n1", cpu="1") for number in range(3)]
    pods = [a_member(f"gang-{number}", cpu=cpu) for number, cpu in enumerate(cpus)]
    watcher = a_watcher(a_pod_group(minimum=2), *pods, *victims)
    evicted = [Victim(uid=pod.uid, namespace="default", name=pod.metadata.name) for pod in victims]
    preempting = {"blockers": ["NodeResourcesFit"], "positions": covering(watcher)}
    watcher.delete(victims[0])
    watcher.decide(GANG, Outcome.PREEMPTING, **preempting, preemption=Preemption(node="", victims=evicted))
    watcher.advance(2)
    watcher.delete(victims[1])
    watcher.advance(0)
    assert len(watcher.groups_published) == 1
    watcher.delete(victims[2])
    watcher.advance(0)
    assert len(watcher.groups_published) == 2


def test_other_room_helps_a_group_whose_victims_are_not_gone():
    victim, other = a_pod("victim", node="n1", cpu="1"), a_pod("other", node="n1", cpu="4")
    watcher = a_watcher(a_pod_group(minimum=2), *members(2), victim, other)
    preemption = Preemption(node="", victims=[Victim(uid=victim.uid, namespace="default", name="victim")])
    preempting = {"blockers": ["NodeResourcesFit"], "positions": covering(watcher)}
    watcher.decide(GANG, Outcome.PREEMPTING, **preempting, preemption=preemption)
    watcher.advance(2)
    watcher.delete(other)
    watcher.advance(0)
    assert len(watcher.groups_published) == 2
    watcher.decide(GANG, Outcome.PREEMPTING, blockers=["NodeResourcesFit"], positions=covering(watcher))
    watcher.advance(4)
    watcher.delete(victim)
    watcher.advance(0)
    assert len(watcher.groups_published) == 3


def test_a_lost_attempt_is_followed_by_one_with_the_present_members():
    pods = members(3)
    watcher = a_watcher(a_pod_group(minimum=2), *pods)
    watcher.delete(pods[2])
    watcher.advance(11)
    [look_up] = watcher.of(LookUpAttempt)
    assert (look_up.pod, str(look_up.attempt)) == (GANG, "uid-~gang.7.1")
    watcher.send(AttemptLookedUp(attempt=look_up.attempt))
    assert (names(watcher), in_flight(watcher)) == (["gang-0", "gang-1"], 2)


def test_a_group_of_which_three_attempts_in_a_row_are_lost_is_given_up():
    watcher = a_watcher(a_pod_group(minimum=2), *members(2))
    for lost in range(1, 4):
        assert len(watcher.groups_published) == lost
        watcher.advance(11)
        watcher.send(AttemptLookedUp(attempt=watcher.of(LookUpAttempt)[-1].attempt))
    assert (len(watcher.groups_published), watcher.stage(GANG), in_flight(watcher)) == (3, "backoff", 0)


def test_the_room_of_a_lost_member_is_left_to_its_replacement_for_a_second():
    pods = [bound(pod) for pod in members(4, "old")]
    watcher = a_watcher(a_pod_group("old", 4), a_pod_group("fresh", 1), *pods, a_pod("single"))
    watcher.decide("single", Outcome.UNSCHEDULABLE, blockers=["NodeResourcesFit"], positions=covering(watcher))
    watcher.advance(20)
    watcher.delete(pods[0])
    assert watcher.pods_published == ["single"]
    watcher.show(a_member("replaced", "old"))
    assert names(watcher) == ["replaced"]
    assert watcher.core.due() <= watcher.now + 1.0
    watcher.advance(1.0)
    assert watcher.pods_published == ["single", "single"]


def test_the_room_of_a_member_that_is_lost_during_an_attempt_helps_it_after_a_second():
    pods = [bound(pod) for pod in members(4, "old")]
    watcher = a_watcher(a_pod_group("old", 4), a_pod_group("fresh", 2), *pods, *members(2, "fresh"), a_pod("single"))
    before = covering(watcher)
    watcher.delete(pods[0])
    for name in ("single", "~fresh"):
        watcher.decide(name, Outcome.UNSCHEDULABLE, blockers=["NodeResourcesFit"], positions=before)
    watcher.advance(0.9)
    assert (len(watcher.pods_published), len(watcher.groups_published)) == (1, 1)
    watcher.advance(0.1)
    assert (len(watcher.pods_published), len(watcher.groups_published)) == (2, 2)


def test_a_decision_after_that_second_has_missed_the_room_of_the_lost_member():
    pods = [bound(pod) for pod in members(4, "old")]
    watcher = a_watcher(a_pod_group("old", 4), *pods, a_pod("single"))
    before = covering(watcher)
    watcher.delete(pods[0])
    watcher.advance(2.0)
    watcher.decide("single", Outcome.UNSCHEDULABLE, blockers=["NodeResourcesFit"], positions=before)
    assert len(watcher.pods_published) == 2


def test_a_replacement_that_fits_nowhere_is_tried_again_when_something_has_changed():
    pods = [bound(pod) for pod in members(3, "old")]
    watcher = a_watcher(a_pod_group("old", 3), *pods)
    watcher.delete(pods[0])
    watcher.advance(14.0)  # the room of the lost member is everybody's since 13 s
    watcher.show(a_member("replacement", "old", cpu="5"))
    for _ in range(3):
        watcher.decide("~old", Outcome.UNSCHEDULABLE, blockers=["NodeResourcesFit"], positions=covering(watcher))
        watcher.advance(2.0)
    assert len(watcher.groups_published) == 1


def test_a_member_that_begins_to_terminate_helps_no_other_group_for_a_second():
    pods = [bound(pod) for pod in members(2, "old")]
    unlike = [a_member("fresh-0", "fresh"), a_member("fresh-1", "fresh", cpu="2")]
    watcher = a_watcher(a_pod_group("old", 2), a_pod_group("fresh", 2), *pods, *unlike)
    watcher.decide("~fresh", Outcome.UNSCHEDULABLE, blockers=["NodeResourcesFit"], positions=covering(watcher))
    watcher.advance(20)
    watcher.show(bound(a_member("old-0", "old", deleted=True)))
    watcher.delete(pods[0])
    assert len(watcher.groups_published) == 1
    watcher.advance(1.0)
    assert len(watcher.groups_published) == 2


def test_the_room_of_a_group_that_ends_helps_at_once():
    pods = [bound(pod) for pod in members(2, "old")]
    watcher = a_watcher(a_pod_group("old", 2), *pods, a_pod("single"))
    watcher.decide("single", Outcome.UNSCHEDULABLE, blockers=["NodeResourcesFit"], positions=covering(watcher))
    watcher.advance(20)
    watcher.delete(pods[0])
    watcher.delete(pods[1])
    watcher.advance(0.0)
    assert watcher.pods_published == ["single", "single"]


def test_the_room_of_a_group_that_waited_for_volumes_in_vain_helps_others():
    watcher = a_watcher(a_pod_group(minimum=2), *members(2), a_pod("single"))
    watcher.decide(GANG, Outcome.WAITING)
    assert in_flight(watcher) == 1
    watcher.decide("single", Outcome.UNSCHEDULABLE, blockers=["NodeResourcesFit"], positions=covering(watcher))
    watcher.advance(20)
    watcher.decide(GANG, Outcome.ERROR)
    watcher.send()
    assert watcher.pods_published == ["single", "single"]
    watcher.decide("single", Outcome.UNSCHEDULABLE, blockers=["NodeResourcesFit"], positions=covering(watcher))
    assert watcher.stage("single") == "unschedulable"


# --- time to whole


def whole_after(watcher: WatcherUnderTest) -> list[float]:
    return [effect.seconds for effect in watcher.of(CountWholeGroup)]


def test_the_time_to_whole_begins_when_the_group_is_complete_and_ends_with_its_minimum_bound():
    pods = members(3)
    watcher = a_watcher(a_pod_group(minimum=2), pods[0])
    watcher.advance(5)
    watcher.show(*pods[1:])
    watcher.advance(2)
    watcher.show(bound(pods[0]))
    watcher.decide(GANG, Outcome.CONFLICT, reason=Reason.BEGUN)
    assert whole_after(watcher) == []
    watcher.advance(1)
    watcher.show(bound(pods[1]))
    watcher.decide(GANG, Outcome.BOUND)
    assert whole_after(watcher) == [3.0]
    watcher.delete(bound(pods[0]))
    watcher.show(bound(a_member("replaced")), bound(pods[2]))
    assert whole_after(watcher) == [3.0]


def test_the_time_to_whole_begins_anew_with_a_lost_member():
    pods = members(2)
    watcher = a_watcher(a_pod_group(minimum=2), *pods)
    watcher.decide(GANG, Outcome.UNSCHEDULABLE, blockers=["NodeResourcesFit"], positions=covering(watcher))
    watcher.delete(pods[0])
    watcher.advance(5)
    watcher.show(pods[0])
    watcher.advance(1)
    watcher.show(*map(bound, pods))
    watcher.decide(GANG, Outcome.BOUND)
    assert whole_after(watcher) == [1.0]


# --- PodGroups that change


def test_a_raised_minimum_closes_the_gate():
    watcher = a_watcher(a_pod_group(minimum=2), *members(1))
    watcher.show(a_pod_group(minimum=3, version=2), a_member("gang-1"))
    assert (watcher.groups_published, message_of(watcher, "uid-gang-1")) == ([], "2 of 3 members exist")
    watcher.show(a_pod_group(minimum=2, version=3))
    assert len(watcher.groups_published) == 1


def test_a_remade_pod_group_has_attempts_of_its_own():
    watcher = a_watcher(a_pod_group(minimum=2), *members(2))
    watcher.decide(GANG, Outcome.UNSCHEDULABLE, blockers=["NodeResourcesFit"], positions=covering(watcher))
    watcher.send(Deleted(kind="coschedulingpodgroup", object=a_pod_group(minimum=2, version=2)))
    assert (watcher.stage(GANG), message_of(watcher, "uid-gang-0")) == (
        "gone",
        'no PodGroup "gang" in scheduling.x-k8s.io',
    )
    watcher.show(a_pod_group(minimum=2, uid="another", version=3))
    assert watcher.groups_published[-1].message.attempt == "another.7.1"


def test_numbers_of_attempts_are_not_used_again():
    pods = members(2)
    watcher = a_watcher(a_pod_group(minimum=2), *pods)
    watcher.decide(GANG, Outcome.ERROR)
    for pod in pods:
        watcher.delete(pod)
    assert watcher.stage(GANG) == "gone"
    watcher.show(*members(2, uid=""))
    assert watcher.groups_published[-1].message.attempt == "uid-~gang.7.2"


def test_nothing_is_kept_of_a_group_that_goes_in_the_slice_in_which_its_pods_go():
    pods = members(2)
    watcher = a_watcher(a_pod_group(minimum=2), *pods)
    watcher.decide(GANG, Outcome.UNSCHEDULABLE, blockers=["NodeResourcesFit"], positions=covering(watcher))
    gone = [Deleted(kind="pod", object=pod) for pod in pods]
    watcher.send(*gone, Deleted(kind="coschedulingpodgroup", object=a_pod_group(minimum=2, version=2)))
    assert watcher.stage(GANG) == "gone"
    assert not watcher.core._grouping._last


@pytest.mark.parametrize(
    ("decision", "eighths"),
    [
        pytest.param(
            {"outcome": Outcome.UNSCHEDULABLE, "blockers": ["NodeResourcesFit"]}, [0, 1, 2, 9, 10, 17, 18], id="no room"
        ),
        pytest.param(
            {"outcome": Outcome.CONFLICT, "reason": Reason.PROPOSALS}, [0, 1, 2, 8, 9, 16, 17], id="only proposals"
        ),
    ],
)
def test_the_back_off_of_a_group_ends_early_twice_a_second_while_events_may_help_it(
    decision: dict[str, Any], eighths: list[int]
):
    """A Job's end is many events: at the first there is too little room, and a second later a rival has it."""
    watcher = a_watcher(a_pod_group(minimum=2), *members(2))
    tried = []
    for eighth in range(20):
        watcher.show(a_node(f"n{eighth}", cpu="64"))
        if len(watcher.groups_published) > len(tried):
            tried.append(eighth)
            watcher.decide(GANG, positions=covering(watcher), **decision)
        watcher.advance(1 / 8)
    assert tried[:7] == eighths


# --- a takeover


def test_a_takeover_finds_a_group_in_flight_and_its_members_decisions():
    pods = members(2)
    former = attempt(GANG, 6, 3)
    found = FoundInFlight(attempt=former, pod=pods[0], members=(attempt("gang-0", 6, 1), attempt("gang-1", 6, 1)))
    watcher = WatcherUnderTest(kinds=KINDS)
    watcher.lead(a_node("n1"), a_pod_group(minimum=2), *pods, streams=StreamsRead(in_flight={f"uid-{GANG}": found}))
    assert (watcher.groups_published, watcher.published, in_flight(watcher)) == ([], [], 2)
    assert watcher.stage(GANG) == "in flight"
    watcher.decide("gang-0", Outcome.BOUND, attempt="uid-gang-0.6.1")
    assert watcher.stage("gang-0") == "awaiting watch"
    watcher.decide("gang-1", Outcome.BOUND, attempt="uid-gang-1.6.1")
    watcher.show(*map(bound, pods))
    assert watcher.stage("gang-0") == "gone"


def test_a_group_that_a_takeover_finds_in_flight_may_be_helped_by_what_came_before_its_decision():
    pods, former = members(2), attempt(GANG, 6, 3)
    found = FoundInFlight(attempt=former, pod=pods[0], members=(attempt("gang-0", 6, 1), attempt("gang-1", 6, 1)))
    watcher = WatcherUnderTest(kinds=KINDS)
    watcher.lead(a_node("n1"), a_pod_group(minimum=2), *pods, streams=StreamsRead(in_flight={f"uid-{GANG}": found}))
    positions = covering(watcher)
    watcher.show(a_node("n2"))
    blockers = ["NodeResourcesFit"]
    watcher.decide(GANG, Outcome.UNSCHEDULABLE, attempt=str(former), blockers=blockers, positions=positions)
    watcher.advance(1.1)
    assert len(watcher.groups_published) == 1


def test_a_takeover_goes_on_from_a_groups_decision():
    pods = members(2)
    watcher = WatcherUnderTest(kinds=KINDS)
    watcher.list_objects(a_node("n1"), a_pod_group(minimum=2), *pods)
    watcher.take_over()
    watcher.read_bucket()
    received = watcher.decision(GANG, Outcome.ERROR, attempt=f"uid-{GANG}.6.3", message="refused")
    last = FoundDecision(decision=received.decision, time=EPOCH, age_seconds=0.0)
    watcher.send(StreamsRead(decisions={f"uid-{GANG}": last}))
    assert watcher.stage(GANG) == "backoff"
    watcher.advance(3)
    assert watcher.groups_published[-1].message.attempt == f"uid-{GANG}.7.1"


def covering(watcher: WatcherUnderTest) -> Any:
    """Positions of a scorer that has read everything."""
    return Positions(cluster=watcher.sequence, decisions=watcher.decisions)


@pytest.mark.parametrize("order", ["group first", "pods first"])
def test_a_takeover_waits_for_nothing_that_a_fresh_group_needs(order: str):
    things = [a_pod_group(minimum=2), *members(2)]
    watcher = a_watcher(*(things if order == "group first" else reversed(things)))
    assert len(watcher.groups_published) == 1


# --- what the leader answers about groups


def test_a_group_is_a_row_of_the_queue_and_its_pods_name_it():
    watcher = a_watcher(a_pod_group(minimum=4), *members(3), a_pod("web"))
    rows = {row.name: row for row in watcher.core.answers.page(PageRequest(), watcher.now).pods}
    group = rows[GANG]
    assert group.members == GroupCounts(dialect="scheduling.x-k8s.io", name="gang", minimum=4, need=4, pending=3)
    assert (group.title, group.queue, group.stage, group.message) == (
        "default/gang",
        INCOMPLETE,
        GROUPED,
        "3 of 4 members exist",
    )
    assert rows["gang-0"].queue == WITH_GROUP
    assert {name: (row.group, row.waits_with_group) for name, row in rows.items() if name != GANG} == {
        **{f"gang-{number}": (GANG, True) for number in range(3)},
        "web": ("", False),
    }


def test_a_group_whose_podgroup_has_a_fault_is_unusable_in_the_queue():
    watcher = a_watcher(a_pod_group(minimum=10**6), *members(2))
    [row] = [row for row in watcher.core.answers.page(PageRequest(), watcher.now).pods if row.name == GANG]
    assert (row.queue, row.stage) == (UNUSABLE, GROUPED)


def test_a_member_with_scheduling_gates_names_them_whatever_its_group_does():
    watcher = a_watcher(a_pod_group(minimum=3), *members(2), a_member("gang-x", gates=("quota",)))
    own = "waiting for scheduling gates: [quota]"
    assert message_of(watcher, f"uid-{GANG}") == "2 of 3 members can be tried; 1 of its pods has scheduling gates"
    assert message_of(watcher, "uid-gang-x") == own
    watcher.show(a_member("gang-2"))
    assert names(watcher) == ["gang-0", "gang-1", "gang-2"]
    watcher.decide(GANG, Outcome.UNSCHEDULABLE, blockers=["NodeResourcesFit"])
    assert message_of(watcher, "uid-gang-x") == own


def test_pods_that_wait_with_their_group_are_counted_once_and_not_as_gated():
    watcher = a_watcher(a_pod_group(minimum=4), *members(4), a_pod("later", gates=("quota",)))
    positions = Positions(cluster=watcher.sequence)
    watcher.decide(GANG, Outcome.UNSCHEDULABLE, positions=positions, blockers=["NodeResourcesFit"])
    counts = {"active": 0, "backoff": 0, "unschedulable": 0, "gated": 1, WITH_GROUP: 4}
    assert watcher.core.answers.page(PageRequest(), watcher.now).queues == counts
    figures = watcher.core.figures(watcher.now)
    assert stats_of(figures)["queues"] == counts
    # As in kube-scheduler, they are in the queue of their group, which is no pod.
    assert figures.pending == {"active": 0, "backoff": 0, "unschedulable": 4, "gated": 1}


def test_pods_of_a_group_are_pending_in_its_queue_and_in_none_while_it_is_in_flight():
    watcher = a_watcher(a_pod_group(minimum=3), *members(2))

    def pending() -> dict[str, int]:
        return {queue: pods for queue, pods in watcher.core.figures(watcher.now).pending.items() if pods}

    assert pending() == {"gated": 2}
    watcher.show(a_member("gang-2"))
    assert (in_flight(watcher), pending()) == (3, {})
    watcher.show(a_member("gang-3"))  # waits for the Decision
    watcher.delete(a_member("gang-0"))
    assert pending() == {"gated": 1}
    watcher.decide(GANG, Outcome.UNSCHEDULABLE, positions=Positions(cluster=watcher.sequence), blockers=["X"])
    assert pending() == {}  # tried again with its present members
    watcher.decide(GANG, Outcome.UNSCHEDULABLE, positions=Positions(cluster=watcher.sequence), blockers=["X"])
    assert pending() == {"unschedulable": 3}
    watcher.delete(a_member("gang-1"))
    assert pending() == {"gated": 2}


def test_a_group_is_found_in_its_queue_and_beside_its_pods():
    watcher = a_watcher(a_pod_group(minimum=2), *members(2), a_pod("web"))
    positions = Positions(cluster=watcher.sequence)
    watcher.decide(GANG, Outcome.UNSCHEDULABLE, positions=positions, blockers=["NodeResourcesFit"])

    def listed(queue: str) -> set[str]:
        return {row.name for row in watcher.core.answers.page(PageRequest(queue=queue), watcher.now).pods}

    assert (listed("unschedulable"), listed(WITH_GROUP)) == ({GANG}, {GANG, "gang-0", "gang-1"})


def test_a_group_is_answered_by_its_name_in_subjects():
    watcher = a_watcher(a_pod_group(minimum=4), *members(4))
    positions = Positions(cluster=watcher.sequence)
    watcher.decide(GANG, Outcome.UNSCHEDULABLE, positions=positions, blockers=["NodeResourcesFit"], message="0 of 4")
    found = watcher.core.answers.pod(PodRequest(namespace="default", name=GANG), watcher.now).detail
    assert found is not None
    assert (found.pod.queue, found.pod.message, found.outcome) == (
        "unschedulable",
        "0 of 4",
        "unschedulable",
    )


def test_a_page_ends_once_many_members_have_been_counted():
    groups = [a_pod_group(f"gang{number}", minimum=30) for number in range(100)]
    pods = [pod for number in range(100) for pod in members(25, f"gang{number}")]
    watcher = a_watcher(*groups, *pods)
    start, seen, most = 0, set(), 0
    while start is not None:
        answer = watcher.core.answers.page(PageRequest(start=start), watcher.now)
        seen.update(row.name for row in answer.pods)
        most = max(most, sum(row.members is not None for row in answer.pods))
        start = answer.next
    assert len(seen) == 2600
    assert most * 25 <= PODS_SCANNED
