"""Reserve, Permit, PreBind, Bind and PostBind on a pod's way, and waiting for a plugin (PROTOCOL 5, *Waiting*)."""

import pytest

from berth.api.messages import Outcome
from berth.api.pod import Pod
from berth.framework.interface import Permission, PermitPlugin, PostBindPlugin, PreBindPlugin, ReservePlugin
from berth.framework.status import SUCCESS, Code, Status
from berth.kube.watch import Upserted
from berth_binder.cache import NODES
from harness.worlds.binder_bench import Bench, make_node, make_pod, posts, ranked

WAIT = Permission(Status(Code.WAIT, ("not yet",)), 30.0)


class Books(ReservePlugin, PermitPlugin, PreBindPlugin, PostBindPlugin):
    """A plugin whose answers a test chooses, and that remembers what it was told."""

    name = "Books"

    def __init__(self) -> None:
        self.told: list[str] = []
        self.reservation = SUCCESS
        self.permission = Permission()
        self.preparation = SUCCESS

    def reserve(self, state, pod: Pod, node: str) -> Status:
        self.told.append(f"reserve {node}")
        return self.reservation

    def unreserve(self, state, pod: Pod, node: str) -> None:
        self.told.append(f"unreserve {node}")

    def permit(self, state, pod: Pod, node: str) -> Permission:
        return self.permission

    def pre_bind(self, state, pod: Pod, node: str) -> Status:
        return self.preparation

    def post_bind(self, state, pod: Pod, node: str) -> None:
        self.told.append(f"post_bind {node}")


@pytest.fixture
def books() -> Books:
    return Books()


@pytest.fixture
def bench(books: Books) -> Bench:
    bench = Bench()
    profile = bench.profiles["berth"]
    profile.reserves = profile.permits = profile.pre_binds = profile.post_binds = (books,)
    return bench


def test_plugins_hear_of_the_reservation_and_of_the_binding(bench, books):
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1"))
    bench.answer(pod, 201)
    assert books.told == ["reserve n1", "post_bind n1"]


def test_plugins_hear_that_it_was_for_nothing(bench, books):
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1"))
    bench.answer(pod, 422)
    assert books.told == ["reserve n1", "unreserve n1"]


@pytest.mark.parametrize("step", ["reservation", "permission", "preparation"])
def test_a_refusal_is_unschedulable_and_frees_the_room(bench, books, step):
    no = Status.unschedulable("not this one")
    setattr(books, step, Permission(no) if step == "permission" else no)
    pod = bench.show(make_pod("web"))
    assert posts(bench.take(ranked(pod, "n1"))) == []
    (decision,) = bench.decisions
    assert (decision.outcome, decision.message, decision.blockers) == (Outcome.UNSCHEDULABLE, "not this one", ["Books"])
    assert books.told == ["reserve n1", "unreserve n1"]
    assert not bench.cache.assumed_pods


def test_a_plugin_that_says_wait_keeps_the_room_and_waiting_is_said_at_once_and_every_ten_seconds(bench, books):
    books.permission = WAIT
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


def test_what_waits_is_posted_once_the_plugin_permits_it(bench, books):
    books.permission = WAIT
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1"))
    books.permission = Permission()
    assert posts(bench.wait(1)) == [("web", "n1", "10")]
    bench.answer(pod, 201)
    assert bench.outcomes == ["waiting", "bound"]
    assert books.told == ["reserve n1", "post_bind n1"]


def test_past_the_deadline_the_pod_is_unschedulable(bench, books):
    books.permission = WAIT
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1"))
    for _ in range(31):
        bench.wait(1)
    assert bench.outcomes[-1] == "unschedulable"
    assert not bench.cache.assumed_pods
    assert books.told == ["reserve n1", "unreserve n1"]


def test_a_pod_that_is_deleted_while_it_waits_is_gone(bench, books):
    books.permission = WAIT
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1"))
    bench.delete(pod, version=30)
    bench.wait(1)
    assert bench.outcomes == ["waiting", "gone"]


def test_a_node_that_no_longer_passes_while_the_pod_waits_is_given_up_for_another(bench, books):
    books.permission = WAIT
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1", "n2"))
    bench.cache.observe(Upserted(kind=NODES, object=make_node("n1", unschedulable=True)))
    books.permission = Permission()
    assert posts(bench.wait(1)) == [("web", "n2", "10")]
    assert books.told == ["reserve n1", "unreserve n1", "reserve n2"]


def test_pods_behind_one_that_waits_for_a_plugin_go_on(bench, books):
    books.permission = WAIT
    first, second = bench.show(make_pod("first")), bench.show(make_pod("second"))
    bench.take(ranked(first, "n1"))
    books.permission = Permission()
    assert posts(bench.take(ranked(second, "n2"))) == [("second", "n2", "10")]


def test_a_profile_without_a_bind_plugin_ends_in_an_error_that_says_so(bench):
    bench.profiles["berth"].binds = ()
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1"))
    for _ in range(5):
        bench.wait(5)
    assert bench.outcomes[-1] == "error"
    assert "no Bind plugin" in bench.decisions[-1].message
