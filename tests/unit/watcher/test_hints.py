"""Which cluster events a change of an object makes, and how metrics name them."""

from __future__ import annotations

import pytest

from berth.framework.events import Action, ClusterEvent, Resource
from berth_watcher.store import ObjectChange, cluster_events, label_of, label_of_own_update
from harness.builders.volumes import a_claim, a_volume


def events_of(kind: str, old, new) -> list[ClusterEvent]:
    return [event for event, _, _ in cluster_events(ObjectChange(kind=kind, name="it", old=old, new=new))]


@pytest.mark.parametrize(
    ("old", "new", "action"),
    [
        pytest.param(None, a_volume("v"), Action.ADD, id="added"),
        pytest.param(a_volume("v"), None, Action.DELETE, id="deleted"),
        pytest.param(a_volume("v"), a_volume("v", size="9Gi", version=2), Action.UPDATE, id="updated"),
    ],
)
def test_change_of_a_volume_is_an_event(old, new, action):
    assert events_of("pv", old, new) == [ClusterEvent(Resource.PERSISTENT_VOLUME, action)]


def test_new_version_without_a_change_is_no_event():
    assert events_of("pv", a_volume("v"), a_volume("v", version=2)) == []
    assert events_of("pvc", a_claim(), a_claim(version=2)) == []


def test_events_have_kube_schedulers_labels():
    assert label_of(ClusterEvent(Resource.POD, Action.DELETE)) == "AssignedPodDelete"
    assert label_of(ClusterEvent(Resource.NODE, Action.UPDATE_NODE_TAINT)) == "NodeUpdateNodeTaint"
    assert label_of(ClusterEvent(Resource.CSI_NODE, Action.ADD)) == "storage.k8s.io/CSINodeAdd"
    both = Action.UPDATE_NODE_LABEL | Action.UPDATE_NODE_TAINT
    assert label_of(ClusterEvent(Resource.NODE, both)) == "NodeUpdateNodeLabel"
    assert label_of_own_update(Action.UPDATE_POD_TOLERATIONS) == "UnschedulablePodUpdatePodToleration"
    assert label_of_own_update(Action(0)) == "UnschedulablePodUpdate"
