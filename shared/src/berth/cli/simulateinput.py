"""What ``berth simulate`` is given: files of objects and of pods, as a Snapshot and the pods to be asked about.

Everything that is wrong is found before anything is asked, and said at once.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from berth.api.pod import Pod
from berth.api.priorityclass import PriorityClass
from berth.cli.admitted import Admission, UnknownPriorityClassError
from berth.cli.clusterstate import State, snapshot_of
from berth.cli.objectfiles import Document, documents
from berth.cli.objects import Found, Identity, KubernetesObject, ObjectReader, as_pod
from berth.cli.podstoplace import namesakes, pods_to_place
from berth.cluster.snapshot import Snapshot
from berth.framework.profile import Profile
from berth.service.exits import UsageError

STDIN: Final = "-"
_SHOWN: Final = 5
"""How many kinds that nobody reads are named."""
Objects = Mapping[Identity, Found[KubernetesObject]]
Pods = Mapping[Identity, Found[Pod]]


class InputError(UsageError):
    """What is wrong with the files, a sentence each."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """``pods`` are to be placed on the state that ``snapshot`` has; ``notes`` say what of the files does not count."""

    snapshot: Snapshot
    pods: tuple[Pod, ...]
    notes: tuple[str, ...]


def read_question(cluster: Sequence[str], pods: Sequence[str], profiles: Mapping[str, Profile]) -> Question:
    """Read the files, ``-`` being standard input.

    Raises:
        InputError: everything that is wrong with them.
    """
    if [*cluster, *pods].count(STDIN) > 1:
        raise InputError([f"{STDIN}: standard input can be read once: name it for one of --cluster and --pods"])
    problems: list[str] = []
    there, asked = ObjectReader(problems=problems), ObjectReader(problems=problems)
    objects = _once(there.read(_documents(cluster, problems)), problems)
    found = list(asked.read(_documents(pods, problems)))
    wanted = pods_to_place(_pods(found), schedulers=profiles.keys(), problems=problems)
    problems.extend(namesakes((*_pods(objects.values()), *wanted.values())))
    notes = [*_left_out("--cluster", "no cycle reads them", there.others)]
    others = asked.others + Counter(one.kind for one in found if as_pod(one) is None)
    notes += _left_out("--pods", "only pods are read there", others)
    return _question(objects, wanted, problems, notes)


def _question(objects: Objects, wanted: Pods, problems: list[str], notes: list[str]) -> Question:
    admission = Admission(one.thing for one in objects.values() if isinstance(one.thing, PriorityClass))
    pods = tuple(_admitted(admission, wanted.values(), problems))
    there = [one for identity, one in objects.items() if identity not in wanted]
    state = snapshot_of(_admitted(admission, _pods(there), problems), (one.thing for one in there))
    problems.extend(_unreadable(wanted, state.snapshot))
    if problems:
        raise InputError(problems)
    notes += _of_cluster(state, (one for identity in wanted if (one := objects.get(identity)) is not None))
    return Question(snapshot=state.snapshot, pods=pods, notes=tuple(notes))


def _documents(names: Sequence[str], problems: list[str]) -> Iterator[Document]:
    for name in names:
        try:
            data = sys.stdin.buffer.read() if name == STDIN else Path(name).read_bytes()
        except OSError as exc:
            problems.append(f"{name}: reading: {exc.strerror or exc}")
            continue
        yield from documents("standard input" if name == STDIN else name, data, problems)


def _once(found: Iterable[Found[KubernetesObject]], problems: list[str]) -> Objects:
    """Each object once: the same in two files is fine, two states of it are not."""
    by_identity: dict[Identity, Found[KubernetesObject]] = {}
    for one in found:
        before = by_identity.setdefault(one.identity, one)
        if before.thing != one.thing:
            problems.append(f"{one.where}: differs from {before.where}: keep the one that is to count")
    return by_identity


def _pods(found: Iterable[Found[KubernetesObject]]) -> Iterator[Found[Pod]]:
    return (pod for one in found if (pod := as_pod(one)) is not None)


def _admitted(admission: Admission, pods: Iterable[Found[Pod]], problems: list[str]) -> Iterator[Pod]:
    for one in pods:
        try:
            yield admission.admitted(one.thing)
        except UnknownPriorityClassError as error:
            problems.append(f"{one.where}: {error}")


def _unreadable(wanted: Pods, snapshot: Snapshot) -> Iterator[str]:
    for one in wanted.values():
        yield from (f"{one.where}: {problem}" for problem in snapshot.class_of(one.thing).requests.problems)


def _left_out(flag: str, why: str, others: Counter[str]) -> Iterator[str]:
    if others:
        kinds = [f"{count} {kind}" for kind, count in others.most_common(_SHOWN)]
        more = ", ..." if len(others) > _SHOWN else ""
        yield f"{flag}: left out {_counted(others.total(), 'object')}, {why}: {', '.join(kinds)}{more}"


def _of_cluster(state: State, replaced: Iterable[Found[KubernetesObject]]) -> Iterator[str]:
    """What of the cluster's files does not count as it stands there."""
    if state.waiting:
        waiting = _counted(state.waiting, "pod")
        yield f"--cluster: {waiting} on no node: not placed, since --pods does not name them"
    bound = sum(pod.thing.spec.node_name != "" for pod in _pods(replaced))
    if bound:
        yield f"--cluster: {_counted(bound, 'pod')} on a node and in --pods too: asked as if not there"
    yield from (f"--cluster: {odd}" for odd in state.snapshot.oddities)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
