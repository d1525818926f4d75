"""Schedulers that would bind the same pods as berth, by berth's own configuration (docs/adr/0027).

kube-scheduler elects by one Lease, berth by two of other names, so that both lead side by side. If both have a profile
of one name, both bind its pods, each by its own count of free resources, and a node gets two pods of which one fits.
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
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


_KUBE_SCHEDULERS: Final = LeaseName(namespace=KUBE_SYSTEM, name=KUBE_SCHEDULER)


def leases_of_others(election: LeaderElectionSettings, schedulers: Collection[str]) -> tuple[LeaseName, ...]:
    """Leases of schedulers that have a profile in common with berth, as far as known.

    kube-scheduler's own, if berth has a profile of its default name; and the one that kube-scheduler would take with
    the same file, because it would have all of the file's profiles.
    """
    kube_schedulers = [_KUBE_SCHEDULERS] if DEFAULT_SCHEDULER in schedulers else []
    of_the_file = _lease_of_kube_scheduler(election)
    if election.resource_name == _OWN.resource_name or of_the_file == _KUBE_SCHEDULERS:
        return tuple(kube_schedulers)
    return (*kube_schedulers, of_the_file)


def _lease_of_kube_scheduler(election: LeaderElectionSettings) -> LeaseName:
    # Without a namespace in the file kube-scheduler takes kube-system.
    is_named = election.resource_namespace != _OWN.resource_namespace
    return LeaseName(namespace=election.resource_namespace if is_named else KUBE_SYSTEM, name=election.resource_name)


def warning_about(election: LeaderElectionSettings, schedulers: Collection[str]) -> str | None:
    """Warning before a start with kube-scheduler's file; ``None`` if there is no reason for one."""
    name = election.resource_name
    if DEFAULT_SCHEDULER in schedulers:
        return (
            f"kube-scheduler has the profile {DEFAULT_SCHEDULER!r} too, and two schedulers of the same pods"
            " bind pods to the same free resources: stop it first (docs/moving-over.md)"
        )
    if _lease_of_kube_scheduler(election) == _KUBE_SCHEDULERS:
        return (
            f"the Lease {str(_KUBE_SCHEDULERS)!r} is kube-scheduler's, and berth's are '{name}-watcher' and"
            f" '{name}-binder': both lead at once, so no profile may be in both (docs/moving-over.md)"
        )
    return None
