"""A scorer on a bus in memory: rankings, dead letters, naks and restarts."""

import asyncio
import gc
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta

import msgspec
import pytest

from berth.api.meta import ObjectMeta
from berth.api.node import Node, NodeStatus
from berth.api.pod import Container, Pod, PodSpec, ResourceRequirements
from berth.bus.interface import TooLargeError
from berth.bus.stages import group_pending_message, publish_pending, publish_ranked
from berth.lifecycle.process import Process
from berth.messages.attempts import Candidate, DeadLetter, Pending, Positions, Ranked, Received
from berth.messages.bundles import bundled
from berth.messages.encoding import decode, encode
from berth.messages.groupattempts import GroupPending, GroupRanked, decode_group
from berth.messages.mirror import MirrorEntry, encode_entry
from berth.messages.subjects import Term, key
from berth.profiles.configuration import profiles_of, read_configuration
from berth.ranking.ranker import Ranker
from berth.ranking.view import View
from berth.settings.settings import Numbers, Settings
from berth_scorer import core
from berth_scorer.service import serve
from harness.builders.groups import a_group, members
from harness.fakes.jumping_loop import LoopTime
from harness.fakes.memory_bus import MemorySession
from harness.fakes.recording_meter import RecordingMeter

pytestmark = pytest.mark.slow  # waits in real time

NOWHERE = Positions()


def node(name, cpu="4"):
    return Node(
        metadata=ObjectMeta(name=name, uid=name),
        status=NodeStatus(allocatable={"cpu": cpu, "memory": "8Gi", "pods": "110"}),
    )


def pod(name, cpu="100m", **spec):
    requests = ResourceRequirements(requests={"cpu": cpu})
    return Pod(
        metadata=ObjectMeta(name=name, namespace="default", uid=name, resource_version="1"),
        spec=PodSpec(scheduler_name="berth", containers=[Container(name="c", resources=requests)], **spec),
    )


def pending(name, *, profile="berth", cpu="100m", after=NOWHERE):
    return Pending(attempt=f"{name}.1.1", profile=profile, pod=pod(name, cpu), after=after)


async def write_node(session, one):
    entry = MirrorEntry(term=Term(1), object=msgspec.Raw(msgspec.json.encode(one)))
    return await session.put("cluster", key("node", one.metadata.name), encode_entry(entry))


async def write_placed_pod(session, name, on, *, cpu, priority):
    one = pod(name, cpu, node_name=on, priority=priority)
    entry = MirrorEntry(term=Term(1), object=msgspec.Raw(msgspec.json.encode(one)))
    return await session.put("cluster", key("pod", name), encode_entry(entry))


def make_ranker(identity="s1", **other):
    configuration = read_configuration(None)
    made = Ranker(profiles=profiles_of(configuration), config=configuration.digest, identity=identity, best=8)
    return replace(made, **other)


@asynccontextmanager
async def scorer(bus, ranker=None, *, max_unacked=64, **numbers):
    settings = Settings(numbers=Numbers(scorer_hold=max_unacked, **numbers))
    process = Process(name="scorer", metrics=RecordingMeter(), clock=LoopTime(), settings=settings)
    task = asyncio.create_task(serve(process, bus, ranker or make_ranker()))
    try:
        await until(lambda: asyncio.sleep(0, process.health.is_ready))
        yield task
    finally:
        process.stopping.set()
        await asyncio.wait_for(task, 5)


async def until(condition, seconds=5.0):
    """Poll until the condition holds: the bus has no event for it."""
    async with asyncio.timeout(seconds):
        while not await condition():  # noqa: ASYNC110 - the bus has no event for it
            await asyncio.sleep(0.005)


async def ranked(session, count=1):
    """The messages in RANKED, once there are this many."""
    return [decode(stored.data, Ranked) for stored in await in_ranked(session, count)]


async def in_ranked(session, count=1):
    async with asyncio.timeout(10):
        while True:
            found = [stored async for stored in session.scan("RANKED", "berth.ranked.>")]
            if len(found) >= count:
                return found
            await asyncio.sleep(0.01)


async def stored_in(session, stream, subject):
    return [stored async for stored in session.scan(stream, subject)]


async def is_empty(session, stream, subject):
    return not await stored_in(session, stream, subject)


async def test_a_pending_pod_is_ranked_and_then_acknowledged(bus, session):
    await write_node(session, node("small", cpu="1"))
    await write_node(session, node("large", cpu="16"))
    async with scorer(bus):
        await publish_pending(session, pending("web"))
        [message] = await ranked(session)
        assert [candidate.node for candidate in message.candidates] == ["large", "small"]
        assert (message.attempt, message.evaluated, message.feasible) == ("web.1.1", 2, 2)
        assert message.candidates[0].scores.keys() >= {"NodeResourcesFit"}
        await until(lambda: is_empty(session, "PENDING", "berth.pending.>"))


async def test_a_pod_that_fits_nowhere_gets_the_reasons(bus, session):
    await write_node(session, node("small", cpu="1"))
    async with scorer(bus):
        await publish_pending(session, pending("big", cpu="2"))
        [message] = await ranked(session)
    assert message.candidates == []
    assert message.message == (
        "0/1 nodes are available: 1 Insufficient cpu."
        " preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling."
    )
    assert message.blockers == ["NodeResourcesFit"]
    assert not message.proposals_counted


async def test_own_proposals_count_for_the_next_pod(bus, session):
    for name in ("a", "b"):
        await write_node(session, node(name))
    async with scorer(bus):
        for number in range(4):
            await publish_pending(session, pending(f"web-{number}"))
        messages = await ranked(session, 4)
    firsts = [message.candidates[0].node for message in messages]
    assert sorted(firsts) == ["a", "a", "b", "b"]
    assert [message.candidates[0].pods for message in messages] == [0, 0, 1, 1]


async def test_a_peers_proposals_count_from_before_and_after_the_start(bus, session):
    for name in ("a", "b"):
        await write_node(session, node(name))
    await publish_ranked(session, peers_proposal("early"))
    async with scorer(bus):
        await publish_ranked(session, peers_proposal("late"))
        await publish_pending(session, pending("web-1"))
        await publish_pending(session, pending("web-2"))
        mine = [message for message in await ranked(session, 4) if message.scorer == "s1"]
    assert [message.candidates[0].node for message in mine] == ["b", "b"]


async def test_a_ranking_has_the_positions_of_its_view(bus, session, monkeypatch):
    """With it and the positions the ranking can be made again."""
    monkeypatch.setattr(core, "HEARTBEAT_SECONDS", 0.005)
    await write_node(session, node("n1"))
    async with scorer(bus, proposal=timedelta(milliseconds=50)):
        asked = await publish_pending(session, pending("first"))
        (first,) = await ranked(session)
        peers = await publish_ranked(session, peers_proposal("peer"))
        await until(lambda: counts_no_proposal(session))
        again = await publish_pending(session, pending("second"))
        second = (await ranked(session, 3))[2]
    assert first.received == Received(pending=asked.sequence)
    assert (second.received.ranked, second.received.pending) == (peers.sequence, again.sequence)
    assert set(second.received.expired) == {first.pod.uid, "peer"}


async def test_a_ranking_names_the_newest_copy_that_did_not_arrive(bus, session, monkeypatch):
    async def losing(self, subject, listener, **more):
        await subscribe(self, subject, lambda stored: None if "lost" in stored.subject else listener(stored), **more)

    subscribe = MemorySession.subscribe_stored
    monkeypatch.setattr(MemorySession, "subscribe_stored", losing)
    await write_node(session, node("n1"))
    async with scorer(bus):
        await publish_ranked(session, peers_proposal("early"))
        lost = await publish_ranked(session, peers_proposal("lost"))
        late = await publish_ranked(session, peers_proposal("late"))
        await publish_pending(session, pending("web"))
        received = (await ranked(session, 4))[3].received
    assert (received.missed, received.ranked) == (lost.sequence, late.sequence)


async def counts_no_proposal(session):
    (found,) = await session.services("berth-scorer")
    return found.stats["proposals"] == 0


def peers_proposal(name):
    return Ranked(
        attempt=f"{name}.1.1",
        profile="berth",
        pod=pod(name),
        scorer="peer",
        candidates=[Candidate(node="a", total=1)],
    )


async def test_unschedulable_because_of_a_proposal_is_marked(bus, session):
    await write_node(session, node("only", cpu="1"))
    async with scorer(bus):
        await publish_pending(session, pending("first", cpu="800m"))
        await publish_pending(session, pending("second", cpu="800m"))
        messages = await ranked(session, 2)
    assert [message.proposals_counted for message in messages] == [False, True]


async def test_a_rejection_on_an_older_view_than_asked_is_marked_and_proposes_no_preemption(bus, session):
    await write_node(session, node("small", cpu="1"))
    await write_placed_pod(session, "victim", "small", cpu="1", priority=0)
    async with scorer(bus, position_wait=timedelta(milliseconds=50)):
        important = msgspec.structs.replace(
            pending("web", after=Positions(cluster=99)), pod=pod("web", cpu="1", priority=1000)
        )
        await publish_pending(session, important)
        [message] = await ranked(session)
    assert (message.candidates, message.behind, message.preemption) == ([], True, None)
    assert message.blockers == ["NodeResourcesFit"]


async def test_a_node_found_on_an_older_view_than_asked_is_an_answer(bus, session):
    await write_node(session, node("small", cpu="1"))
    async with scorer(bus, position_wait=timedelta(milliseconds=50)):
        await publish_pending(session, pending("web", after=Positions(cluster=99)))
        [message] = await ranked(session)
    assert [candidate.node for candidate in message.candidates] == ["small"]
    assert not message.behind


async def test_an_undecodable_message_becomes_a_dead_letter_and_blocks_no_other(bus, session):
    await write_node(session, node("a"))
    async with scorer(bus):
        await session.publish("berth.pending.berth.default.junk", b"\xff not json")
        await publish_pending(session, pending("web"))
        await ranked(session)
        await until(lambda: stored_in(session, "dead", ">"))
        letters = await stored_in(session, "dead", ">")
    letter = decode(letters[0].data, DeadLetter)
    assert letter.subject == "berth.pending.berth.default.junk"
    assert "decoding a message" in letter.reason


async def test_a_bus_that_stores_no_ranking_is_no_failure_of_the_pod(bus, session, monkeypatch):
    monkeypatch.setattr("berth_scorer.effects.RETRY_DELAY", timedelta(milliseconds=1))
    monkeypatch.setattr("berth_scorer.effects.FULL_TRIES", 1)
    await write_node(session, node("a"))
    async with scorer(bus):
        bus.fill("RANKED")
        await publish_pending(session, pending("web"))
        consumer = session._store.stream("PENDING").queue.consumers["scorer"]
        await until_true(lambda: consumer._delivered.get(1, 0) >= 12)
        bus.fill()
        [message] = await ranked(session)
    assert (message.error, message.candidates[0].node) == ("", "a")
    assert await stored_in(session, "dead", ">") == []


async def test_an_answer_that_is_never_stored_takes_no_place_while_its_dead_letter_is_not_stored_either(
    bus, session, monkeypatch
):
    def refuse(*_arguments):
        raise TooLargeError("no form of it fits")

    monkeypatch.setattr("berth_scorer.effects.RETRY_DELAY", timedelta(milliseconds=1))
    monkeypatch.setattr("berth_scorer.effects.ranked_message", refuse)
    await write_node(session, node("a"))
    async with scorer(bus):
        bus.fill("dead")
        await publish_pending(session, pending("web"))
        consumer = session._store.stream("PENDING").queue.consumers["scorer"]
        await until_true(lambda: consumer._delivered.get(1, 0) >= 3)
        bus.fill()
        await until(lambda: is_empty(session, "PENDING", "berth.pending.>"))
        (letter,) = await stored_in(session, "dead", ">")
    assert decode(letter.data, DeadLetter).reason == "no form of it fits"


async def until_true(holds) -> None:
    async def asked() -> bool:
        return holds()

    await until(asked)


@pytest.mark.parametrize("field", ["name", "namespace", "uid"])
async def test_a_name_that_is_longer_than_a_subject_may_be_becomes_a_dead_letter(bus, session, field):
    async with scorer(bus):
        web = pending("web")
        metadata = msgspec.structs.replace(web.pod.metadata, **{field: "x" * 5_000})
        long = msgspec.structs.replace(
            web, attempt=f"{metadata.uid}.1.1", pod=msgspec.structs.replace(web.pod, metadata=metadata)
        )
        await session.publish("berth.pending.berth.default.web", encode(long))
        await until(lambda: stored_in(session, "dead", ">"))
        (letter,) = await stored_in(session, "dead", ">")
    reason = decode(letter.data, DeadLetter).reason
    assert "of length <= 253" in reason


@pytest.mark.parametrize("attempt", ["junk", "other.1.1"])
async def test_an_invalid_attempt_becomes_a_dead_letter_unranked(bus, session, attempt):
    await write_node(session, node("a"))
    async with scorer(bus):
        message = msgspec.structs.replace(pending("web"), attempt=attempt)
        await session.publish("berth.pending.berth.default.web", encode(message))
        await until(lambda: stored_in(session, "dead", ">"))
        (letter,) = await stored_in(session, "dead", ">")
        assert await stored_in(session, "RANKED", "berth.ranked.>") == []
    assert repr(attempt) in decode(letter.data, DeadLetter).reason


async def test_a_pending_group_is_planned_in_one_message_and_counts_for_other_scorers(bus, session):
    await write_node(session, node("a", cpu="4"))
    pods = members(3, "gang", cpu="1")
    bundle = bundled(pods, dict.fromkeys((pod.uid for pod in pods), 1))
    group = GroupPending(attempt="uid-gang.1.1", profile="berth", group=a_group(), bundle=bundle, need=3)
    async with scorer(bus):
        await group_pending_message(session, group).publish(session)
        [stored] = await in_ranked(session)
        message = decode_group(stored.data, GroupRanked)
        assert stored.subject == "berth.ranked.berth.default.=7Egang"
        assert (len(message.plan.members), message.plan.nodes) == (3, ["a"])
        await until(lambda: is_empty(session, "PENDING", "berth.pending.>"))
        await publish_pending(session, pending("large", cpu="2"))
        [_, other] = await in_ranked(session, 2)
        assert decode(other.data, Ranked).proposals_counted
    async with scorer(bus):
        await publish_pending(session, pending("larger", cpu="3"))
        [*_, third] = await in_ranked(session, 3)
        assert decode(third.data, Ranked).proposals_counted


async def test_an_unknown_profile_or_newer_schema_is_left_to_others(bus, session):
    await write_node(session, node("a"))
    async with scorer(bus):
        await publish_pending(session, pending("other", profile="somebody-elses"))
        newer = msgspec.json.decode(encode(pending("newer"))) | {"schema": 9}
        await session.publish("berth.pending.berth.default.newer", msgspec.json.encode(newer))
        await publish_pending(session, pending("web"))
        assert [message.attempt for message in await ranked(session)] == ["web.1.1"]
        assert len(await stored_in(session, "PENDING", "berth.pending.>")) == 2
        assert await stored_in(session, "dead", ">") == []


class ProcessEnds(BaseException):
    """Ends a scorer without a word, as a crash in C does."""


class Deadly(Ranker):
    def answer(self, pending, *rest):
        if pending.pod.metadata.name == "cursed":
            raise ProcessEnds
        return super().answer(pending, *rest)


async def test_pod_that_ends_scorers_is_given_up_after_six_and_others_are_ranked(bus, session):
    await write_node(session, node("a"))
    whole = make_ranker()
    deadly = Deadly(profiles=whole.profiles, config=whole.config, identity="s1", best=8)
    names = ("before", "cursed", "after")
    for name in names:
        await publish_pending(session, pending(name))
    ended = 0
    while await is_pending(session):
        process = Process(name="scorer", metrics=RecordingMeter(), clock=LoopTime())
        task = asyncio.create_task(serve(process, bus, deadly))
        await until(lambda task=task: is_done(session, task), seconds=60)
        process.stopping.set()
        ends = await asyncio.gather(task, return_exceptions=True)
        ended += isinstance(ends[0], BaseException)
    errors = {message.pod.metadata.name: message.error for message in await ranked(session, 3)}
    assert errors == {"before": "", "cursed": "ranking ended 3 scorers before this one", "after": ""}
    assert ended == 6
    assert len(await stored_in(session, "dead", ">")) == 1


async def is_pending(session) -> bool:
    return not await is_empty(session, "PENDING", "berth.pending.>")


async def is_done(session, task) -> bool:
    return task.done() or not await is_pending(session)


async def test_two_scorers_share_the_work_and_place_as_one(bus, session):
    for number in range(5):
        await write_node(session, node(f"n{number}"))
    async with scorer(bus, make_ranker("s1"), max_unacked=1), scorer(bus, make_ranker("s2"), max_unacked=1):
        for number in range(50):
            await publish_pending(session, pending(f"web-{number}"))
            await asyncio.sleep(0.002)
        messages = await ranked(session, 50)
    assert {message.scorer for message in messages} == {"s1", "s2"}
    firsts = [message.candidates[0].node for message in messages]
    assert (
        max(firsts.count(f"n{number}") for number in range(5)) - min(firsts.count(f"n{number}") for number in range(5))
        <= 2
    )


async def test_after_a_lost_connection_the_rest_is_ranked(bus, session):
    await write_node(session, node("a"))
    async with scorer(bus):
        for other in list(bus.sessions):
            if other is not session:
                bus.cut(other)
        await publish_pending(session, pending("web"))
        [message] = await ranked(session)
    assert message.candidates[0].node == "a"


async def test_views_of_lost_connections_do_not_accumulate(bus, session, collector_is_off):
    def views() -> int:
        return sum(isinstance(each, View) for each in gc.get_objects())

    await write_node(session, node("a"))
    before, kept = views(), []
    async with scorer(bus):
        for number in range(4):
            await publish_pending(session, pending(f"web-{number}"))
            await ranked(session, number + 1)
            kept.append(views() - before)
            for other in list(bus.sessions):
                if other is not session:
                    bus.cut(other)
    assert max(kept) <= 2, "the present one, and what ended last if its tasks had not ended at the collection"
