"""Which rankings are examined although no pod is shown that waits for them."""

import pytest
from msgspec import structs

from berth.kube.listwatch import Deleted
from berth_binder.attempts.strays import STRAYS_BURST, STRAYS_PER_SECOND, Strays
from berth_binder.cache import PODS, Cache
from harness.worlds.binder_bench import Bench, delivery, make_pod, on_node, ranked
from unit.binder.test_cache import berths, show

SUBJECT = "berth.ranked.berth.default.web"


def examined(strays: Strays, at: float, tries: int) -> int:
    return sum(strays.may_be_examined(at) for _ in range(tries))


def test_so_many_are_examined_at_once_and_a_second():
    strays = Strays()
    assert examined(strays, 100.0, 10 * STRAYS_BURST) == STRAYS_BURST
    assert examined(strays, 102.0, STRAYS_BURST) == 2 * STRAYS_PER_SECOND
    assert examined(strays, 1000.0, 10 * STRAYS_BURST) == STRAYS_BURST


def test_one_whose_pod_waits_after_all_does_not_count():
    strays = Strays()
    for _ in range(3 * STRAYS_BURST):
        assert strays.may_be_examined(100.0)
        strays.give_back()


@pytest.fixture
def cache() -> Cache:
    return Cache(schedulers=["berth"])


def test_a_subject_is_of_a_pod_while_the_watch_shows_it_waiting(cache):
    assert cache.uid_at(SUBJECT) is None
    pod = show(cache, berths(make_pod("web")))
    assert cache.uid_at(SUBJECT) == pod.uid
    show(cache, on_node(pod, "n1"))
    assert cache.uid_at(SUBJECT) is None


def test_a_subject_is_of_the_latest_pod_of_its_name(cache):
    first = show(cache, berths(make_pod("web", uid="first")))
    second = show(cache, berths(make_pod("web", uid="second")))
    cache.observe(Deleted(kind=PODS, object=first))
    assert cache.uid_at(SUBJECT) == second.uid
    cache.observe(Deleted(kind=PODS, object=second))
    assert cache.uid_at(SUBJECT) is None


def test_a_pod_of_a_scheduler_that_a_newer_binder_may_know_has_a_subject(cache):
    pod = show(cache, berths(make_pod("web"), "another"))
    assert cache.uid_at(SUBJECT) is None
    assert cache.uid_at("berth.ranked.another.default.web") == pod.uid
    show(cache, on_node(pod, "n1"))
    assert cache.uid_at("berth.ranked.another.default.web") is None


def test_the_core_gives_back_what_a_pod_took_that_the_watch_showed_late():
    bench = Bench()
    assert examined(bench.core.strays, 100.0, STRAYS_BURST) == STRAYS_BURST
    pod = make_pod("web")
    bench.handle(structs.replace(delivery(ranked(pod, "n1"), 1), is_stray=True))
    assert not bench.core.strays.may_be_examined(100.0), "nobody knows the pod yet"
    bench.show(pod)
    bench.tell_of_shown()
    assert examined(bench.core.strays, 100.0, 2) == 1
