"""The condition of a pod that waits is written while it waits, and not after its Binding."""

import pytest

from berth.kube.writes import get_pod
from berth.lifecycle.process import Process
from berth_binder.eventrecorder.budget import EventBudget
from berth_binder.eventrecorder.recorder import EventRecorder
from berth_binder.eventrecorder.records import ConditionRecord
from harness.fakes.recording_meter import RecordingMeter
from harness.plugins.fixtures_kube import Cluster


@pytest.fixture
def recorder(cluster: Cluster) -> EventRecorder:
    return EventRecorder(cluster.client, Process(name="binder", metrics=RecordingMeter()), EventBudget())


async def a_pod(cluster: Cluster, name: str):
    assert (await cluster.api.add_pod(name)).code == 201
    return await get_pod(cluster.client, cluster.api.namespace, name)


async def conditions(cluster: Cluster, name: str) -> dict[str, str]:
    pod = await get_pod(cluster.client, cluster.api.namespace, name)
    return {each.type: each.status for each in pod.status.conditions or ()}


async def test_condition_that_arrives_after_the_binding_changes_nothing(cluster, recorder):
    pod = await a_pod(cluster, "bound-meanwhile")
    assert (await cluster.api.bind("bound-meanwhile", await cluster.api.add_node())).code == 201

    await recorder._request(ConditionRecord(pod=pod, reason="Unschedulable", message="no room"))

    assert (await conditions(cluster, "bound-meanwhile"))["PodScheduled"] == "True"


async def test_condition_of_a_pod_that_has_changed_meanwhile_is_written(cluster, recorder):
    pod = await a_pod(cluster, "changed-meanwhile")
    await cluster.api.patch(f"{cluster.api.pods}/changed-meanwhile", {"metadata": {"labels": {"new": "label"}}})

    await recorder._request(ConditionRecord(pod=pod, reason="Unschedulable", message="no room"))

    assert (await conditions(cluster, "changed-meanwhile"))["PodScheduled"] == "False"
