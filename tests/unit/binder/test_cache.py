"""What the binder's newest state makes of watch events and of its own promises."""

import pytest

from berth.api.meta import ObjectMeta
from berth.api.pod import Pod, PodCondition
from berth.api.workloads import Service
from berth.kube.watch import Current, Deleted, Listed, Undecodable, Upserted
from berth_binder.cache import NODES, PODS, Cache
from harness.worlds.binder_bench import at_version, make_node, make_pod, on_node


@pytest.fixture
def cache() -> Cache:
    cache = Cache()
    for name in ("n1", "n2"):
        cache.observe(Upserted(kind=NODES, object=make_node(name)))
    return cache


def show(cache: Cache, pod: Pod) -> Pod:
    cache.observe(Upserted(kind=PODS, object=pod))
    return pod


def listed(version: int, *pods: Pod) -> Listed:
    return Listed(kind=PODS, objects=list(pods), resource_version=str(version))


def test_a_reservation_counts_as_a_pod_until_the_watch_shows_the_pod_on_its_node(cache):
    pod = show(cache, make_pod("web"))
    cache.assume(pod, "n1")
    assert cache.snapshot.pods_on("n1") == 1
    show(cache, on_node(pod, "n1"))
    assert cache.assumed_pod(pod.uid) is None
    assert cache.snapshot.pods_on("n1") == 1
    assert cache.bound_node(pod.uid) == "n1"


def test_a_reserved_pod_that_the_watch_shows_elsewhere_counts_there_only(cache):
    pod = show(cache, make_pod("web"))
    cache.assume(pod, "n1")
    show(cache, on_node(pod, "n2"))
    assert (cache.snapshot.pods_on("n1"), cache.snapshot.pods_on("n2")) == (0, 1)
    assert not cache.assumed_pods


def test_an_update_of_an_unbound_pod_leaves_its_reservation(cache):
    pod = show(cache, make_pod("web"))
    cache.assume(pod, "n1")
    show(cache, at_version(pod, 12))
    assert cache.assumed_pod(pod.uid) is not None
    assert cache.snapshot.pods_on("n1") == 1


def test_a_reservation_ends_when_the_pod_is_deleted(cache):
    pod = show(cache, make_pod("web"))
    cache.assume(pod, "n1")
    cache.observe(Deleted(kind=PODS, object=at_version(pod, 12)))
    assert not cache.assumed_pods
    assert cache.snapshot.pods_on("n1") == 0


def test_a_reservation_ends_when_the_pod_is_shown_finished(cache):
    pod = show(cache, make_pod("job"))
    cache.assume(pod, "n1")
    show(cache, make_pod("job", node="n1", version=15, status={"phase": "Succeeded"}))
    assert cache.snapshot.pods_on("n1") == 0


def test_a_reservation_ends_with_a_list_that_lacks_the_pod(cache):
    pod = show(cache, make_pod("web", version=10))
    cache.assume(pod, "n1")
    cache.finish_binding(pod.uid)
    cache.observe(listed(30))
    assert not cache.assumed_pods
    assert cache.snapshot.pods_on("n1") == 0


def test_a_reservation_of_a_pod_from_a_message_outlives_a_list_that_is_older_than_the_pod(cache):
    pod = make_pod("web", version=40)
    cache.assume(pod, "n1")
    cache.observe(listed(30))
    assert cache.assumed_pod(pod.uid) is not None
    cache.observe(listed(41))
    assert cache.assumed_pod(pod.uid) is None


def test_a_bound_pod_that_a_list_lacks_is_taken_off_its_node(cache):
    pod = show(cache, make_pod("web", node="n1"))
    cache.observe(listed(30))
    assert cache.bound_node(pod.uid) is None
    assert cache.snapshot.pods_on("n1") == 0


def test_nodes_that_a_list_lacks_are_gone(cache):
    cache.observe(Listed(kind=NODES, objects=[make_node("n2")], resource_version="9"))
    assert cache.snapshot.node_names() == ["n2"]


def test_a_promise_that_comes_after_the_watch_changes_nothing(cache):
    pod = show(cache, make_pod("web", node="n1"))
    cache.assume(pod, "n2")
    assert not cache.assumed_pods
    assert cache.snapshot.pods_on("n2") == 0


def test_only_objects_and_events_name_a_resource_version_but_lists_and_bookmarks_move_the_position(cache):
    cache.observe(listed(100, make_pod("web", version=60)))
    cache.observe(Current(kind=PODS, resource_version="200"))
    assert cache.newest_resource_versions()[PODS] == "60"
    assert cache.reached(PODS) == 200
    cache.observe(Deleted(kind=PODS, object=make_pod("web", version=210)))
    assert cache.newest_resource_versions()[PODS] == "210"


def test_a_list_of_an_api_server_with_another_store_moves_the_position_back(cache):
    cache.observe(listed(500, make_pod("web", version=400)))
    cache.observe(listed(50, make_pod("api", version=40)))
    assert cache.reached(PODS) == 50
    assert int(cache.newest_resource_versions()[PODS]) <= 50


def test_a_nomination_counts_while_the_pod_is_unbound_and_is_no_pod_on_the_node(cache):
    pod = show(cache, make_pod("vip", status={"nominated_node_name": "n1"}))
    assert [nominated.node for nominated in cache.snapshot.nominations()] == ["n1"]
    assert cache.snapshot.pods_on("n1") == 0
    cache.assume(pod, "n2")
    assert not cache.snapshot.nominations()
    cache.forget(pod.uid)
    assert [nominated.node for nominated in cache.snapshot.nominations()] == ["n1"]
    show(cache, on_node(pod, "n1"))
    assert not cache.snapshot.nominations()


def test_unanswered_promises_of_a_former_epoch_are_forgotten_and_confirmed_ones_kept(cache):
    lost, kept = show(cache, make_pod("lost")), show(cache, make_pod("kept"))
    cache.assume(lost, "n1")
    cache.assume(kept, "n2")
    cache.finish_binding(kept.uid)
    cache.forget_former_epochs()
    assert set(cache.assumed_pods) == {kept.uid}


def test_the_highest_fence_on_any_pod_is_known(cache):
    fence = PodCondition(type="berth/fence", status="True", message="9")
    show(cache, make_pod("web", status={"conditions": [fence]}))
    show(cache, make_pod("api"))
    assert cache.highest_fence == 9


def test_an_unreadable_pod_stays_as_it_was_known_until_it_is_deleted(cache):
    pod = show(cache, make_pod("web", node="n1"))
    odd = {"kind": PODS, "namespace": "default", "name": "web", "uid": pod.uid, "reason": "", "raw": b""}
    cache.observe(Undecodable(**odd, resource_version="30"))
    assert cache.snapshot.pods_on("n1") == 1
    cache.observe(Undecodable(**odd, resource_version="31", deleted=True))
    assert cache.snapshot.pods_on("n1") == 0
    assert cache.reached(PODS) == 31


def test_unbound_pods_are_those_of_the_schedulers_asked_for(cache):
    show(cache, make_pod("ours"))
    show(cache, make_pod("bound", node="n1"))
    theirs = Pod(metadata=make_pod("theirs").metadata)
    show(cache, theirs)
    assert [pod.metadata.name for pod in cache.unbound_pods(["berth"])] == ["ours"]


def test_an_object_that_nobody_foresaw_is_told_of_and_keeps_no_other_from_being_seen(cache, monkeypatch):
    odd, fine = make_pod("odd", node="n1"), make_pod("fine", node="n1", version=12)
    place = cache.snapshot.place

    def break_on_odd(pod: Pod, node: str, **how: object) -> None:
        if pod.uid == odd.uid:
            raise ValueError("what is this")
        place(pod, node, **how)

    monkeypatch.setattr(cache.snapshot, "place", break_on_odd)
    cache.observe(listed(30, odd, fine))
    assert cache.snapshot.pods_on("n1") == 1
    assert list(cache.snapshot.oddities) == ["reading pod 'odd': ValueError: what is this"]


def a_service(uid: str, version: str = "5") -> Service:
    return Service(metadata=ObjectMeta(name=f"s-{uid}", namespace="default", uid=uid, resource_version=version))


def test_workloads_follow_their_watch(cache):
    services, seen = cache.snapshot.objects(Service), []
    listing = Listed(kind="service", objects=[a_service("u2"), a_service("u3")], resource_version="9")
    unreadable = Undecodable(
        kind="service",
        namespace="default",
        name="s-u3",
        uid="u3",
        reason="",
        raw=b"",
        resource_version="11",
        deleted=True,
    )
    for event in (
        Upserted(kind="service", object=a_service("u1")),
        listing,
        Deleted(kind="service", object=a_service("u2", "10")),
        unreadable,
    ):
        cache.observe(event)
        seen.append(sorted(services.keys))
    assert seen == [["u1"], ["u2", "u3"], ["u3"], []]
    assert cache.reached("service") == 11
