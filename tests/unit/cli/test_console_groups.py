"""What the console answers about a group of pods."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from berth.api.meta import ObjectMeta
from berth.api.podgroups import (
    GROUP_LABEL,
    PREFERRED_TOPOLOGY_ANNOTATION,
    TOPOLOGY_ANNOTATION,
    CoschedulingPodGroup,
    CoschedulingSpec,
)
from berth.bus.interface import Endpoint, Session
from berth.bus.stages import publish_decision
from berth.cluster.snapshot import Snapshot
from berth.messages.attempts import ClassResult, Decision, GroupResult, Outcome, Rejection
from berth.messages.queue import (
    GROUPED,
    WITH_GROUP,
    GroupCounts,
    PodRequest,
    QueueAnswer,
    QueuedPodDetail,
    WaitingPod,
    decode_pod_request,
)
from berth.profiles.configuration import profiles_of, read_configuration
from berth_cli.console.answers import Document, group_json, why_json
from berth_cli.options import NotFoundError, PodName
from berth_cli.remedies.asking import OTHER_CONFIGURATION, Advisory
from harness.builders.objects import a_node, a_pod
from harness.fakes.memory_bus import MemoryBus

CONFIGURATION = read_configuration(None)
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def a_cluster() -> Snapshot:
    """A node of four cores, with the pods of `first`."""
    snapshot = Snapshot()
    metadata = ObjectMeta(name="first", namespace="default", uid="uid-first")
    snapshot.objects(CoschedulingPodGroup).set(
        metadata.uid, CoschedulingPodGroup(metadata=metadata, spec=CoschedulingSpec(min_member=2))
    )
    snapshot.set_node(a_node("n1", labels={"rack": "r1"}))
    for number in range(2):
        snapshot.place(a_pod(f"first-{number}", labels={GROUP_LABEL: "first"}), "n1")
    return snapshot


@pytest.fixture
async def session() -> Session:
    bus = MemoryBus()
    bus.apply()
    return await bus.connect(name="console")


async def answer(session: Session, name: str, snapshot: Snapshot | None = None) -> Document:
    profiles = profiles_of(CONFIGURATION)
    advisory = Advisory(
        session=session, snapshot=snapshot or a_cluster(), digest=CONFIGURATION.digest, profiles=profiles
    )
    return await group_json(advisory, PodName(namespace="default", name=name))


def a_row(name: str, dialect: str = "scheduling.x-k8s.io") -> WaitingPod:
    """A group of two pods that no node has room for."""
    state = GroupCounts(dialect=dialect, name=name.lstrip("~"), minimum=2, need=2, pending=2)
    parts = {"uid": f"uid{name}", "profile": "berth", "queue": "unschedulable", "stage": "unschedulable", "since": NOW}
    return WaitingPod(namespace="default", name=name, members=state, **parts)


async def watch(session: Session, row: WaitingPod, cpu: str = "8", **spec: Any) -> None:
    """A leading watcher in whose queue a group waits with its two pods, as they are named."""
    parts = {"profile": "berth", "queue": WITH_GROUP, "stage": GROUPED, "since": NOW, "group": row.name}
    pods = [WaitingPod(namespace="default", name=f"web-{at}", uid=f"uid-web-{at}", **parts) for at in range(2)]

    def detail_of(data: bytes) -> QueueAnswer:
        asked: PodRequest = decode_pod_request(data)
        pod = next((each for each in (row, *pods) if each.name == asked.name), row)
        return QueueAnswer(
            now=NOW, detail=QueuedPodDetail(pod=pod, object=a_pod(pod.name.lstrip("~"), cpu=cpu, **spec))
        )

    endpoints = [
        Endpoint(name="queue", answer=lambda _: QueueAnswer(now=NOW, pods=[row, *pods])),
        Endpoint(name="pod", answer=detail_of),
    ]
    stats = {"leading": {"number": 1, "seconds": 1.0}}
    await session.register("berth-watcher", identity="one", version="1", stats=lambda: stats, endpoints=endpoints)


async def decide(session: Session, name: str, **more: object) -> None:
    rejections = [Rejection(plugin="NodeResourcesFit", reason="Insufficient cpu", nodes=1)]
    classes = [ClassResult(members=2, placed=0, example="web-1", rejections=rejections)]
    whose = {"namespace": "default", "pod": name, "uid": f"uid{name}", "profile": "berth"}
    parts = {"config": CONFIGURATION.digest, "group": GroupResult(need=2, classes=classes), **more}
    await publish_decision(
        session, Decision(attempt=f"uid{name}.1.1", epoch=1, outcome=Outcome.UNSCHEDULABLE, **whose, **parts)
    )


async def test_a_group_is_answered_also_while_no_watcher_leads(session):
    found = await answer(session, "~first")
    assert (found["state"], found["bound"], found["queued"], found["remedies"]) == ("bound", 2, None, [])
    assert found["sentences"][0] == "default/first is bound"
    assert "no watcher leads" in found["problem"]
    assert (await answer(session, "first"))["group"] == "default/first"
    for name in ("~other", "~~first", "other"):
        with pytest.raises(NotFoundError, match="the mirror has none"):
            await answer(session, name)


async def test_what_would_help_is_that_of_a_member_without_a_place(session):
    await watch(session, a_row("~train"))
    await decide(session, "~train")
    found = await answer(session, "~train")
    text = "asks for 8 CPU; the largest node has 4, and the freest 4 of 4 free (n1)"
    assert [(each.plugin, each.text) for each in found["remedies"]] == [("NodeResourcesFit", text)]
    assert found["missing"] == "that is about web-1 alone: 2 members need room together"


@pytest.mark.parametrize(
    ("placed", "more", "text"),
    [
        (3, {}, "2 more members beside the 3 that have a place"),
        (4, {"topology_key": "rack", "domain": "r1"}, "1 more member in rack r1 beside the 4 that have a place"),
        (0, {}, "5 more members at the same time"),
    ],
    ids=["everywhere", "in a rack", "none has a place"],
)
async def test_what_would_help_a_group_is_said_where_each_member_alone_has_a_node(
    session, placed: int, more: dict[str, str], text: str
):
    await watch(session, a_row("~train"), cpu="1")
    classes = [ClassResult(members=6, placed=placed, example="web-1")]  # one more than are needed
    await decide(session, "~train", group=GroupResult(need=5, classes=classes, **more))
    found = await answer(session, "~train")
    passes = "for web-1 alone 1 node passes every filter now, such as n1"
    assert ([each.text for each in found["remedies"]], "missing" in found) == ([f"room for {text}; {passes}"], False)


async def test_what_would_help_a_group_in_a_rack_is_about_the_nodes_of_the_rack(session):
    await watch(session, a_row("~train"), cpu="1", node_selector={"kubernetes.io/hostname": "n2"})
    snapshot = a_cluster()
    for name, rack in (("n1", "r1"), ("n2", "r2")):
        snapshot.set_node(a_node(name, labels={"rack": rack, "kubernetes.io/hostname": name}))
    classes = [ClassResult(members=5, placed=4, example="web-1")]
    await decide(session, "~train", group=GroupResult(need=5, classes=classes, topology_key="rack", domain="r1"))
    found = await answer(session, "~train", snapshot)
    assert [each.plugin for each in found["remedies"]] == ["NodeAffinity"]  # n2 passes, and is outside
    assert found["missing"] == "that is about web-1 alone: 5 members need room together in rack r1"


async def test_what_would_help_a_group_that_prefers_a_rack_is_about_all_nodes(session):
    await watch(session, a_row("~train"), cpu="1")
    snapshot, metadata = a_cluster(), ObjectMeta(name="train", namespace="default", uid="uid~train")
    annotated = msgspec.structs.replace(metadata, annotations={PREFERRED_TOPOLOGY_ANNOTATION: "rack"})
    group = CoschedulingPodGroup(metadata=annotated, spec=CoschedulingSpec(min_member=2))
    snapshot.objects(CoschedulingPodGroup).set("uid~train", group)
    classes = [ClassResult(members=2, placed=1, example="web-1")]
    result = GroupResult(need=2, classes=classes, topology_key="rack", domain="without a node")
    await decide(session, "~train", group=result)
    [remedy] = (await answer(session, "~train", snapshot))["remedies"]
    assert remedy.text.startswith("room for 1 more member beside the 1 that has a place; ")


async def test_nothing_would_help_in_a_rack_whose_nodes_are_gone(session):
    await watch(session, a_row("~train"), cpu="1")
    classes = [ClassResult(members=2, placed=1, example="web-1")]
    await decide(session, "~train", group=GroupResult(need=2, classes=classes, topology_key="rack", domain="gone"))
    found = await answer(session, "~train")
    assert (found["remedies"], "missing" in found) == ([], False)


@pytest.mark.parametrize(
    ("priority", "said"),
    [(0, ""), (5, "; pods of lower priority run there: none is evicted for a group that requires one rack")],
    ids=["no pod is less important", "two pods are"],
)
async def test_that_no_pod_is_evicted_for_a_group_in_one_rack_is_said(session, priority: int, said: str):
    await watch(session, msgspec.structs.replace(a_row("~train"), priority=priority), cpu="8")
    snapshot, metadata = a_cluster(), ObjectMeta(name="train", namespace="default", uid="uid~train")
    annotated = msgspec.structs.replace(metadata, annotations={TOPOLOGY_ANNOTATION: "rack"})
    group = CoschedulingPodGroup(metadata=annotated, spec=CoschedulingSpec(min_member=2))
    snapshot.objects(CoschedulingPodGroup).set("uid~train", group)
    classes = [ClassResult(members=2, placed=0, example="web-1")]
    await decide(session, "~train", group=GroupResult(need=2, classes=classes, topology_key="rack", domain="r1"))
    found = await answer(session, "~train", snapshot)
    assert found["missing"] == f"that is about web-1 alone: 2 members need room together in rack r1{said}"


async def test_what_would_help_a_group_that_was_decided_under_another_configuration_is_unknown(session):
    await watch(session, a_row("~train"))
    await decide(session, "~train", config="another")
    found = await answer(session, "~train")
    assert (found["remedies"], found["missing"]) == ([], OTHER_CONFIGURATION)


async def test_a_name_that_groups_of_both_dialects_have_leads_to_the_other(session):
    await watch(session, a_row("~~first", "scheduling.k8s.io"))
    found = await answer(session, "first")
    assert (found["dialect"], found["state"]) == ("scheduling.k8s.io", "unschedulable")
    assert found["twins"] == [{"name": "~first", "dialect": "scheduling.x-k8s.io", "state": "bound"}]
    [twin] = (await answer(session, "~first"))["twins"]
    assert twin == {"name": "~~first", "dialect": "scheduling.k8s.io", "state": "unschedulable"}


@pytest.mark.parametrize("kind", ["decided", "placed"])
async def test_a_member_on_a_node_has_the_name_of_its_group(session, kind: str):
    snapshot = a_cluster()
    snapshot.place(a_pod("alone"), "n1")
    for name, group in (("first-0", "~first"), ("alone", "")):
        if kind == "decided":
            whose = {"namespace": "default", "pod": name, "uid": a_pod(name).uid, "profile": "berth"}
            attempt = f"{a_pod(name).uid}.1.1"
            await publish_decision(
                session, Decision(attempt=attempt, epoch=1, outcome=Outcome.BOUND, node="n1", of_group="u.1.1", **whose)
            )
        found = await why_json(session, PodName(namespace="default", name=name), snapshot)
        assert (found["kind"], found["group"]) == (kind, group)
    snapshot.objects(CoschedulingPodGroup).unread = "not served"  # so that the label has no effect
    assert (await why_json(session, PodName(namespace="default", name="first-0"), snapshot))["group"] == ""
