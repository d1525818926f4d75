"""Which schedulers would bind the same pods as berth, as far as berth's own configuration tells (docs/adr/0027).

kube-scheduler elects by one Lease, and berth by two of other names: both lead side by side. Where both have a profile
of one name, both bind its pods, each by its own count of what is free, and a node gets two pods of which one fits.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from berth.api.pod import DEFAULT_SCHEDULER
from berth.settings.settings import LeaderElectionSettings

KUBE_SYSTEM: Final = "kube-system"
KUBE_SCHEDULER: Final = "kube-scheduler"
_OWN: Final = LeaderElectionSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseName:
    """Where a Lease is."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


_KUBE_SCHEDULERS: Final = LeaseName(namespace=KUBE_SYSTEM, name=KUBE_SCHEDULER)


def leases_of_others(election: LeaderElectionSettings, schedulers: Collection[str]) -> tuple[LeaseName, ...]:
    """The Leases by which schedulers lead that have a profile in common with berth, as far as that can be known.

    kube-scheduler's own, if berth has a profile of its default name. And the one that kube-scheduler would take with
    the same file: what leads by it has all of the file's profiles.
    """
    kube_schedulers = [_KUBE_SCHEDULERS] if DEFAULT_SCHEDULER in schedulers else []
    of_the_file = _lease_of_kube_scheduler(election)
    if election.resource_name == _OWN.resource_name or of_the_file == _KUBE_SCHEDULERS:
        return tuple(kube_schedulers)
    return (*kube_schedulers, of_the_file)


def _lease_of_kube_scheduler(election: LeaderElectionSettings) -> LeaseName:
    """The Lease that kube-scheduler takes where berth takes two. A file without a namespace means kube-system there."""
    is_named = election.resource_namespace != _OWN.resource_namespace
    return LeaseName(namespace=election.resource_namespace if is_named else KUBE_SYSTEM, name=election.resource_name)


def warning_about(election: LeaderElectionSettings, schedulers: Collection[str]) -> str | None:
    """What to know before a start with a file that was kube-scheduler's; ``None``: nothing."""
    name = election.resource_name
    if DEFAULT_SCHEDULER in schedulers:
        return (
            f"kube-scheduler has the profile {DEFAULT_SCHEDULER!r} too, and two schedulers of the same pods"
            " give the same room away twice: stop it first (docs/moving-over.md)"
        )
    if _lease_of_kube_scheduler(election) == _KUBE_SCHEDULERS:
        return (
            f"the Lease {str(_KUBE_SCHEDULERS)!r} is kube-scheduler's, and berth's are '{name}-watcher' and"
            f" '{name}-binder': both lead at once, so no profile may be in both (docs/moving-over.md)"
        )
    return None
