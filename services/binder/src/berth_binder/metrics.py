"""The binder's counts of what other schedulers do to its pods and devices, and the leader's gauges.

Names and meanings are in ``berth.observability.metrics``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from berth.api.devices import ResourceClaim
from berth.lifecycle.process import Process
from berth.observability.logging import get_logger
from berth.observability.metrics import GaugeName, Meter
from berth_binder.cache import Cache, ForeignBindings

log = get_logger()

# Interval between updates of the gauges; Prometheus scrapes less often.
GAUGES_SECONDS: Final = 1.0
# Minimum interval between warnings about another scheduler.
FOREIGN_SECONDS: Final = 60.0
# Set by the leader only.
GAUGES: Final[tuple[GaugeName, ...]] = (
    "berth_reservations",
    "berth_bindings_in_flight",
    "berth_group_earmarked_nodes",
    "berth_group_partial",
    "scheduler_cache_size",
)


async def report_foreign_bindings(seen: ForeignBindings, profiles: Iterable[str], process: Process) -> None:
    """Count Bindings of other clients from now on, and warn at most once a minute.

    Only a warning, because a tenant may have the right to bind the pods of a namespace (docs/adr/0027).
    """
    counted, warned, warned_at = seen.counts.copy(), seen.counts.total(), -FOREIGN_SECONDS
    for profile in profiles:
        process.metrics.count("berth_foreign_bindings_total", 0, profile=profile)
    while True:
        for profile, more in (seen.counts - counted).items():
            process.metrics.count("berth_foreign_bindings_total", more, profile=profile)
        counted, now = seen.counts.copy(), process.clock.now()
        if counted.total() > warned and now - warned_at >= FOREIGN_SECONDS:
            pod, node = seen.last
            log.warning(
                "another client binds pods of berth's profiles: both may use the same free resources",
                pods=counted.total() - warned,
                pod=pod,
                node=node,
            )
            warned, warned_at = counted.total(), now
        await process.clock.sleep(GAUGES_SECONDS)


async def report_device_conflicts(cache: Cache, process: Process) -> None:
    """Count devices that two claims have from now on, and warn at most once a minute: devices have one scheduler."""
    claims = cache.snapshot.objects(ResourceClaim)
    cache.devices.take_conflicts()
    process.metrics.count("berth_device_conflicts_total", 0)
    unreported: list[tuple[str, tuple[str, ...]]] = []
    warned_at = -FOREIGN_SECONDS
    while True:
        found = cache.devices.take_conflicts()
        process.metrics.count("berth_device_conflicts_total", len(found))
        unreported += found
        now = process.clock.now()
        if unreported and now - warned_at >= FOREIGN_SECONDS:
            device, uids = unreported[-1]
            shown = (claims.api_object(uid) for uid in uids)
            log.warning(
                "another scheduler gives devices that berth gives: they are in two claims",
                devices=len(unreported),
                device=device,
                claims=[claim.key for claim in shown if claim is not None],
            )
            unreported, warned_at = [], now
        await process.clock.sleep(GAUGES_SECONDS)


def set_gauges(metrics: Meter, cache: Cache, *, in_flight: int) -> None:
    metrics.set("berth_reservations", len(cache.assumed_pods))
    metrics.set("berth_bindings_in_flight", in_flight)
    metrics.set("berth_group_earmarked_nodes", sum(len(each.nodes) for each in cache.snapshot.earmarks.values()))
    metrics.set("scheduler_cache_size", cache.snapshot.node_count, type="nodes")
    metrics.set("scheduler_cache_size", cache.snapshot.pod_count, type="pods")
    metrics.set("scheduler_cache_size", len(cache.assumed_pods), type="assumed_pods")


def clear_gauges(metrics: Meter) -> None:
    """Clear the gauges at the end of a leadership, because another binder may lead."""
    for name in GAUGES:
        metrics.clear(name)
