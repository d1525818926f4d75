"""Which pods are fenced, and which consumers are deleted."""

import pytest

from berth.api.pod import Pod, PodCondition
from berth.kube.listwatch import Upserted
from berth.messages.subjects import Epoch
from berth_binder.cache import PODS, Cache, fence_epoch
from berth_binder.takeover import consumer_of, former_consumers, needs_fence
from harness.worlds.binder_bench import make_pod


def fenced(epoch: str) -> Pod:
    condition = PodCondition(type="berth/fence", status="True", message=epoch)
    return make_pod("web", status={"conditions": [PodCondition(type="PodScheduled"), condition]})


def test_unbound_pod_needs_a_fence_whatever_fence_it_carries():
    assert needs_fence(make_pod("web"))
    assert needs_fence(fenced("2"))
    assert needs_fence(fenced("9" * 15)), "anybody may have written it"


def test_bound_deleted_or_finished_pod_needs_no_fence():
    assert not needs_fence(make_pod("web", node="n1"))
    assert not needs_fence(make_pod("web", metadata={"deletion_timestamp": "2026-01-01T00:00:00Z"}))
    assert not needs_fence(make_pod("web", status={"phase": "Failed"}))


def test_fence_counts_on_pods_of_the_own_profiles_only():
    cache = Cache(schedulers=["berth"])
    condition = PodCondition(type="berth/fence", status="True", message="50")
    cache.observe(
        Upserted(
            kind=PODS, object=make_pod("theirs", spec={"scheduler_name": "other"}, status={"conditions": [condition]})
        )
    )
    assert cache.highest_fence == 0
    cache.observe(Upserted(kind=PODS, object=make_pod("ours", status={"conditions": [condition]})))
    assert cache.highest_fence == 50


@pytest.mark.parametrize("text", ["soon", "-1", "9" * 20, "9" * 5000, ""])
def test_fence_without_a_number_is_none(text):
    assert fence_epoch(fenced(text)) == 0


def test_consumers_of_lower_epochs_are_deleted():
    names = ["binder-3", "binder-12", "binder-5", "scorer", "binder-x", "binder-"]
    assert former_consumers(names, Epoch(5)) == ["binder-3"]
    assert consumer_of(Epoch(5)) == "binder-5"
