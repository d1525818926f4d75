"""A pod that waits is nominated to its node until it is bound or gives up, for other schedulers and autoscalers.

A more important pod may take its room, and a pod at an extender for longer than a moment is reported as waiting.
"""

import msgspec
import pytest

from berth.framework.interface import Permission
from berth.framework.status import Code, Status
from berth.kube.listwatch import Upserted
from berth.messages.attempts import Outcome, Preemption, Reason, Victim
from berth_binder.cache import NODES
from berth_binder.events import ClearNomination, EvictPods, Nominate, NominationAnswer
from harness.worlds.binder_bench import Bench, labelled, make_node, make_pod, nominated, on_node, posts, ranked
from unit.binder.test_extenders import extended, of_the_extender
from unit.binder.test_pluginsteps import WAIT, Recording

REJECTED = Permission(Status(Code.UNSCHEDULABLE, ("no more",)), 0.0)


@pytest.fixture
def recording() -> Recording:
    recording = Recording()
    recording.permission = WAIT
    return recording


@pytest.fixture
def bench(recording: Recording) -> Bench:
    """A profile with a Permit plugin that makes every pod wait."""
    bench = Bench(cpu="4")
    bench.profiles["berth"].permits = (recording,)
    return bench


def nominations(bench: Bench) -> list[tuple[str, str]]:
    """Nominations that were written (``+``) and cleared (``-``), in order, by pod."""
    found = [each for each in bench.effects if isinstance(each, Nominate | ClearNomination)]
    return [(each.pod.metadata.name, f"+{each.node}" if isinstance(each, Nominate) else "-") for each in found]


def waiting_pod(bench: Bench, name: str = "web", *nodes: str, priority: int = 0, cpu: str = "3"):
    """The pod waits on the first node, and the watch has shown its nomination."""
    pod = bench.show(make_pod(name, cpu=cpu, spec={"priority": priority}))
    bench.take(ranked(pod, *(nodes or ("n1",))))
    return bench.show(nominated(pod, (nodes or ("n1",))[0], version=11))


def test_pod_is_nominated_once_before_it_waits(bench):
    waiting_pod(bench)
    for _ in range(5):
        bench.wait(1)
    assert nominations(bench) == [("web", "+n1")]
    assert bench.outcomes == ["waiting"]


@pytest.mark.parametrize("step", ["permission", "preparation"])
def test_every_plugin_that_makes_a_pod_wait_has_it_nominated(bench, recording, step):
    bench.profiles["berth"].pre_binds = (recording,)
    recording.permission = WAIT if step == "permission" else Permission()
    recording.preparation = WAIT.status
    bench.take(ranked(bench.show(make_pod("web")), "n1"))
    assert nominations(bench) == [("web", "+n1")]


def test_pod_that_is_bound_at_once_is_not_nominated(bench, recording):
    recording.permission = Permission()
    pod = bench.show(make_pod("web"))
    assert posts(bench.take(ranked(pod, "n1"))) == [("web", "n1", "10")]
    bench.answer(pod, 201)
    assert nominations(bench) == []


def test_pod_that_is_bound_after_its_wait_keeps_what_the_api_server_makes_of_it(bench, recording):
    pod = waiting_pod(bench)
    recording.permission = Permission()
    assert posts(bench.wait(1)) == [("web", "n1", "11")]
    bench.answer(pod, 201)
    assert (nominations(bench), bench.outcomes[-1]) == ([("web", "+n1")], "bound")


def test_wait_that_ends_without_a_binding_clears_the_nomination(bench, recording):
    waiting_pod(bench)
    recording.permission = REJECTED
    bench.wait(1)
    assert (nominations(bench), bench.outcomes[-1]) == ([("web", "+n1"), ("web", "-")], "unschedulable")


def test_nomination_that_the_watch_has_not_shown_is_cleared_too(bench, recording):
    bench.take(ranked(bench.show(make_pod("web")), "n1"))
    recording.permission = REJECTED
    bench.wait(1)
    assert nominations(bench) == [("web", "+n1"), ("web", "-")]


def test_wait_on_another_node_moves_the_nomination(bench, recording):
    waiting_pod(bench, "web", "n1", "n2")
    bench.observe(Upserted(kind=NODES, object=make_node("n1", cpu="4", version=50, unschedulable=True)))
    bench.wait(1)
    assert nominations(bench) == [("web", "+n1"), ("web", "+n2")]
    recording.permission = REJECTED
    bench.wait(1)
    assert nominations(bench)[2:] == [("web", "-")]


def test_pod_that_changes_while_it_waits_is_no_longer_nominated(bench):
    pod = waiting_pod(bench)
    changed = labelled(pod, version=12)
    bench.show(changed)
    bench.wait(1)
    assert bench.decisions[-1].reason == Reason.CHANGED
    assert nominations(bench) == [("web", "+n1"), ("web", "-")]


def test_pod_that_is_deleted_while_it_waits_needs_no_request(bench):
    pod = waiting_pod(bench)
    bench.delete(pod, version=30)
    bench.wait(1)
    assert (nominations(bench), bench.outcomes[-1]) == ([("web", "+n1")], "gone")


def test_room_of_a_waiting_pod_is_free_as_soon_as_the_watch_shows_its_end(bench):
    pod = waiting_pod(bench)
    bench.tell_of_shown()
    bench.delete(pod, version=30)
    bench.tell_of_shown()
    assert bench.outcomes == ["waiting", "gone"]
    assert bench.cache.assumed_pod(pod.uid) is None


def test_writes_to_a_waiting_pod_do_not_ask_its_plugins_more_often(bench, recording):
    pod = waiting_pod(bench)
    recording.permission = Permission()
    for version in range(20, 30):
        bench.show(nominated(pod, "n1", version))
        assert bench.tell_of_shown() == []
    assert posts(bench.wait(1)) == [("web", "n1", "29")]


@pytest.mark.parametrize("node", ["", "n3"], ids=["cleared", "elsewhere"])
def test_nomination_that_another_client_changed_is_left_alone(bench, recording, node):
    pod = waiting_pod(bench)
    bench.show(nominated(pod, node, version=20))
    bench.wait(1)
    assert bench.cache.assumed_pod(pod.uid).node == "n1"
    recording.permission = REJECTED
    bench.wait(1)
    assert nominations(bench) == [("web", "+n1")]


@pytest.mark.parametrize("status", [403, 404, 409, 422])
def test_rejected_nomination_does_not_end_the_wait(bench, recording, status):
    bench.writes_nominations = False
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1"))
    bench.handle(
        NominationAnswer(uid=pod.uid, status=status, missing_right="patch pods/status" if status == 403 else "")
    )
    recording.permission = Permission()
    assert posts(bench.wait(1)) == [("web", "n1", "10")]
    assert bench.outcomes == ["waiting"]


@pytest.mark.parametrize("status", [200, 403])
def test_node_that_rejects_the_pod_once_its_nomination_is_written_gets_no_binding(bench, recording, status):
    bench.writes_nominations = False
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1", "n2"))
    bench.observe(Upserted(kind=NODES, object=make_node("n1", version=50, unschedulable=True)))
    recording.permission = Permission()
    written = nominated(pod, "n1", 11) if status == 200 else None
    effects = bench.handle(NominationAnswer(uid=pod.uid, status=status, pod=written))
    assert posts(effects) == [("web", "n2", "11" if written else "10")]


@pytest.mark.parametrize("status", [0, 429, 500, 503])
def test_nomination_without_an_answer_is_repeated(bench, status):
    bench.writes_nominations = False
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1"))
    bench.handle(NominationAnswer(uid=pod.uid, status=status))
    assert bench.core.in_flight == 0
    bench.wait(1)
    assert bench.core.in_flight == 1
    bench.handle(NominationAnswer(uid=pod.uid, status=200, pod=nominated(pod, "n1", 11)))
    assert (bench.core.in_flight, bench.outcomes) == (0, ["waiting"])


def test_successor_waits_where_the_pod_is_nominated_and_clears_it(bench, recording):
    pod = bench.show(make_pod("web", cpu="3"))
    message = ranked(pod, "n2", "n1")
    bench.show(nominated(pod, "n1"))  # by the former binder, which chose n1 while n2 was full
    bench.succeed()
    bench.take(message)
    assert (bench.decisions[-1].node, nominations(bench)) == ("n1", [])
    recording.permission = REJECTED
    bench.wait(1)
    assert nominations(bench) == [("web", "-")]


def test_nomination_of_a_preemptor_that_is_a_conflict_without_a_wait_stays(bench):
    pod = bench.show(nominated(make_pod("web", cpu="9"), "n1"))
    bench.take(ranked(pod, "n1"))
    assert (bench.outcomes, nominations(bench)) == (["conflict"], [])


def test_pod_that_waits_counts_once_in_the_cache(bench):
    waiting_pod(bench, cpu="2")
    other = bench.show(make_pod("other", cpu="2"))
    bench.take(ranked(other, "n1"))
    assert bench.outcomes == ["waiting", "waiting"]


# A more important pod.


def proposing(bench: Bench, victim: str):
    vip = bench.show(make_pod("vip", cpu="3", spec={"priority": 1000}))
    named = Preemption(node="n1", victims=[Victim(uid=f"uid-{victim}", namespace="default", name=victim)])
    return vip, ranked(vip, message="0/1", evaluated=1, view_age_seconds=1.0, preemption=named)


@pytest.fixture
def one_node(recording: Recording) -> Bench:
    bench = Bench(nodes=1, cpu="4")
    bench.profiles["berth"].permits = (recording,)
    return bench


def test_waiting_pod_gives_its_room_to_a_more_important_one_and_is_not_deleted(one_node, recording):
    waiting_pod(one_node)
    vip, message = proposing(one_node, "web")
    effects = one_node.take(message)
    assert [each.victims for each in effects if isinstance(each, EvictPods)] == [()]
    assert nominations(one_node) == [("web", "+n1"), ("web", "-")]
    given_up = one_node.decisions[-1]
    assert (given_up.pod, given_up.outcome, given_up.reason) == ("web", Outcome.UNSCHEDULABLE, Reason.PREEMPTED)
    assert given_up.message == "preempted by default/vip while it waited"
    one_node.evicted(vip, "n1")
    assert (one_node.decisions[-1].pod, one_node.decisions[-1].outcome) == ("vip", Outcome.PREEMPTING)
    recording.permission = Permission()
    assert posts(one_node.wait(20)) == []  # the attempt of the pod that gave up is over
    again = one_node.show(nominated(vip, "n1", version=60))
    assert posts(one_node.take(ranked(again, "n1", n=2))) == [("vip", "n1", "60")]


def test_pod_that_gave_up_and_is_bound_all_the_same_is_no_victim_to_wait_for(one_node, recording):
    web = waiting_pod(one_node)
    vip, message = proposing(one_node, "web")
    one_node.take(message)
    one_node.evicted(vip, "n1")
    one_node.show(on_node(web, "n1", version=70))
    one_node.show(nominated(vip, "n1", version=71))
    effects = one_node.take(msgspec.structs.replace(message, attempt=f"{vip.uid}.1.2"))
    assert [[victim.uid for victim in each.victims] for each in effects if isinstance(each, EvictPods)] == [[web.uid]]


def test_pod_whose_binding_is_under_way_is_not_preempted(one_node, recording):
    recording.permission = Permission()
    pod = one_node.show(make_pod("web", cpu="3"))
    one_node.take(ranked(pod, "n1"))
    _, message = proposing(one_node, "web")
    one_node.take(message)
    assert [each.reason for each in one_node.decisions] == [Reason.VICTIMS]


def test_pod_whose_lost_binding_may_land_is_not_preempted(one_node, recording):
    pod = waiting_pod(one_node)
    recording.permission = Permission()
    one_node.wait(1)
    one_node.no_answer(pod)
    _, message = proposing(one_node, "web")
    one_node.take(message)
    assert one_node.decisions[-1].reason == Reason.VICTIMS


def test_waiting_pod_keeps_its_room_when_another_is_nominated_beside_it(one_node, recording):
    """The victim that makes room for both has not gone yet."""
    one_node.show(make_pod("low", cpu="1", node="n1", spec={"priority": -1}))
    waiting_pod(one_node)
    one_node.show(nominated(make_pod("other", cpu="1", spec={"priority": 0}), "n1"))
    one_node.wait(1)
    assert one_node.outcomes == ["waiting"]
    recording.permission = Permission()
    assert posts(one_node.wait(1)) == [("web", "n1", "11")]


# Victims whose node fills up.


def test_preemptor_whose_room_is_taken_looks_elsewhere_while_its_victims_terminate():
    bench = Bench(nodes=2, cpu="2")
    low = {node: make_pod(f"low-{node}", cpu="2", node=node, spec={"priority": 0}) for node in ("n1", "n2")}
    for each in low.values():
        bench.show(each)
    vip = bench.show(make_pod("vip", cpu="2", spec={"priority": 1000}))

    def message(pod, node: str, n: int):
        named = Preemption(node=node, victims=[Victim(uid=f"uid-low-{node}", namespace="default", name=f"low-{node}")])
        return ranked(pod, n=n, message="0/2", evaluated=2, view_age_seconds=1.0, preemption=named)

    bench.take(message(vip, "n1", 1))
    bench.evicted(vip, "n1")
    nominee = bench.show(nominated(vip, "n1"))
    bench.show(on_node(make_pod("higher", cpu="2", spec={"priority": 2000}), "n1", version=60))
    effects = bench.take(message(nominee, "n2", 2))
    assert [each.node for each in effects if isinstance(each, EvictPods)] == ["n2"]


# At an extender.


def test_pod_that_an_extender_binds_for_longer_than_a_moment_is_waiting():
    bench = extended(Bench())
    gpu = bench.show(of_the_extender("gpu"))
    bench.take(ranked(gpu, "n1"))
    bench.wait(0.5)
    assert bench.outcomes == []
    bench.wait(0.5)
    assert [(each.outcome, each.message) for each in bench.decisions] == [
        (Outcome.WAITING, "waiting for an extender to bind it")
    ]
    bench.answer(gpu, 201)
    bench.wait(20)
    assert (bench.outcomes, nominations(bench)) == (["waiting", "bound"], [])
