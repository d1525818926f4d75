"""What ``berth simulate`` is given: files of objects and of pods, as a Snapshot and the pods to be asked about.

Everything that is wrong is found before anything is asked, and said at once.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from berth.api.pod import Pod, is_finished
from berth.api.priorityclass import PriorityClass
from berth.cli.admitted import Admission, UnknownPriorityClassError
from berth.cli.clusterstate import snapshot_of
from berth.cli.objectfiles import Document, documents
from berth.cli.objects import Found, ObjectReader
from berth.cluster.snapshot import Snapshot
from berth.framework.profile import Profile
from berth.service.exits import UsageError

STDIN: Final = "-"
_SHOWN: Final = 5
"""How many kinds that nobody reads are named."""
T = TypeVar("T")
Identity = tuple[str, str, str]


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
    reading = _Reading(profiles=profiles)
    if [*cluster, *pods].count(STDIN) > 1:
        raise InputError([f"{STDIN}: standard input can be read once: name it for one of --cluster and --pods"])
    there = list(reading.state.read(_documents(cluster, reading.problems)))
    asked = list(reading.asked.read(_documents(pods, reading.problems)))
    question = reading.question(there, asked)
    if reading.problems:
        raise InputError(reading.problems)
    return question


@dataclass(slots=True)
class _Reading:
    """All that is found out while the files are read."""

    profiles: Mapping[str, Profile]
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    state: ObjectReader = field(init=False)
    asked: ObjectReader = field(init=False)

    def __post_init__(self) -> None:
        self.state = ObjectReader(problems=self.problems)
        self.asked = ObjectReader(problems=self.problems)

    def question(self, there: Iterable[Found], asked: Iterable[Found]) -> Question:
        """What is asked, as far as it can be; what is in the way is among the problems."""
        cluster = self._once(there)
        wanted = self._wanted(asked)
        self._look_for_namesakes(cluster, wanted)
        admission = Admission(one.thing for one in cluster.values() if isinstance(one.thing, PriorityClass))
        pods = [pod for one in wanted.values() for pod in self._admitted(admission, one)]
        snapshot = self._snapshot(cluster, wanted, admission)
        self._look_at_quantities(wanted.values(), snapshot)
        return Question(snapshot=snapshot, pods=tuple(pods), notes=tuple(self.notes))

    def _once(self, found: Iterable[Found]) -> dict[Identity, Found]:
        """Each object once: the same in two files is fine, two states of it are not."""
        by_identity: dict[Identity, Found] = {}
        for one in found:
            before = by_identity.setdefault(one.identity, one)
            if before.thing != one.thing:
                self.problems.append(f"{one.where}: is another in {before.where}: name one of the files")
        return by_identity

    def _wanted(self, asked: Iterable[Found]) -> dict[Identity, Found]:
        pods: dict[Identity, Found] = {}
        for one in asked:
            if not isinstance(one.thing, Pod):
                self.asked.others[one.kind] += 1
                continue
            before = pods.setdefault(one.identity, one)
            if before is one:
                self.problems.extend(f"{one.where}: {problem}" for problem in self._obstacles(one.thing))
            else:
                self.problems.append(f"{one.where}: is in {before.where} already: a pod is placed once")
        self._note_others("--pods", "only pods are read there", self.asked.others)
        return pods

    def _obstacles(self, pod: Pod) -> Iterator[str]:
        """Why nobody would schedule the pod."""
        spec = pod.spec
        if spec.node_name:
            yield f"spec.nodeName: is on {spec.node_name!r} already: take the field out to ask where it would go"
        if is_finished(pod):
            yield f"status.phase: {pod.status.phase!r} is the end of a pod: take the status out to ask about it anew"
        elif pod.metadata.deletion_timestamp:
            yield "metadata.deletionTimestamp: a pod that is being deleted is not placed: leave it out"
        if spec.scheduler_name not in self.profiles:
            known = ", ".join(self.profiles)
            yield f"spec.schedulerName: no profile has the name {spec.scheduler_name!r} (--config has {known})"

    def _look_for_namesakes(self, cluster: Mapping[Identity, Found], wanted: Mapping[Identity, Found]) -> None:
        """Say which pods have one uid and two names: it is the uid that tells pods apart."""
        by_uid: dict[str, Found] = {}
        for one in (*cluster.values(), *wanted.values()):
            if (
                isinstance(one.thing, Pod)
                and (before := by_uid.setdefault(one.thing.uid, one)).identity != one.identity
            ):
                self.problems.append(
                    f"{one.where}: metadata.uid: is that of {before.where} too: take it out where the pod is a copy"
                )

    def _admitted(self, admission: Admission, found: Found) -> Iterator[Pod]:
        if not isinstance(found.thing, Pod):
            return
        try:
            yield admission.admitted(found.thing)
        except UnknownPriorityClassError as error:
            self.problems.append(f"{found.where}: {error}")

    def _snapshot(
        self, cluster: Mapping[Identity, Found], wanted: Mapping[Identity, Found], admission: Admission
    ) -> Snapshot:
        there = [one for identity, one in cluster.items() if identity not in wanted]
        self._note_others("--cluster", "no cycle reads them", self.state.others)
        self._note_replaced([cluster[identity] for identity in wanted if identity in cluster])
        pods = [pod for one in there for pod in self._admitted(admission, one)]
        state = snapshot_of(pods, [one.thing for one in there])
        if state.waiting:
            self.notes.append(
                f"--cluster: {_pods(state.waiting)} on no node: not placed, since --pods does not name them"
            )
        self.notes.extend(f"--cluster: {odd}" for odd in state.snapshot.oddities)
        return state.snapshot

    def _note_replaced(self, replaced: Iterable[Found]) -> None:
        bound = sum(isinstance(one.thing, Pod) and bool(one.thing.spec.node_name) for one in replaced)
        if bound:
            self.notes.append(f"--cluster: {_pods(bound)} on a node, but named by --pods too: asked as if not there")

    def _note_others(self, flag: str, why: str, others: Counter[str]) -> None:
        if others:
            kinds = [f"{count} {kind}" for kind, count in others.most_common(_SHOWN)]
            more = ", ..." if len(others) > _SHOWN else ""
            self.notes.append(f"{flag}: left out {others.total()} objects, {why}: {', '.join(kinds)}{more}")

    def _look_at_quantities(self, wanted: Iterable[Found], snapshot: Snapshot) -> None:
        for one in wanted:
            if isinstance(one.thing, Pod):
                problems = snapshot.class_of(one.thing).requests.problems
                self.problems.extend(f"{one.where}: {problem}" for problem in problems)


def _documents(names: Sequence[str], problems: list[str]) -> Iterator[Document]:
    for name in names:
        try:
            data = sys.stdin.buffer.read() if name == STDIN else Path(name).read_bytes()
        except OSError as exc:
            problems.append(f"{name}: reading: {exc.strerror or exc}")
            continue
        yield from documents("standard input" if name == STDIN else name, data, problems)


def _pods(count: int) -> str:
    return "1 pod is" if count == 1 else f"{count} pods are"
