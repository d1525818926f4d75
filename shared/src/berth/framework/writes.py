"""What a plugin may have the binder write at the API server before a pod is bound: values, carried out elsewhere."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimName:
    """A PersistentVolumeClaim; the uid keeps a namesake from being taken for it."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepVolume:
    """Keep a PersistentVolume for a claim: the controller of volumes binds the two then."""

    volume: str
    claim: ClaimName


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectNode:
    """Have a volume made for a claim that can be reached from a node."""

    claim: ClaimName
    node: str


Write = KeepVolume | SelectNode
