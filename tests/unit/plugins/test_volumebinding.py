"""VolumeBinding: a pod goes where its claims have, or can get, their volumes."""

from __future__ import annotations

import msgspec
import pytest

from berth.api.meta import LabelSelector, SelectorRequirement
from berth.api.pod import AWSElasticBlockStore
from berth.api.volumes import ClaimReference, PersistentVolume, PersistentVolumeClaim, PhaseStatus
from berth.cluster.snapshot import Snapshot
from berth.framework.cycle import check, rank
from berth.framework.events import Action, ClusterEvent, Resource
from berth.framework.interface import SNAPSHOT
from berth.framework.status import CycleState
from berth.plugins.volumes.volumebinding.claimmatcher import SELECTED_NODE
from berth.plugins.volumes.volumebinding.plugin import VolumeBinding, VolumeBindingArgs
from harness.builders.objects import a_node, a_pod, first_attempt
from harness.builders.profiles import default_profile
from harness.builders.volumes import (
    HOSTNAME,
    ZONE,
    a_claim,
    a_class,
    a_csi_node,
    a_driver,
    a_volume,
    add_objects,
    owned,
    pod_with_claims,
    pod_with_ephemeral_claim,
    reached_by,
    storage_capacity_of,
)
from harness.worlds.queueing_hints import may_help

BY_HAND = a_class("kubernetes.io/no-provisioner")
NONE_TO_BIND = "node(s) didn't find available persistent volumes to bind"
OUT_OF_REACH = "node(s) didn't match PersistentVolume's node affinity"
NO_SPACE = "node(s) did not have enough free storage"
VOLUME_GONE = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"


def cluster(*things) -> Snapshot:
    """n0 in zone a, n1 and n2 in zone b."""
    snapshot = Snapshot()
    for name, zone in {"n0": "a", "n1": "b", "n2": "b"}.items():
        snapshot.set_node(a_node(name, labels={HOSTNAME: name, ZONE: zone}))
    add_objects(snapshot, *things)
    return snapshot


def feasible(pod, *things) -> list[str]:
    """The nodes that the pod fits, by the vector form and the scalar form."""
    snapshot = cluster(*things)
    found = rank(pod, snapshot, default_profile(), attempt=first_attempt(pod)).candidates
    names = sorted(candidate.node for candidate in found)
    assert names == [n for n in ("n0", "n1", "n2") if check(pod, n, snapshot, default_profile()).is_success]
    return names


def refusal(pod, *things) -> str:
    message = rank(pod, cluster(*things), default_profile(), attempt=first_attempt(pod)).message
    return message.removeprefix("0/3 nodes are available: ").split(" preemption:", maxsplit=1)[0]


def test_a_bound_claim_restricts_the_pod_to_the_nodes_of_its_volume():
    assert feasible(pod_with_claims(), a_claim(volume="disk"), a_volume("disk", "n1", "n2")) == ["n1", "n2"]
    assert refusal(pod_with_claims(), a_claim(volume="disk"), a_volume("disk", "n9")) == f"3 {OUT_OF_REACH}."


def test_terms_on_node_names_match_every_node():
    by_name = SelectorRequirement(key="metadata.name", operator="In", values=["n1"])
    volume = a_volume("disk", "n0")
    term = msgspec.structs.replace(volume.spec.node_affinity.required.node_selector_terms[0], match_fields=[by_name])
    volume.spec.node_affinity.required.node_selector_terms[0] = term
    assert feasible(pod_with_claims(), a_claim(volume="disk"), volume) == ["n0"]


@pytest.mark.parametrize(
    ("things", "reason"),
    [
        pytest.param([], 'persistentvolumeclaim "data" not found', id="missing"),
        pytest.param(
            [a_claim(volume="gone", phase="Lost")],
            'persistentvolumeclaim "data" bound to non-existent persistentvolume "gone"',
            id="lost",
        ),
        pytest.param(
            [
                msgspec.structs.replace(
                    a_claim(), metadata=msgspec.structs.replace(a_claim().metadata, deletion_timestamp="2026")
                )
            ],
            'persistentvolumeclaim "data" is being deleted',
            id="being deleted",
        ),
        pytest.param(
            [a_class(mode="Immediate"), a_claim()], "pod has unbound immediate PersistentVolumeClaims", id="immediate"
        ),
        pytest.param(
            [BY_HAND, msgspec.structs.replace(a_claim(volume="disk"), metadata=a_claim().metadata)],
            "pod has unbound immediate PersistentVolumeClaims",
            id="its volume is chosen and not yet its own",
        ),
        pytest.param(
            [a_claim(storage_class_name="other")], "pod has unbound immediate PersistentVolumeClaims", id="no class"
        ),
        pytest.param([a_claim(volume="gone")], 'persistentvolume "gone" not found', id="its volume is gone"),
    ],
)
def test_an_unusable_claim_rejects_the_pod_everywhere(things, reason):
    assert refusal(pod_with_claims(), *things) == f"{reason}."


def test_the_claim_of_an_ephemeral_volume_must_be_owned_by_the_pod():
    pod = pod_with_ephemeral_claim()
    waits = 'waiting for ephemeral volume controller to create the persistentvolumeclaim "web-scratch"'
    assert refusal(pod) == f"{waits}."
    claim = a_claim("web-scratch", volume="disk")
    foreign = "PVC default/web-scratch was not created for pod default/web (pod is not owner)"
    assert refusal(pod, claim, a_volume("disk")) == f"{foreign}."
    assert feasible(pod, owned(claim, pod), a_volume("disk", "n2")) == ["n2"]


def test_a_delayed_claim_needs_a_node_with_a_free_volume():
    assert feasible(pod_with_claims(), BY_HAND, a_claim(), a_volume("disk", "n1")) == ["n1"]
    assert refusal(pod_with_claims(), BY_HAND, a_claim()) == f"3 {NONE_TO_BIND}."


@pytest.mark.parametrize(
    "volume",
    [
        pytest.param(a_volume("disk", size="512Mi"), id="too small"),
        pytest.param(a_volume("disk", storage_class_name="other"), id="another class"),
        pytest.param(a_volume("disk", volume_mode="Block"), id="another mode"),
        pytest.param(a_volume("disk", access_modes=["ReadOnlyMany"]), id="another access"),
        pytest.param(a_volume("disk", volume_attributes_class_name="gold"), id="another class of attributes"),
        pytest.param(a_volume("disk", claim_ref=ClaimReference(namespace="default", name="other")), id="kept"),
        pytest.param(msgspec.structs.replace(a_volume("disk"), status=PhaseStatus(phase="Released")), id="released"),
        pytest.param(
            msgspec.structs.replace(
                a_volume("disk"),
                metadata=msgspec.structs.replace(a_volume("disk").metadata, deletion_timestamp="2026"),
            ),
            id="being deleted",
        ),
    ],
)
def test_an_unsuitable_volume_is_not_taken(volume):
    assert feasible(pod_with_claims(), BY_HAND, a_claim(), volume) == []


def test_a_selector_of_the_claim_chooses_among_volumes():
    fast = LabelSelector(match_labels={"kind": "fast"})
    volumes = [a_volume("a", "n0", labels={"kind": "slow"}), a_volume("b", "n1", labels={"kind": "fast"})]
    assert feasible(pod_with_claims(), BY_HAND, a_claim(selector=fast), *volumes) == ["n1"]


def test_a_prebound_volume_is_taken_or_none():
    reference = ClaimReference(namespace="default", name="data")
    volumes = [a_volume("free"), a_volume("kept", "n2", size="4Gi", claim_ref=reference)]
    assert feasible(pod_with_claims(), BY_HAND, a_claim(), *volumes) == ["n2"]


def test_two_claims_of_a_pod_need_two_volumes():
    claims = [a_claim("small", size="1Gi"), a_claim("large", size="3Gi")]
    small, large = a_volume("small", "n0", "n1", size="2Gi"), a_volume("large", "n1", size="4Gi")
    pod = pod_with_claims("web", "large", "small")
    assert feasible(pod, BY_HAND, *claims, small, large) == ["n1"]
    assert feasible(pod, BY_HAND, *claims, large) == []


def test_a_volume_is_provisioned_in_the_topology_of_the_class():
    assert feasible(pod_with_claims(), a_class(zones=["b"]), a_claim()) == ["n1", "n2"]
    assert feasible(pod_with_claims(), a_class(), a_claim()) == ["n0", "n1", "n2"]


@pytest.mark.parametrize("step", ["reserve", "pre_bind"])
def test_a_node_that_is_gone_gets_no_volume_and_no_pod(step):
    snapshot, pod = cluster(a_class(), a_claim()), pod_with_claims("web", "data")
    plugin = VolumeBinding(VolumeBindingArgs())
    state = CycleState(snapshot.class_of(pod))
    state.write(SNAPSHOT, snapshot)
    if step == "pre_bind":
        assert plugin.reserve(state, pod, "n1").is_success
    snapshot.remove_node("n1")
    status = getattr(plugin, step)(state, pod, "n1")
    assert (status.is_rejection, status.reasons) == (True, ("binding volumes: node 'n1' not found",))


def test_a_claim_with_a_selected_node_stays_there():
    assert feasible(pod_with_claims(), a_class(), a_claim(annotations={SELECTED_NODE: "n1"})) == ["n1"]


def test_published_capacity_limits_provisioning():
    things = [a_class(), a_claim(size="2Gi"), a_driver()]
    assert feasible(pod_with_claims(), *things, storage_capacity_of("1Gi", "a"), storage_capacity_of("5Gi", "b")) == [
        "n1",
        "n2",
    ]
    assert feasible(
        pod_with_claims(),
        *things,
        storage_capacity_of("9Gi", "a", largest="1Gi"),
        storage_capacity_of("1Gi", "b", largest="2Gi"),
    ) == ["n1", "n2"]
    assert refusal(pod_with_claims(), *things, storage_capacity_of(None, "a")) == f"3 {NO_SPACE}."
    assert feasible(pod_with_claims(), a_class(), a_claim(size="2Gi"), a_driver(reports=False)) == ["n0", "n1", "n2"]


def test_a_migrated_volume_matches_the_drivers_own_label():
    zone = SelectorRequirement(key=ZONE, operator="In", values=["a"])
    disk = a_volume("disk", aws_elastic_block_store=AWSElasticBlockStore(volume_id="vol-1"))
    disk = msgspec.structs.replace(disk, spec=msgspec.structs.replace(disk.spec, node_affinity=reached_by(zone)))
    took_over = a_csi_node("n0", {"storage.alpha.kubernetes.io/migrated-plugins": "kubernetes.io/aws-ebs"})
    assert feasible(pod_with_claims(), a_claim(volume="disk"), disk) == ["n0"]
    assert feasible(pod_with_claims(), a_claim(volume="disk"), disk, took_over) == []


def test_a_pod_without_volumes_is_skipped():
    plugins = {"VolumeRestrictions", "NodeVolumeLimits", "VolumeBinding", "VolumeZone"}
    asked = [plugin for plugin in default_profile().pre_filters if plugin.name in plugins]
    snapshot, pod = cluster(), a_pod()
    assert len(asked) == len(plugins)
    assert all(plugin.pre_filter(None, pod, snapshot).status.is_skip for plugin in asked)


ADD, UPDATE = Action.ADD, Action.UPDATE
CLAIM, VOLUME = Resource.PERSISTENT_VOLUME_CLAIM, Resource.PERSISTENT_VOLUME


@pytest.mark.parametrize(
    ("resource", "action", "old", "new", "helps"),
    [
        pytest.param(CLAIM, ADD, None, a_claim(), True, id="its claim is there"),
        pytest.param(CLAIM, UPDATE, a_claim(), a_claim(volume="v"), True, id="its claim changes"),
        pytest.param(CLAIM, ADD, None, a_claim("other"), False, id="another claim"),
        pytest.param(VOLUME, ADD, None, a_volume("v"), True, id="any volume"),
        pytest.param(Resource.STORAGE_CLASS, ADD, None, a_class(), True, id="a class"),
        pytest.param(Resource.STORAGE_CLASS, UPDATE, a_class(), a_class(zones=["a"]), True, id="other topologies"),
        pytest.param(Resource.STORAGE_CLASS, UPDATE, a_class(), a_class("other"), True, id="another class of the name"),
        pytest.param(
            Resource.CSI_STORAGE_CAPACITY,
            UPDATE,
            storage_capacity_of("1Gi", "a"),
            storage_capacity_of("2Gi", "a"),
            True,
            id="more capacity",
        ),
        pytest.param(
            Resource.CSI_STORAGE_CAPACITY,
            UPDATE,
            storage_capacity_of("2Gi", "a"),
            storage_capacity_of("1Gi", "a"),
            False,
            id="less capacity",
        ),
        pytest.param(Resource.CSI_NODE, UPDATE, a_csi_node(), a_csi_node(d=3), False, id="more places on a node"),
        pytest.param(
            Resource.CSI_NODE,
            UPDATE,
            a_csi_node(),
            a_csi_node("n0", {"storage.alpha.kubernetes.io/migrated-plugins": "kubernetes.io/gce-pd"}),
            True,
            id="a driver takes over",
        ),
        pytest.param(Resource.POD, Action.DELETE, pod_with_claims("other"), None, False, id="a pod goes"),
    ],
)
def test_only_events_that_may_bind_the_claim_requeue_the_pod(resource, action, old, new, helps):
    event = ClusterEvent(resource, action)
    assert may_help(default_profile(), {"VolumeBinding"}, event, pod_with_claims(), old, new) is helps


def test_an_assumed_volume_holds_until_it_changes():
    snapshot = cluster(a_volume("disk"))
    volumes = snapshot.objects(PersistentVolume)
    assumed = a_volume("disk", claim_ref=ClaimReference(namespace="default", name="data"))
    volumes.assume("disk", assumed)
    add_objects(snapshot, a_volume("disk", version=2))  # the same, newer
    assert volumes.named("disk").spec.claim_ref is not None
    assert volumes.api_object("disk").spec.claim_ref is None
    add_objects(snapshot, a_volume("disk", size="3Gi"))
    assert volumes.named("disk").spec.claim_ref is None


def test_a_missing_volume_cannot_be_assumed():
    claims = cluster().objects(PersistentVolumeClaim)
    claims.assume("uid-data", a_claim())
    assert claims.named("data", "default") is None
