"""Which plugins refuse which nodes now: every filter is asked about every node, and what one finding is told as.

A cycle stops at a node's first refusal. What would help is known only with everything that refuses the node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from berth.api.node import UNSCHEDULABLE_TAINT, Taint, first_untolerated
from berth.api.pod import Pod
from berth.api.podlimits import refusal
from berth.cluster.nodes import Mask, Nodes
from berth.cluster.snapshot import Snapshot
from berth.framework.filtering import pre_filter
from berth.framework.plugincalls import PluginFailure, run_filter_on_all
from berth.framework.profile import Profile
from berth.framework.status import Code, CycleState
from berth.plugins import nodeunschedulable, tainttoleration
from berth_cli.remedies.remedy import Remedy
from berth_cli.rendering import natural

Counts = npt.NDArray[np.int64]

EXAMPLES: Final = 3
"""Nodes that a sentence names."""
_OF_ONE: Final = {"have": "has", "are": "is", "lack": "lacks"}
TEXT_CHARACTERS: Final = 300
"""Of a sentence: names and values in it come from others."""


@dataclass(frozen=True)
class NodeRefusals:
    """``by_plugin``: bool[nodes], which of the nodes the plugin refuses, whatever other plugins say.

    The taint of a cordon counts as NodeUnschedulable's alone: it comes and goes with the cordon.
    """

    pod: Pod
    state: CycleState
    nodes: Nodes
    by_plugin: Mapping[str, Mask]

    @property
    def snapshot(self) -> Snapshot:
        return self.nodes.snapshot

    @cached_property
    def times(self) -> Counts:
        """By how many plugins each node is refused."""
        times: Counts = np.zeros(len(self.nodes), dtype=np.int64)
        for mask in self.by_plugin.values():
            times += mask
        return times

    def refused(self, plugin: str) -> Mask:
        return self.by_plugin.get(plugin, np.zeros(len(self.nodes), dtype=np.bool_))

    def alone(self, plugin: str) -> Mask:
        """Which nodes no other plugin refuses."""
        only: Mask = self.refused(plugin) & (self.times == 1)
        return only

    @cached_property
    def places(self) -> Counts:
        return places_by_name(self.nodes)

    def names(self, chosen: Mask) -> list[str]:
        """The first of these nodes, by name."""
        at = np.flatnonzero(chosen)
        first = at[np.argsort(self.places[at])[:EXAMPLES]]
        names = self.snapshot.rows.names
        return [names[row] for row in self.nodes.rows[first].tolist()]

    def remedy(  # noqa: PLR0913 - the parts of a sentence, given by name
        self, plugin: str, about: str, kept: Mask, *, before: str = "", after: str = "", only: Mask | None = None
    ) -> Remedy:
        """One about the nodes ``kept`` from the pod: how many they are, with names, between two parts of a sentence.

        ``after`` begins with a verb in the plural, if it has one.

        ``only``: which nodes are kept by nothing else, where that is not what the plugin alone refuses.
        """
        only = self.alone(plugin) if only is None else only
        nodes, alone, names = int(np.count_nonzero(kept)), int(np.count_nonzero(kept & only)), self.names(kept)
        verb, _, rest = after.partition(" ")
        after = f"{_OF_ONE.get(verb, verb)} {rest}".strip() if nodes == 1 else after
        sentence = " ".join(filter(None, (before, several(nodes), _listed(names, nodes), after)))
        text = f"{cut(sentence)}; {_besides(nodes, alone)}"
        return Remedy(plugin=plugin, about=cut(about), text=text, nodes=nodes, alone=alone, examples=names)


def refusals_of(pod: Pod, snapshot: Snapshot, profile: Profile) -> NodeRefusals | None:
    """What refuses the pod; ``None`` where a filter cannot tell, or PreFilter refuses it wherever the node is.

    Extenders are not asked, so nothing is known of a pod that they filter for.
    """
    pod_class, rows = snapshot.class_of(pod), np.flatnonzero(snapshot.columns.exists[: snapshot.size])
    if refusal(pod) or pod_class.requests.problems or not len(rows) or profile.is_extended(pod):
        return None
    state, nodes = CycleState(pod_class), Nodes(snapshot, rows)
    try:
        found = pre_filter(pod, snapshot, profile, state, {})
        if found.rejection is not None:
            return None
        verdicts = {
            plugin.name: run_filter_on_all(plugin, state, pod, nodes)
            for plugin in profile.filters
            if plugin.name not in found.skipped
        }
    except PluginFailure:
        return None
    if any(status.code is Code.ERROR for verdict in verdicts.values() for status in verdict.statuses):
        return None
    refused: dict[str, Mask] = {name: verdict.codes != 0 for name, verdict in verdicts.items()}
    if tainttoleration.NAME in refused and nodeunschedulable.NAME in refused:
        refused[tainttoleration.NAME] &= ~_tainted_by_a_cordon_alone(state, nodes, refused[nodeunschedulable.NAME])
    return NodeRefusals(pod, state, nodes, {name: mask for name, mask in refused.items() if mask.any()})


def is_of_a_cordon(taint: Taint) -> bool:
    """Whether Kubernetes sets this taint on a node that is cordoned, and takes it away when it is uncordoned."""
    return (taint.key, taint.effect) == (UNSCHEDULABLE_TAINT.key, UNSCHEDULABLE_TAINT.effect)


def _tainted_by_a_cordon_alone(state: CycleState, nodes: Nodes, cordoned: Mask) -> Mask:
    """Which of the cordoned nodes have no taint of another kind that the pod does not tolerate."""
    tolerations, sets = state.pod_class.tolerations, nodes.taint_sets
    alone = [
        number
        for number in np.unique(nodes.taints[cordoned]).tolist()
        if first_untolerated((each for each in sets[number] if not is_of_a_cordon(each)), tolerations) is None
    ]
    mask: Mask = cordoned & np.isin(nodes.taints, alone)
    return mask


def places_by_name(nodes: Nodes) -> Counts:
    """int64[nodes]: the place of each in the order of names, made once, however many sentences name nodes."""
    names = nodes.names
    places: Counts = np.empty(len(names), dtype=np.int64)
    places[sorted(range(len(names)), key=lambda at: natural(names[at]))] = np.arange(len(names))
    return places


def _listed(names: Iterable[str], count: int) -> str:
    """``(node-1, node-2, node-3, ...)`` of so many."""
    shown = list(names)
    return f"({', '.join([*shown, *(['...'] if count > len(shown) else [])])})"


def several(number: int, what: str = "node") -> str:
    """``1 node``, ``12 nodes``."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _besides(kept: int, only: int) -> str:
    """What else keeps the pod from these nodes."""
    if kept == only:
        return "nothing else refuses it there"
    if not only:
        return "something else refuses it there too"
    return f"on {only} of them nothing else refuses it"


def cut(text: str) -> str:
    return text if len(text) <= TEXT_CHARACTERS else f"{text[: TEXT_CHARACTERS - 3]}..."


def joined(parts: Iterable[str]) -> str:
    """``a, b and c``."""
    every = list(parts)
    return " and ".join(filter(None, (", ".join(every[:-1]), *every[-1:])))
