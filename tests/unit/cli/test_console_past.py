"""What the console answers about a time that has passed, and about a pod that only the mirror has."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth.bus.stages import publish_decision
from berth.bus.topology import DECISIONS
from berth.cluster.snapshot import Snapshot
from berth.exits import UsageError
from berth.messages.attempts import Decision, Outcome
from berth_cli.console import answers
from berth_cli.console.answers import LONGEST_SECONDS, decisions_json, why_json
from berth_cli.options import NotFoundError, PodName
from harness.builders.objects import a_node, a_pod, first_attempt
from harness.fakes.bus_clock import ManualClock
from harness.fakes.memory_bus import MemoryBus


class Past:
    """A bus with a Decision each second; times are seconds since the first."""

    async def fill(self, decisions: int) -> None:
        clock = ManualClock()
        bus = MemoryBus(clock=clock)
        bus.apply()
        self.session = await bus.connect(name="console")
        self.begin = clock.now().timestamp()
        for number in range(decisions):
            outcome = Outcome.UNSCHEDULABLE if number % 2 else Outcome.BOUND
            await publish_decision(self.session, a_decision(f"web-{number}", outcome))
            clock.advance(timedelta(seconds=1))

    async def forget(self, decisions: int) -> None:
        for sequence in range(1, decisions + 1):
            await self.session.delete(DECISIONS, sequence)

    async def at(self, begin: float, end: float) -> dict[str, object]:
        return await decisions_json(self.session, self.begin + begin, self.begin + end, Snapshot())


def a_decision(name: str, outcome: Outcome) -> Decision:
    pod = a_pod(name)
    attempt, node = str(first_attempt(pod)), "a" if outcome is Outcome.BOUND else ""
    fields = {"profile": "berth", "epoch": 1, "namespace": "default", "pod": name, "uid": pod.uid}
    return Decision(attempt=attempt, outcome=outcome, node=node, **fields)


@pytest.fixture
async def past() -> Past:
    past = Past()
    await past.fill(20)
    return past


async def test_a_time_has_its_decisions_and_no_others(past: Past):
    found = await past.at(5, 9)
    assert [line.pod for line in found["decisions"]] == ["web-5", "web-6", "web-7", "web-8"]
    figures = found["figures"]
    assert figures.outcomes == {"bound": 2, "unschedulable": 2}
    assert (figures.step, figures.seconds, figures.begin) == (1, 4, past.begin + 5)
    assert figures.series == {"unschedulable": [1, 0, 1, 0], "bound": [0, 1, 0, 1]}
    assert found["until"] is None


@settings(max_examples=25, deadline=None)
@given(begin=st.integers(0, 240), length=st.integers(1, 32_000))
async def test_every_decision_of_a_time_is_counted_in_one_of_its_bars(begin: float, length: float):
    begin, length = begin / 8, length / 8
    past = Past()
    await past.fill(20)
    found = await past.at(begin, begin + length)
    expected = [f"web-{number}" for number in range(20) if begin <= number < begin + length]
    assert [line.pod for line in found["decisions"]] == expected
    figures = found["figures"]
    assert sum(map(sum, figures.series.values())) == len(expected)
    assert len(next(iter(figures.series.values()), [])) <= answers.BARS + 1


async def test_more_decisions_than_are_read_are_said(past: Past, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(answers, "MOST_DECISIONS", 6)
    found = await past.at(0, 20)
    assert len(found["decisions"]) == 6
    assert found["until"] == past.begin + 6
    assert (await past.at(14, 20))["until"] is None  # exactly as many


async def test_a_time_without_decisions_is_empty(past: Past):
    for begin, end in ((3600, 3700), (19.5, 19.6)):
        found = await past.at(begin, end)
        assert (found["decisions"], found["figures"].outcomes) == ([], {})


async def test_a_time_whose_begin_nats_no_longer_keeps_is_known_from_its_first_decision_on(past: Past):
    await past.forget(8)
    begins = [(await past.at(begin, 14))["figures"].since - past.begin for begin in (5, 7, 8, 10)]
    assert begins == [8, 8, 8, 10]
    gone = await past.at(2, 6)
    assert (gone["figures"].since, gone["decisions"]) == (past.begin + 6, [])


@pytest.mark.parametrize(
    ("begin", "end"),
    [(-1e12, 0), (9, 5), (5, 5), (0, LONGEST_SECONDS + 1), (float("nan"), 5), (0, float("inf")), (float("inf"), 1e300)],
)
async def test_what_is_no_time_is_refused(past: Past, begin: float, end: float):
    with pytest.raises(UsageError, match="want a time of at most"):
        await past.at(begin, end)


async def test_a_pod_of_the_mirror_without_a_decision_is_on_its_node(past: Past):
    snapshot = Snapshot()
    snapshot.set_node(a_node("a"))
    snapshot.place(a_pod("old", node="a"), "a")
    found = await why_json(past.session, PodName(namespace="default", name="old"), snapshot)
    assert (found["kind"], found["outcome"], found["node"]) == ("placed", "bound", "a")
    assert found["sentences"][0] == "default/old is on a"
    with pytest.raises(NotFoundError, match="no watcher answers"):
        await why_json(past.session, PodName(namespace="default", name="none"), snapshot)
