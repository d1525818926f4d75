"""How the cache changes with watch events, assumed pods and nominations."""

import msgspec
import pytest
from msgspec import structs

from berth.api.devices import ResourceClaim
from berth.api.meta import ObjectMeta
from berth.api.pod import Pod, PodCondition
from berth.api.workloads import Service
from berth.cluster.devices.ledger import DeviceLedger
from berth.kube.listwatch import Current, Deleted, Listed, ListedPart, Undecodable, Upserted
from berth_binder.cache import NODES, PODS, Cache
from berth_watcher.store import nominated_node
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


def test_assumed_pod_counts_until_the_watch_shows_it_bound(cache):
    pod = show(cache, make_pod("web"))
    cache.assume(pod, "n1")
    assert cache.snapshot.pods_on("n1") == 1
    show(cache, on_node(pod, "n1"))
    assert cache.assumed_pod(pod.uid) is None
    assert cache.snapshot.pods_on("n1") == 1
    assert cache.bound_node(pod.uid) == "n1"


def test_assumed_pod_shown_elsewhere_counts_there_only(cache):
    pod = show(cache, make_pod("web"))
    cache.assume(pod, "n1")
    show(cache, on_node(pod, "n2"))
    assert (cache.snapshot.pods_on("n1"), cache.snapshot.pods_on("n2")) == (0, 1)
    assert not cache.assumed_pods


def a_claim(version: int, device: str = "") -> ResourceClaim:
    metadata = {"name": "c", "namespace": "default", "uid": "u", "resourceVersion": str(version), "finalizers": ["f"]}
    result = {"request": "r", "driver": "d", "pool": "p", "device": device}
    status = {"allocation": {"devices": {"results": [result]}}} if device else {}
    return msgspec.convert({"metadata": metadata, "status": status}, ResourceClaim)


def test_watched_claims_reach_the_ledger_and_keep_their_finalizers(cache):
    claims, ledger = cache.snapshot.objects(ResourceClaim), DeviceLedger.of(cache.snapshot)
    cache.observe(Upserted(kind="resourceclaim", object=a_claim(5)))
    ledger.assume("u", a_claim(0, "x").status.allocation)
    cache.observe(Upserted(kind="resourceclaim", object=a_claim(6)))
    assert ledger.owners_of("d/p/x") == ("u",)
    assert claims.named("c", "default").metadata.finalizers == ["f"]
    cache.observe(Upserted(kind="resourceclaim", object=a_claim(7, "y")))
    assert (ledger.owners_of("d/p/x"), ledger.owners_of("d/p/y")) == ((), ("u",))
    cache.observe(Listed(kind="resourceclaim", objects=[], resource_version="9"))
    assert (ledger.owners_of("d/p/y"), cache.reached("resourceclaim")) == ((), 9)


def berths(pod: Pod, scheduler: str = "berth") -> Pod:
    return structs.replace(pod, spec=structs.replace(pod.spec, scheduler_name=scheduler))


def shown_to_a_binder(*, assumed_on: str | None = None, waited: bool = True, scheduler: str = "berth") -> Cache:
    """What a binder of the profile berth has seen when a pod is on n1."""
    cache, pod = Cache(schedulers=["berth"]), berths(make_pod("web"), scheduler)
    if waited:
        show(cache, pod)
    if assumed_on is not None:
        cache.assume(pod, assumed_on)
    for _ in range(2):
        show(cache, on_node(pod, "n1"))
    return cache


@pytest.mark.parametrize("assumed_on", [None, "n2"])
def test_pod_that_waited_and_is_on_a_node_that_nobody_here_chose_was_bound_by_others(assumed_on):
    found = shown_to_a_binder(assumed_on=assumed_on).foreign_bindings
    assert found.counts == {"berth": 1}
    assert found.last == ("default/web", "n1")


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param({"assumed_on": "n1"}, id="the binder's own"),
        pytest.param({"waited": False}, id="created on its node, as a mirror pod"),
        pytest.param({"scheduler": "other"}, id="of another scheduler"),
    ],
)
def test_other_pods_on_nodes_were_not_bound_by_others(seen):
    assert not shown_to_a_binder(**seen).foreign_bindings.counts


def test_update_of_an_unbound_pod_leaves_it_assumed(cache):
    pod = show(cache, make_pod("web"))
    cache.assume(pod, "n1")
    show(cache, at_version(pod, 12))
    assert cache.assumed_pod(pod.uid) is not None
    assert cache.snapshot.pods_on("n1") == 1


def test_deleted_pod_is_assumed_no_longer(cache):
    pod = show(cache, make_pod("web"))
    cache.assume(pod, "n1")
    cache.observe(Deleted(kind=PODS, object=at_version(pod, 12)))
    assert not cache.assumed_pods
    assert cache.snapshot.pods_on("n1") == 0


def test_finished_pod_is_assumed_no_longer(cache):
    pod = show(cache, make_pod("job"))
    cache.assume(pod, "n1")
    show(cache, make_pod("job", node="n1", version=15, status={"phase": "Succeeded"}))
    assert cache.snapshot.pods_on("n1") == 0


def test_list_without_the_pod_ends_its_assumption(cache):
    pod = show(cache, make_pod("web", version=10))
    cache.assume(pod, "n1")
    cache.finish_binding(pod.uid)
    cache.observe(listed(30))
    assert not cache.assumed_pods
    assert cache.snapshot.pods_on("n1") == 0


def test_list_older_than_the_pod_leaves_it_assumed(cache):
    pod = make_pod("web", version=40)
    cache.assume(pod, "n1")
    cache.observe(listed(30))
    assert cache.assumed_pod(pod.uid) is not None
    cache.observe(listed(41))
    assert cache.assumed_pod(pod.uid) is None


def test_list_without_a_bound_pod_removes_it(cache):
    pod = show(cache, make_pod("web", node="n1"))
    cache.observe(listed(30))
    assert cache.bound_node(pod.uid) is None
    assert cache.snapshot.pods_on("n1") == 0


def test_list_without_a_node_removes_it(cache):
    cache.observe(Listed(kind=NODES, objects=[make_node("n2")], resource_version="9"))
    assert cache.snapshot.node_names() == ["n2"]


def test_assuming_a_bound_pod_changes_nothing(cache):
    pod = show(cache, make_pod("web", node="n1"))
    cache.assume(pod, "n2")
    assert not cache.assumed_pods
    assert cache.snapshot.pods_on("n2") == 0


def test_pod_needs_a_node_until_the_watch_shows_otherwise(cache):
    unseen = make_pod("unseen", version=70)
    pod = show(cache, make_pod("web", version=60))
    cache.observe(Current(kind=PODS, resource_version="69"))
    assert cache.needs_node(pod)
    assert cache.needs_node(unseen)
    cache.observe(Current(kind=PODS, resource_version="70"))
    assert not cache.needs_node(unseen)


@pytest.mark.parametrize("change", ["deleted", "going", "bound", "finished", "undecodable"])
def test_pod_that_is_gone_or_bound_needs_no_node(cache, change):
    pod = show(cache, make_pod("web", version=60))
    match change:
        case "deleted":
            cache.observe(Deleted(kind=PODS, object=make_pod("web", version=61)))
        case "going":
            show(cache, make_pod("web", version=61, metadata={"deletion_timestamp": "2026-01-01T00:00:00Z"}))
        case "bound":
            show(cache, make_pod("web", node="n1", version=61))
        case "finished":
            show(cache, make_pod("web", version=61, status={"phase": "Failed"}))
        case "undecodable":
            odd = {"namespace": "default", "name": "web", "uid": pod.uid, "resource_version": "61", "reason": ""}
            cache.observe(Undecodable(kind=PODS, **odd, raw=b"", deleted=True))
    assert not cache.needs_node(pod)


def test_only_objects_count_as_newest_version_but_bookmarks_move_reached(cache):
    cache.observe(listed(100, make_pod("web", version=60)))
    cache.observe(Current(kind=PODS, resource_version="200"))
    assert cache.newest_resource_versions()[PODS] == "60"
    assert cache.reached(PODS) == 200
    cache.observe(Deleted(kind=PODS, object=make_pod("web", version=210)))
    assert cache.newest_resource_versions()[PODS] == "210"


def test_list_from_another_store_moves_the_versions_back(cache):
    cache.observe(listed(500, make_pod("web", version=400)))
    cache.observe(listed(50, make_pod("api", version=40)))
    assert cache.reached(PODS) == 50
    assert int(cache.newest_resource_versions()[PODS]) <= 50


def test_nomination_counts_while_the_pod_is_unbound(cache):
    pod = show(cache, make_pod("vip", status={"nominated_node_name": "n1"}))
    assert [nominated.node for nominated in cache.snapshot.nominations()] == ["n1"]
    assert cache.snapshot.pods_on("n1") == 0
    cache.assume(pod, "n2")
    assert not cache.snapshot.nominations()
    cache.forget(pod.uid)
    assert [nominated.node for nominated in cache.snapshot.nominations()] == ["n1"]
    show(cache, on_node(pod, "n1"))
    assert not cache.snapshot.nominations()


def is_nominated(cache: Cache) -> bool:
    return bool(cache.snapshot.nominations())


def going(pod: Pod, version: int = 60) -> Pod:
    """The same pod deleted, while a finalizer keeps it."""
    metadata = structs.replace(pod.metadata, deletion_timestamp="2026-01-01T00:00:00Z", resource_version=str(version))
    return structs.replace(pod, metadata=metadata)


NOMINATED = make_pod("vip", status={"nominated_node_name": "n1"})


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(NOMINATED, id="waits for its victims"),
        pytest.param(make_pod("vip"), id="has no nomination"),
        pytest.param(going(NOMINATED), id="is going"),
        pytest.param(on_node(NOMINATED, "n1"), id="is bound"),
        pytest.param(make_pod("vip", status={"nominated_node_name": "n1", "phase": "Failed"}), id="is finished"),
    ],
)
def test_nomination_counts_here_while_the_mirror_has_it(cache, pod):
    """Scorers take the mirror's word: where the two differ, every pod that they send to the node is a conflict."""
    show(cache, NOMINATED)
    show(cache, pod)
    assert is_nominated(cache) == bool(nominated_node(pod))


def test_nomination_of_a_pod_that_is_going_does_not_come_back(cache):
    pod = show(cache, make_pod("vip"))
    cache.nominate(pod, "n1", frozenset())
    show(cache, going(pod))
    assert not is_nominated(cache)
    cache.nomination_written(pod.uid, 50)
    assert not is_nominated(cache), "the answer to the nomination came late"
    cache.assume(going(NOMINATED), "n2")
    cache.forget(pod.uid)
    assert not is_nominated(cache), "its attempt has failed"


def test_unconfirmed_pods_of_a_former_epoch_are_forgotten(cache):
    unconfirmed, confirmed = show(cache, make_pod("unconfirmed")), show(cache, make_pod("confirmed"))
    cache.assume(unconfirmed, "n1")
    cache.assume(confirmed, "n2")
    cache.finish_binding(confirmed.uid)
    cache.forget_former_epochs()
    assert set(cache.assumed_pods) == {confirmed.uid}


def test_highest_fence_on_any_pod_is_kept():
    cache = Cache(schedulers=["berth"])
    fence = PodCondition(type="berth/fence", status="True", message="9")
    show(cache, make_pod("web", status={"conditions": [fence]}))
    show(cache, make_pod("api"))
    assert cache.highest_fence == 9


def test_undecodable_pod_stays_as_it_was_until_it_is_deleted(cache):
    pod = show(cache, make_pod("web", node="n1"))
    odd = {"kind": PODS, "namespace": "default", "name": "web", "uid": pod.uid, "reason": "", "raw": b""}
    cache.observe(Undecodable(**odd, resource_version="30"))
    assert cache.snapshot.pods_on("n1") == 1
    cache.observe(Undecodable(**odd, resource_version="31", deleted=True))
    assert cache.snapshot.pods_on("n1") == 0
    assert cache.reached(PODS) == 31


def test_unbound_pods_are_those_of_the_given_schedulers(cache):
    show(cache, make_pod("ours"))
    show(cache, make_pod("bound", node="n1"))
    theirs = Pod(metadata=make_pod("theirs").metadata)
    show(cache, theirs)
    assert [pod.metadata.name for pod in cache.unbound_pods(["berth"])] == ["ours"]


def test_object_that_raises_is_reported_and_stops_no_other(cache, monkeypatch):
    odd, fine = make_pod("odd", node="n1"), make_pod("fine", node="n1", version=12)
    place = cache.snapshot.place

    def break_on_odd(pod: Pod, node: str, **how: object) -> None:
        if pod.uid == odd.uid:
            raise ValueError("what is this")
        place(pod, node, **how)

    monkeypatch.setattr(cache.snapshot, "place", break_on_odd)
    cache.observe(listed(30, odd, fine))
    assert cache.snapshot.pods_on("n1") == 1
    assert list(cache.snapshot.problems) == ["reading pod 'odd': ValueError: what is this"]


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


def test_part_of_a_list_counts_at_once_and_removes_nothing(cache):
    former, new = show(cache, on_node(make_pod("former"), "n1")), on_node(make_pod("new"), "n2")
    cache.observe(ListedPart(kind=PODS, objects=[new]))
    assert (cache.bound_node(former.uid), cache.bound_node(new.uid)) == ("n1", "n2")
    cache.observe(Listed(kind=PODS, objects=[new], resource_version="30", passed_on=1))
    assert (cache.bound_node(former.uid), cache.bound_node(new.uid)) == (None, "n2")
    assert cache.reached(PODS) == 30


def test_part_of_a_list_completes_no_version(cache):
    """An older pod may stand on the next page: one that is not known up to a version that was reached is gone."""
    show(cache, at_version(make_pod("old"), 5))
    cache.observe(ListedPart(kind=PODS, objects=[at_version(make_pod("web"), 20)]))
    assert cache.reached(PODS) == 5
    assert cache.newest_resource_versions()[PODS] == "20"


def test_rest_of_a_list_is_taken_in_with_its_end(cache):
    first, last = on_node(make_pod("first"), "n1"), on_node(make_pod("last"), "n2")
    cache.observe(ListedPart(kind=PODS, objects=[first]))
    cache.observe(Listed(kind=PODS, objects=[first, last], resource_version="30", passed_on=1))
    assert (cache.bound_node(first.uid), cache.bound_node(last.uid)) == ("n1", "n2")
