"""PodGroups in words: `berth groups`, `berth why --group`, a group as a row of the queue, and its messages."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from berth.api.meta import ObjectMeta
from berth.api.podgroups import GROUP_LABEL, CoschedulingPodGroup, CoschedulingSpec, Dialect, GroupKey
from berth.bus.interface import StoredMessage
from berth.bus.stages import publish_decision
from berth.cluster.snapshot import Snapshot
from berth.exits import UsageError
from berth.messages.attempts import ClassResult, Decision, GroupResult, Outcome, Preemption, Reason, Rejection, Victim
from berth.messages.bundles import bundled
from berth.messages.earmarks import Earmark
from berth.messages.encoding import encode
from berth.messages.groupattempts import GroupPending, GroupRanked
from berth.messages.groups import ClassPlan, GroupPlan
from berth.messages.queue import GROUPED, WITH_GROUP, GroupCounts, QueueAnswer, QueuedPodDetail, WaitingPod
from berth_cli.commands.queue import pod_lines
from berth_cli.commands.trace import TracePrinter, groups_named, stored_messages, traces_of, without_messages
from berth_cli.console.decisionlog import DecisionLog
from berth_cli.options import NotFoundError, OutputFormat, parse_pod
from berth_cli.pods import podgroups
from berth_cli.pods.podgroups import (
    EMPTY,
    ExplainedGroup,
    GroupSummary,
    add_waiting,
    explain_groups,
    explain_summary,
    explained_json,
    explained_lines,
    explained_sentences,
    groups_of,
    summary_lines,
)
from berth_cli.pods.timeline import TracedMessage, describe, with_recalled
from berth_cli.pods.waiting import detail_lines
from berth_cli.remedies.groups import grouped
from harness.builders.groups import a_group, members
from harness.builders.objects import a_node, a_pod
from harness.fakes.memory_bus import MemoryBus
from harness.worlds.printed import printed, words

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
NONE = "none is on a node, or waits with a schedulerName of berth's"
TOO_SMALL = "2 of 4 have a place; 2 like second-2 do not fit: 0/2 nodes are available: 2 Insufficient cpu"


def a_cluster() -> Snapshot:
    """Two nodes with the four pods of `first`; a PodGroup `second`, and one without pods."""
    snapshot = Snapshot()
    for name in ("first", "second", "empty"):
        metadata = ObjectMeta(name=name, namespace="default", uid=f"uid-{name}")
        group = CoschedulingPodGroup(metadata=metadata, spec=CoschedulingSpec(min_member=4))
        snapshot.objects(CoschedulingPodGroup).set(metadata.uid, group)
    for number in range(4):
        node = f"node-{number % 2}"
        snapshot.set_node(a_node(node))
        snapshot.place(a_pod(f"first-{number}", labels={GROUP_LABEL: "first"}), node)
    return snapshot


def a_row(name: str, queue: str = WITH_GROUP, stage: str = GROUPED, **more) -> WaitingPod:
    parts = {"uid": f"uid-{name}", "since": NOW - timedelta(seconds=65), "message": TOO_SMALL, **more}
    return WaitingPod(namespace="default", name=name, profile="berth", queue=queue, stage=stage, **parts)


def rows() -> list[WaitingPod]:
    """The queue: `second` is unschedulable, and a pod names a group that does not exist."""
    state = GroupCounts(dialect="scheduling.x-k8s.io", name="second", minimum=4, need=4, pending=4)
    group = a_row("~second", "unschedulable", "unschedulable", members=state, plugins=["NodeResourcesFit"], attempts=2)
    pods = [a_row(f"second-{number}", group="~second") for number in range(4)]
    return [group, *pods, a_row("lone-0", group="~~lone", message='no PodGroup "lone" in scheduling.k8s.io')]


def summaries(waiting: Iterable[WaitingPod] = ()) -> dict[str, GroupSummary]:
    found = groups_of(a_cluster())
    for _ in range(2):  # a pod may be on two pages
        add_waiting(found, waiting)
    return {key.name: summary for key, summary in found.items()}


def explained_at(summary: GroupSummary) -> ExplainedGroup:
    return ExplainedGroup(summary=summary, now=NOW)


def decided(outcome: Outcome = Outcome.UNSCHEDULABLE, **more) -> Decision:
    rejections = [Rejection(plugin="NodeResourcesFit", reason="Insufficient cpu", nodes=2)]
    classes = [ClassResult(members=4, placed=2, example="second-2", rejections=rejections)]
    parts = {"message": TOO_SMALL, "group": GroupResult(need=4, classes=classes), **more}
    whose = {"namespace": "default", "pod": "~second", "uid": "uid-second", "profile": "berth"}
    return Decision(attempt="uid-second.1.2", epoch=1, outcome=outcome, scorer="scorer-1", **whose, **parts)


def test_a_group_that_cannot_be_scheduled_as_it_is_says_why_before_it_has_pods():
    snapshot = Snapshot()
    metadata = ObjectMeta(name="odd", namespace="default", uid="uid-odd")
    for spec in (CoschedulingSpec(left_out="cannot be read: x"), CoschedulingSpec(min_member=0)):
        snapshot.objects(CoschedulingPodGroup).set("uid-odd", CoschedulingPodGroup(metadata=metadata, spec=spec))
        [summary] = groups_of(snapshot).values()
        why = "the PodGroup cannot be read: x" if spec.left_out else "spec.minMember: want 1 or more, got 0"
        assert (summary.state, summary.message) == (EMPTY, why)
    shown = printed(*explained_lines(ExplainedGroup(summary=summary, now=NOW)), width=200)
    assert shown[0].strip() == f"default/odd has no pods: {why}"


def test_groups_say_what_is_bound_and_what_waits():
    found = sorted(summaries(rows()).values(), key=lambda each: each.key.name)
    assert words(printed(*summary_lines(found, NOW, rows=None), width=200)) == [
        ["4", "groups,", "2", "waiting"],
        [],
        ["GROUP", "STATE", "BOUND", "WAITING", "MINIMUM", "AGE", "WHY"],
        [
            "default/lone",
            "incomplete",
            "0",
            "1",
            "1",
            "min",
            "5",
            "s",
            "no",
            "PodGroup",
            '"lone"',
            "in",
            "scheduling.k8s.io",
        ],
        ["default/second", "unschedulable", "0", "4", "4", "1", "min", "5", "s", *TOO_SMALL.split()],
        ["default/empty", "no", "pods", "0", "0", "4", *NONE.split()],
        ["default/first", "bound", "4", "0", "4"],
    ]


def test_groups_that_wait_or_are_bound_in_part_are_listed_first():
    found = summaries(rows())
    del found["first"].placed["first-3"]
    partly, empty, waiting = found["first"], found["empty"], found["second"]
    listed = words(printed(*summary_lines([empty, partly, waiting], NOW, rows=2), width=200))
    assert [line[0] for line in listed[3:]] == ["default/first", "default/second", "and"]


def test_bound_pods_whose_podgroup_is_gone_are_listed():
    snapshot = a_cluster()
    snapshot.objects(CoschedulingPodGroup).remove("uid-first")
    found = {key.name: each for key, each in groups_of(snapshot).items()}
    why = 'no PodGroup "first" in scheduling.x-k8s.io'
    assert (found["first"].state, len(found["first"].placed), found["first"].message) == ("no PodGroup", 4, why)
    assert groups_of(snapshot, "other") == {}
    shown = printed(*explained_lines(ExplainedGroup(summary=found["first"], now=NOW)), width=200)
    assert shown[0] == f"default/first has pods on nodes: {why}"
    snapshot.objects(CoschedulingPodGroup).unread = "forbidden"  # then there may be a PodGroup
    assert sorted(key.name for key in groups_of(snapshot)) == ["empty", "second"]


def test_a_bound_member_whose_node_is_gone_does_not_wait():
    snapshot = a_cluster()
    snapshot.remove_node("node-1")
    [found] = [each for each in groups_of(snapshot).values() if each.key.name == "first"]
    assert [each["node"] for each in found.as_json()["members"]] == ["node-0", "node-1", "node-0", "node-1"]


def test_a_group_with_its_minimum_is_bound_and_pods_beyond_it_wait():
    alone = {"queue": "unschedulable", "stage": "unschedulable", "group": "~first"}
    later = [a_row(f"first-{number}", message="0/2 nodes are available", **alone) for number in (7, 8)]
    found = summaries(later)["first"]
    why = "2 pods wait beyond the minimum: 0/2 nodes are available"
    assert (found.state, found.message) == ("bound", why)
    assert printed(*explained_lines(ExplainedGroup(summary=found, now=NOW)), width=200)[0] == (
        f"default/first is bound: {why}"
    )
    hint = "default/first-7 waits by itself: see `berth why default/first-7`"
    assert hint in explained_sentences(explained_at(found))
    empty = summaries()["empty"]
    listed = words(printed(*summary_lines([empty, found], NOW, rows=1), width=200))
    assert (listed[0], listed[3][0]) == (["2", "groups,", "0", "waiting"], "default/first")


def test_a_group_whose_podgroup_cannot_be_used_waits_for_its_correction():
    snapshot = Snapshot()
    metadata = ObjectMeta(name="second", namespace="default", uid="uid-second")
    spec = CoschedulingSpec(min_member=10**6)
    snapshot.objects(CoschedulingPodGroup).set("uid-second", CoschedulingPodGroup(metadata=metadata, spec=spec))
    found = groups_of(snapshot)
    [summary] = found.values()
    why = "spec.minMember: the group asks for a minimum of 1000000, more than a plan can take (at most 2000)"
    state = GroupCounts(dialect="scheduling.x-k8s.io", name="second", minimum=10**6, need=10**6, pending=1)
    row = a_row("~second", "unusable", message=why, members=state)
    add_waiting(found, [row, a_row("second-0", group="~second", message=why)])
    explained = ExplainedGroup(summary=summary, now=NOW, detail=QueuedPodDetail(pod=row))
    assert (summary.state, summary.message) == ("unusable", why)
    assert printed(*explained_lines(explained), width=200)[:3] == [
        f"default/second is unusable: {why}",
        "  PodGroup of scheduling.x-k8s.io, minimum 1000000, 0 bound, 1 waiting",
        "  correct its PodGroup, or make it anew: its pods are tried then",
    ]


def test_a_group_whose_only_pod_is_gated_says_how_many_members_are_known():
    own = "waiting for scheduling gates: [quota]"
    pods = [
        a_row(f"second-{at}", "gated", "gated", group="~second", message=own, plugins=["SchedulingGates"])
        for at in range(4)
    ]
    assert summaries(pods)["second"].message == own
    assert not [each for each in explained_sentences(explained_at(summaries(pods)["second"])) if "by itself" in each]
    group = msgspec.structs.replace(rows()[0], queue="incomplete", stage=GROUPED)
    beside = summaries([group, rows()[1], *pods[2:]])["second"]
    [hint] = [each for each in explained_sentences(explained_at(beside)) if "by itself" in each]
    assert hint == "default/second-2 waits by itself: see `berth why default/second-2`"
    short = summaries(pods[:1])["second"]
    assert (short.state, short.message) == ("gated", f"{own}; 1 of 4 members are bound or wait for berth")


def test_a_group_without_enough_members_is_not_said_to_have_some_together():
    state = GroupCounts(dialect="scheduling.x-k8s.io", name="second", minimum=4, need=4, pending=3)
    pod = a_row("~second", "incomplete", message="3 of 4 members exist", members=state)
    lines = printed(*detail_lines(QueueAnswer(now=NOW), QueuedPodDetail(pod=pod)), width=200)
    assert lines[0] == "default/second waits: 3 of 4 members exist"
    assert "minimum 4, 0 bound, 3 waiting, has waited" in lines[1]


async def test_the_last_attempt_of_a_podgroup_that_is_gone_is_left_out():
    session = await MemoryBus().connect(name="test")
    await session.apply()
    await publish_decision(session, decided())
    [group] = [each for each in groups_of(a_cluster()).values() if each.key.name == "second"]
    assert (await explain_summary(session, group)).decision is not None
    gone = GroupSummary(key=group.key, waiting=rows()[1:5])
    explained = await explain_summary(session, gone)
    assert (explained.decision, explained.at) == (None, None)


def test_a_group_of_which_a_part_has_finished_does_not_wait():
    found = summaries()["first"]
    del found.placed["first-3"]
    assert found.state == "partly gone"
    assert found.message == (
        "3 of 4 members are bound, and no pod waits: "
        "the others have finished or are gone, and pods in their place are tried as they come"
    )
    assert found.as_json()["bound"] == 3


def test_without_groups_a_sentence_says_so():
    assert printed(*summary_lines([], NOW, rows=None)) == ["no PodGroup, and no pod names one"]


def test_before_a_watcher_leads_no_groups_are_not_said_to_be_none():
    """It has written no mirror yet, from which the PodGroups are read."""
    lines = printed(*summary_lines([], NOW, rows=None, problem="no watcher leads: see `berth top`"))
    assert lines == ["whether there are PodGroups is not known yet: no watcher leads: see `berth top`"]
    (*_, last) = printed(*summary_lines([summaries()["first"]], NOW, rows=None, problem="no watcher leads"))
    assert last == "waiting pods are unknown: no watcher leads"


def test_a_group_is_one_row_of_the_queue():
    answer = QueueAnswer(now=NOW, pods=rows())
    listed = words(printed(*pod_lines(answer, rows=None, complete=True), width=200))
    assert [line[:5] for line in listed[1:]] == [
        ["default/second", "(group,", "4", "pods)", "unschedulable"],
        ["default/lone-0", "with", "group", "1", "min"],
    ]
    assert listed[1][-len(TOO_SMALL.split()) :] == TOO_SMALL.split()


def test_rows_of_groups_of_one_name_have_their_dialect():
    dialects = {f"{'~' * number}second": dialect for number, dialect in enumerate(Dialect, start=1)}
    groups = [
        a_row(name, "unschedulable", members=GroupCounts(dialect=dialect, name="second", minimum=2, pending=2))
        for name, dialect in dialects.items()
    ]
    listed = words(printed(*pod_lines(QueueAnswer(now=NOW, pods=groups), rows=None, complete=True), width=200))
    assert [line[:6] for line in listed[1:]] == [
        ["default/second", "(group", "of", f"{dialect},", "2", "pods)"] for dialect in Dialect
    ]


@pytest.mark.parametrize(
    ("priorities", "whose"),
    [((1000, -5), "its member second-1"), ((1000, 7), "its PodGroup"), ((-5, -5), "")],
)
def test_a_group_says_whose_priority_it_has(priorities: tuple[int, ...], whose: str):
    waiting = [a_row(f"second-{at}", group="~second", priority=each) for at, each in enumerate(priorities)]
    summary = summaries([msgspec.structs.replace(rows()[0], priority=-5), *waiting])["second"]
    sentences = list(explained_sentences(ExplainedGroup(summary=summary, now=NOW)))
    said = f"priority -5 is that of {whose}: a group has the lowest priority of its PodGroup and members"
    assert sentences[2:] == ([said] if whose else [])


def test_nothing_is_advised_on_a_group_as_if_it_were_one_pod():
    assert grouped(rows()) == []


def test_a_pod_says_that_it_waits_with_its_group():
    pod = rows()[1]
    lines = printed(*detail_lines(QueueAnswer(now=NOW), QueuedPodDetail(pod=pod)), width=200)
    assert lines[0] == f"default/second-0 waits with its group default/second: {TOO_SMALL}"
    assert lines[-1].strip() == "`berth why --group default/second` shows its group"


def test_a_group_that_waits_is_explained_by_its_classes():
    summary = summaries(rows())["second"]
    assert summary.row is not None
    explained = ExplainedGroup(
        summary=summary,
        now=NOW,
        answer=QueueAnswer(now=NOW),
        detail=QueuedPodDetail(pod=summary.row),
        decision=decided(plan_seconds=0.5),
        at=NOW - timedelta(seconds=9),
    )
    lines = printed(*explained_lines(explained), width=200)
    assert lines[0] == f"default/second is unschedulable: {TOO_SMALL}"
    assert lines[1].startswith("  PodGroup of scheduling.x-k8s.io, minimum 4, 0 bound, 4 waiting (4 together)")
    assert lines[2].endswith("unschedulable, the plan took 500.0 ms")
    assert words(lines[3:])[2] == ["4", "2", "second-2", "2", "NodeResourcesFit", "Insufficient", "cpu"]
    assert words(lines)[-4:] == [[f"second-{number}", "waits"] for number in range(4)]
    document = explained_json(explained)
    assert (document["state"], document["waiting"]) == ("unschedulable", 4)
    assert b'"outcome":"unschedulable"' in msgspec.json.encode(document)


def test_a_group_whose_members_are_missing_says_why_its_last_plan_was_none():
    row = msgspec.structs.replace(rows()[0], queue="incomplete", stage=GROUPED, message="3 of 4 members exist")
    summary = summaries([row])["second"]
    parts = {"now": NOW, "answer": QueueAnswer(now=NOW), "detail": QueuedPodDetail(pod=row), "at": NOW}
    lines = printed(*explained_lines(ExplainedGroup(summary=summary, decision=decided(), **parts)), width=200)
    assert lines[0] == "default/second waits: 3 of 4 members exist"
    assert lines[2].endswith(f"unschedulable: {TOO_SMALL}")


def test_a_group_that_is_being_bound_says_what_its_members_wait_for():
    row = msgspec.structs.replace(rows()[0], queue="in flight", stage="in flight", message="")
    said = "second-0: the API server answered 500: failed calling webhook"
    lines = printed(
        *explained_lines(
            ExplainedGroup(
                summary=summaries([row])["second"],
                now=NOW,
                answer=QueueAnswer(now=NOW),
                detail=QueuedPodDetail(pod=row),
                decision=decided(Outcome.WAITING, message=said),
                at=NOW - timedelta(seconds=9),
            )
        ),
        width=200,
    )
    assert any(line.endswith(f": waiting: {said}") for line in lines), lines
    assert "  `berth trace --group default/second` shows its messages" in lines


def test_a_bound_group_names_the_node_of_each_member_and_its_domain():
    result = GroupResult(need=4, bound=4, topology_key="rack", domain="r7", note="first-9 is elsewhere")
    decision = decided(Outcome.BOUND, message="", group=result)
    explained = ExplainedGroup(summary=summaries()["first"], now=NOW, decision=decision, at=NOW)
    lines = printed(*explained_lines(explained), width=200)
    assert lines[:2] == ["default/first is bound", "  PodGroup of scheduling.x-k8s.io, minimum 4, 4 bound, 0 waiting"]
    assert lines[3:5] == ["  rack: r7", "  first-9 is elsewhere"]
    assert words(lines)[-4:] == [[f"first-{number}", f"node-{number % 2}"] for number in range(4)]


async def test_what_has_no_messages_leads_to_what_has_its_name(monkeypatch: pytest.MonkeyPatch):
    async def only_first(*_: object) -> tuple[list[GroupSummary], str]:
        return [summaries()["first"]], ""

    monkeypatch.setattr(podgroups, "read_groups", only_first)
    bus = MemoryBus()
    bus.apply()
    session = await bus.connect(name="test")
    error = await without_messages(session, parse_pod("first"), is_group=True)
    assert str(error).endswith("`berth why --group default/first` shows where it is")
    with pytest.raises(NotFoundError, match=r"'default/nosuch': the mirror has none, and no pod that waits names it$"):
        await without_messages(session, parse_pod("nosuch"), is_group=True)
    with pytest.raises(NotFoundError, match="; a pod of group default/first has this name: leave out --group"):
        await explain_groups(session, "default", "first-2")
    error = await without_messages(session, parse_pod("first"), is_group=False)
    assert str(error).endswith(
        "(Decisions are kept for an hour); a group has this name: `berth trace --group default/first`"
    )
    error = await without_messages(session, parse_pod("lone"), is_group=False)
    assert str(error).endswith(": `berth why default/lone` shows where it is")


async def test_an_ordinary_group_without_messages_leads_to_those_of_its_pods(monkeypatch: pytest.MonkeyPatch):
    solo = GroupSummary(key=GroupKey(Dialect.COSCHEDULING, "default", "gang"), group=a_group(minimum=1))

    async def only_solo(*_: object) -> tuple[list[GroupSummary], str]:
        return [solo], ""

    monkeypatch.setattr(podgroups, "read_groups", only_solo)
    bus = MemoryBus()
    bus.apply()
    session = await bus.connect(name="test")
    for trace in ("berth trace POD", "berth trace default/gang-0"):
        error = await without_messages(session, parse_pod("gang"), is_group=True)
        assert str(error).endswith(f"is on the bus: its pods are placed one by one, see `{trace}`")
        solo.placed["gang-0"] = "n1"


def test_a_wrong_name_of_a_group_is_not_called_a_pods():
    with pytest.raises(UsageError, match=r"reading the PodGroup 'default/': want NAMESPACE/NAME, or NAME in"):
        parse_pod("default/", is_group=True)


async def test_a_group_without_pods_says_which_pods_are_its_own(monkeypatch: pytest.MonkeyPatch):
    async def only_empty(*_: object) -> tuple[list[GroupSummary], str]:
        return [summaries()["empty"]], "no watcher leads: see `berth top`"

    monkeypatch.setattr(podgroups, "read_groups", only_empty)
    bus = MemoryBus()
    bus.apply()
    [found] = await explain_groups(await bus.connect(name="test"), "default", "empty")
    lines = printed(*explained_lines(found), width=200)
    assert (lines[0], lines[-1]) == (
        f"default/empty has no pods: {NONE}",
        "waiting pods are unknown: no watcher leads: see `berth top`",
    )


async def test_a_name_that_groups_of_both_dialects_have_explains_both(monkeypatch: pytest.MonkeyPatch):
    keys = [GroupKey(dialect, "default", "train") for dialect in Dialect]
    summaries = [GroupSummary(key=key) for key in keys]

    async def both(*_: object) -> tuple[list[GroupSummary], str]:
        return [*summaries, GroupSummary(key=GroupKey(Dialect.UPSTREAM, "default", "other"))], ""

    monkeypatch.setattr(podgroups, "read_groups", both)
    bus = MemoryBus()
    bus.apply()
    found = await explain_groups(await bus.connect(name="test"), "default", "train")
    assert [each.summary for each in found] == summaries
    elsewhere = "scheduling.k8s.io has a PodGroup of this name too"
    assert [any(elsewhere in line for line in explained_sentences(each)) for each in found] == [True, False]
    assert not (await explain_groups(await bus.connect(name="test"), "default", "other"))[0].is_shadowed
    listed = words(printed(*summary_lines(summaries, NOW, rows=None), width=200))
    assert [line[:2] for line in listed[3:]] == [["default/train", f"({dialect})"] for dialect in Dialect]


def test_earmarked_nodes_of_a_group_are_named_with_their_end():
    snapshot = a_cluster()
    nodes = ["node-0", "node-1"]
    key = {"dialect": "scheduling.x-k8s.io", "namespace": "default", "name": "second", "uid": "uid-second"}
    snapshot.earmarks = {"berth": Earmark(**key, profile="berth", nodes=nodes, until="2026-01-01T12:05:00+00:00")}
    found = {each.key.name: each for each in groups_of(snapshot).values()}
    assert (found["first"].earmark, found["second"].as_json()["earmark"]) == (None, snapshot.earmarks["berth"])
    lines = printed(*explained_lines(ExplainedGroup(summary=found["second"], now=NOW)), width=200)
    assert lines[2] == (
        "  pods of priority 0 and below are kept off node-0, node-1 for it until 2026-01-01T12:05:00+00:00"
    )


def test_evictions_for_a_group_are_named():
    victims = [Victim(uid="v", namespace="batch", name="low-1")]
    decision = decided(Outcome.PREEMPTING, preemption=Preemption(node="", victims=victims))
    explained = ExplainedGroup(summary=summaries(rows())["second"], now=NOW, decision=decision, at=NOW)
    assert "  evicts batch/low-1" in printed(*explained_lines(explained), width=200)


def told(stage: str, message: GroupPending | GroupRanked) -> str:
    data = encode(message)
    return describe(TracedMessage(at=0.0, subject=f"berth.{stage}.berth.default.~gang", data=data)).plain


def test_messages_of_a_group_are_read():
    pods = members(3)
    parts = {
        "attempt": "uid-gang.1.2",
        "profile": "berth",
        "group": a_group(minimum=3),
        "bundle": bundled(pods, dict.fromkeys((pod.uid for pod in pods), 1)),
        "need": 3,
    }
    assert told("pending", GroupPending(**parts)) == "attempt uid-gang.1.2 of the group waits for a plan of 3 pods"
    found = GroupPlan(need=3, classes=[ClassPlan(members=3, placed=3)], topology_key="rack", domain="r7")
    assert told("ranked", GroupRanked(**parts, plan=found, scorer="scorer-1", seconds=0.5)) == (
        "scorer-1: 3 of 3 have a place in rack r7, the plan took 500.0 ms"
    )
    failed = GroupRanked(**parts, plan=GroupPlan(need=3, error="a plugin failed"), scorer="scorer-1")
    assert told("ranked", failed) == "scorer-1: failed: a plugin failed"
    evicting = Preemption(node="", victims=[Victim(uid="v", namespace="batch", name="low-1")])
    proposed = GroupRanked(**parts, plan=GroupPlan(need=3, message=TOO_SMALL), scorer="s", preemption=evicting)
    assert told("ranked", proposed) == f"s: {TOO_SMALL}; 1 eviction makes room"


def test_the_console_counts_a_bound_group_by_its_members():
    log = DecisionLog()
    for sequence, outcome in enumerate((Outcome.UNSCHEDULABLE, Outcome.BOUND), start=1):
        data = encode(decided(outcome))
        log.add(StoredMessage(subject="berth.decision.berth.default.~second", data=data, sequence=sequence, time=NOW))
    log.new_lines(lambda _uid: None)
    lines, _ = log.new_lines(lambda _uid: None)
    assert [(line.pod, line.outcome) for line in lines] == [("~second", "unschedulable")]
    assert log.figures(NOW.timestamp() + 1).outcomes == {"unschedulable": 1}


def of_either() -> list[Decision]:
    """Decisions on `second` of each dialect, the later one on that of scheduling.k8s.io."""
    times = {"asked_at": NOW, "ranked_at": NOW}
    return [
        msgspec.structs.replace(
            decided(Outcome.UNSCHEDULABLE, **times), pod=name, uid=f"uid{name}", attempt=f"uid{name}.1.1"
        )
        for name in ("~second", "~~second")
    ]


async def test_messages_of_two_groups_of_one_name_are_two_traces():
    session = await MemoryBus().connect(name="test")
    await session.apply()
    for decision in of_either():
        await publish_decision(session, decision)
    traces = await traces_of(session, parse_pod("second"), is_group=True)
    assert [{message.group for message in messages} for messages in traces] == [
        {"default/second (scheduling.x-k8s.io)"},
        {"default/second (scheduling.k8s.io)"},
    ]
    assert [[message.stage for message in messages] for messages in traces] == [["pending", "ranked", "decision"]] * 2


def test_new_messages_of_two_groups_of_one_name_have_its_dialect_above(capsys):
    printer = TracePrinter(OutputFormat.TABLE, is_group=True)
    for at, name in enumerate(("~second", "~~second", "~~second", "~second")):
        data = encode(decided(Outcome.BOUND))
        printer.print(TracedMessage(at=float(at), subject=f"berth.decision.berth.default.{name}", data=data))
    lines = capsys.readouterr().out.splitlines()
    titles = {at: line for at, line in enumerate(lines) if line.startswith("default")}
    coscheduling, upstream = (f"default/second ({dialect})" for dialect in Dialect)
    assert titles == {0: coscheduling, 2: upstream, 5: coscheduling}
    assert ["+" in line for line in lines] == [False, False, False, False, True, False, True]
    assert "+3.0 s" in lines[-1]  # since the group's own message before


async def test_a_groups_decision_restores_the_messages_that_are_gone():
    session = await MemoryBus().connect(name="test")
    await session.apply()
    times = {"asked_at": NOW, "ranked_at": NOW + timedelta(seconds=1)}
    await publish_decision(session, decided(**times))
    begun = {"reason": Reason.BEGUN, "message": "3 of 4 members are bound, 1 more is needed"}
    await publish_decision(
        session, msgspec.structs.replace(decided(Outcome.CONFLICT, **begun), attempt="uid-second.1.3")
    )
    stored = await stored_messages(session, groups_named(parse_pod("second")))
    assert [describe(one).plain for one in with_recalled([one for one, _ in stored])] == [
        "attempt uid-...1.2 of the group waits for a plan",
        f"scorer-1: {TOO_SMALL}",
        f"unschedulable: {TOO_SMALL}",
        ("conflict (ranked again): a part of the group is bound: 3 of 4 members are bound, 1 more is needed"),
    ]
