"""What the binder's newest state makes of watch events and of its own promises."""

import pytest

from berth.api.meta import ObjectMeta
from berth.api.pod import Pod, PodCondition
from berth.api.workloads import Service
from berth.kube.watch import Current, Deleted, Listed, Undecodable, Upserted
from berth_binder.cache import NODES, PODS, Cache
from harness.worlds.binder_bench import at_version, make_node, make_pod, on_node


@pytest.fixture
def ledger() -> Cache:
    ledger = Cache()
    for name in ("n1", "n2"):
        ledger.observe(Upserted(kind=NODES, object=make_node(name)))
    return ledger


def show(ledger: Cache, pod: Pod) -> Pod:
    ledger.observe(Upserted(kind=PODS, object=pod))
    return pod


def listed(version: int, *pods: Pod) -> Listed:
    return Listed(kind=PODS, objects=list(pods), resource_version=str(version))


def test_a_reservation_counts_as_a_pod_until_the_watch_shows_the_pod_on_its_node(ledger):
    pod = show(ledger, make_pod("web"))
    ledger.reserve(pod, "n1")
    assert ledger.snapshot.pods_on("n1") == 1
    show(ledger, on_node(pod, "n1"))
    assert ledger.reservation(pod.uid) is None
    assert ledger.snapshot.pods_on("n1") == 1
    assert ledger.node_shown(pod.uid) == "n1"


def test_a_reserved_pod_that_the_watch_shows_elsewhere_counts_there_only(ledger):
    pod = show(ledger, make_pod("web"))
    ledger.reserve(pod, "n1")
    show(ledger, on_node(pod, "n2"))
    assert (ledger.snapshot.pods_on("n1"), ledger.snapshot.pods_on("n2")) == (0, 1)
    assert not ledger.reservations


def test_an_update_of_an_unbound_pod_leaves_its_reservation(ledger):
    pod = show(ledger, make_pod("web"))
    ledger.reserve(pod, "n1")
    show(ledger, at_version(pod, 12))
    assert ledger.reservation(pod.uid) is not None
    assert ledger.snapshot.pods_on("n1") == 1


def test_a_reservation_ends_when_the_pod_is_deleted(ledger):
    pod = show(ledger, make_pod("web"))
    ledger.reserve(pod, "n1")
    ledger.observe(Deleted(kind=PODS, object=at_version(pod, 12)))
    assert not ledger.reservations
    assert ledger.snapshot.pods_on("n1") == 0


def test_a_reservation_ends_when_the_pod_is_shown_finished(ledger):
    pod = show(ledger, make_pod("job"))
    ledger.reserve(pod, "n1")
    show(ledger, make_pod("job", node="n1", version=15, status={"phase": "Succeeded"}))
    assert ledger.snapshot.pods_on("n1") == 0


def test_a_reservation_ends_with_a_list_that_lacks_the_pod(ledger):
    pod = show(ledger, make_pod("web", version=10))
    ledger.reserve(pod, "n1")
    ledger.confirm(pod.uid)
    ledger.observe(listed(30))
    assert not ledger.reservations
    assert ledger.snapshot.pods_on("n1") == 0


def test_a_reservation_of_a_pod_from_a_message_outlives_a_list_that_is_older_than_the_pod(ledger):
    pod = make_pod("web", version=40)
    ledger.reserve(pod, "n1")
    ledger.observe(listed(30))
    assert ledger.reservation(pod.uid) is not None
    ledger.observe(listed(41))
    assert ledger.reservation(pod.uid) is None


def test_a_bound_pod_that_a_list_lacks_is_taken_off_its_node(ledger):
    pod = show(ledger, make_pod("web", node="n1"))
    ledger.observe(listed(30))
    assert ledger.node_shown(pod.uid) is None
    assert ledger.snapshot.pods_on("n1") == 0


def test_nodes_that_a_list_lacks_are_gone(ledger):
    ledger.observe(Listed(kind=NODES, objects=[make_node("n2")], resource_version="9"))
    assert ledger.snapshot.node_names() == ["n2"]


def test_a_promise_that_comes_after_the_watch_changes_nothing(ledger):
    pod = show(ledger, make_pod("web", node="n1"))
    ledger.reserve(pod, "n2")
    assert not ledger.reservations
    assert ledger.snapshot.pods_on("n2") == 0


def test_only_objects_and_events_name_a_resource_version_but_lists_and_bookmarks_move_the_position(ledger):
    ledger.observe(listed(100, make_pod("web", version=60)))
    ledger.observe(Current(kind=PODS, resource_version="200"))
    assert ledger.newest_objects()[PODS] == "60"
    assert ledger.reached(PODS) == 200
    ledger.observe(Deleted(kind=PODS, object=make_pod("web", version=210)))
    assert ledger.newest_objects()[PODS] == "210"


def test_a_list_of_an_api_server_with_another_store_moves_the_position_back(ledger):
    ledger.observe(listed(500, make_pod("web", version=400)))
    ledger.observe(listed(50, make_pod("api", version=40)))
    assert ledger.reached(PODS) == 50
    assert int(ledger.newest_objects()[PODS]) <= 50


def test_a_nomination_counts_while_the_pod_is_unbound_and_is_no_pod_on_the_node(ledger):
    pod = show(ledger, make_pod("vip", status={"nominated_node_name": "n1"}))
    assert [nominated.node for nominated in ledger.snapshot.nominations()] == ["n1"]
    assert ledger.snapshot.pods_on("n1") == 0
    ledger.reserve(pod, "n2")
    assert not ledger.snapshot.nominations()
    ledger.release(pod.uid)
    assert [nominated.node for nominated in ledger.snapshot.nominations()] == ["n1"]
    show(ledger, on_node(pod, "n1"))
    assert not ledger.snapshot.nominations()


def test_unanswered_promises_of_a_former_epoch_are_forgotten_and_confirmed_ones_kept(ledger):
    lost, kept = show(ledger, make_pod("lost")), show(ledger, make_pod("kept"))
    ledger.reserve(lost, "n1")
    ledger.reserve(kept, "n2")
    ledger.confirm(kept.uid)
    ledger.release_unanswered()
    assert set(ledger.reservations) == {kept.uid}


def test_the_highest_fence_on_any_pod_is_known(ledger):
    fence = PodCondition(type="berth/fence", status="True", message="9")
    show(ledger, make_pod("web", status={"conditions": [fence]}))
    show(ledger, make_pod("api"))
    assert ledger.highest_fence == 9


def test_an_unreadable_pod_stays_as_it_was_known_until_it_is_deleted(ledger):
    pod = show(ledger, make_pod("web", node="n1"))
    odd = {"kind": PODS, "namespace": "default", "name": "web", "uid": pod.uid, "reason": "", "raw": b""}
    ledger.observe(Undecodable(**odd, resource_version="30"))
    assert ledger.snapshot.pods_on("n1") == 1
    ledger.observe(Undecodable(**odd, resource_version="31", deleted=True))
    assert ledger.snapshot.pods_on("n1") == 0
    assert ledger.reached(PODS) == 31


def test_unbound_pods_are_those_of_the_schedulers_asked_for(ledger):
    show(ledger, make_pod("ours"))
    show(ledger, make_pod("bound", node="n1"))
    theirs = Pod(metadata=make_pod("theirs").metadata)
    show(ledger, theirs)
    assert [pod.metadata.name for pod in ledger.unbound_pods(["berth"])] == ["ours"]


def test_an_object_that_nobody_foresaw_is_told_of_and_keeps_no_other_from_being_seen(ledger, monkeypatch):
    odd, fine = make_pod("odd", node="n1"), make_pod("fine", node="n1", version=12)
    place = ledger.snapshot.place

    def break_on_odd(pod: Pod, node: str, **how: object) -> None:
        if pod.uid == odd.uid:
            raise ValueError("what is this")
        place(pod, node, **how)

    monkeypatch.setattr(ledger.snapshot, "place", break_on_odd)
    ledger.observe(listed(30, odd, fine))
    assert ledger.snapshot.pods_on("n1") == 1
    assert list(ledger.snapshot.oddities) == ["reading pod 'odd': ValueError: what is this"]


def a_service(uid: str, version: str = "5") -> Service:
    return Service(metadata=ObjectMeta(name=f"s-{uid}", namespace="default", uid=uid, resource_version=version))


def test_workloads_follow_their_watch(ledger):
    services, seen = ledger.snapshot.objects(Service), []
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
        ledger.observe(event)
        seen.append(sorted(services.keys))
    assert seen == [["u1"], ["u2", "u3"], ["u3"], []]
    assert ledger.reached("service") == 11
