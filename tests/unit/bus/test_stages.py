"""Messages that are larger than NATS takes are cut, and what remains says so."""

import msgspec
import pytest

from berth.api.meta import ObjectMeta
from berth.api.pod import Pod, PodSpec
from berth.bus.settings import TopologySettings
from berth.bus.stages import (
    NO_MEMBERS,
    group_pending_message,
    group_ranked_message,
    publish_dead_letter,
    publish_decision,
    publish_pending,
    publish_ranked,
)
from berth.bus.topology import DEAD, DECISIONS, PENDING, RANKED
from berth.messages.attempts import Candidate, DeadLetter, Decision, Outcome, Pending, Ranked, Rejection
from berth.messages.bundles import bundled
from berth.messages.encoding import decode
from berth.messages.groupattempts import GroupPending, GroupRanked, decode_group
from berth.messages.groups import Alternate, ClassPlan, GroupPlan, PlannedMember
from fuzz.ordinary import ranked as an_ordinary_ranking
from harness.builders.groups import a_group, members
from harness.fakes.memory_bus import MemoryBus, MemorySession

LIMIT = 64 * 1024
SUBJECT = "berth.{}.berth.default.web"


@pytest.fixture
async def session() -> MemorySession:
    """A session on a bus that takes 64 KiB."""
    bus = MemoryBus(TopologySettings(message_bytes=LIMIT))
    bus.apply()
    return await bus.connect(name="test")


def a_pod(size: int) -> Pod:
    annotations = {"note": "x" * size} if size else None
    metadata = ObjectMeta(name="web", namespace="default", uid="u", resource_version="7", annotations=annotations)
    return Pod(metadata=metadata, spec=PodSpec(scheduler_name="berth"))


def candidates(count: int, details: int = 0) -> list[Candidate]:
    return [
        Candidate(node=f"node-{i}", total=100 - i, scores={"Fit": 1}, details={"Fit": "x" * details})
        for i in range(count)
    ]


async def stored(session: MemorySession, stream: str, kind):
    found = await session.last(
        stream, SUBJECT.format({"PENDING": "pending", "RANKED": "ranked"}.get(stream, "decision"))
    )
    assert found is not None
    return decode(found.data, kind)


@pytest.mark.parametrize("size", [LIMIT * 15 // 16, LIMIT - 100, LIMIT, 30 * LIMIT])
async def test_a_pod_that_is_too_large_is_published_as_an_error_with_size_and_limit(session, size):
    await publish_pending(session, Pending(attempt="u.1.1", profile="berth", pod=a_pod(size)))
    found = await stored(session, PENDING, Pending)
    assert found.error.startswith("the pod takes ")
    assert f"NATS takes {LIMIT * 15 // 16} at most" in found.error
    assert found.pod == a_pod(0)
    assert found.attempt == "u.1.1"


async def test_a_pod_that_fits_has_room_for_its_ranking(session):
    message = Pending(attempt="u.1.1", profile="berth", pod=a_pod(LIMIT * 15 // 16 - 300))
    await publish_pending(session, message)
    assert await stored(session, PENDING, Pending) == message
    ranked = Ranked(attempt="u.1.1", profile="berth", pod=message.pod, candidates=candidates(32))
    await publish_ranked(session, ranked)
    assert await stored(session, RANKED, Ranked) == ranked


@pytest.mark.parametrize(
    ("pod", "count", "details", "left"),
    [
        pytest.param(0, 32, 4_000, 32, id="explanations are left out first"),
        pytest.param(LIMIT - 900, 32, 0, 8, id="then candidates"),
        pytest.param(LIMIT - 400, 32, 0, 1, id="all but the first"),
    ],
)
async def test_a_ranking_that_is_too_large_loses_explanations_then_candidates(session, pod, count, details, left):
    given = {"candidates": candidates(count, details), "weights": {"Fit": 1}}
    ranked = Ranked(attempt="u.1.1", profile="berth", pod=a_pod(pod), **given)
    await publish_ranked(session, ranked)
    found = await stored(session, RANKED, Ranked)
    assert [each.node for each in found.candidates] == [f"node-{i}" for i in range(left)]
    assert found.pod == ranked.pod
    assert not found.candidates[0].details


async def test_a_ranking_that_fits_in_no_form_is_an_error(session):
    await publish_ranked(session, Ranked(attempt="u.1.1", profile="berth", pod=a_pod(LIMIT), candidates=candidates(1)))
    found = await stored(session, RANKED, Ranked)
    assert found.error == "the ranking does not fit into a message beside the pod"
    assert (found.candidates, found.pod) == ([], a_pod(0))


async def test_the_smallest_form_of_a_ranking_keeps_what_is_small(session):
    ordinary = decode(msgspec.json.encode(an_ordinary_ranking("web")), Ranked)
    await publish_ranked(session, msgspec.structs.replace(ordinary, pod=a_pod(LIMIT), error="why"))
    large = {
        "candidates": [],
        "weights": {},
        "rejections": [],
        "blockers": [],
        "preemption": None,
        "message": "",
        "devices": {},
    }
    flags = {"proposals_counted": False, "behind": False, "clears_nomination": False}
    expected = msgspec.structs.replace(ordinary, pod=a_pod(0), error="why", **large, **flags)
    assert await stored(session, RANKED, Ranked) == expected


async def test_an_error_of_any_length_is_published(session):
    await publish_ranked(session, Ranked(attempt="u.1.1", profile="berth", pod=a_pod(0), error="x" * 10 * LIMIT))
    assert (await stored(session, RANKED, Ranked)).error == "x" * 1024


async def test_a_decision_that_is_too_large_keeps_its_outcome(session):
    decision = Decision(
        attempt="u.1.1",
        epoch=7,
        outcome=Outcome.UNSCHEDULABLE,
        profile="berth",
        namespace="default",
        pod="web",
        uid="u",
        message="0/5 nodes are available",
        rejections=[Rejection(plugin="P" * 900, reason=f"r{i}", nodes=1, examples=["n"] * 9) for i in range(100)],
        blockers=["P" * 250] * 4,
    )
    await publish_decision(session, decision)
    found = await stored(session, DECISIONS, Decision)
    assert found == msgspec.structs.replace(decision, rejections=[], blockers=[])


async def test_a_dead_letter_of_any_size_is_published(session):
    letter = DeadLetter(subject="s", reason="\0" * LIMIT, service="scorer", payload="\0" * 10 * LIMIT)
    await publish_dead_letter(session, letter)
    found = await session.last(DEAD, "berth.dead.scorer")
    assert decode(found.data, DeadLetter).subject == "s"


async def test_a_dead_letter_whose_subject_would_be_too_long_is_the_services(session):
    strange = "berth.ranked.a.b." + "!" * 1400
    await publish_dead_letter(session, DeadLetter(subject=strange, reason="garbage", service="binder"))
    found = await session.last(DEAD, "berth.dead.binder")
    assert decode(found.data, DeadLetter).subject == strange


@pytest.mark.parametrize("trace", ["x" * 5_000, "00-é", "\udcff"])
async def test_a_strangers_header_that_is_no_trace_context_is_not_passed_on(session, trace):
    message = Pending(attempt="u.1.1", profile="berth", pod=a_pod(0))
    await publish_pending(session, message, headers={"traceparent": trace, "tracestate": "a=b"})
    found = await session.last(PENDING, SUBJECT.format("pending"))
    assert dict(found.headers) == {"Nats-Msg-Id": "u.1.1", "tracestate": "a=b"}


GROUP_SUBJECT = "berth.{}.berth.default.=7Egang"


def a_group_pending(count: int, annotation: int = 0) -> GroupPending:
    pods = members(count, metadata={"annotations": {"note": "x" * annotation}})
    bundle = bundled(pods, dict.fromkeys((pod.uid for pod in pods), 1))
    return GroupPending(attempt="uid-gang.1.1", profile="berth", group=a_group(), bundle=bundle, need=count)


def a_group_ranked(pending: GroupPending, alternates: int = 0) -> GroupRanked:
    planned = [PlannedMember(member.uid, 0, 0) for member in pending.bundle.members]
    of_class = ClassPlan(members=len(planned), alternates=[Alternate(0, 10**15, 10**12, 0.5, 7)] * alternates)
    plan = GroupPlan(need=pending.need, nodes=["a"], members=planned, classes=[of_class])
    return GroupRanked(
        **{name: getattr(pending, name) for name in ("attempt", "profile", "group", "bundle", "need")}, plan=plan
    )


async def test_a_groups_messages_go_to_the_groups_subject_once_per_attempt(session):
    pending = a_group_pending(3)
    for _ in range(2):
        await group_pending_message(session, pending).publish(session)
    await group_ranked_message(session, a_group_ranked(pending)).publish(session)
    asked, answered = [await session.last(stream, GROUP_SUBJECT.format(stream.lower())) for stream in (PENDING, RANKED)]
    assert decode_group(asked.data, GroupPending) == pending
    assert decode_group(answered.data, GroupRanked) == a_group_ranked(pending)
    assert (asked.sequence, answered.sequence) == (1, 1)


def test_a_group_that_is_too_large_is_published_as_an_error_without_its_members(session):
    message = group_pending_message(session, a_group_pending(3, LIMIT))
    read = decode_group(message.data, GroupPending)
    assert read.error.startswith("the group takes ")
    assert (read.bundle, read.need) == (NO_MEMBERS, 3)


def test_a_plan_that_is_too_large_loses_alternates_and_then_all_but_its_reason(session):
    few = a_group_pending(600)
    left = decode_group(group_ranked_message(session, a_group_ranked(few, 16)).data, GroupRanked)
    assert (len(left.plan.members), left.plan.error) == (600, "")
    many = decode_group(group_ranked_message(session, a_group_ranked(a_group_pending(1500))).data, GroupRanked)
    assert (many.bundle, many.plan.members) == (NO_MEMBERS, [])
    assert many.plan.error == f"the plan does not fit into a message beside the group: NATS takes {LIMIT} bytes"
