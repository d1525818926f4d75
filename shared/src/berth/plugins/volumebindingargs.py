"""The arguments of VolumeBinding and what is wrong with them."""

from __future__ import annotations

from berth.plugins.factory import Args


class VolumeBindingArgs(Args, frozen=True, kw_only=True):
    """``bindTimeoutSeconds``: how long a pod waits on its node for its claims to be bound, 0 or more.

    Ten minutes, as in kube-scheduler: a disk that is made somewhere else takes its time.
    """

    bind_timeout_seconds: int = 600


def validate(args: VolumeBindingArgs, path: str) -> list[str]:
    """The time must not be negative."""
    seconds = args.bind_timeout_seconds
    return [] if seconds >= 0 else [f"{path}.bindTimeoutSeconds: want 0 or more, got {seconds}"]
