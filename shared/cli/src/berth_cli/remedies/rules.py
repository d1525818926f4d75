"""Taints, labels, ports, spreading and affinity: which key would have to be different, on how many nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from heapq import nlargest
from typing import Final

import numpy as np

from berth.api.node import NO_SCHEDULE_EFFECTS, Taint, is_tolerated
from berth.api.selectors import AffinityTerm, NodeTerm, Requirement
from berth.cluster.columns import HostPort
from berth.cluster.nodes import Mask, Nodes
from berth.plugins import nodeaffinity, nodeports, nodeunschedulable, tainttoleration
from berth.plugins.interpodaffinity.plugin import AFFINITY_COUNTS
from berth.plugins.interpodaffinity.plugin import NAME as INTER_POD_AFFINITY
from berth.plugins.matching import term_mask
from berth.plugins.podtopologyspread.counts import ConstraintCounts
from berth.plugins.podtopologyspread.plugin import NAME as POD_TOPOLOGY_SPREAD
from berth.plugins.podtopologyspread.plugin import SPREAD_COUNTS
from berth_cli.remedies.refusals import EXAMPLES, NodeRefusals, is_of_a_cordon, joined
from berth_cli.remedies.remedy import Remedy

MOST_TERMS: Final = 16
"""Of a node affinity that are compared with each node; of a pod with more nothing is said."""
MOST_TAINTS: Final = 8
MOST_GROUPS: Final = 2
"""Sets of expressions that are told, the one that keeps most nodes first."""
PROBLEM_TAINTS: Final = frozenset(
    {
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
        "node.kubernetes.io/memory-pressure",
        "node.kubernetes.io/disk-pressure",
        "node.kubernetes.io/pid-pressure",
        "node.kubernetes.io/network-unavailable",
        "node.cloudprovider.kubernetes.io/uninitialized",
        "node.cloudprovider.kubernetes.io/shutdown",
    }
)
"""The keys of taints that Kubernetes sets on a node that is not well, and takes away itself.

Others of these domains are set and taken away by people, such as node.kubernetes.io/out-of-service.
"""
_SIGNS: Final = {"Gt": ">", "Lt": "<"}


def untolerated_taints(refusals: NodeRefusals) -> Iterator[Remedy]:
    """One for each taint that the pod does not tolerate, those of most nodes first."""
    plugin, nodes = tainttoleration.NAME, refusals.nodes
    refused, tolerations = refusals.refused(plugin), refusals.state.pod_class.tolerations
    numbers = dict(zip(*(each.tolist() for each in np.unique(nodes.taints[refused], return_counts=True)), strict=True))
    sets: dict[Taint, list[int]] = {}
    for number in numbers:
        for taint in dict.fromkeys(nodes.taint_sets[number]):
            if taint.effect in NO_SCHEDULE_EFFECTS and not is_tolerated(taint, tolerations):
                sets.setdefault(taint, []).append(number)
    times = Counter(number for having in sets.values() for number in having)
    for taint in nlargest(MOST_TAINTS, sets, key=lambda each: sum(numbers[number] for number in sets[each])):
        kept: Mask = refused & np.isin(nodes.taints, sets[taint])
        if is_of_a_cordon(taint):
            kept &= ~refusals.refused(nodeunschedulable.NAME)
        if not kept.any():
            continue
        only = refusals.alone(plugin) & np.isin(nodes.taints, [one for one in sets[taint] if times[one] == 1])
        text = f"{taint.key}{f'={taint.value}' if taint.value else ''}:{taint.effect}"
        before, after = f"has no toleration of the taint {text}, which", "have"
        if taint.key in PROBLEM_TAINTS:
            before, after = "", f"have {text}, a taint that Kubernetes takes away once the node is well"
        elif is_of_a_cordon(taint):
            before, after = "", f"have {text}, a taint that Kubernetes takes away from nodes that are not cordoned"
        yield refusals.remedy(plugin, text, kept, before=before, after=after, only=only)


def cordoned_nodes(refusals: NodeRefusals) -> Iterator[Remedy]:
    plugin = nodeunschedulable.NAME
    yield refusals.remedy(plugin, "cordoned", refusals.refused(plugin), after="are cordoned")


def unmatched_labels(refusals: NodeRefusals) -> Iterator[Remedy]:
    """What the nodes that match best lack of nodeSelector and required node affinity."""
    plugin, pod_class, nodes = nodeaffinity.NAME, refusals.state.pod_class, refusals.nodes
    terms = pod_class.required_nodes.terms if pod_class.required_nodes is not None else (NodeTerm(()),)
    selector = pod_class.node_labels or NodeTerm(())
    wanted = [(*_expressions(selector), *_expressions(term)) for term in terms]
    if not 0 < len(wanted) <= MOST_TERMS:
        return
    numbers = np.array([_failing(each, nodes).sum(axis=0) for each in wanted], dtype=np.int64)
    fewest, best = numbers.min(axis=0), numbers.argmin(axis=0)
    kept: Mask = refusals.refused(plugin) & (fewest > 0)
    if not kept.any():
        return
    near = kept & (fewest == fewest[kept].min())
    groups: dict[tuple[Requirement, ...], Mask] = {}
    for term, each in enumerate(wanted):
        for key, mask in _largest_groups(each, nodes, near & (best == term)):
            groups[key] = groups.get(key, np.zeros_like(near)) | mask
    only = {key: np.count_nonzero(mask & refusals.alone(plugin)) for key, mask in groups.items()}
    for key in nlargest(MOST_GROUPS, groups, key=lambda key: (only[key], np.count_nonzero(groups[key]))):
        about = ", ".join(requirement.key for requirement in key)
        before = f"asks for nodes with {joined(map(requirement_text, key))}, and"
        yield refusals.remedy(plugin, about, groups[key], before=before, after="would match but for that")


Expression = tuple[Requirement, bool]
"""An expression, and whether it is about the node's name."""


def _largest_groups(
    wanted: Sequence[Expression], nodes: Nodes, among: Mask
) -> Iterator[tuple[tuple[Requirement, ...], Mask]]:
    """Of some nodes the largest groups that fail in the same expressions, with these."""
    if not among.any():
        return
    columns, numbers = np.unique(_failing(wanted, nodes)[:, among], axis=1, return_inverse=True)
    group_of, rows = numbers.reshape(-1), np.flatnonzero(among)
    sizes = np.bincount(group_of)
    for group in nlargest(MOST_GROUPS, range(len(sizes)), key=sizes.__getitem__):
        mask: Mask = np.zeros(len(among), dtype=np.bool_)
        mask[rows[group_of == group]] = True
        failing = columns[:, group].tolist()
        yield tuple(each for (each, _), fails in zip(wanted, failing, strict=True) if fails), mask


def _failing(wanted: Sequence[Expression], nodes: Nodes) -> Mask:
    """bool[expressions, nodes]: which nodes do not satisfy which expression."""
    failing: Mask = np.array([~_satisfied(each, nodes) for each in wanted], dtype=np.bool_).reshape(-1, len(nodes))
    return failing


def _expressions(term: NodeTerm) -> list[Expression]:
    return [*((each, False) for each in term.labels), *((each, True) for each in term.names)]


def _satisfied(expression: Expression, nodes: Nodes) -> Mask:
    requirement, is_name = expression
    return term_mask(NodeTerm((), (requirement,)) if is_name else NodeTerm((requirement,)), nodes)


def requirement_text(requirement: Requirement) -> str:
    """``disktype=ssd``, ``zone in (a, b)``, ``no spot``, ``cores > 8``."""
    key, values = requirement.key, sorted(requirement.values)
    among = f"({', '.join([*values[:EXAMPLES], *(['...'] if len(values) > EXAMPLES else [])])})"
    match requirement.operator:
        case "In":
            return f"{key}={values[0]}" if len(values) == 1 else f"{key} in {among}"
        case "NotIn":
            return f"{key} not in {among}"
        case "Exists":
            return key
        case "DoesNotExist":
            return f"no {key}"
        case "Gt" | "Lt":
            return f"{key} {_SIGNS[requirement.operator]} {values[0]}"
        case _:
            return f"{key} as no node can have it"


def taken_ports(refusals: NodeRefusals) -> Iterator[Remedy]:
    """One for each port of the node that the pod wants and others have."""
    plugin, snapshot, rows = nodeports.NAME, refusals.snapshot, refusals.nodes.rows
    wanted = dict.fromkeys(refusals.state.pod_class.host_ports)
    taken = {port: snapshot.host_ports.taken_mask((port,), rows, snapshot.size) for port in wanted}
    several_taken = np.sum(list(taken.values()), axis=0) > 1
    for port, mask in taken.items():
        kept: Mask = mask & refusals.refused(plugin)
        if not kept.any():
            continue
        text = f"{port.port}/{port.protocol}"
        before = f"asks for host port {text}, which {_holder(refusals, port, kept)} on"
        yield refusals.remedy(plugin, text, kept, before=before, only=refusals.alone(plugin) & ~several_taken)


def _holder(refusals: NodeRefusals, port: HostPort, kept: Mask) -> str:
    """The pod that has the port on the first of the nodes."""
    row = refusals.snapshot.rows.of(refusals.names(kept)[0])
    for each in refusals.snapshot.placed_on_row(row) if row is not None else ():
        if any(port.conflicts(other) for other in each.pod_class.host_ports):
            return f"others have, such as {each.pod.metadata.namespace}/{each.pod.metadata.name},"
    return "others have"


def uneven_domains(refusals: NodeRefusals) -> Iterator[Remedy]:
    """One for each topology spread constraint: the domains that may take the pod."""
    counted = refusals.state.find(SPREAD_COUNTS)
    for counts in counted.constraints if counted is not None else ():
        yield from _uneven(refusals, counts)


def _uneven(refusals: NodeRefusals, counts: ConstraintCounts) -> Iterator[Remedy]:
    nodes, key, refused = refusals.nodes, counts.constraint.key, refusals.refused(POD_TOPOLOGY_SPREAD)
    lacking: Mask = refused & ~counts.domains.present(nodes)
    if lacking.any():
        before = f"is spread over {key}, a label that"
        yield refusals.remedy(POD_TOPOLOGY_SPREAD, key, lacking, before=before, after="lack")
    full: Mask = refused & (counts.domains.of_nodes(nodes) > counts.max_count)
    if not full.any():
        return
    column = refusals.snapshot.label_column(key)
    open_codes = np.flatnonzero((counts.domains.numbers <= counts.max_count) & counts.is_domain)
    values = [column.values[code - 1] for code in open_codes.tolist() if code]
    shown = ", ".join([*sorted(values)[:EXAMPLES], *(["..."] if len(values) > EXAMPLES else [])])
    which = f"only where {key} is {shown}" if values else f"in no domain of {key}"
    before = f"may be placed {which}, by its maxSkew of {counts.constraint.max_skew}, and"
    yield refusals.remedy(POD_TOPOLOGY_SPREAD, key, full, before=before, after="are elsewhere")


def pods_beside(refusals: NodeRefusals) -> Iterator[Remedy]:
    """One for each required affinity and anti-affinity term, and for those of placed pods."""
    counts = refusals.state.find(AFFINITY_COUNTS)
    if counts is None:
        return
    refused, nodes = refusals.refused(INTER_POD_AFFINITY), refusals.nodes
    for term, domains in zip(counts.terms.required_affinity, counts.affinity, strict=True):
        kept: Mask = refused & ~(domains.of_nodes(nodes) > 0)
        before, after = f"asks to be beside pods with {_pods(term)}, and", f"have none in their {term.topology_key}"
        if not domains.any():
            before, after = f"asks to be beside pods with {_pods(term)}, of which there is none, on", ""
        yield from _term(refusals, term.topology_key, kept, before, after)
    for term, domains in zip(counts.terms.required_anti_affinity, counts.anti_affinity, strict=True):
        kept = refused & (domains.of_nodes(nodes) > 0)
        before, after = f"asks to be apart from pods with {_pods(term)}, and", f"have one in their {term.topology_key}"
        yield from _term(refusals, term.topology_key, kept, before, after)
    for key, domains in counts.existing_anti_affinity.items():
        kept = refused & (domains.of_nodes(nodes) > 0)
        yield from _term(refusals, key, kept, "pods that ask to be apart from this one are on", f"or in their {key}")


def _term(refusals: NodeRefusals, key: str, kept: Mask, before: str, after: str) -> Iterator[Remedy]:
    if kept.any():
        yield refusals.remedy(INTER_POD_AFFINITY, key, kept, before=before, after=after)


def _pods(term: AffinityTerm) -> str:
    """The selector of a term."""
    requirements: Sequence[Requirement] = term.selector.labels.requirements
    return joined(requirement_text(each) for each in requirements) or "any labels"
