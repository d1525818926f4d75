"""The extension points that the binder runs, with a tiny plugin that has them all."""

from datetime import timedelta

import pytest

from berth.cluster.snapshot import Snapshot
from berth.framework.interface import (
    Binding,
    BindPlugin,
    Permission,
    PermitPlugin,
    PostBindPlugin,
    PreBindPlugin,
    ReservePlugin,
)
from berth.framework.profile import Profile
from berth.framework.runtime import (
    new_state,
    run_bind,
    run_permit,
    run_post_bind,
    run_pre_bind,
    run_reserve,
    run_unreserve,
)
from berth.framework.state import CycleState
from berth.framework.status import SUCCESS, Code, Status
from berth.plugins.noderesources.fit import WANTED
from berth.plugins.prioritysort import PrioritySort
from harness.objects import a_node, a_pod
from harness.profiles import default_profile

POD = a_pod()


class Everything(ReservePlugin, PermitPlugin, PreBindPlugin, BindPlugin, PostBindPlugin):
    """Notes its calls; answers, or raises, what it is told to at a point."""

    def __init__(self, name: str, calls: list[str], **answers: object) -> None:
        self.name = name  # type: ignore[misc]  # two of them in one profile need two names
        self._calls = calls
        self._answers = answers

    def _answer(self, point: str, otherwise):
        self._calls.append(f"{self.name}.{point}")
        answer = self._answers.get(point, otherwise)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def reserve(self, state, pod, node):
        return self._answer("reserve", SUCCESS)

    def unreserve(self, state, pod, node):
        return self._answer("unreserve", None)

    def permit(self, state, pod, node):
        return self._answer("permit", Permission())

    def pre_bind(self, state, pod, node):
        return self._answer("pre_bind", SUCCESS)

    def bind(self, state, pod, node):
        return self._answer("bind", None)

    def post_bind(self, state, pod, node):
        return self._answer("post_bind", None)


BINDING = Binding(namespace="default", name="web", uid="uid-web", node="n0")


def made(calls: list[str], first: dict[str, object] | None = None, second: dict[str, object] | None = None) -> Profile:
    plugins = (Everything("A", calls, **(first or {})), Everything("B", calls, **(second or {})))
    return Profile(
        scheduler_name="berth",
        queue_sort=PrioritySort(),
        reserves=plugins,
        permits=plugins,
        pre_binds=plugins,
        binds=plugins,
        post_binds=plugins,
    )


@pytest.fixture
def state() -> CycleState:
    return CycleState(Snapshot().class_of(POD))


def test_all_plugins_reserve(state):
    calls: list[str] = []
    assert run_reserve(state, POD, "n0", made(calls)) is SUCCESS
    assert calls == ["A.reserve", "B.reserve"]


def test_a_refused_reservation_is_undone_by_all_in_reverse_order(state):
    calls: list[str] = []
    status = run_reserve(state, POD, "n0", made(calls, {"reserve": Status.unschedulable("full")}))
    assert status == Status(Code.UNSCHEDULABLE, ("full",), "A")
    assert calls == ["A.reserve", "B.unreserve", "A.unreserve"]


def test_a_reservation_that_raises_is_undone_and_named(state):
    calls: list[str] = []
    status = run_reserve(state, POD, "n0", made(calls, {}, {"reserve": ValueError("boom")}))
    assert status == Status(Code.ERROR, ('running Reserve plugin "B": ValueError: boom',), "B")
    assert calls == ["A.reserve", "B.reserve", "B.unreserve", "A.unreserve"]


def test_an_unreserve_that_raises_does_not_keep_others_from_theirs(state):
    calls: list[str] = []
    profile = made(calls, {"reserve": Status.unschedulable("full")}, {"unreserve": ValueError("boom")})
    assert run_reserve(state, POD, "n0", profile).reasons == (
        "full",
        'running Unreserve plugin "B": ValueError: boom',
    )
    assert run_unreserve(state, POD, "n0", profile).code is Code.ERROR
    assert calls[-2:] == ["B.unreserve", "A.unreserve"]


WAIT = Status(Code.WAIT, ("quorum",))


@pytest.mark.parametrize(
    ("first", "second", "code", "plugin", "seconds"),
    [
        pytest.param(Permission(), Permission(), Code.SUCCESS, "", 0, id="both say yes"),
        pytest.param(Permission(WAIT, 30), Permission(), Code.WAIT, "A", 30, id="one waits"),
        pytest.param(Permission(WAIT, 30), Permission(WAIT, 5), Code.WAIT, "B", 5, id="the shortest wait"),
        pytest.param(
            Permission(WAIT, 30), Permission(Status.unschedulable("no")), Code.UNSCHEDULABLE, "B", 0, id="no beats wait"
        ),
        pytest.param(Permission(), ValueError("boom"), Code.ERROR, "B", 0, id="one raises"),
        pytest.param(Permission(), SUCCESS, Code.ERROR, "B", 0, id="a wrong form"),
    ],
)
def test_permit(state, first, second, code, plugin, seconds):
    status, wait = run_permit(state, POD, "n0", made([], {"permit": first}, {"permit": second}))
    assert (status.code, status.plugin, wait) == (code, plugin, timedelta(seconds=seconds))


@pytest.mark.parametrize(
    ("answer", "code", "called"),
    [
        pytest.param(SUCCESS, Code.SUCCESS, ["A.pre_bind", "B.pre_bind"], id="done"),
        pytest.param(WAIT, Code.WAIT, ["A.pre_bind"], id="not yet"),
        pytest.param(Status.unschedulable("gone"), Code.UNSCHEDULABLE, ["A.pre_bind"], id="no"),
        pytest.param(Status.error("broken"), Code.ERROR, ["A.pre_bind"], id="error"),
    ],
)
def test_pre_bind(state, answer, code, called):
    calls: list[str] = []
    assert run_pre_bind(state, POD, "n0", made(calls, {"pre_bind": answer})).code is code
    assert calls == called


def test_the_first_plugin_that_binds_says_how(state):
    calls: list[str] = []
    assert run_bind(state, POD, "n0", made(calls, {}, {"bind": BINDING})) == BINDING
    assert calls == ["A.bind", "B.bind"]


def test_a_pod_that_no_plugin_binds_is_an_error(state):
    assert run_bind(state, POD, "n0", made([])) == Status.error("no Bind plugin of profile 'berth' binds the pod")


def test_a_bind_that_raises_is_named(state):
    status = run_bind(state, POD, "n0", made([], {"bind": ValueError("boom")}, {"bind": BINDING}))
    assert status == Status(Code.ERROR, ('running Bind plugin "A": ValueError: boom',), "A")


def test_the_default_binder_binds_the_pod_and_no_namesake(state):
    assert run_bind(state, POD, "n0", default_profile()) == BINDING


def test_every_plugin_hears_that_the_pod_is_bound(state):
    calls: list[str] = []
    status = run_post_bind(state, POD, "n0", made(calls, {"post_bind": ValueError("boom")}))
    assert status == Status.error('running PostBind plugin "A": ValueError: boom')
    assert calls == ["A.post_bind", "B.post_bind"]


def test_a_binding_cycle_reads_what_pre_filter_wrote():
    snapshot = Snapshot()
    snapshot.set_node(a_node("n0"))
    assert new_state(POD, snapshot, default_profile()).read(WANTED).amounts == ()
