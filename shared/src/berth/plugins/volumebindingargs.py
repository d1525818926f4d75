"""The arguments of VolumeBinding and what is wrong with them."""

from __future__ import annotations

from berth.plugins.factory import Args
from berth.plugins.noderesourcesargs import ShapePoint


class VolumeBindingArgs(Args, frozen=True, kw_only=True):
    """``bindTimeoutSeconds``: how long a pod waits on its node for its claims to be bound, 0 or more.

    Ten minutes, as in kube-scheduler: a disk that is made somewhere else takes its time. ``shape`` is a field of v1
    that means something only under the gate StorageCapacityScoring, which 1.36 has off.
    """

    bind_timeout_seconds: int = 600
    shape: list[ShapePoint] | None = None


def validate(args: VolumeBindingArgs, path: str) -> list[str]:
    """The time must not be negative, and a shape would mean nothing."""
    seconds = args.bind_timeout_seconds
    problems = [] if seconds >= 0 else [f"{path}.bindTimeoutSeconds: want 0 or more, got {seconds}"]
    if args.shape is not None:
        problems.append(f"{path}.shape: want none (StorageCapacityScoring is off), got {len(args.shape)} points")
    return problems
