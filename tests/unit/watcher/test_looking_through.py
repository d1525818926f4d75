"""What a takeover reads of the bus, in the one order in which nothing is missed."""

import pytest

from berth.api.messages import Decision, Outcome, Pending, Ranked
from berth.api.subjects import PodSubject
from berth.bus.stages import publish_decision, publish_pending, publish_ranked
from berth_watcher.takeover import holds, read_streams
from harness.plugins.fixtures_bus import BusUnderTest
from harness.worlds.watcher_world import a_pod, attempt


def subjects(*names: str) -> dict[str, PodSubject]:
    return {
        f"uid-{name}": PodSubject(stage="decision", profile="berth", namespace="default", pod=name) for name in names
    }


def pending(name: str, n: int) -> Pending:
    return Pending(attempt=str(attempt(name, 6, n)), profile="berth", pod=a_pod(name))


def ranked(name: str, n: int) -> Ranked:
    return Ranked(attempt=str(attempt(name, 6, n)), profile="berth", pod=a_pod(name))


def decision(name: str, n: int) -> Decision:
    return Decision(
        attempt=str(attempt(name, 6, n)),
        epoch=1,
        outcome=Outcome.CONFLICT,
        profile="berth",
        namespace="default",
        pod=name,
        uid=f"uid-{name}",
    )


@pytest.fixture
async def session(memory_bus_under_test: BusUnderTest):
    return await memory_bus_under_test.session()


async def test_a_message_at_each_stage_is_found_and_the_highest_attempt_counts(session):
    await publish_pending(session, pending("a", 1))
    await publish_ranked(session, ranked("b", 1))
    await publish_pending(session, pending("c", 2))
    await publish_ranked(session, ranked("c", 1))
    await publish_decision(session, decision("c", 1))
    await publish_decision(session, decision("d", 3))

    found = await read_streams(session, subjects("a", "b", "c", "d", "e"), max_look_ups=4)

    assert {uid: str(each.attempt) for uid, each in found.in_flight.items()} == {
        "uid-a": "uid-a.6.1",
        "uid-b": "uid-b.6.1",
        "uid-c": "uid-c.6.2",
    }
    assert {uid: each.decision.attempt for uid, each in found.decisions.items()} == {
        "uid-c": "uid-c.6.1",
        "uid-d": "uid-d.6.3",
    }


class MovingOn:
    """A session on which a message moves on as soon as the stage where it was has been read."""

    def __init__(self, session) -> None:
        self._session = session

    async def scan(self, stream, subject):
        async for stored in self._session.scan(stream, subject):
            yield stored
        if stream == "PENDING":
            await publish_ranked(self._session, ranked("moves", 1))
        else:
            await publish_decision(self._session, decision("decided", 1))

    async def last(self, stream, subject):
        return await self._session.last(stream, subject)


async def test_a_message_that_moves_on_meanwhile_is_met_later(session):
    found = await read_streams(MovingOn(session), subjects("moves", "decided"), max_look_ups=4)

    assert list(found.in_flight) == ["uid-moves"]
    assert list(found.decisions) == ["uid-decided"]


async def test_messages_of_pods_that_are_not_there_and_garbage_are_left_to_others(session):
    await publish_pending(session, pending("gone", 1))
    await session.publish("berth.pending.berth.default.odd", b"garbage")
    await session.publish("berth.ranked.berth.default.odd", b"{}")

    found = await read_streams(session, subjects("odd"), max_look_ups=4)

    assert found.in_flight == {}
    assert found.decisions == {}


async def test_a_work_queue_holds_an_attempt_or_it_does_not(session):
    await publish_pending(session, pending("a", 2))
    (subject,) = subjects("a").values()
    there = PodSubject(stage="pending", profile=subject.profile, namespace=subject.namespace, pod=subject.pod)

    assert await holds(session, "PENDING", there, attempt("a", 6, 2))
    assert not await holds(session, "PENDING", there, attempt("a", 6, 1))
