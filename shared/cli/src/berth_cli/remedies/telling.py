"""What would help a pod, by the present state of the cluster: a few sentences, the only obstacles first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from typing import Final

import numpy as np

from berth.api.pod import Pod
from berth.cluster.snapshot import Snapshot
from berth.framework.cycle import any_feasible_node
from berth.framework.plugincalls import PluginFailure
from berth.framework.profile import Profile
from berth.plugins import nodeaffinity, nodeports, nodeunschedulable, tainttoleration
from berth.plugins.interpodaffinity import plugin as interpodaffinity
from berth.plugins.noderesources import fit
from berth.plugins.podtopologyspread import plugin as podtopologyspread
from berth.plugins.volumes import volumezone
from berth.plugins.volumes.volumebinding import plugin as volumebinding
from berth_cli.remedies.refusals import NodeRefusals, refusals_of, several
from berth_cli.remedies.remedy import MOST_REMEDIES, Remedy
from berth_cli.remedies.resources import short_resources
from berth_cli.remedies.rules import (
    cordoned_nodes,
    pods_beside,
    taken_ports,
    uneven_domains,
    unmatched_labels,
    untolerated_taints,
)
from berth_cli.remedies.volumes import other_zones, unreachable_volumes

TOLD: Final[Mapping[str, Callable[[NodeRefusals], Iterator[Remedy]]]] = {
    nodeunschedulable.NAME: cordoned_nodes,
    tainttoleration.NAME: untolerated_taints,
    nodeaffinity.NAME: unmatched_labels,
    nodeports.NAME: taken_ports,
    fit.NAME: short_resources,
    volumebinding.NAME: unreachable_volumes,
    volumezone.NAME: other_zones,
    podtopologyspread.NAME: uneven_domains,
    interpodaffinity.NAME: pods_beside,
}
"""By plugin, what is told of its refusals. Of other plugins nothing is known but the reason, which stands elsewhere."""


def remedies_of(pod: Pod, snapshot: Snapshot, profile: Profile) -> list[Remedy]:
    """What would help the pod, as far as that is certain. A pod that is placed does not count against itself."""
    placed = snapshot.node_of(pod.uid) is not None
    with snapshot.supposing(removed=[pod.uid]) if placed else nullcontext():
        refusals = refusals_of(pod, snapshot, profile)
        if refusals is None:
            return []
        if not refusals.times.all():
            return [_passing(refusals, profile)]
        found = [remedy for plugin in refusals.by_plugin if plugin in TOLD for remedy in TOLD[plugin](refusals)]
    return sorted(found, key=lambda each: (-each.alone, -each.nodes))[:MOST_REMEDIES]


def _passing(refusals: NodeRefusals, profile: Profile) -> Remedy:
    """A node refuses it no more; or only pods that are nominated to the node are before it."""
    free = np.equal(refusals.times, 0)
    number, names = int(np.count_nonzero(free)), refusals.names(free)
    try:
        found = any_feasible_node(refusals.pod, refusals.snapshot, profile)
    except PluginFailure:
        found = ""
    verb = "passes" if number == 1 else "pass"
    text = f"{several(number)} {verb} every filter now, such as {found or names[0]}"
    if not found:
        text = f"{text}, but pods that are nominated there come first"
    return Remedy(plugin="", about="", text=text, nodes=0, examples=[found] if found else names)
