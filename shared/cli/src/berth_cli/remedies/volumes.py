"""Volumes: from how many nodes a claim's volume cannot be reached, or none can be found for it."""

from __future__ import annotations

from collections.abc import Iterator

from berth.api.volumes import PersistentVolume, PersistentVolumeClaim
from berth.cluster.nodes import Mask
from berth.framework.status import Status
from berth.plugins.volumes.claims import pod_volume_claims
from berth.plugins.volumes.volumebinding.claimmatcher import ClaimMatcher
from berth.plugins.volumes.volumebinding.plugin import NAME as VOLUME_BINDING
from berth.plugins.volumes.volumebinding.topology import translated_node_affinity_of
from berth.plugins.volumes.volumezone import NAME as VOLUME_ZONE
from berth.plugins.volumes.volumezone import PV_TOPOLOGIES
from berth_cli.remedies.refusals import NodeRefusals, joined
from berth_cli.remedies.remedy import Remedy
from berth_cli.remedies.rules import requirement_text


def unreachable_volumes(refusals: NodeRefusals) -> Iterator[Remedy]:
    """One for each claim of the pod."""
    claims = pod_volume_claims(refusals.pod, refusals.snapshot)
    if isinstance(claims, Status):
        return
    refused, nodes = refusals.refused(VOLUME_BINDING), refusals.nodes
    for claim in claims.bound:
        volume = refusals.snapshot.objects(PersistentVolume).named(claim.spec.volume_name)
        kept: Mask = refused & ~translated_node_affinity_of(volume).mask(nodes) if volume is not None else refused
        what = f"the volume {claim.spec.volume_name} of claim {claim.metadata.name}"
        before = f"{what} cannot be reached from" if volume is not None else f"{what} is gone, which keeps it from"
        yield from _claim(refusals, claim, kept, before)
    for claim in claims.delayed:
        none: Mask = refused & (ClaimMatcher((claim,), refusals.snapshot).problems(nodes) > 0)
        before = f"claim {claim.metadata.name} has no volume yet, and none can be bound or made for"
        yield from _claim(refusals, claim, none, before)


def _claim(refusals: NodeRefusals, claim: PersistentVolumeClaim, kept: Mask, before: str) -> Iterator[Remedy]:
    if kept.any():
        yield refusals.remedy(VOLUME_BINDING, claim.metadata.name, kept, before=before)


def other_zones(refusals: NodeRefusals) -> Iterator[Remedy]:
    """The zones of the pod's volumes."""
    topologies = refusals.state.find(PV_TOPOLOGIES)
    refused = refusals.refused(VOLUME_ZONE)
    if topologies is None or isinstance(topologies, Status) or not refused.any():
        return
    before = f"its volumes are in {joined(map(requirement_text, topologies))}, and"
    yield refusals.remedy(VOLUME_ZONE, topologies[0].key, refused, before=before, after="are not")
