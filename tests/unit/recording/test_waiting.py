"""Which pods wait when a recording begins: what is asked, where it ends, and what is found of it by name."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta

import pytest

from berth.bus.interface import BusLostError, Session
from berth.errors import TemporaryError
from berth.messages.attempts import Decision, Outcome
from berth.messages.encoding import decode, encode
from berth.messages.queue import GroupCounts, QueueAnswer, WaitingPod
from berth_cli.recording import recorder
from berth_cli.recording.file import Waiting, recorded
from berth_cli.recording.history import RecordedQueue, all_decisions
from berth_cli.recording.recorder import ask_who_waits
from harness.fakes.memory_bus import MemoryBus, MemorySession
from harness.worlds.recorded_world import START, a_recording

NOW = datetime(2026, 1, 1, 10, tzinfo=UTC)


def waiting_pod(name: str, **members: object) -> WaitingPod:
    known = {"namespace": "default", "uid": f"uid-{name}", "profile": "berth", "queue": "unschedulable"}
    return WaitingPod(name=name, **{**known, "stage": "unschedulable", "since": NOW, **members})


def page(*names: str, following: int | None = None, **members: object) -> QueueAnswer:
    return QueueAnswer(now=NOW, pods=[waiting_pod(name) for name in names], next=following, **members)


class Watcher:
    """A watcher that answers these pages."""

    def __init__(self, *pages: QueueAnswer, error: Exception | None = None) -> None:
        self._pages = pages
        self._error = error
        self.asked = 0

    async def ask(self, _session: Session) -> AsyncGenerator[QueueAnswer, None]:
        for each in self._pages:
            self.asked += 1
            yield each
        if self._error is not None:
            raise self._error


@pytest.fixture
async def session() -> AsyncIterator[MemorySession]:
    opened = await MemoryBus().connect(name="record")
    await opened.apply()
    yield opened
    await opened.close()


async def decided(session: MemorySession, name: str, n: int = 1, uid: str = "") -> None:
    uid = uid or f"uid-{name}"
    decision = Decision(
        attempt=f"{uid}.1.{n}",
        profile="berth",
        epoch=1,
        outcome=Outcome.UNSCHEDULABLE,
        namespace="default",
        pod=name,
        uid=uid,
        message=f"try {n}",
    )
    await session.publish(f"berth.decision.berth.default.{name}", encode(decision))


async def asked(session: Session, watcher: Watcher) -> tuple[Sequence[Waiting], str]:
    found: list[Waiting] = []
    missing = await ask_who_waits(session, watcher.ask, found.append)
    return found, missing


def messages_of(waiting: Waiting) -> list[str]:
    return [decode(each.payload or b"", Decision).message for each in waiting.decisions]


async def test_every_page_is_recorded_with_the_last_decisions_on_its_pods(session: MemorySession):
    for n in (1, 2):
        await decided(session, "big", n)
    await decided(session, "other")
    watcher = Watcher(page("big", "gated", following=2), page("more", draining=True))
    found, missing = await asked(session, watcher)
    assert missing == ""
    assert [[pod.name for pod in each.pods] for each in found] == [["big", "gated"], ["more"]]
    assert [messages_of(each) for each in found] == [["try 2"], []]
    assert [(each.at, each.draining, each.more) for each in found] == [(NOW, False, 0), (NOW, True, 0)]


async def test_a_decision_on_a_pod_that_had_the_name_before_is_left_out(session: MemorySession):
    await decided(session, "big", uid="another")
    found, _ = await asked(session, Watcher(page("big")))
    assert [messages_of(each) for each in found] == [[]]


async def test_a_list_has_so_many_pods_and_counts_the_others(session: MemorySession, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(recorder, "MOST_PODS", 4)
    pages = [page(f"a{n}", f"b{n}", following=n, queues={"unschedulable": 100, "gated": 20}) for n in range(10)]
    watcher = Watcher(*pages)
    found, missing = await asked(session, watcher)
    assert (len(found), watcher.asked, missing) == (2, 2, "")
    assert [each.more for each in found] == [0, 116]


async def test_pods_in_flight_and_groups_are_no_part_of_what_is_counted_as_left_out(
    session: MemorySession, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(recorder, "MOST_PODS", 1)
    group = waiting_pod("~gang", members=GroupCounts(dialect="scheduling.x-k8s.io", name="gang", minimum=2))
    pods = [waiting_pod("a"), waiting_pod("b", queue="in flight", stage="in flight"), group]
    (found,), _ = await asked(session, Watcher(QueueAnswer(now=NOW, pods=pods, next=2, queues={"unschedulable": 3})))
    assert found.more == 2


async def test_a_list_ends_when_it_has_taken_too_long(session: MemorySession, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(recorder, "LONGEST", timedelta(seconds=-1))
    found, _ = await asked(
        session, Watcher(*(page(f"a{n}", following=n, queues={"unschedulable": 9}) for n in range(9)))
    )
    assert [each.more for each in found] == [8]


async def test_when_decisions_are_many_the_rest_of_a_list_has_reasons_only(
    session: MemorySession, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(recorder, "MOST_DECISION_BYTES", 1)
    for name in ("a", "b"):
        await decided(session, name)
    found, _ = await asked(session, Watcher(page("a", following=1), page("b")))
    assert [messages_of(each) for each in found] == [["try 1"], []]


@pytest.mark.parametrize(
    ("watcher", "reason"),
    [
        pytest.param(Watcher(error=TemporaryError("no watcher leads")), "no watcher leads", id="nobody leads"),
        pytest.param(Watcher(QueueAnswer()), "want the time of it, got none", id="no time"),
        pytest.param(
            Watcher(QueueAnswer(now=NOW, pods=[waiting_pod("a", since=datetime(2026, 1, 1))])),  # noqa: DTZ001 - on purpose
            "want times with a zone, got 2026-01-01 00:00:00",
            id="a time without a zone",
        ),
    ],
)
async def test_who_waits_is_not_known_where_nobody_says_it(session: MemorySession, watcher: Watcher, reason: str):
    found, missing = await asked(session, watcher)
    assert found == []
    assert missing.startswith("which pods wait is not recorded: ")
    assert missing.endswith(reason)


async def test_a_lost_connection_is_no_answer(session: MemorySession):
    with pytest.raises(BusLostError):
        await asked(session, Watcher(error=BusLostError("lost")))


def waiting(seconds: float, *pods: WaitingPod, **members: object) -> Waiting:
    return Waiting(at=START + timedelta(seconds=seconds), pods=list(pods), **members)


def test_a_pod_is_as_the_newest_list_has_it():
    lists = [
        waiting(1, waiting_pod("a", attempts=1), waiting_pod("b", attempts=1)),
        waiting(2, waiting_pod("a", attempts=5), more=7),
    ]
    known = RecordedQueue(a_recording(waiting=lists))
    first, second = known.of("default", "a"), known.of("default", "b")
    assert first is not None
    assert second is not None
    assert (first.pod.attempts, first.at) == (5, START + timedelta(seconds=2))
    assert (second.pod.attempts, second.at) == (1, START + timedelta(seconds=1))
    assert known.of("other", "a") is None
    assert (len(known), known.more, known.was_asked) == (2, 7, True)
    assert not RecordedQueue(a_recording()).was_asked


def test_decisions_of_lists_come_in_stream_order_and_once():
    old, both, new = (recorded("DECISIONS", n, START, "s", b"{}") for n in (3, 8, 9))
    recording = a_recording(
        messages={"DECISIONS": [both, new]},
        waiting=[waiting(1, decisions=[both]), waiting(2, decisions=[old])],
    )
    assert list(all_decisions(recording)) == [old, both, new]
