"""Which pods are fenced, and which consumers are deleted."""

from berth.api.pod import Pod, PodCondition
from berth.api.subjects import Epoch
from berth_binder.cache import fence_epoch
from berth_binder.takeover import consumer_of, former_consumers, needs_fence, pods_to_fence
from harness.worlds.binder_bench import make_pod


def fenced(epoch: str) -> Pod:
    condition = PodCondition(type="berth/fence", status="True", message=epoch)
    return make_pod("web", status={"conditions": [PodCondition(type="PodScheduled"), condition]})


def test_unbound_pod_needs_the_fence_of_each_epoch():
    assert needs_fence(make_pod("web"), Epoch(3))
    assert needs_fence(fenced("2"), Epoch(3))
    assert not needs_fence(fenced("3"), Epoch(3))


def test_bound_deleted_or_finished_pod_needs_no_fence():
    assert not needs_fence(make_pod("web", node="n1"), Epoch(3))
    assert not needs_fence(make_pod("web", metadata={"deletion_timestamp": "2026-01-01T00:00:00Z"}), Epoch(3))
    assert not needs_fence(make_pod("web", status={"phase": "Failed"}), Epoch(3))


def test_pod_is_fenced_once():
    web, api = make_pod("web"), make_pod("api")
    assert pods_to_fence([web, api, web], Epoch(1)) == [web, api]


def test_fence_without_a_number_is_none():
    assert fence_epoch(fenced("soon")) == 0


def test_consumers_of_lower_epochs_are_deleted():
    names = ["binder-3", "binder-12", "binder-5", "scorer", "binder-x", "binder-"]
    assert former_consumers(names, Epoch(5)) == ["binder-3"]
    assert consumer_of(Epoch(5)) == "binder-5"
