"""What a change of an object means to pods that wait."""

from __future__ import annotations

import pytest

from berth.framework.events import Action, ClusterEvent, Resource
from berth_watcher.hints import cluster_events
from berth_watcher.store import ObjectChange
from harness.builders.volumes import a_claim, a_volume


def heard(kind: str, old, new) -> list[ClusterEvent]:
    return [event for event, _, _ in cluster_events(ObjectChange(kind=kind, name="it", old=old, new=new))]


@pytest.mark.parametrize(
    ("old", "new", "action"),
    [
        pytest.param(None, a_volume("v"), Action.ADD, id="it is there"),
        pytest.param(a_volume("v"), None, Action.DELETE, id="it is gone"),
        pytest.param(a_volume("v"), a_volume("v", size="9Gi", version=2), Action.UPDATE, id="it is different"),
    ],
)
def test_a_volume_that_comes_goes_or_changes_is_told_of(old, new, action):
    assert heard("pv", old, new) == [ClusterEvent(Resource.PERSISTENT_VOLUME, action)]


def test_a_new_version_that_says_the_same_wakes_nobody():
    assert heard("pv", a_volume("v"), a_volume("v", version=2)) == []
    assert heard("pvc", a_claim(), a_claim(version=2)) == []
