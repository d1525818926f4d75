"""A shadow on a bus in memory, beside a live scorer or a test that writes its messages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import msgspec
import pytest

from berth.api.node import Node
from berth.api.pod import Pod
from berth.bus.interface import Session
from berth.bus.stages import group_pending_message, publish_pending
from berth.lifecycle.process import Process
from berth.messages.attempts import Candidate, Decision, Outcome, Pending, Positions, Ranked
from berth.messages.bundles import bundled
from berth.messages.encoding import decode, encode
from berth.messages.groupattempts import GroupPending
from berth.messages.mirror import MirrorEntry, encode_entry
from berth.messages.shadow import ShadowComparison
from berth.messages.subjects import Term, key
from berth.profiles.configuration import profiles_of, read_configuration
from berth.ranking.groupranker import GroupRanker
from berth.ranking.ranker import Ranker
from berth_scorer import shadowcore
from berth_scorer.service import serve
from berth_scorer.shadow import serve_shadow
from harness.builders.groups import a_group, members
from harness.builders.objects import a_node, a_pod, pod_requesting
from harness.fakes.jumping_loop import LoopTime
from harness.fakes.memory_bus import MemoryBus
from harness.fakes.recording_meter import RecordingMeter

pytestmark = pytest.mark.slow  # waits in real time

PACKED = """\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: berth
  plugins: {score: {disabled: [{name: "*"}], enabled: [{name: NodeResourcesFit}]}}
  pluginConfig:
  - name: NodeResourcesFit
    args: {scoringStrategy: {type: MostAllocated, resources: [{name: cpu, weight: 1}]}}
"""
COMPARED = "berth_shadow_comparisons_total"
RANKED = "berth_shadow_ranking_duration_seconds"
SKIPPED = "berth_shadow_skipped_total"


@dataclass(frozen=True, slots=True)
class Running:
    """A shadow that runs, and what it has broadcast."""

    meter: RecordingMeter
    process: Process
    heard: list[ShadowComparison]
    bus: MemoryBus

    def compared(self, result: str) -> float:
        return self.meter.value(COMPARED, result=result, profile="berth")

    def skipped(self, reason: str) -> float:
        return self.meter.value(SKIPPED, reason=reason)

    @property
    def ranked(self) -> int:
        return len(self.meter.observed.get((RANKED,), ()))


def ranker_of(file=None) -> Ranker:
    configuration = read_configuration(file)
    return Ranker(profiles=profiles_of(configuration), config=configuration.digest, identity="shadow-1", best=8)


@asynccontextmanager
async def shadowing(bus: MemoryBus, session: Session, ranker: Ranker) -> AsyncIterator[Running]:
    heard: list[ShadowComparison] = []
    await session.subscribe("berth.shadow.>", lambda _, data, __: heard.append(decode(data, ShadowComparison)))
    process = Process(name="shadow", metrics=RecordingMeter(), clock=LoopTime())
    task = asyncio.create_task(serve_shadow(process, bus, ranker, "packed"))
    try:
        await until(lambda: process.health.is_ready)
        yield Running(process.metrics, process, heard, bus)
    finally:
        process.stopping.set()
        await asyncio.wait_for(task, 5)


@asynccontextmanager
async def live_scorer(bus: MemoryBus) -> AsyncIterator[None]:
    process = Process(name="scorer", metrics=RecordingMeter(), clock=LoopTime())
    task = asyncio.create_task(serve(process, bus, replace(ranker_of(), identity="scorer-1")))
    try:
        await until(lambda: process.health.is_ready)
        yield
    finally:
        process.stopping.set()
        await asyncio.wait_for(task, 5)


async def until(condition, seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - the bus has no event for it
            await asyncio.sleep(0.005)


async def write(session: Session, name: str, thing: Node | Pod) -> int:
    entry = MirrorEntry(term=Term(1), object=msgspec.Raw(msgspec.json.encode(thing)))
    return await session.put("cluster", name, encode_entry(entry))


@pytest.fixture
async def nodes(session: Session) -> int:
    """Two nodes, of which one is half full; the position of the mirror."""
    for name in ("empty", "half"):
        await write(session, key("node", name), a_node(name, cpu="4"))
    return await write(session, key("pod", "old"), a_pod("old", node="half", cpu="2"))


@pytest.fixture
def packed(tmp_path) -> Ranker:
    file = tmp_path / "packed.yaml"
    file.write_text(PACKED)
    return ranker_of(file)


async def publish_ranked(session: Session, pod: Pod, *nodes: str, attempt: int = 1, **fields: object) -> None:
    message = Ranked(
        attempt=f"{pod.uid}.1.{attempt}",
        profile="berth",
        pod=pod,
        scorer="scorer-1",
        candidates=[Candidate(node=node, total=9) for node in nodes],
    )
    ranked = msgspec.structs.replace(message, **fields)
    await session.publish(f"berth.ranked.berth.default.{pod.metadata.name}", encode(ranked))


async def decide(
    session: Session, pod: Pod, node: str = "", outcome: Outcome = Outcome.BOUND, attempt: int = 1
) -> None:
    decision = Decision(
        attempt=f"{pod.uid}.1.{attempt}",
        profile="berth",
        epoch=1,
        outcome=outcome,
        namespace="default",
        pod=pod.metadata.name,
        uid=pod.uid,
        node=node,
    )
    await session.publish(f"berth.decision.berth.default.{pod.metadata.name}", encode(decision))


@pytest.mark.usefixtures("nodes")
async def test_the_same_configuration_ranks_as_the_live_scorer_does(bus, session):
    async with live_scorer(bus), shadowing(bus, session, ranker_of()) as shadow:
        pods = [pod_requesting(f"web-{number}", cpu="100m") for number in range(12)]
        for pod in pods:
            await publish_pending(session, Pending(attempt=f"{pod.uid}.1.1", profile="berth", pod=pod))
        await until(lambda: shadow.ranked == 12)
        for pod in pods:
            await decide(session, pod, "empty")
        await until(lambda: shadow.compared("equal") == 12)
        assert shadow.heard == []
        assert shadow.meter.observed["berth_shadow_points_apart", "berth"] == [0] * 12


async def ask_for_a_gang(session: Session, amount: int) -> None:
    pods = members(amount, cpu="1")
    pending = GroupPending(
        attempt="uid-gang.1.1",
        profile="berth",
        group=a_group(minimum=amount),
        bundle=bundled(pods, dict.fromkeys((pod.uid for pod in pods), 1)),
        need=amount,
    )
    await group_pending_message(session, pending).publish(session)


async def decide_gang(session: Session, outcome: Outcome) -> None:
    decision = Decision(
        attempt="uid-gang.1.1",
        profile="berth",
        epoch=1,
        outcome=outcome,
        namespace="default",
        pod="~gang",
        uid="uid-gang",
    )
    await session.publish("berth.decision.berth.default.~gang", encode(decision))


@pytest.mark.usefixtures("nodes")
async def test_the_same_configuration_plans_a_group_as_the_live_scorer_does(bus, session):
    async with live_scorer(bus), shadowing(bus, session, ranker_of()) as shadow:
        await ask_for_a_gang(session, 4)
        await until(lambda: shadow.ranked == 1)
        await decide_gang(session, Outcome.BOUND)
        await until(lambda: shadow.compared("equal") == 1)
        pod = pod_requesting("web", cpu="1")  # its members count for both
        await publish_pending(session, Pending(attempt=f"{pod.uid}.1.1", profile="berth", pod=pod))
        await until(lambda: shadow.ranked == 2)
        await decide(session, pod, "empty")
        await until(lambda: shadow.compared("equal") == 2)
        assert (shadow.heard, shadow.skipped("missed")) == ([], 0)


@pytest.mark.usefixtures("nodes")
async def test_another_configuration_places_members_of_a_group_elsewhere(bus, session, packed, monkeypatch):
    monkeypatch.setattr(shadowcore.ShadowCore, "_may_plan", lambda _: False)  # in as many slices as there can be
    async with live_scorer(bus), shadowing(bus, session, packed) as shadow:
        await ask_for_a_gang(session, 2)
        await until(lambda: shadow.ranked)
        await decide_gang(session, Outcome.BOUND)
        await until(lambda: shadow.heard)
        (found,) = shadow.heard
        assert (found.result, found.pod, found.elsewhere, found.outcome) == ("node", "~gang", 2, "bound")
        assert (found.live.message, found.own.message) == ("2 members on 1 node", "2 members on 1 node")


@pytest.mark.usefixtures("nodes")
async def test_a_group_whose_plan_raises_is_an_error_of_the_shadow(bus, session, packed, monkeypatch):
    plans = GroupRanker.answer

    def fail(ranker: GroupRanker, *given, **options):
        if ranker.identity == packed.identity:
            raise ZeroDivisionError("a bug")
        return (yield from plans(ranker, *given, **options))

    monkeypatch.setattr(GroupRanker, "answer", fail)
    async with live_scorer(bus), shadowing(bus, session, packed) as shadow:
        await ask_for_a_gang(session, 2)
        await until(lambda: shadow.ranked)
        await decide_gang(session, Outcome.BOUND)
        await until(lambda: shadow.heard)
        assert shadow.heard[0].own.error == "planning raised ZeroDivisionError: a bug"


@pytest.mark.usefixtures("nodes")
async def test_another_configuration_differs_and_says_how_with_both_rankings(bus, session, packed):
    async with shadowing(bus, session, packed) as shadow:
        pod = pod_requesting("web", cpu="1")
        await publish_ranked(session, pod, "empty", "half")
        await decide(session, pod, "empty")
        await until(lambda: shadow.heard)
        (found,) = shadow.heard
        assert (found.shadow, found.result, found.outcome, found.node) == ("packed", "node", "bound", "empty")
        assert [each.node for each in found.live.candidates] == ["empty", "half"]
        assert [each.node for each in found.own.candidates] == ["half", "empty"]
        # most allocated: half (2+1)/4 = 75, empty 1/4 = 25; 75 - 25 = 50, and one node has more points
        assert (found.points_apart, found.place) == (50, 2)
        assert all(each.scores for each in found.own.candidates)
        assert found.config == packed.config
        assert shadow.compared("node") == 1


async def test_a_node_that_the_shadow_refuses_is_named_with_the_plugin(bus, session, packed):
    await write(session, key("node", "small"), a_node("small", cpu="1"))
    async with shadowing(bus, session, packed) as shadow:
        pod = pod_requesting("web", cpu="2")
        await publish_ranked(session, pod, "small")
        await decide(session, pod, outcome=Outcome.CONFLICT)
        await until(lambda: shadow.heard)
        (found,) = shadow.heard
        assert (found.result, found.refused_by, found.outcome) == ("refused", "NodeResourcesFit", "conflict")
        assert shadow.meter.value("berth_shadow_refusals_total", by="shadow", plugin="NodeResourcesFit") == 1


@pytest.mark.usefixtures("nodes")
async def test_a_pod_that_only_the_shadow_places_is_counted_for_the_live_plugins(bus, session, packed):
    async with shadowing(bus, session, packed) as shadow:
        pod = pod_requesting("web", cpu="1")
        await publish_ranked(session, pod, blockers=["InterPodAffinity"], message="0/2 nodes are available")
        await decide(session, pod, outcome=Outcome.UNSCHEDULABLE)
        await until(lambda: shadow.compared("feasible") == 1)
        assert shadow.meter.value("berth_shadow_refusals_total", by="live", plugin="InterPodAffinity") == 1


@pytest.mark.usefixtures("nodes")
async def test_what_counts_afterwards_is_the_live_ranking(bus, session, packed):
    """The shadow would put both on `half`; the second one fits there, since the first one went elsewhere."""
    async with shadowing(bus, session, packed) as shadow:
        for name in ("first", "second"):
            pod = pod_requesting(name, cpu="1500m")
            await publish_ranked(session, pod, "empty")
            await decide(session, pod, "empty")
        await until(lambda: len(shadow.heard) == 2)
        assert [found.own.candidates[0].node for found in shadow.heard] == ["half", "half"]


@pytest.mark.usefixtures("nodes")
async def test_nothing_is_published_but_differences_and_nothing_is_taken(bus, session, packed):
    async with shadowing(bus, session, packed) as shadow:
        waiting = pod_requesting("waits", cpu="1")
        await publish_pending(session, Pending(attempt=f"{waiting.uid}.1.1", profile="berth", pod=waiting))
        pod = pod_requesting("web", cpu="1")
        await publish_ranked(session, pod, "empty")
        await decide(session, pod, "empty")
        await until(lambda: shadow.compared("node") == 1)
        pending = await session.state("PENDING")
        assert (pending.messages, [each.undelivered for each in pending.consumers]) == (1, [1])
        assert (await session.state("RANKED")).messages == 1
        assert (await session.state("DECISIONS")).messages == 1
        assert (await session.state("dead")).messages == 0


@pytest.mark.usefixtures("nodes")
async def test_a_profile_that_the_shadow_lacks_is_skipped_and_counted(bus, session, packed):
    async with shadowing(bus, session, packed) as shadow:
        await publish_ranked(session, pod_requesting("web", cpu="1"), "empty", profile="other")
        await until(lambda: shadow.skipped("profile") == 1)
        await publish_ranked(session, pod_requesting("next", cpu="1"), error="a plugin failed")
        await until(lambda: shadow.skipped("live") == 1)
        assert shadow.process.health.is_ready


@pytest.mark.usefixtures("nodes")
async def test_more_than_it_ranks_is_skipped_and_it_is_soon_up_to_date(bus, session, packed, monkeypatch):
    monkeypatch.setattr(shadowcore, "MOST_WAITING", 4)
    async with shadowing(bus, session, packed) as shadow:
        pods = [pod_requesting(f"web-{number}", cpu="10m") for number in range(40)]
        far = Positions(cluster=10**6)  # until the wait for positions is over they pile up
        await publish_ranked(session, pods[0], "empty", positions=far)
        for pod in pods[1:]:
            await publish_ranked(session, pod, "empty")
        for pod in pods:
            await decide(session, pod, "empty")
        await until(lambda: shadow.skipped("busy") and shadow.compared("node") + shadow.skipped("busy") == 40)
        done = shadow.compared("node")
        pod = pod_requesting("after", cpu="10m")
        await publish_ranked(session, pod, "empty")
        await decide(session, pod, "empty")
        await until(lambda: shadow.compared("node") == done + 1)


HOSTILE = [
    pytest.param(b"rubbish", id="no JSON"),
    pytest.param(b"\xff\xfe", id="no UTF-8"),
    pytest.param(b"[" * 100_000, id="nested deep"),
    pytest.param(b'{"schema":1,"attempt":"x","profile":"berth","pod":{}}', id="no attempt"),
    pytest.param(b'{"schema":99,"attempt":"u.1.1"}', id="of a schema to come"),
    pytest.param(
        json.dumps({"attempt": "u.1.1", "profile": "p" * 9999, "pod": {"metadata": {"uid": "u"}}}).encode(),
        id="a long name",
    ),
    pytest.param(json.dumps({"attempt": "u.1.1", "profile": "berth", "pod": 7}).encode(), id="no pod"),
]


@pytest.mark.usefixtures("nodes")
@pytest.mark.parametrize("data", HOSTILE)
async def test_a_message_that_is_none_is_left_out_and_the_next_one_is_compared(bus, session, packed, data):
    async with shadowing(bus, session, packed) as shadow:
        await session.publish("berth.ranked.berth.default.evil", data)
        await session.publish("berth.decision.berth.default.evil", data)
        await session.put("cluster", "node.evil", data)
        pod = pod_requesting("web", cpu="1")
        await publish_ranked(session, pod, "empty")
        await decide(session, pod, "empty")
        await until(lambda: shadow.compared("node") == 1)
        assert shadow.skipped("missed") == 1
        assert shadow.process.health.is_ready


@pytest.mark.usefixtures("nodes")
async def test_a_live_node_that_does_not_exist_ends_nothing(bus, session, packed):
    async with shadowing(bus, session, packed) as shadow:
        pod = pod_requesting("web", cpu="1")
        await publish_ranked(session, pod, "x" * 253)
        await decide(session, pod, "empty")
        await until(lambda: shadow.heard)
        assert shadow.compared("node") == 1


@pytest.mark.usefixtures("nodes")
async def test_a_difference_that_is_too_large_to_be_shown_is_counted(bus, session, packed):
    async with shadowing(bus, session, packed) as shadow:
        pod = pod_requesting("web", cpu="1")
        scores = {f"{number:0250}": 1 for number in range(250)}
        candidates = [Candidate(node=name, total=9, scores=scores) for name in ("gone-1", "gone-2")]
        await publish_ranked(session, pod, candidates=candidates)
        await decide(session, pod, "empty")
        await until(lambda: shadow.compared("node") == 1)
        await asyncio.sleep(0.1)
        assert shadow.heard == []


@pytest.mark.usefixtures("nodes")
async def test_a_plugin_that_raises_is_an_error_of_its_ranking(bus, session, packed, monkeypatch):
    def fail(*_: object, **__: object) -> Ranked:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(Ranker, "answer", fail)
    async with shadowing(bus, session, packed) as shadow:
        pod = pod_requesting("web", cpu="1")
        await publish_ranked(session, pod, "empty")
        await decide(session, pod, "empty")
        await until(lambda: shadow.heard)
        assert shadow.compared("error") == 1
        assert shadow.heard[0].own.error == "ranking raised ZeroDivisionError: a bug"


@pytest.mark.usefixtures("nodes")
async def test_a_lost_connection_is_followed_by_another_and_the_numbers_go_on(bus, session, packed):
    async with shadowing(bus, session, packed) as shadow:
        first = pod_requesting("first", cpu="1")
        await publish_ranked(session, first, "empty")
        await decide(session, first, "empty")
        await until(lambda: shadow.compared("node") == 1)
        bus.stop()
        await until(lambda: not shadow.process.health.is_ready)
        bus.start()
        again = await bus.connect(name="test again")
        await until(lambda: shadow.meter.value("berth_bus_sessions_total") == 2 and shadow.process.health.is_ready)
        second = pod_requesting("second", cpu="1")
        await publish_ranked(again, second, "empty")
        await decide(again, second, "empty")
        await until(lambda: shadow.compared("node") == 2)
        (said,) = [each for each in await again.services() if each.service == "berth-shadow"]
        assert msgspec.to_builtins(said.stats["shadow"])["compared"] == 2
        await again.close()


@pytest.mark.usefixtures("nodes")
async def test_differences_are_broadcast_a_few_a_second_and_all_are_counted(bus, session, packed, monkeypatch):
    monkeypatch.setattr(shadowcore, "BROADCASTS_A_SECOND", 3)
    async with shadowing(bus, session, packed) as shadow:
        for number in range(12):
            pod = pod_requesting(f"web-{number}", cpu="10m")
            await publish_ranked(session, pod, "empty")
            await decide(session, pod, "empty")
        await until(lambda: shadow.compared("node") == 12)
        assert 3 <= len(shadow.heard) <= 6
