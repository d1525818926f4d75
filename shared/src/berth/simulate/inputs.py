"""The pods that a simulation is asked about: each once, each one that a scheduler would take up.

What ``berth simulate`` is given: files of objects and of pods, as a Snapshot and the pods to be asked about.

Everything that is wrong is found before anything is asked, and said at once.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from berth.api.node import Node
from berth.api.pod import Pod, is_finished
from berth.cluster.snapshot import Snapshot
from berth.process.exits import UsageError
from berth.simulate.created import Creation, created
from berth.simulate.creation.defaults import scheduler_of
from berth.simulate.documents import Document, documents
from berth.simulate.objects import FoundObject, Identity, KubernetesObject, ObjectReader, State, as_pod, snapshot_of
from berth.simulate.workloads import with_pods


def pods_to_place(
    asked: Iterable[FoundObject[Pod]], *, schedulers: Collection[str], problems: list[str]
) -> dict[Identity, FoundObject[Pod]]:
    """The pods in the order of their files; what keeps one from being placed is added to ``problems``."""
    pods: dict[Identity, FoundObject[Pod]] = {}
    for one in asked:
        before = pods.setdefault(one.identity, one)
        if before is one:
            problems.extend(f"{one.where}: {problem}" for problem in _obstacles(one.thing))
        else:
            problems.append(f"{one.where}: is in {before.where} already: a pod is placed once")
    problems.extend(_strangers(pods.values(), schedulers))
    return pods


def pending(pods: Iterable[FoundObject[Pod]], *, schedulers: Collection[str]) -> list[FoundObject[Pod]]:
    """Those of a cluster that wait for one of these schedulers."""
    return [one for one in pods if scheduler_of(one.thing) in schedulers and _waits(one.thing)]


def _waits(pod: Pod) -> bool:
    return not pod.spec.node_name and not is_finished(pod) and not pod.metadata.deletion_timestamp


def _obstacles(pod: Pod) -> Iterator[str]:
    """Why nobody would schedule the pod."""
    if pod.spec.node_name:
        yield f"spec.nodeName: is on {pod.spec.node_name!r} already: take the field out to ask where it would go"
    if is_finished(pod):
        yield f"status.phase: {pod.status.phase!r} is the end of a pod: take the status out to ask about it anew"
    elif pod.metadata.deletion_timestamp:
        yield "metadata.deletionTimestamp: a pod that is being deleted is not placed: leave it out"


def _strangers(pods: Iterable[FoundObject[Pod]], schedulers: Collection[str]) -> Iterator[str]:
    """Whose pods no profile places, a line a scheduler: there may be thousands of them."""
    by_scheduler: dict[str, list[str]] = {}
    for one in pods:
        scheduler = scheduler_of(one.thing)
        if scheduler not in schedulers:
            by_scheduler.setdefault(scheduler, []).append(one.where)
    for scheduler, (first, *others) in by_scheduler.items():
        yield (
            f"{first}{f' and {len(others)} more' if others else ''}: spec.schedulerName: no profile has the name "
            f"{scheduler!r}, there are {', '.join(schedulers)}: name a configuration that has it with --config"
        )


def namesakes(pods: Iterable[FoundObject[Pod]]) -> Iterator[str]:
    """Which pods have one uid and two names: it is the uid that tells pods apart."""
    by_uid: dict[str, FoundObject[Pod]] = {}
    for one in pods:
        before = by_uid.setdefault(one.thing.uid, one)
        if before.identity != one.identity:
            yield f"{one.where}: metadata.uid: is that of {before.where} too: take it out where the pod is a copy"


STDIN: Final = "-"

_SHOWN: Final = 5
"""How many kinds that nobody reads are named."""

_NOT_APPLIED: Final[Mapping[str, str]] = {
    "ResourceQuota": "a ResourceQuota may refuse pods",
    "MutatingWebhookConfiguration.admissionregistration.k8s.io": "webhooks may change pods",
    "ValidatingWebhookConfiguration.admissionregistration.k8s.io": "webhooks may refuse pods",
    "MutatingAdmissionPolicy.admissionregistration.k8s.io": "admission policies may change pods",
    "ValidatingAdmissionPolicy.admissionregistration.k8s.io": "admission policies may refuse pods",
}
"""What the API server does to new pods that cannot be done here, by the kind that says so."""

_UNMADE: Final = ("ReplicationController", "DaemonSet.apps", "CronJob.batch")

Objects = dict[Identity, FoundObject[KubernetesObject]]


class InputError(UsageError):
    """What is wrong with the files, a sentence each."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(dict.fromkeys(problems))
        super().__init__("; ".join(self.problems))


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """``pods`` are to be placed on the state that ``snapshot`` has; ``notes`` say what of the files does not count."""

    snapshot: Snapshot
    pods: tuple[Pod, ...]
    notes: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class _Reading:
    """What was read; ``added`` are the objects that come with the pods, such as their claims."""

    objects: Objects
    added: Objects
    asked: list[FoundObject[Pod]]
    problems: list[str]
    notes: list[str]
    why_not_placed: str = "--pods does not name them"


def read_question(
    cluster: Sequence[str], pods: Sequence[str], schedulers: Collection[str], *, also_pending: bool = False
) -> Question:
    """Read the files, ``-`` being standard input. ``also_pending``: pods of the cluster that wait are asked about too.

    Raises:
        InputError: everything that is wrong with them.
    """
    if [*cluster, *pods].count(STDIN) > 1:
        raise InputError([f"{STDIN}: standard input can be read once: name it for one of --cluster and --pods"])
    reading = _read(cluster, pods)
    if also_pending:
        named = {one.identity for one in reading.asked}
        reading.why_not_placed = "no profile is theirs"
        waiting = pending(_pods(reading.objects.values()), schedulers=schedulers)
        reading.asked += [one for one in waiting if one.identity not in named]
    wanted = pods_to_place(reading.asked, schedulers=schedulers, problems=reading.problems)
    reading.problems.extend(namesakes((*_pods(reading.objects.values()), *wanted.values())))
    return _question(reading, wanted)


def _read(cluster: Sequence[str], pods: Sequence[str]) -> _Reading:
    problems: list[str] = []
    there, asked = ObjectReader(problems=problems), ObjectReader(problems=problems)
    objects = _once(there.read(_documents(cluster, problems)), problems)
    found = list(asked.read(with_pods(_documents(pods, problems), problems)))
    nodes = Counter(one.kind for one in found if isinstance(one.thing, Node))
    added = _once((one for one in found if not isinstance(one.thing, Node | Pod)), problems)
    notes = [
        *_left_out("--cluster", "no cycle reads them", there.others),
        *_left_out("--pods", "neither pods nor what a cycle reads of a release", asked.others + nodes),
        *_without_pods(asked.others + Counter(one.kind for one in found)),
        *_not_applied(there.others + asked.others),
    ]
    return _Reading(objects=objects, added=added, asked=list(_pods(found)), problems=problems, notes=notes)


def _question(reading: _Reading, wanted: Mapping[Identity, FoundObject[Pod]]) -> Question:
    problems, objects = reading.problems, reading.objects
    stays = reading.added.keys() & objects.keys()
    everything = {**reading.added, **objects}
    there = [one for identity, one in everything.items() if identity not in wanted]
    creation = created(there, wanted.values())
    problems.extend(creation.problems)
    state = snapshot_of(creation.there, creation.others)
    if not problems:
        problems.extend(_unreadable(wanted.values(), creation, state.snapshot))
    if problems:
        raise InputError(problems)
    notes = [*reading.notes, *creation.notes, *_as_they_are(stays)]
    asked = [one for identity in wanted if (one := objects.get(identity)) is not None]
    notes += _of_cluster(state, asked, why=reading.why_not_placed)
    return Question(snapshot=state.snapshot, pods=creation.wanted, notes=tuple(notes))


def _documents(names: Sequence[str], problems: list[str]) -> Iterator[Document]:
    for name in names:
        try:
            data = sys.stdin.buffer.read() if name == STDIN else Path(name).read_bytes()
        except OSError as exc:
            problems.append(f"{name}: reading: {exc.strerror or exc}")
            continue
        yield from documents("standard input" if name == STDIN else name, data, problems)


def _once(found: Iterable[FoundObject[KubernetesObject]], problems: list[str]) -> Objects:
    """Each object once: the same in two files is fine, two states of it are not."""
    by_identity: Objects = {}
    for one in found:
        before = by_identity.setdefault(one.identity, one)
        if before.thing != one.thing:
            problems.append(f"{one.where}: differs from {before.where}: keep the one that is to count")
    return by_identity


def _pods(found: Iterable[FoundObject[KubernetesObject]]) -> Iterator[FoundObject[Pod]]:
    return (pod for one in found if (pod := as_pod(one)) is not None)


def _unreadable(wanted: Iterable[FoundObject[Pod]], creation: Creation, snapshot: Snapshot) -> Iterator[str]:
    for one, pod in zip(wanted, creation.wanted, strict=True):
        yield from (f"{one.where}: {problem}" for problem in snapshot.class_of(pod).requests.problems)


def _left_out(flag: str, why: str, others: Counter[str]) -> Iterator[str]:
    if others:
        kinds = [f"{count} {kind}" for kind, count in others.most_common(_SHOWN)]
        more = ", ..." if len(others) > _SHOWN else ""
        yield f"{flag}: left out {_counted(others.total(), 'object')}, {why}: {', '.join(kinds)}{more}"


def _without_pods(kinds: Counter[str]) -> Iterator[str]:
    """Of workloads in --pods whose pods are not made."""
    unmade = [f"{kinds[kind]} {kind}" for kind in _UNMADE if kind in kinds]
    if unmade:
        yield f"--pods: no pods are made of {', '.join(unmade)}: write pods of them where they are to count"


def _not_applied(others: Counter[str]) -> Iterator[str]:
    """Of what the API server would do, when that is in the files and cannot be done."""
    for kind, what in _NOT_APPLIED.items():
        if kind in others:
            yield f"answers may differ for pods that nobody created yet, because {what}: that is not applied here"


def _as_they_are(both: Collection[Identity]) -> Iterator[str]:
    if both:
        yield f"--pods: {_counted(len(both), 'object')} in --cluster too: taken as there"


def _of_cluster(state: State, asked: Sequence[FoundObject[KubernetesObject]], *, why: str) -> Iterator[str]:
    """What of the cluster's files does not count as it stands there."""
    if state.waiting:
        yield f"--cluster: {_counted(state.waiting, 'pod')} on no node: not placed, since {why}"
    bound = sum(pod.thing.spec.node_name != "" for pod in _pods(asked))
    if bound:
        yield f"--cluster: {_counted(bound, 'pod')} on a node and in --pods too: asked as if not there"
    yield from (f"--cluster: {odd}" for odd in state.snapshot.oddities)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
