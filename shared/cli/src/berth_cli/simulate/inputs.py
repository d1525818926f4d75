"""Reads the input files of ``berth simulate`` into a Snapshot of the cluster and the pods to place.

All errors in the files are reported together, before the simulation starts.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec

from berth.api.devices import ResourceClaimTemplate
from berth.api.kinds import PLUGIN_KINDS
from berth.api.node import Node
from berth.api.pod import Pod, bound_at, is_bound, is_finished, is_gone_while_unbound
from berth.api.podgroups import group_of
from berth.api.workloads import Namespace, PriorityClass
from berth.cluster.podgroups import PodGroups
from berth.cluster.snapshot import Snapshot
from berth.exits import UsageError
from berth.messages.livedata import LiveSource
from berth_cli.simulate.admission import StoredObjects, stored
from berth_cli.simulate.defaults import scheduler_of
from berth_cli.simulate.documents import Document, documents
from berth_cli.simulate.loads import give_loads, loads_of
from berth_cli.simulate.objects import (
    FoundObject,
    Identity,
    ObjectReader,
    ReadObject,
    as_pod,
)
from berth_cli.simulate.workloads import with_pods

MOST_BYTES: Final = 1 << 29  # of a file; 50,000 pods in YAML take a fifth
STDIN: Final = "-"

_KINDS_NAMED: Final = 5  # kinds that a note about ignored objects lists
# By kind, the work of an API server on new pods that berth simulate does not do.
_NOT_APPLIED: Final[Mapping[str, str]] = {
    "LimitRange": "a LimitRange may set requests",
    "RuntimeClass.node.k8s.io": "a RuntimeClass may add overhead and a node selector",
    "ResourceQuota": "a ResourceQuota may reject pods",
    "MutatingWebhookConfiguration.admissionregistration.k8s.io": "webhooks may change pods",
    "ValidatingWebhookConfiguration.admissionregistration.k8s.io": "webhooks may reject pods",
    "MutatingAdmissionPolicy.admissionregistration.k8s.io": "admission policies may change pods",
    "ValidatingAdmissionPolicy.admissionregistration.k8s.io": "admission policies may reject pods",
}
_NO_PODS_MADE: Final = ("ReplicationController", "DaemonSet.apps", "CronJob.batch")
_NAME_LABEL: Final = "kubernetes.io/metadata.name"
_PLUGIN_KINDS: Final = {kind.struct: kind for kind in PLUGIN_KINDS.values()}

Objects = dict[Identity, FoundObject[ReadObject]]

# Reads the objects of a file that is no output of kubectl; returns ``None`` for files that may be.
OtherForm = Callable[[str], Iterator[Document] | None]


class InputError(UsageError):
    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(dict.fromkeys(problems))
        super().__init__("; ".join(self.problems))


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """``notes`` are about ignored contents of the files."""

    snapshot: Snapshot
    pods: tuple[Pod, ...]
    notes: tuple[str, ...]


def read_inputs(  # noqa: PLR0913 - the flags, by name
    cluster: Sequence[str],
    pods: Sequence[str],
    schedulers: Collection[str],
    *,
    loads: Sequence[str] = (),
    live_sources: Collection[LiveSource] = (),
    with_pending: bool = False,
    other_form: OtherForm | None = None,
) -> Inputs:
    """Read the files; ``-`` is standard input. ``with_pending``: the cluster's pending pods are placed too.

    ``loads`` are samples for these sources. ``other_form`` is tried first on each file of the cluster.

    Raises:
        InputError: with all errors in the files.
    """
    if [*cluster, *pods, *loads].count(STDIN) > 1:
        raise InputError([f"{STDIN}: standard input can be read once: use it in --cluster, in --pods or in --load"])
    files = _read(cluster, pods, other_form)
    samples = loads_of(_documents(loads, files.problems), files.problems)
    if with_pending:
        named = {one.identity for one in files.pods}
        files.why_not_placed = "no profile has their schedulerName"
        pending = _pending(_pods(files.cluster.values()), schedulers=schedulers)
        files.pods += [one for one in pending if one.identity not in named]
    to_place = _pods_to_place(_of_profiles(files, tuple(schedulers)), problems=files.problems)
    files.problems.extend(_equal_uids((*_pods(files.cluster.values()), *to_place.values())))
    inputs = _inputs(files, to_place)
    return replace(
        inputs, notes=(*inputs.notes, *(give_loads(inputs.snapshot, samples, live_sources) if loads else ()))
    )


@dataclass(slots=True, kw_only=True)
class _Files:
    """``added``: other objects in --pods, such as the pods' claims."""

    cluster: Objects
    added: Objects
    pods: list[FoundObject[Pod]]
    problems: list[str]
    notes: list[str]
    cluster_is_whole: bool
    why_not_placed: str = "--pods does not name them"


def _read(cluster: Sequence[str], pods: Sequence[str], other_form: OtherForm | None) -> _Files:
    problems: list[str] = []
    of_cluster, of_pods = ObjectReader(problems=problems), ObjectReader(problems=problems)
    objects = _unique(of_cluster.read(_documents(cluster, problems, other_form)), problems)
    cluster_is_whole = not problems
    found = list(of_pods.read(with_pods(_documents(pods, problems), problems)))
    nodes = Counter(one.kind for one in found if isinstance(one.value, Node))
    added = _unique((one for one in found if not isinstance(one.value, Node | Pod)), problems)
    notes = [
        *_left_out("--cluster", "no cycle reads them", of_cluster.others),
        *_left_out("--pods", "neither pods nor objects that come with pods", of_pods.others + nodes),
        *_without_pods(of_pods.others + Counter(one.kind for one in found)),
        *_not_applied(of_cluster.others + of_pods.others, found),
    ]
    return _Files(
        cluster=objects,
        added=added,
        pods=list(_pods(found)),
        problems=problems,
        notes=notes,
        cluster_is_whole=cluster_is_whole,
    )


def _documents(names: Sequence[str], problems: list[str], other_form: OtherForm | None = None) -> Iterator[Document]:
    for name in names:
        found = other_form(name) if other_form is not None and name != STDIN else None
        if found is not None:
            yield from found
            continue
        try:
            data = sys.stdin.buffer.read(MOST_BYTES + 1) if name == STDIN else _start_of(name)
        except OSError as exc:
            problems.append(f"{name}: reading: {exc.strerror or exc}")
            continue
        if len(data) > MOST_BYTES:
            problems.append(f"{name}: want at most {MOST_BYTES} bytes, got more: split it")
            continue
        yield from documents("standard input" if name == STDIN else name, data, problems)


def _start_of(name: str) -> bytes:
    with Path(name).open("rb") as file:
        return file.read(MOST_BYTES + 1)


def _unique(found: Iterable[FoundObject[ReadObject]], problems: list[str]) -> Objects:
    """Each object once. An object may be in two files, but not in two states."""
    by_identity: Objects = {}
    for one in found:
        before = by_identity.setdefault(one.identity, one)
        if before.value != one.value:
            problems.append(f"{one.where}: differs from {before.where}: keep only one of them")
    return by_identity


def _pods(found: Iterable[FoundObject[ReadObject]]) -> Iterator[FoundObject[Pod]]:
    return (pod for one in found if (pod := as_pod(one)) is not None)


def _pending(pods: Iterable[FoundObject[Pod]], *, schedulers: Collection[str]) -> Iterator[FoundObject[Pod]]:
    for one in pods:
        pod = one.value
        waits = not pod.spec.node_name and not is_finished(pod) and not pod.metadata.deletion_timestamp
        if waits and scheduler_of(pod) in schedulers:
            yield one


def _of_profiles(files: _Files, schedulers: Sequence[str]) -> list[FoundObject[Pod]]:
    """The pods of --pods. Those of other schedulers are placed by the first profile, with a note."""
    others = [one for one in files.pods if scheduler_of(one.value) not in schedulers]
    files.notes.extend(_placed_as(schedulers[0], others))
    return [one if scheduler_of(one.value) in schedulers else _of(schedulers[0], one) for one in files.pods]


def _of(scheduler: str, one: FoundObject[Pod]) -> FoundObject[Pod]:
    spec = msgspec.structs.replace(one.value.spec, scheduler_name=scheduler)
    return replace(one, value=msgspec.structs.replace(one.value, spec=spec))


def _pods_to_place(pods: Iterable[FoundObject[Pod]], *, problems: list[str]) -> dict[Identity, FoundObject[Pod]]:
    """Pods in the order of the files; reasons against placing are added to ``problems``."""
    to_place: dict[Identity, FoundObject[Pod]] = {}
    for one in pods:
        before = to_place.setdefault(one.identity, one)
        if before is one:
            problems.extend(f"{one.where}: {problem}" for problem in _obstacles(one.value))
        else:
            problems.append(f"{one.where}: is in {before.where} already: a pod is placed once")
    return to_place


def _obstacles(pod: Pod) -> Iterator[str]:
    """Reasons why no scheduler would place the pod."""
    if pod.spec.node_name:
        yield f"spec.nodeName: is on {pod.spec.node_name!r} already: remove the field to place the pod"
    if is_finished(pod):
        yield f"status.phase: {pod.status.phase!r} means that the pod has finished: remove the status to place it"
    elif pod.metadata.deletion_timestamp:
        yield "metadata.deletionTimestamp: a terminating pod is not placed: remove it from the file"


def _placed_as(first: str, pods: Iterable[FoundObject[Pod]]) -> Iterator[str]:
    # A line for each scheduler, because there may be thousands of pods.
    for scheduler, number in Counter(scheduler_of(one.value) for one in pods).items():
        yield (
            f"--pods: {counted(number, 'pod')} of schedulerName {scheduler!r}, which no profile has: placed by the "
            f"profile {first!r}"
        )


def _equal_uids(pods: Iterable[FoundObject[Pod]]) -> Iterator[str]:
    """Different pods with the same uid, by which the Snapshot identifies pods."""
    by_uid: dict[str, FoundObject[Pod]] = {}
    for one in pods:
        before = by_uid.setdefault(one.value.uid, one)
        if before.identity != one.identity:
            yield f"{one.where}: metadata.uid: is the same in {before.where}: remove it from the copy"


def _inputs(files: _Files, to_place: Mapping[Identity, FoundObject[Pod]]) -> Inputs:
    problems, cluster = files.problems, files.cluster
    everything = {**files.added, **cluster}
    objects = stored([one for identity, one in everything.items() if identity not in to_place], to_place.values())
    if files.cluster_is_whole:  # else objects that pods refer to may be in the unreadable part
        problems.extend(objects.problems)
    snapshot, waiting = _snapshot(objects)
    problems.extend(_unreadable_requests(to_place.values(), objects.to_place, snapshot))
    if problems:
        raise InputError(problems)
    notes = files.notes
    in_both = files.added.keys() & cluster.keys()
    if in_both:
        notes.append(f"--pods: {counted(len(in_both), 'object')} in --cluster too: used as in --cluster")
    if waiting:
        notes.append(f"--cluster: {counted(waiting, 'pod')} on no node: not placed, since {files.why_not_placed}")
    placed_again = [one for identity in to_place if (one := cluster.get(identity)) is not None]
    bound = sum(pod.value.spec.node_name != "" for pod in _pods(placed_again))
    if bound:
        notes.append(f"--cluster: {counted(bound, 'pod')} on a node and in --pods too: not counted in the cluster")
    notes.extend(f"--cluster: {odd}" for odd in snapshot.problems)
    notes.extend(_without_groups(objects.to_place, PodGroups.of(snapshot)))
    return Inputs(snapshot=snapshot, pods=objects.to_place, notes=tuple(notes))


def _snapshot(objects: StoredObjects) -> tuple[Snapshot, int]:
    snapshot = Snapshot()
    groups = PodGroups.of(snapshot)
    for one in objects.others:
        _set(snapshot, one)
    for pod in objects.pods:
        if is_bound(pod) or is_finished(pod):  # others are not placed
            groups.observe(pod)
    return snapshot, sum(_set_pod(snapshot, pod) for pod in objects.pods)


def _set(snapshot: Snapshot, one: ReadObject) -> None:
    if isinstance(one, Node):
        snapshot.set_node(one)
    elif isinstance(one, Namespace):
        # The API server gives each namespace this label; a manifest does not have it yet.
        labels = {**(one.metadata.labels or {}), _NAME_LABEL: one.metadata.name}
        metadata = msgspec.structs.replace(one.metadata, labels=labels)
        snapshot.set_namespace(msgspec.structs.replace(one, metadata=metadata))
    elif not isinstance(one, Pod | PriorityClass | ResourceClaimTemplate):
        kind = _PLUGIN_KINDS[type(one)]
        snapshot.objects(kind.struct).set(kind.key_of(name=one.metadata.name, uid=one.metadata.uid), one)


def _set_pod(snapshot: Snapshot, pod: Pod) -> bool:
    if is_bound(pod):
        snapshot.place(pod, pod.spec.node_name, bound_at=bound_at(pod))
        return False
    if is_finished(pod) or is_gone_while_unbound(pod):
        return False
    if pod.status.nominated_node_name:
        snapshot.nominate(pod, pod.status.nominated_node_name)
    return True


def _unreadable_requests(found: Iterable[FoundObject[Pod]], pods: Iterable[Pod], snapshot: Snapshot) -> Iterator[str]:
    for one, pod in zip(found, pods, strict=True):
        yield from (f"{one.where}: {problem}" for problem in snapshot.class_of(pod).requests.problems)


def _without_groups(pods: Iterable[Pod], groups: PodGroups) -> Iterator[str]:
    """A note for each dialect of which pods name PodGroups and the files have none."""
    served = {key.dialect for key in groups.known}
    named = Counter(key.dialect for pod in pods if (key := group_of(pod)) is not None)
    for dialect, number in named.items():
        if dialect not in served:
            yield (
                f"{counted(number, 'pod')} with a PodGroup of {dialect.value}, and the files have none of these: "
                "placed one by one, as where the API server has none"
            )


def _left_out(flag: str, why: str, others: Counter[str]) -> Iterator[str]:
    if others:
        kinds = [f"{count} {kind}" for kind, count in others.most_common(_KINDS_NAMED)]
        more = ", ..." if len(others) > _KINDS_NAMED else ""
        yield f"{flag}: left out {counted(others.total(), 'object')}, {why}: {', '.join(kinds)}{more}"


def _without_pods(kinds: Counter[str]) -> Iterator[str]:
    """A note about workloads in --pods whose pods are not created."""
    without = [f"{kinds[kind]} {kind}" for kind in _NO_PODS_MADE if kind in kinds]
    if without:
        yield f"--pods: no pods are created for {', '.join(without)}: add their pods if they matter"


def _not_applied(others: Counter[str], found: Iterable[FoundObject[ReadObject]]) -> Iterator[str]:
    if any(pod.is_new for pod in _pods(found)):
        for kind, what in _NOT_APPLIED.items():
            if kind in others:
                yield f"results may differ for new pods, because {what}: `kubectl create --dry-run=server` applies it"


def counted(count: int, what: str) -> str:
    """``1 node``, ``2 nodes``."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
