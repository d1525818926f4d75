"""What a pod's manifest says that a scheduler never reads, since the API server acts on it when the pod is created."""

from __future__ import annotations

from berth.api.meta import ObjectMeta, Trimmed
from berth.api.volumes import PersistentVolumeClaimSpec


class EphemeralClaimTemplate(Trimmed, frozen=True, kw_only=True):
    """A claim that is yet to be made."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PersistentVolumeClaimSpec = PersistentVolumeClaimSpec()


class EphemeralVolume(Trimmed, frozen=True, kw_only=True):
    """A volume that comes and goes with the pod."""

    volume_claim_template: EphemeralClaimTemplate | None = None


class ManifestVolume(Trimmed, frozen=True, kw_only=True):
    """A volume of the pod."""

    name: str = ""
    ephemeral: EphemeralVolume | None = None


class ManifestSpec(Trimmed, frozen=True, kw_only=True):
    """The part of a pod's spec that is used up when the pod is created."""

    runtime_class_name: str | None = None
    volumes: list[ManifestVolume] | None = None


class Manifest(Trimmed, frozen=True, kw_only=True):
    """The same of the pod."""

    spec: ManifestSpec = ManifestSpec()
