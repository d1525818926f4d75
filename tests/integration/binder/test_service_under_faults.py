"""The binder while the API server fails, loses answers and cuts watches, and with messages that cannot be used."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta

import msgspec
import pytest

from berth.bus.stages import publish_ranked
from berth.messages.attempts import DeadLetter, Outcome, Ranked
from berth.messages.encoding import decode
from berth_binder import effects
from berth_binder.attempts import strays
from berth_sim.faults import Clear, CutWatches, Delay, Fail, LoseAnswer, Reject
from harness.fakes.memory_bus import MemoryBus
from harness.plugins.fixtures_bus import BusUnderTest
from harness.plugins.fixtures_kube import Cluster
from harness.worlds.binder_world import QUICK, BinderWorld, binder_world, has_fence

BINDING = {"verb": "create", "resource": "pods/binding"}


@pytest.fixture
async def world(simulated_cluster: Cluster, nats_bus_under_test: BusUnderTest) -> AsyncIterator[BinderWorld]:
    async with binder_world(simulated_cluster, nats_bus_under_test.bus) as world:
        yield world


def inject(world: BinderWorld, *faults: object) -> None:
    world.cluster.simulated.faults.inject(*faults)


async def test_lost_answer_is_read_and_the_pod_bound_once(world):
    node = await world.add_node()
    pod = await world.add_pod("web")
    await world.leading_binder()
    inject(world, LoseAnswer(**BINDING))
    await world.rank(pod, node)
    assert (await world.decision(pod)).outcome is Outcome.BOUND


@pytest.mark.parametrize("status", [409, 429, 500, 503])
async def test_open_answers_end_in_bound(world, status):
    node = await world.add_node()
    pod = await world.add_pod("web")
    await world.leading_binder()
    inject(world, Fail(**BINDING, status=status, count=3))
    await world.rank(pod, node)
    assert (await world.decision(pod)).outcome is Outcome.BOUND


async def test_rejection_is_an_error_with_event_and_condition(world):
    node = await world.add_node()
    pod = await world.add_pod("web")
    await world.leading_binder()
    inject(world, Fail(**BINDING, status=422, message="this pod is odd"))
    await world.rank(pod, node)
    decision = await world.decision(pod)
    assert decision.outcome is Outcome.ERROR
    assert "this pod is odd" in decision.message
    await world.until(lambda: world.events("web"))
    assert "this pod is odd" in (await world.events("web"))[0]["note"]
    conditions = {each.type: each.reason for each in (await world.pod("web")).status.conditions or ()}
    assert conditions["PodScheduled"] == "SchedulerError"


async def test_missing_right_names_the_rule_to_add(world):
    node = await world.add_node()
    pod = await world.add_pod("web")
    await world.leading_binder()
    inject(world, Reject(**BINDING, user="system:serviceaccount:berth:binder"))
    await world.rank(pod, node)
    assert 'resources: ["pods/binding"]' in (await world.decision(pod)).message


async def test_pods_behind_an_open_binding_are_bound(world):
    node = await world.add_node()
    pods = [await world.add_pod(f"p{number}", cpu="10m") for number in range(20)]
    await world.leading_binder(replace(QUICK, binding_timeout=timedelta(seconds=30)))
    inject(world, Delay(**BINDING, seconds=3.0))
    for pod in pods:
        await world.rank(pod, node)
    for pod in pods[1:]:
        await world.decision(pod)
    assert pods[0].uid not in {decision.uid for decision in world.decisions}
    assert (await world.decision(pods[0])).outcome is Outcome.BOUND


async def test_failing_events_delay_no_binding(world):
    node = await world.add_node()
    pods = [await world.add_pod(f"p{number}", cpu="10m") for number in range(20)]
    await world.leading_binder()
    inject(world, Delay(verb="create", resource="events", count=None, seconds=60))
    for pod in pods:
        await world.rank(pod, node)
    for pod in pods:
        assert (await world.decision(pod)).outcome is Outcome.BOUND
    inject(world, Clear())


async def test_missing_right_for_events_is_logged_once_with_the_rule(world, capsys):
    node = await world.add_node()
    pods = [await world.add_pod(f"p{number}", cpu="10m") for number in range(5)]
    await world.leading_binder()
    inject(world, Reject(verb="create", resource="events", count=None, user="system:serviceaccount:berth:binder"))
    for pod in pods:
        await world.rank(pod, node)
    for pod in pods:
        assert (await world.decision(pod)).outcome is Outcome.BOUND
    printed = ""

    def is_logged() -> bool:
        nonlocal printed
        printed += capsys.readouterr().out
        return 'apiGroups: ["events.k8s.io"], resources: ["events"], verbs: ["create"]' in printed

    await world.until(is_logged)
    await world.until(lambda: world.binders[0].process.metrics.value("berth_api_events_total", result="failed") == 5)
    printed += capsys.readouterr().out
    assert printed.count("may not create events") == 1
    inject(world, Clear())


async def test_cut_watches_are_resumed(world):
    node = await world.add_node()
    await world.leading_binder()
    for number in range(5):
        pod = await world.add_pod(f"p{number}", cpu="10m")
        inject(world, CutWatches())
        await world.rank(pod, node)
        assert (await world.decision(pod)).outcome is Outcome.BOUND


async def test_redelivered_message_is_decided_once(world):
    node = await world.add_node()
    pod = await world.add_pod("web")
    await world.leading_binder(replace(QUICK, keep_alive=timedelta(seconds=60)))  # longer than the ack_wait of this bus
    inject(world, Delay(**BINDING, seconds=1.5))
    await world.rank(pod, node)
    assert (await world.decision(pod)).outcome is Outcome.BOUND
    await world.nothing_ranked_is_left()
    assert len(world.decisions) == 1


async def test_undecodable_message_becomes_a_dead_letter(world):
    node = await world.add_node()
    pod = await world.add_pod("web")
    await world.leading_binder()
    await world.session.publish("berth.ranked.berth.default.odd", b"\x00garbage")
    await world.rank(pod, node)
    assert (await world.decision(pod)).outcome is Outcome.BOUND
    await world.nothing_ranked_is_left()
    letter = await world.session.last("dead", "berth.dead.berth.default.odd")
    assert "garbage" in decode(letter.data, DeadLetter).payload


async def test_attempt_of_another_pod_becomes_a_dead_letter(world):
    pod = await world.add_pod("web")
    await world.leading_binder()
    message = await world.rank(pod, "nowhere")
    await world.decision(pod)
    odd = msgspec.structs.replace(message, attempt="another.1.9")
    await world.session.publish("berth.ranked.berth.default.web", msgspec.json.encode(odd))
    await world.until(lambda: world.session.last("dead", "berth.dead.berth.default.web"))


async def test_attempt_of_a_term_that_no_watcher_had_keeps_the_real_one_from_nobody(world):
    node = await world.add_node()
    pod = await world.add_pod("web")
    await world.session.put("control", "term.watcher", b"1")
    await world.leading_binder()
    forged = Ranked(attempt=f"{pod.uid}.{10**18}.1", profile="berth", pod=pod, scorer="s", message="no room")
    await publish_ranked(world.session, forged)
    await world.until(lambda: world.session.last("dead", f"berth.dead.berth.{pod.metadata.namespace}.web"))
    await world.rank(pod, node)
    assert (await world.decision(pod)).outcome is Outcome.BOUND
    await world.session.put("control", "term.watcher", b"2")
    later = await world.add_pod("later")
    next_term = Ranked(attempt=f"{later.uid}.2.1", profile="berth", pod=later, scorer="s", message="no room")
    await publish_ranked(world.session, next_term)
    await world.until(lambda: any(each.uid == later.uid for each in world.decisions))


NEWEST = "9999999999999999999"
"""A version that no watch has reached: the pod may be newer than what the binder was shown."""


def forged(scheduler: str = "berth", **parts: str) -> bytes:
    """A RANKED that only a hostile scorer writes: ``parts`` are of the pod's metadata, or of the message."""
    metadata = {"name": "web", "namespace": "default", "uid": "forged-1", "resourceVersion": NEWEST}
    metadata |= {name: text for name, text in parts.items() if name in metadata}
    pod = {"metadata": metadata, "spec": {"schedulerName": scheduler}}
    message = {"schema": 1, "attempt": f"{metadata['uid']}.1.1", "profile": "berth", "pod": pod}
    others = {name: text for name, text in parts.items() if name not in metadata}
    return json.dumps({**message, "message": "no room", "scorer": "s", **others}).encode()


HOSTILE = {
    "a subject that makes a dead letter's too long": ("berth.ranked.a.b." + "!" * 1400, b"garbage"),
    "names that make a Decision's subject too long": (
        "berth.ranked.berth.default.odd",
        forged(name="\U0001f600" * 253, namespace="\U0001f600" * 253),
    ),
    "a name that no request can have": ("berth.ranked.berth.default.odd", forged(namespace="a b")),
    "a name that is another request": (
        "berth.ranked.berth.default.odd",
        forged(namespace="default/services?watch=true&x="),
    ),
    "a profile that the pod does not name": ("berth.ranked.berth.default.odd", forged(profile="another")),
    "a profile that no pod names": ("berth.ranked.berth.default.odd", forged("another", profile="another")),
    "a time without a zone": ("berth.ranked.berth.default.odd", forged(asked_at="2026-01-01T00:00:00")),
}


@pytest.mark.parametrize("case", HOSTILE)
async def test_what_only_a_hostile_scorer_writes_ends_no_leadership_and_keeps_none_from_taking_over(world, case):
    node = await world.add_node()
    first, second = await world.add_pod("first"), await world.add_pod("second")
    subject, data = HOSTILE[case]
    binder = await world.leading_binder()
    await world.session.publish(subject, data)
    await world.rank(first, node)
    assert (await world.decision(first)).outcome is Outcome.BOUND
    await world.nothing_ranked_is_left()
    await binder.kill()
    await world.session.publish(subject, data)  # now it is in RANKED while the next one takes over
    await world.leading_binder()
    await world.rank(second, node)
    assert (await world.decision(second)).outcome is Outcome.BOUND
    await world.nothing_ranked_is_left()
    assert [each.epoch for each in world.decisions if each.outcome is Outcome.BOUND] == [1, 2]
    assert {each.uid for each in world.decisions} == {first.uid, second.uid}


async def test_of_rankings_that_no_pod_waits_for_few_are_examined(world, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(strays, "STRAYS_BURST", 2)
    monkeypatch.setattr(strays, "STRAYS_PER_SECOND", 0.0)
    node, pod = await world.add_node(), await world.add_pod("web")
    await world.leading_binder()
    for number in range(20):
        uid = f"none-{number}"
        await world.session.publish(f"berth.ranked.berth.default.junk-{number}", b"junk")
        await world.session.publish(f"berth.ranked.berth.default.{uid}", forged(name=uid, uid=uid))
        await world.session.publish(f"berth.ranked.berth.{pod.metadata.namespace}.web", forged(uid=uid))
    await world.rank(pod, node)
    assert (await world.decision(pod)).outcome is Outcome.BOUND
    await world.nothing_ranked_is_left()
    letters = [letter async for letter in world.session.scan("dead", "berth.dead.>")]
    gone = [each for each in world.decisions if each.outcome is Outcome.GONE]
    assert len(letters) + len(gone) <= 2


async def test_all_pods_that_a_former_leader_has_bound_without_a_decision_get_one(
    world, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(strays, "STRAYS_BURST", 2)
    monkeypatch.setattr(strays, "STRAYS_PER_SECOND", 0.0)
    node = await world.add_node()
    pods = [await world.add_pod(f"p{number}", cpu="10m", nodeName=node) for number in range(5)]
    for number in range(5):
        await world.session.publish(f"berth.ranked.berth.default.junk-{number}", b"junk")
        await world.session.publish(f"berth.ranked.berth.default.new-{number}", b'{"schema": 99}')
        uid = f"none-{number}"
        await world.session.publish(f"berth.ranked.berth.default.{uid}", forged(name=uid, uid=uid))
    for pod in pods:
        await world.rank(pod, node)
    await world.leading_binder()
    assert {(await world.decision(pod)).outcome for pod in pods} == {Outcome.BOUND}
    letters = [letter async for letter in world.session.scan("dead", "berth.dead.>")]
    gone = [each for each in world.decisions if each.outcome is Outcome.GONE]
    assert len(letters) + len(gone) <= 2


async def test_a_ranking_delivered_again_after_its_pod_was_bound_stays_until_the_decision_is_stored(
    world, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(strays, "STRAYS_BURST", 0)
    publish_soon, unstored = effects.DecisionPublisher.publish_soon, []
    monkeypatch.setattr(effects.DecisionPublisher, "publish_soon", lambda *arguments: unstored.append(arguments))
    node, pod = await world.add_node(), await world.add_pod("web")
    binder = await world.leading_binder(replace(QUICK, keep_alive=timedelta(seconds=60)))  # as above
    metrics = binder.process.metrics
    await world.rank(pod, node)

    def is_delivered_again() -> bool:
        dropped = metrics.value("berth_strays_dropped_total")
        return bool(dropped) or metrics.value("berth_messages_received_total", stream="RANKED") >= 3

    await world.until(is_delivered_again)
    assert [one.subject async for one in world.session.scan("RANKED", "berth.ranked.>")]
    monkeypatch.undo()
    for arguments in unstored:
        publish_soon(*arguments)
    assert (await world.decision(pod)).outcome is Outcome.BOUND
    await world.nothing_ranked_is_left()


async def test_message_of_a_newer_schema_stays_in_the_stream(world):
    await world.leading_binder()
    await world.session.publish("berth.ranked.berth.default.new", b'{"schema": 99}')
    pod = await world.add_pod("web")
    await world.rank(pod, message="no room")
    await world.decision(pod)

    async def is_left_alone() -> bool:
        left = [one.subject async for one in world.session.scan("RANKED", "berth.ranked.>")]
        return left == ["berth.ranked.berth.default.new"]

    await world.until(is_left_alone)


async def test_message_of_a_newer_schema_beyond_its_share_of_the_stream_is_a_dead_letter(
    world, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(effects, "SHARE", 1 << 40)  # of which not a byte is left
    await world.leading_binder()
    await world.session.publish("berth.ranked.berth.default.new", b'{"schema": 99}')
    await world.until(lambda: world.session.last("dead", "berth.dead.berth.default.new"))
    await world.nothing_ranked_is_left()


async def test_deleted_consumer_leads_to_a_new_takeover(world):
    node = await world.add_node()
    await world.leading_binder()
    (before,) = await world.session.consumers("RANKED")
    await world.session.delete_consumer("RANKED", before)
    pod = await world.add_pod("web")
    await world.rank(pod, node)
    assert (await world.decision(pod)).outcome is Outcome.BOUND
    (after,) = await world.session.consumers("RANKED")
    assert int(after.removeprefix("binder-")) > int(before.removeprefix("binder-"))


async def test_lost_connection_to_nats_leaves_nothing_to_fence(simulated_cluster: Cluster):
    """The Binding under way is answered before the Lease is given up."""
    bus = MemoryBus()
    bus.apply()
    async with binder_world(simulated_cluster, bus) as world:
        node = await world.add_node()
        pods = [await world.add_pod(f"p{number}") for number in range(4)]
        await world.leading_binder()
        inject(world, Delay(**BINDING, seconds=0.3))
        await world.rank(pods[0], node)
        await world.until(lambda: not world.cluster.simulated.faults.armed())
        next(each for each in bus.sessions if each.name == "binder").lose("the connection broke")
        for pod in pods[1:]:
            await world.rank(pod, "no-such-node")
        assert (await world.decision(pods[-1])).epoch == 2
        assert (await world.pod("p0")).spec.node_name == node
        assert not any([await has_fence(world, pod.metadata.name) for pod in pods[2:]])


async def test_pod_that_was_under_way_when_three_binders_ended_is_set_aside_and_others_go_on(world):
    node = await world.add_node()
    former = await world.leading_binder()
    inject(world, Delay(**BINDING, seconds=30.0))
    bad, good = await world.add_pod("bad", cpu="10m"), await world.add_pod("good", cpu="10m")
    for pod in (bad, good):
        await world.rank(pod, node)
    await former.kill()
    inject(world, Clear())
    await world.session.put("commits", f"pod.{bad.uid}", b"3")

    await world.leading_binder()

    decision = await world.decision(bad)
    assert (decision.outcome, decision.reason) == (Outcome.ERROR, "tries")
    assert (await world.decision(good)).outcome is Outcome.BOUND
    await world.until(lambda: world.events("bad"))
    assert "ended 3 binders before this one" in (await world.events("bad"))[0]["note"]
    letters = [decode(each.data, DeadLetter) async for each in world.session.scan("dead", "berth.dead.>")]
    assert [letter.attempt for letter in letters] == [f"{bad.uid}.1.1"]

    async def nothing_is_counted() -> bool:
        entries = [await world.session.get("commits", f"pod.{pod.uid}") for pod in (bad, good)]
        return all(entry is None or entry.data is None for entry in entries)

    await world.until(nothing_is_counted)
