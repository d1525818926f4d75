"""Nodes earmarked by the binder for a group that has waited long (docs/protocol.md, 5)."""

from __future__ import annotations

import msgspec
import pytest

from berth.api.pod import Pod
from berth.messages.attempts import Decision, Outcome, Reason
from berth.messages.earmarks import EARMARK_SECONDS, FILTER, Earmark
from berth.messages.groupattempts import GroupRanked
from berth_binder.decisions.groupreports import GroupReports
from berth_binder.events import EvictPods, GroupState
from berth_binder.settings import CoreSettings
from harness.worlds.binder_bench import BACKOFF, PROFILE, at_version, make_pod, on_node, posts, ranked
from harness.worlds.group_bench import LABELS, GroupBench

WAIT = 30.0


def a_bench(**parts: object) -> GroupBench:
    """Three nodes of 4 CPUs, each taken by a pod; earmarks after half a minute."""
    settings = CoreSettings(backoff=BACKOFF, group_earmark_seconds=WAIT)
    bench = GroupBench(**{"cpu": "4", "settings": settings, **parts})
    for node in ("n1", "n2", "n3"):
        bench.show(on_node(taking(node), node))
    return bench


def taking(node: str) -> Pod:
    return make_pod(f"on-{node}", cpu="4")


@pytest.fixture
def bench() -> GroupBench:
    return a_bench()


class Gang:
    """A group of so many, whose attempts follow each other."""

    def __init__(self, bench: GroupBench, count: int = 8, **pod: object) -> None:
        self.bench, self.count, self.n = bench, count, 0
        self.group, self.pods = bench.show_group(count), bench.show_members(count, **pod)

    def message(self) -> GroupRanked:
        self.n += 1
        return self.bench.plan(self.group, self.pods, n=self.n)

    def attempt(self, seconds: float = 0.0, **changes: object) -> Decision:
        self.bench.wait(seconds)
        self.bench.take_group(msgspec.structs.replace(self.message(), **changes))
        while self.bench.core.backlog or self.bench.core._groups.has_work:
            self.bench.wait(0)
        return self.bench.of_group[-1]


def earmark_of(bench: GroupBench) -> Earmark | None:
    return bench.cache.snapshot.earmarks.get(PROFILE)


def earmarked(bench: GroupBench, **gang: object) -> tuple[Gang, Earmark]:
    made = Gang(bench, **gang)
    made.attempt()
    made.attempt(WAIT)
    found = earmark_of(bench)
    assert found is not None
    return made, found


def place(bench: GroupBench, name: str, *nodes: str, **pod: object) -> Decision:
    """The binder decides about a newcomer for which a scorer names these nodes."""
    newcomer = bench.show(make_pod(name, **pod))
    bench.take(ranked(newcomer, *nodes))
    return next((each for each in reversed(bench.decisions) if each.uid == newcomer.uid), None)  # type: ignore[return-value]


def free(bench: GroupBench, *nodes: str) -> None:
    """The pods on these nodes end."""
    for node in nodes:
        bench.delete(taking(node), 90)


def test_a_group_gets_nodes_earmarked_once_it_has_waited_long(bench):
    gang = Gang(bench)
    first = gang.attempt()
    assert (first.outcome, first.earmark) == (Outcome.UNSCHEDULABLE, None)
    assert gang.attempt(WAIT - 1).earmark is None
    decision = gang.attempt(1)
    assert decision.earmark is not None
    assert (decision.earmark.uid, decision.earmark.profile, decision.earmark.seconds) == (
        "uid-gang",
        PROFILE,
        EARMARK_SECONDS,
    )
    assert len(decision.earmark.nodes) == 2
    assert decision.message.endswith("; 2 nodes are earmarked for it")
    assert earmark_of(bench) == decision.earmark


def test_there_are_none_without_the_setting():
    bench = a_bench(settings=CoreSettings(backoff=BACKOFF))
    gang = Gang(bench)
    gang.attempt()
    assert gang.attempt(10 * WAIT).earmark is None


@pytest.mark.parametrize(
    ("changes", "given"),
    [({"proposals_counted": True}, True), ({"behind": True}, False)],
    ids=["proposals have the room", "the scorer was behind"],
)
def test_conflicts_about_room_count_as_waiting(bench, changes, given):
    gang = Gang(bench)
    gang.attempt(**changes)
    decision = gang.attempt(WAIT, **changes)
    assert (decision.outcome, decision.earmark is not None) == (Outcome.CONFLICT, given)


def test_newcomers_are_kept_off_and_the_group_is_not(bench):
    gang, earmark = earmarked(bench)
    node = earmark.nodes[0]
    free(bench, node)
    kept_out = place(bench, "newcomer", node)
    assert (kept_out.outcome, kept_out.reason) == (Outcome.CONFLICT, Reason.NO_CANDIDATE)
    assert kept_out.rejections[0].plugin == FILTER
    free(bench, *earmark.nodes)
    gang.bench.bind_all(gang.bench.take_group(gang.message()))
    decision = bench.of_group[-1]
    assert (decision.outcome, decision.earmark) == (Outcome.BOUND, None)
    assert bench.cache.snapshot.earmarks == {}


def test_a_pod_of_higher_priority_takes_the_room(bench):
    _, earmark = earmarked(bench)
    free(bench, earmark.nodes[0])
    urgent = bench.show(make_pod("urgent", priority=10))
    assert [name for name, *_ in posts(bench.take(ranked(urgent, earmark.nodes[0])))] == ["urgent"]


def test_a_pod_that_waits_there_since_before_is_bound(bench):
    free(bench, "n1", "n2", "n3")
    early = bench.show(make_pod("early", cpu="1"))
    effects = bench.take(ranked(early, "n1"))
    assert [name for name, *_ in posts(effects)] == ["early"]
    bench.cache.snapshot.earmarks = {PROFILE: _earmark_on("n1")}
    bench.no_answer(early)
    bench.wait(10)
    again = bench.reading(early, early)
    assert [(name, node) for name, node, *_ in posts(again)] == [("early", "n1")]


def _earmark_on(*nodes: str) -> Earmark:
    return Earmark(dialect="scheduling.x-k8s.io", namespace="default", name="x", uid="u", profile="b", nodes=[*nodes])


def test_nothing_is_evicted_for_an_earmark(bench):
    gang = Gang(bench)
    gang.attempt()
    bench.wait(WAIT)
    assert not any(isinstance(each, EvictPods) for each in bench.take_group(gang.message()))
    assert earmark_of(bench) is not None


def test_there_are_none_where_the_group_never_fits(bench):
    gang = Gang(bench, count=13)
    gang.attempt()
    assert gang.attempt(WAIT).earmark is None
    # The next search comes after as long a wait.
    bench.show_node("n4")
    assert gang.attempt(WAIT - 1).earmark is None
    assert gang.attempt(1).earmark is not None


def test_there_are_none_beside_pods_of_higher_priority():
    bench = GroupBench(cpu="4", settings=CoreSettings(backoff=BACKOFF, group_earmark_seconds=WAIT))
    for number in range(3):
        bench.show(on_node(make_pod(f"high{number}", cpu="4", priority=5), f"n{number + 1}"))
    gang = Gang(bench, count=4)
    gang.attempt()
    assert gang.attempt(WAIT).earmark is None


def test_it_ends_after_five_minutes_and_the_group_waits_anew(bench):
    gang, _ = earmarked(bench)
    assert bench.core.due() is not None
    decision = gang.attempt(EARMARK_SECONDS - 10)
    assert decision.earmark is not None
    assert decision.earmark.seconds == 10
    bench.wait(10)
    assert bench.cache.snapshot.earmarks == {}
    assert gang.attempt(WAIT - 1).earmark is None
    assert gang.attempt(1).earmark is not None


def test_one_group_of_a_profile_has_one_at_a_time(bench):
    earmarked(bench)
    other = bench.show_group(4, name="other")
    labels = {**LABELS, next(iter(LABELS)): "other"}
    pods = [bench.show(make_pod(f"o{number}", labels=labels)) for number in range(4)]
    for n in (1, 2):
        bench.wait(WAIT)
        bench.take_group(bench.plan(other, pods, n=n))
    assert bench.decisions[-1].uid == "uid-other"
    assert bench.decisions[-1].earmark is None


def _deleted(bench: GroupBench, _gang: Gang) -> None:
    bench.delete_group()


def _changed(bench: GroupBench, gang: Gang) -> None:
    bench.show_group(gang.count - 1, version=9)


def _remade(bench: GroupBench, gang: Gang) -> None:
    bench.show_group(gang.count, uid="uid-other", version=9)


def _incomplete(bench: GroupBench, gang: Gang) -> None:
    bench.delete(gang.pods[0], 90)


def _placed(bench: GroupBench, gang: Gang) -> None:
    for pod in gang.pods:
        bench.show(on_node(at_version(pod, 90), "elsewhere"))


@pytest.mark.parametrize("happens", [_deleted, _changed, _remade, _incomplete, _placed])
def test_it_ends_when_the_group_is_not_the_one_that_it_was(bench, happens):
    gang, _ = earmarked(bench)
    happens(bench, gang)
    bench.wait(1.0)
    assert bench.cache.snapshot.earmarks == {}


def test_it_stays_when_only_the_status_of_the_group_changes(bench):
    earmarked(bench)
    bench.show_group(8, version=9)
    bench.wait(1.0)
    assert earmark_of(bench) is not None


def test_a_new_epoch_has_none(bench):
    earmarked(bench)
    bench.new_epoch(8)
    assert bench.cache.snapshot.earmarks == {}


def test_an_event_on_the_group_names_the_nodes_once(bench):
    reports = GroupReports(bench.cache)
    _, earmark = earmarked(bench)
    found = [each for each in reports.report(bench.now) if each.state is GroupState.EARMARKED]
    (report,) = found
    assert report.group is not None
    assert (report.group.name, report.message) == (
        "gang",
        f"has waited long: 2 nodes are earmarked for it for 5 minutes: {', '.join(earmark.nodes)}",
    )
    assert [*reports.report(bench.now + 1)] == []


def test_a_pod_of_a_begun_group_is_no_newcomer(bench):
    _, earmark = earmarked(bench)
    node = earmark.nodes[0]
    begun = bench.show_group(3, name="begun")
    labels = {next(iter(LABELS)): "begun"}
    bench.show(on_node(make_pod("b1", labels=labels), "n9"))
    rest = [bench.show(make_pod(f"b{number}", labels=labels)) for number in (2, 3)]
    free(bench, node)
    message = bench.plan(begun, rest)
    assert {message.plan.nodes[each.node] for each in message.plan.members} == {node}
    bench.bind_all(bench.take_group(message))
    assert [each.outcome for each in bench.decisions if each.uid == "uid-begun"] == [Outcome.BOUND]
