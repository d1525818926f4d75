"""Nothing is stuck: whatever becomes of some pods, messages of others are examined (docs/protocol.md, 5 and 6)."""

from itertools import chain, repeat

import pytest

from berth.api.pod import ClaimSource, Volume
from berth.kube.listwatch import Upserted
from berth.messages.attempts import Preemption, Victim
from berth_binder.events import Effect, PostBinding, SetAside, WritesAnswer
from berth_binder.settings import CoreSettings
from harness.builders.volumes import a_claim, a_class, kind_of
from harness.worlds.binder_bench import BACKOFF, Bench, make_pod, ranked


def bench_with(max_in_flight: int, nodes: int) -> Bench:
    return Bench(nodes=nodes, cpu="2", settings=CoreSettings(max_in_flight=max_in_flight, backoff=BACKOFF))


def posted(bench: Bench) -> list[str]:
    return [effect.pod.metadata.name for effect in bench.effects if isinstance(effect, PostBinding)]


def preempting(bench: Bench, number: int):
    """A full node, a pod that needs it, and RANKED that proposes the eviction."""
    bench.show(make_pod(f"low-{number}", cpu="2", node=f"n{number}"))
    pod = bench.show(make_pod(f"vip-{number}", cpu="2", spec={"priority": 1000}))
    victim = Victim(uid=f"uid-low-{number}", namespace="default", name=f"low-{number}")
    return pod, ranked(
        pod, preemption=Preemption(node=f"n{number}", victims=[victim]), evaluated=99, view_age_seconds=1.0
    )


# The API server is silent.


@pytest.mark.parametrize("places", [1, 32])
def test_messages_are_examined_though_all_that_paused_settles_without_a_request(places):
    bench = bench_with(places, nodes=places)
    pairs = [preempting(bench, number) for number in range(1, places + 1)]
    for _, message in pairs:
        bench.take(message)
    for pod, _ in pairs:
        bench.evicted(pod, status=503)
    assert bench.core.is_api_silent
    late = bench.show(make_pod("late", cpu="1"))
    bench.show_node("free")
    bench.take(ranked(late, "free"))
    for number, (pod, _) in enumerate(pairs):
        bench.delete(pod, 100 + number)
    for _ in range(10):
        bench.wait(1)
    assert posted(bench) == ["late"]


def test_messages_are_examined_after_one_503_on_a_nomination():
    bench = bench_with(1, nodes=1)
    pod, message = preempting(bench, 1)
    bench.take(message)
    bench.evicted(pod, status=503)
    bench.delete(make_pod("low-1", node="n1"), 40)
    bench.delete(pod, 41)
    bench.wait(10)
    late = bench.show(make_pod("late", cpu="1"))
    bench.take(ranked(late, "n1"))
    bench.wait(10)
    assert posted(bench) == ["late"]


def test_evictions_that_always_fail_do_not_stop_bindings():
    bench = bench_with(2, nodes=2)
    pairs = [preempting(bench, number) for number in (1, 2)]
    bench.show_node("free", cpu="100")
    for _, message in pairs:
        bench.take(message)
    for number in range(20):
        for pod, _ in pairs:
            bench.evicted(pod, status=503)
        pod = bench.show(make_pod(f"p{number}", cpu="1"))
        bench.take(ranked(pod, "free"))
        bench.answer(pod, 201)
        bench.wait(1)
    for _ in range(20):
        for pod, _ in pairs:
            bench.evicted(pod, status=503)
        for name in posted(bench):
            bench.answer(make_pod(name), 201)
        bench.wait(1)
    assert sorted(posted(bench)) == sorted(f"p{number}" for number in range(20))


def test_pods_whose_bindings_hang_leave_places_to_others():
    bench = bench_with(2, nodes=40)
    hanging = [bench.show(make_pod(f"hanging-{number}")) for number in range(6)]
    for number, pod in enumerate(hanging):
        bench.take(ranked(pod, f"n{number + 1}"))
        bench.no_answer(pod)
        bench.answer(make_pod("any"), 201)
    fine = [bench.show(make_pod(f"fine-{number}")) for number in range(6)]
    for number, pod in enumerate(fine):
        bench.take(ranked(pod, f"n{number + 20}"))
    for _ in range(40):
        for pod in hanging:
            bench.reading(pod, None, status=0)
        for pod in fine:
            bench.answer(pod, 201)
        bench.wait(1)
    assert {name for name in posted(bench) if name.startswith("fine")} == {pod.metadata.name for pod in fine}


# Pods that wait.


def test_messages_of_pods_that_wait_are_set_aside():
    bench = bench_with(32, nodes=2)
    bench.observe(Upserted(kind=kind_of(a_class()), object=a_class()))
    bench.observe(Upserted(kind=kind_of(a_claim()), object=a_claim()))
    volume = Volume(name="v", persistent_volume_claim=ClaimSource(claim_name="data"))
    pod = bench.show(make_pod("web", spec={"volumes": [volume]}))
    assert aside(bench.take(ranked(pod, "n1"))) == []
    assert aside(bench.handle(WritesAnswer(uid=pod.uid, status=200, versions={"pvc": 9}))) == [1]
    assert aside(bench.wait(1)) == []
    assert aside(bench.take(ranked(pod, "n1", n=2))) == [2]


def aside(effects: list[Effect]) -> list[int]:
    return [effect.held.sequence for effect in effects if isinstance(effect, SetAside)]


def test_thousands_of_waiting_pods_are_checked_in_slices():
    bench = Bench(nodes=1, cpu="10000", settings=CoreSettings(backoff=BACKOFF))
    pods = [bench.show(make_pod(f"p{number}")) for number in range(1000)]
    for pod in pods:
        bench.take(ranked(pod, "n1"))
        bench.no_answer(pod)
        bench.answer(make_pod("any"), 201)
    turns = chain([True] * 9, repeat(False))
    bench.now += 60
    assert len(bench.core.handle([], bench.now, lambda: next(turns))) == 10
    assert bench.core.due() <= bench.now


# Whether messages are examined.


def test_messages_that_wait_and_are_not_examined_are_known():
    bench = bench_with(1, nodes=4)
    first, second = (bench.show(make_pod(name)) for name in ("first", "second"))
    bench.take(ranked(first, "n1"))
    assert (bench.core.backlog, bench.core.examined) == (0, 1)
    bench.take(ranked(second, "n2"))
    bench.wait(29)
    assert (bench.core.backlog, bench.core.examined) == (1, 1)
    bench.answer(first, 201)
    assert (bench.core.backlog, bench.core.examined) == (0, 2)
