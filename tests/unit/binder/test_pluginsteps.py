"""Reserve, Permit, PreBind, Bind and PostBind of a pod, and waiting for a plugin.

The rule: docs/protocol.md, 5, *Waiting*.
"""

import pytest

from berth.api.pod import Pod
from berth.framework.interface import (
    ClaimName,
    KeepVolume,
    Permission,
    PermitPlugin,
    PostBindPlugin,
    PreBindPlugin,
    ReleaseClaim,
    ReservePlugin,
)
from berth.framework.status import SUCCESS, Code, Status
from berth.kube.listwatch import Upserted
from berth.messages.attempts import Outcome
from berth_binder.cache import NODES
from berth_binder.events import WriteObjects
from harness.worlds.binder_bench import Bench, make_node, make_pod, posts, ranked

WAIT = Permission(Status(Code.WAIT, ("not yet",)), 30.0)


class Recording(ReservePlugin, PermitPlugin, PreBindPlugin, PostBindPlugin):
    """A plugin that gives the test's answers and records its calls."""

    name = "Recording"

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.reservation = SUCCESS
        self.permission = Permission()
        self.preparation = SUCCESS

    def reserve(self, state, pod: Pod, node: str) -> Status:
        self.calls.append(f"reserve {node}")
        return self.reservation

    def unreserve(self, state, pod: Pod, node: str) -> None:
        self.calls.append(f"unreserve {node}")

    def permit(self, state, pod: Pod, node: str) -> Permission:
        return self.permission

    def pre_bind(self, state, pod: Pod, node: str) -> Status:
        return self.preparation

    def post_bind(self, state, pod: Pod, node: str) -> None:
        self.calls.append(f"post_bind {node}")


@pytest.fixture
def recording() -> Recording:
    return Recording()


@pytest.fixture
def bench(recording: Recording) -> Bench:
    bench = Bench()
    profile = bench.profiles["berth"]
    profile.reserves = profile.permits = profile.pre_binds = profile.post_binds = (recording,)
    return bench


def test_reserve_and_post_bind_run(bench, recording):
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1"))
    bench.answer(pod, 201)
    assert recording.calls == ["reserve n1", "post_bind n1"]


def test_unreserve_runs_when_the_pod_is_not_bound(bench, recording):
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1"))
    bench.answer(pod, 422)
    assert recording.calls == ["reserve n1", "unreserve n1"]


@pytest.mark.parametrize("step", ["reservation", "permission", "preparation"])
def test_rejection_is_unschedulable_and_forgets_the_pod(bench, recording, step):
    no = Status.unschedulable("not this one")
    setattr(recording, step, Permission(no) if step == "permission" else no)
    pod = bench.show(make_pod("web"))
    assert posts(bench.take(ranked(pod, "n1"))) == []
    (decision,) = bench.decisions
    assert (decision.outcome, decision.message, decision.blockers) == (
        Outcome.UNSCHEDULABLE,
        "not this one",
        ["Recording"],
    )
    assert recording.calls == ["reserve n1", "unreserve n1"]
    assert not bench.cache.assumed_pods


def test_reserve_that_raises_is_undone_and_asked_again(bench, recording, monkeypatch):
    def fail(*_: object) -> Status:
        recording.calls.append("reserve raises")
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(recording, "reserve", fail)
        pod = bench.show(make_pod("web"))
        assert posts(bench.take(ranked(pod, "n1"))) == []
    assert posts(bench.wait(5)) == [("web", "n1", "10")]
    assert recording.calls == ["reserve raises", "unreserve n1", "reserve n1"]


def test_reserve_that_always_raises_is_an_error_of_its_pod(bench, recording, monkeypatch):
    def fail(*_: object) -> Status:
        raise ZeroDivisionError

    monkeypatch.setattr(recording, "reserve", fail)
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1"))
    for _ in range(20):
        assert posts(bench.wait(5)) == []
    assert bench.outcomes[-1] == "error"


@pytest.mark.parametrize("status", [422, 404])
def test_a_plugin_that_cannot_say_what_takes_its_writes_back_does_not_keep_the_pod_from_its_decision(
    bench, recording, monkeypatch, status
):
    def fail(*_: object, sent: bool) -> tuple[ReleaseClaim, ...]:
        raise ZeroDivisionError

    monkeypatch.setattr(recording, "releases", fail)
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1"))
    bench.answer(pod, status)
    for _ in range(20):
        bench.wait(5)
    assert len(bench.outcomes) == 1
    assert recording.calls[-1] == "unreserve n1"


def test_writes_that_raise_are_asked_for_again(bench, recording, monkeypatch):
    wanted = KeepVolume(volume="v", claim=ClaimName(namespace="default", name="c", uid="u"))
    answers = [ZeroDivisionError(), (wanted,)]

    def writes(*_: object) -> tuple[KeepVolume, ...]:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(recording, "writes", writes)
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1"))
    (written,) = [each for each in bench.wait(5) if isinstance(each, WriteObjects)]
    assert written.requests == (wanted,)


def test_permit_wait_publishes_waiting_at_once_and_every_ten_seconds(bench, recording):
    recording.permission = WAIT
    pod = bench.show(make_pod("web"))
    assert posts(bench.take(ranked(pod, "n1"))) == []
    assert [(decision.outcome, decision.node, decision.repeat) for decision in bench.decisions] == [
        ("waiting", "n1", 0)
    ]
    for _ in range(21):
        bench.wait(1)
    assert [decision.repeat for decision in bench.decisions] == [0, 1, 2]
    assert bench.cache.assumed_pod(pod.uid).node == "n1"
    assert bench.acked == []


def test_waiting_pod_is_posted_once_permitted(bench, recording):
    recording.permission = WAIT
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1"))
    recording.permission = Permission()
    assert posts(bench.wait(1)) == [("web", "n1", "10")]
    bench.answer(pod, 201)
    assert bench.outcomes == ["waiting", "bound"]
    assert recording.calls == ["reserve n1", "post_bind n1"]


def test_pod_is_unschedulable_past_the_permit_deadline(bench, recording):
    recording.permission = WAIT
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1"))
    for _ in range(31):
        bench.wait(1)
    assert bench.outcomes[-1] == "unschedulable"
    assert not bench.cache.assumed_pods
    assert recording.calls == ["reserve n1", "unreserve n1"]


def test_pod_deleted_while_it_waits_is_gone(bench, recording):
    recording.permission = WAIT
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1"))
    bench.delete(pod, version=30)
    bench.wait(1)
    assert bench.outcomes == ["waiting", "gone"]


def test_node_that_no_longer_passes_is_replaced_while_the_pod_waits(bench, recording):
    recording.permission = WAIT
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1", "n2"))
    bench.cache.observe(Upserted(kind=NODES, object=make_node("n1", unschedulable=True)))
    recording.permission = Permission()
    assert posts(bench.wait(1)) == [("web", "n2", "10")]
    assert recording.calls == ["reserve n1", "unreserve n1", "reserve n2"]


def test_pods_behind_one_that_waits_for_a_plugin_are_bound(bench, recording):
    recording.permission = WAIT
    first, second = bench.show(make_pod("first")), bench.show(make_pod("second"))
    bench.take(ranked(first, "n1"))
    recording.permission = Permission()
    assert posts(bench.take(ranked(second, "n2"))) == [("second", "n2", "10")]


def test_profile_without_a_bind_plugin_is_an_error(bench):
    bench.profiles["berth"].binds = ()
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1"))
    for _ in range(5):
        bench.wait(5)
    assert bench.outcomes[-1] == "error"
    assert "no Bind plugin" in bench.decisions[-1].message
