"""Advice on a pod: the sentences of the filters that reject it, the only obstacles first.

Of these, what nodes lack altogether comes last. A cycle stops at a node's first rejection. Advice needs all of them, so
every filter runs on every node.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Final

import numpy as np

from berth.api.pod import Pod
from berth.api.podlimits import refusal
from berth.cluster.nodes import Mask, Nodes, RejectedNodes, RowIndex
from berth.cluster.snapshot import Snapshot
from berth.framework.cycle import feasible_nodes
from berth.framework.filtering import earmarked_rows, pre_filter
from berth.framework.interface import FilterPlugin, RemedyPlugin, RemedySentence
from berth.framework.plugincalls import PluginFailure, run_filter_on_all, run_remedy, run_remedy_by_reason
from berth.framework.profile import Profile
from berth.framework.status import Code, CycleState, Verdicts
from berth.messages.attempts import Rejection
from berth.messages.earmarks import FILTER
from berth.plugins import nodeunschedulable, tainttoleration
from berth_cli.remedies.remedy import Remedy
from berth_cli.rendering import natural

# Sentences on one pod. People read no more, and objects of others may cause any number of reasons.
MOST_REMEDIES: Final = 8
EXAMPLES: Final = 3  # nodes that a sentence names
# Sentences are cut at this length: names and values in them come from others.
TEXT_CHARACTERS: Final = 300
_SINGULAR: Final = {"have": "has", "are": "is", "lack": "lacks"}


def remedies_of(
    pod: Pod, snapshot: Snapshot, profile: Profile, *, only_errors: bool = False, among: Mask | None = None
) -> list[Remedy]:
    """The certain advice. A placed pod does not count against itself.

    ``only_errors``: only on errors of filters. ``among``: bool[rows], the nodes that count; all by default.
    """
    placed = snapshot.node_of(pod.uid) is not None
    with snapshot.supposing(removed=[pod.uid]) if placed else nullcontext():
        rejections = _rejections_of(pod, snapshot, profile, among)
        if rejections is None or (only_errors and not rejections.errors):
            return []
        if not rejections.errors and len(free := rejections.free):
            return [_passing(pod, snapshot, profile, free)]
        plugins = [each for each in profile.filters if not rejections.errors or each.name in rejections.errors]
        found = [pair for plugin in plugins for pair in rejections.remedies(plugin)]
    found.sort(key=lambda each: (not each[1].alone, each[0].lacking, -each[1].alone, -each[1].nodes))
    return [remedy for _, remedy in found[:MOST_REMEDIES]]


def remedies_by_reasons(rejections: Sequence[Rejection], snapshot: Snapshot, profile: Profile) -> list[Remedy]:
    """The nodes' side of a Decision's rejections, for a pod whose requests are unknown."""
    nodes = Nodes(snapshot, _rows_by_name(snapshot))
    plugins = {plugin.name: plugin for plugin in profile.filters if isinstance(plugin, RemedyPlugin)}
    found: list[Remedy] = []
    for rejection in rejections if len(nodes) else ():
        if len(found) == MOST_REMEDIES:
            break
        plugin = plugins.get(rejection.plugin)
        try:
            sentence = None if plugin is None else run_remedy_by_reason(plugin, rejection.reason, nodes)
        except PluginFailure as failure:
            sentence = _failed(failure)
        if sentence is not None:
            found.append(_whole(rejection.plugin, sentence, nodes=rejection.nodes))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rejections:
    """The rejections of a pod. ``by_plugin``: bool[rows], all nodes that a plugin rejects, or where it has failed."""

    pod: Pod
    state: CycleState
    snapshot: Snapshot
    rows: RowIndex
    by_plugin: Mapping[str, Mask]
    errors: frozenset[str] = frozenset()  # the plugins that have failed: one failure ends the cycle

    @property
    def free(self) -> RowIndex:
        rejected = np.zeros(len(self.rows), dtype=np.bool_)
        for mask in self.by_plugin.values():
            rejected |= mask
        return self.rows[~rejected]

    def remedies(self, plugin: FilterPlugin) -> Iterator[tuple[RemedySentence, Remedy]]:
        rejected = self.by_plugin.get(plugin.name)
        if rejected is None or not rejected.any() or not isinstance(plugin, RemedyPlugin):
            return
        others = {name: mask[rejected] for name, mask in self.by_plugin.items() if name != plugin.name}
        nodes = RejectedNodes(self.snapshot, self.rows[rejected], others)
        try:
            sentences = run_remedy(plugin, self.state, self.pod, nodes)
        except PluginFailure as failure:
            sentences = [_failed(failure)]
        every = np.ones(len(nodes), dtype=np.bool_)
        masks = [every if sentence.nodes is None else sentence.nodes for sentence in sentences]
        once = nodes.alone & np.equal(np.sum(masks, axis=0), 1)
        for sentence, mask in zip(sentences, masks, strict=True):
            if mask.any():
                only = once if sentence.only is None else sentence.only
                yield sentence, _about(plugin.name, sentence, nodes, mask, only)


def _rejections_of(pod: Pod, snapshot: Snapshot, profile: Profile, among: Mask | None) -> _Rejections | None:
    """``None`` if a filter fails without an explanation, or if PreFilter rejects the pod on all nodes.

    Extenders are not asked, so a pod that an extender filters gets no advice.
    """
    pod_class, rows = snapshot.class_of(pod), _rows_by_name(snapshot)
    rows = rows if among is None else rows[among[rows]]
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
    errors = {name: mask for name, verdict in verdicts.items() if (mask := _errors(verdict)).any()}
    explained = {each.name for each in profile.filters if isinstance(each, RemedyPlugin) and each.explains_errors}
    if not errors.keys() <= explained:
        return None
    rejected: dict[str, Mask] = {name: np.not_equal(verdict.codes, 0) for name, verdict in verdicts.items()}
    rejected |= errors
    for _, earmarked in earmarked_rows(pod, snapshot):
        rejected[FILTER] = np.isin(rows, earmarked) | rejected.get(FILTER, np.zeros(len(rows), dtype=np.bool_))
    cordoned = rejected.get(nodeunschedulable.NAME)
    if cordoned is not None and tainttoleration.NAME in rejected:
        # One obstacle: Kubernetes taints a cordoned node, and removes the taint when the node is uncordoned.
        rejected[tainttoleration.NAME] &= ~(cordoned & tainttoleration.tainted_by_a_cordon_only(state, nodes))
    return _Rejections(pod=pod, state=state, snapshot=snapshot, rows=rows, by_plugin=rejected, errors=frozenset(errors))


def _errors(verdict: Verdicts) -> Mask:
    found: Mask = np.isin(verdict.codes, [i for i, each in enumerate(verdict.statuses) if each.code is Code.ERROR])
    return found


def _rows_by_name(snapshot: Snapshot) -> RowIndex:
    names, rows = snapshot.rows.names, np.flatnonzero(snapshot.columns.exists[: snapshot.size])
    return np.array(sorted(rows.tolist(), key=lambda row: natural(names[row])), dtype=np.intp)


def _passing(pod: Pod, snapshot: Snapshot, profile: Profile, free: RowIndex) -> Remedy:
    """Advice if a node passes every filter now, though pods nominated to it may come first."""
    names = [snapshot.rows.names[row] for row in free.tolist()]
    try:
        there = set(names)
        found = next((name for name in feasible_nodes(pod, snapshot, profile) if name in there), "")
    except PluginFailure:
        found = ""
    verb = "passes" if len(free) == 1 else "pass"
    text = f"{_several(len(free))} {verb} every filter now, such as {found or names[0]}"
    if not found:
        text = f"{text}, but pods that are nominated there come first"
    return Remedy(plugin="", about="", text=text, nodes=0, examples=[found] if found else names[:EXAMPLES])


def _failed(failure: PluginFailure) -> RemedySentence:
    return RemedySentence(about="", text=f"what would help is unknown: {failure}")


def _about(plugin: str, sentence: RemedySentence, nodes: Nodes, mask: Mask, only: Mask) -> Remedy:
    count, alone = int(np.count_nonzero(mask)), int(np.count_nonzero(mask & only))
    if sentence.text:
        return _whole(plugin, sentence, nodes=count, alone=alone)
    names = [nodes.snapshot.rows.names[row] for row in nodes.rows[mask][:EXAMPLES].tolist()]
    listed = f"({', '.join([*names, *(['...'] if count > len(names) else [])])})"
    verb, _, rest = sentence.after.partition(" ")
    after = f"{_SINGULAR.get(verb, verb)} {rest}".strip() if count == 1 else sentence.after
    text = _cut(" ".join(filter(None, (sentence.before, _several(count), listed, after))))
    text = f"{text}; {_besides(count, alone)}"
    return Remedy(plugin=plugin, about=_cut(sentence.about), text=text, nodes=count, alone=alone, examples=names)


def _whole(plugin: str, sentence: RemedySentence, *, nodes: int, alone: int = 0) -> Remedy:
    """A sentence that names its nodes itself."""
    return Remedy(
        plugin=plugin,
        about=_cut(sentence.about),
        text=_cut(sentence.text),
        nodes=nodes,
        alone=alone,
        examples=[*sentence.examples],
        amounts=dict(sentence.amounts),
    )


def _several(number: int) -> str:
    return "1 node" if number == 1 else f"{number} nodes"


def _besides(kept: int, alone: int) -> str:
    """The other obstacles on these nodes."""
    if kept == alone:
        return "nothing else refuses it there"
    if not alone:
        return "something else refuses it there too"
    return f"on {alone} of them nothing else refuses it"


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_CHARACTERS else f"{text[: TEXT_CHARACTERS - 3]}..."
