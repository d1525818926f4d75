"""Requests to extenders and their answers, in the JSON of k8s.io/kube-scheduler/extender/v1. No I/O.

Answers are read as Go reads them: field names in any case, ``null`` for an absent value, unknown fields skipped. Any
other deviation is an error: another type, a fractional number, a node outside the request.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from berth.api.config.configuration import ExtenderConfiguration
from berth.api.meta import Int64
from berth.api.node import Node
from berth.api.pod import Pod
from berth.decoding import MALFORMED
from berth.framework.extending import EXTENDER
from berth.framework.interface import Nomination
from berth.framework.status import Code, Status
from berth.safetext import one_line, without_passwords

# kube-scheduler's MaxNodeScore / MaxExtenderPriority: extenders give 0 to 10, plugins 0 to 100.
SCALE: Final = 10
# Points per node, weighted, from all extenders: more cannot be ordered together with the number of pods.
MOST_POINTS: Final = 2**40
QUOTED: Final = 1024  # characters of an extender's text


class ExtenderError(Exception):
    """An extender gave no answer or an unusable one. The text names it, without password."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterAnswer:
    left: tuple[str, ...]
    rejected: Mapping[str, Status]


class _NamedMetadata(msgspec.Struct, frozen=True):
    name: str


class _NamedNode(msgspec.Struct, frozen=True):
    metadata: _NamedMetadata


def extender_args(extender: ExtenderConfiguration, pod: Pod, nodes: Mapping[str, Node]) -> bytes:
    """ExtenderArgs: the pod, and the nodes or their names.

    Objects that the bus carries only in part are sent as far as berth has them.
    """
    body = [b'{"Pod":', _whole(pod), b',"Nodes":']
    if extender.node_cache_capable:
        body += [b'null,"NodeNames":', msgspec.json.encode(list(nodes)), b"}"]
    else:
        items = b",".join(_whole(node) for node in nodes.values())
        body += [b'{"metadata":{},"items":[', items, b']},"NodeNames":null}']
    return b"".join(body)


def _whole(thing: Pod | Node) -> bytes:
    return bytes(thing.whole) or msgspec.json.encode(thing)


def filter_answer(extender: ExtenderConfiguration, body: bytes, asked: Collection[str]) -> FilterAnswer:
    """Read an ExtenderFilterResult.

    Raises:
        ExtenderError: malformed, names other nodes, or has an error.
    """
    fields = _fields(extender, body)
    error = _field(extender, fields, "error", str) or ""
    if error:
        raise ExtenderError(shown(error))
    names: list[str] | None = None
    if extender.node_cache_capable:
        names = _field(extender, fields, "nodenames", list[str])
    if names is None and (nodes := fields.get("nodes")) is not None and bytes(nodes) != b"null":
        items = _field(extender, _fields(extender, nodes), "items", list[_NamedNode]) or []
        names = [item.metadata.name for item in items]
    left = tuple(dict.fromkeys(names or ()))
    for name in left:
        if name not in asked:
            raise ExtenderError(
                f'extender "{extender.name}" claims a filtered node "{shown(name)}" '
                "which is not found in the input node list"
            )
    failed = {
        Code.UNSCHEDULABLE: _field(extender, fields, "failednodes", dict[str, str]) or {},
        Code.UNSCHEDULABLE_AND_UNRESOLVABLE: _field(extender, fields, "failedandunresolvablenodes", dict[str, str])
        or {},
    }
    rejected = {
        name: Status(code, (shown(reason),), EXTENDER)
        for code, reasons in failed.items()
        for name, reason in reasons.items()
        if name in asked
    }
    return FilterAnswer(left=left, rejected=rejected)


def priorities(extender: ExtenderConfiguration, body: bytes, asked: Collection[str]) -> dict[str, int]:
    """Read a HostPriorityList: points by node, weighted and scaled. Other nodes are left out.

    Raises:
        ExtenderError: malformed, or more points than can be counted.
    """
    points: dict[str, int] = {}
    for entry in _decoded(extender, body, list[dict[str, msgspec.Raw]] | None) or ():
        fields = {name.lower(): value for name, value in entry.items()}
        node = _field(extender, fields, "host", str) or ""
        score = _field(extender, fields, "score", Int64) or 0
        if node in asked:
            points[node] = points.get(node, 0) + score * extender.weight * SCALE
    if any(abs(given) > MOST_POINTS for given in points.values()):
        raise ExtenderError(f'extender "{extender.name}" gives more than {MOST_POINTS} points')
    return points


def preemption_args(
    extender: ExtenderConfiguration, pod: Pod, candidates: Sequence[Nomination], victims: Mapping[str, Pod]
) -> bytes:
    """ExtenderPreemptionArgs: the pod, and the victims or their uids by node. ``victims``: pods by uid."""
    metas = extender.node_cache_capable
    by_node = {
        each.node: _Victims(
            pods=[_MetaPod(uid) if metas else msgspec.Raw(_whole(victims[uid])) for uid in each.victims],
            num_pdb_violations=each.violations,
        )
        for each in candidates
    }
    fields = (msgspec.json.encode(None if is_absent else by_node) for is_absent in (metas, not metas))
    return b'{"Pod":%b,"NodeNameToVictims":%b,"NodeNameToMetaVictims":%b}' % (_whole(pod), *fields)


class _MetaPod(msgspec.Struct, frozen=True):
    uid: str = msgspec.field(name="UID")


class _Victims(msgspec.Struct, frozen=True, rename="pascal"):
    pods: Sequence[_MetaPod | msgspec.Raw]
    num_pdb_violations: int = msgspec.field(name="NumPDBViolations")


def preemption_answer(
    extender: ExtenderConfiguration, body: bytes, asked: Collection[str]
) -> dict[str, frozenset[str]]:
    """Read an ExtenderPreemptionResult: at least one victim's uid per node.

    Raises:
        ExtenderError: malformed, names other nodes, or a node without a victim.
    """
    answer = _field(extender, _fields(extender, body), "nodenametometavictims", dict[str, msgspec.Raw]) or {}
    found: dict[str, frozenset[str]] = {}
    for node, value in answer.items():
        if node not in asked:
            raise ExtenderError(f'extender "{extender.name}" was not asked about evictions on node "{shown(node)}"')
        pods = _field(extender, _fields(extender, value), "pods", list[dict[str, msgspec.Raw] | None]) or []
        named = [{name.lower(): raw for name, raw in (each or {}).items()} for each in pods]
        found[node] = frozenset(_field(extender, fields, "uid", str) or "" for fields in named)
        if not found[node] and not extender.ignorable:
            raise ExtenderError(f'expected at least one victim pod on node "{shown(node)}"')
    return {node: victims for node, victims in found.items() if victims}


class _BindingArgs(msgspec.Struct, frozen=True, rename="pascal"):
    pod_name: str
    pod_namespace: str
    pod_uid: str = msgspec.field(name="PodUID")
    node: str


def binding_args(pod: Pod, node: str) -> bytes:
    metadata = pod.metadata
    return msgspec.json.encode(_BindingArgs(metadata.name, metadata.namespace, metadata.uid, node))


def binding_answer(extender: ExtenderConfiguration, body: bytes) -> None:
    """Read an ExtenderBindingResult.

    Raises:
        ExtenderError: malformed, or has an error.
    """
    error = _field(extender, _fields(extender, body), "error", str) or ""
    if error:
        raise ExtenderError(shown(error))


def shown(text: str) -> str:
    """An extender's text in one line, of limited length."""
    return without_passwords(one_line(text[:QUOTED]))


def _fields(extender: ExtenderConfiguration, body: bytes | msgspec.Raw) -> dict[str, msgspec.Raw]:
    """The fields of an object by lower-case name; of several with one name the last counts."""
    found = _decoded(extender, body, dict[str, msgspec.Raw] | None) or {}
    return {name.lower(): value for name, value in found.items()}


def _field(extender: ExtenderConfiguration, fields: Mapping[str, msgspec.Raw], name: str, kind: Any) -> Any:
    return _decoded(extender, fields[name], kind | None) if name in fields else None


def _decoded(extender: ExtenderConfiguration, body: bytes | msgspec.Raw, kind: Any) -> Any:
    try:
        return msgspec.json.decode(body, type=kind)
    except MALFORMED as exc:
        raise ExtenderError(f'reading the answer of extender "{extender.name}": {shown(str(exc))}') from exc
