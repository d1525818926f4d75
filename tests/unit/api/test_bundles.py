"""The members of a group in one message."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from berth.api.meta import OwnerReference
from berth.api.pod import ClaimSource, Pod, PodCondition, PodSchedulingGroup, Volume, digest_of
from berth.messages.bundles import Bundle, as_member, bundled
from berth.messages.subjects import Term
from harness.builders.objects import a_pod
from harness.builders.random_clusters import pods as random_pods


def of_a_job(number: int, **pod: Any) -> Pod:
    """As an Indexed Job's controller and the API server make it."""
    labels = {"app": "train", "batch.kubernetes.io/job-completion-index": str(number)}
    owner = OwnerReference(api_version="batch/v1", kind="Job", name="train", uid="job", controller=True)
    condition = PodCondition(type="PodScheduled", status="False", message="0/3 nodes are available")
    return a_pod(
        f"train-{number}-x7k2p",
        uid=f"5f0c4c3e-8d3b-4c5e-9a77-{number:012}",
        version=70_000 + number,
        labels=labels,
        cpu="1",
        metadata={
            "owner_references": [owner],
            "creation_timestamp": "2026-01-01T00:00:00Z",
            "annotations": {"batch.kubernetes.io/job-completion-index": str(number)},
        },
        status={"phase": "Pending", "conditions": [condition]},
        volumes=[Volume(name=f"kube-api-access-{number:05}")],
        scheduling_group=PodSchedulingGroup(pod_group_name="train"),
        **pod,
    )


def sent(pods: list[Pod]) -> Bundle:
    data = msgspec.json.encode(bundled(pods, {pod.uid: 1 for pod in pods}))
    return msgspec.json.decode(data, type=Bundle)


def test_a_thousand_pods_of_a_job_are_one_class_and_take_a_quarter_of_a_megabyte():
    pods = [of_a_job(number) for number in range(1000)]
    bundle = sent(pods)
    assert len(bundle.classes) == 1
    assert bundle.pods() == [as_member(pod) for pod in pods]
    assert len(msgspec.json.encode(bundle)) < 262_144
    assert len({id(pod.spec) for pod in bundle.pods()}) == 1  # which is encoded once for its equivalence class
    assert [member.digest for member in bundle.members] == [digest_of(pod) for pod in pods]


def test_pods_with_claims_of_their_own_are_of_one_class():
    volumes = [Volume(name="data", persistent_volume_claim=ClaimSource(claim_name=f"data-{n}")) for n in range(3)]
    pods = [a_pod(f"db-{number}", volumes=[volume]) for number, volume in enumerate(volumes)]
    bundle = sent(pods)
    assert (len(bundle.classes), bundle.pods()) == (1, pods)


def test_members_have_attempts_of_their_own():
    pods = [a_pod("a"), a_pod("b")]
    bundle = bundled(pods, {"uid-a": 3, "uid-b": 8})
    assert [str(each) for each in bundle.attempts(Term(5))] == ["uid-a.5.3", "uid-b.5.8"]


def test_a_member_of_no_class_is_an_error():
    bundle = sent([a_pod("a")])
    with pytest.raises(IndexError):
        msgspec.structs.replace(bundle, classes=[]).pods()


@given(st.lists(random_pods, max_size=8, unique_by=lambda pod: pod.uid))
def test_what_rankings_read_of_any_pods_is_kept(pods: list[Pod]):
    expected = [
        msgspec.structs.replace(each, metadata=msgspec.structs.replace(each.metadata, generation=0))
        for each in map(as_member, pods)
    ]
    found = sent(pods).pods()
    assert [labelled(pod) for pod in found] == [labelled(pod) for pod in expected]


def labelled(pod: Pod) -> Pod:
    """No labels are empty labels, and so of annotations."""
    metadata = pod.metadata
    metadata = msgspec.structs.replace(
        metadata, labels=metadata.labels or None, annotations=metadata.annotations or None
    )
    return msgspec.structs.replace(pod, metadata=metadata)
