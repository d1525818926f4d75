"""The page of a recording: its cluster beside the cluster under another configuration, with the reasons in both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from berth.exits import UsageError
from berth.framework.profile import Profile
from berth.messages.attempts import Decision, Outcome, Preemption, Victim
from berth_cli.console.answers import MOST_ON_A_NODE, Document, sentences_of
from berth_cli.options import NotFoundError, PodName
from berth_cli.pods.explain import decision_json
from berth_cli.pods.lookup import EvictionRecord, ExplainedDecision
from berth_cli.recording.file import Recording
from berth_cli.recording.groups import GroupCourse, group_courses
from berth_cli.recording.history import Fate, History
from berth_cli.recording.whatif import ComparedPod, WhatIf, what_if
from berth_cli.replayed.decisions import RecordedDecisions, waited_sentence, waited_sentences
from berth_cli.replayed.film import Film, LastRanking, Stay, film_times, recorded_film
from berth_cli.replayed.wording import MEASURES, fate_text, kind_of, measure_cells, summary_of

MOST_LISTED: Final = 5000  # pods on the page; ``-o json`` has all
MOST_GROUPS: Final = 500
MOST_NOTES: Final = 50
PARTIAL_SECONDS: Final = 1.0  # longer than the Bindings of a group take
TEXT_CHARACTERS: Final = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSource:
    """``config``: the digest of the services' configuration."""

    recording: Recording
    profiles: Mapping[str, Profile]
    config: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoClusters:
    source: RecordedSource
    profiles: Mapping[str, Profile]
    title: str  # the file
    other_title: str  # the other configuration
    found: WhatIf
    recorded: Film
    other: Film
    groups: Sequence[GroupCourse] = ()
    notes: Sequence[str] = ()  # such as errors of plugins
    _decisions: RecordedDecisions = field(repr=False)
    _asked: frozenset[PodName] = field(repr=False)
    _compared: Mapping[PodName, ComparedPod] = field(repr=False)
    _evictions: _OtherEvictions = field(repr=False)

    @classmethod
    def of(
        cls, source: RecordedSource, profiles: Mapping[str, Profile], *, title: str, other_title: str
    ) -> TwoClusters:
        """Run the recorded pods with these profiles, and film both clusters."""
        history, times = History(source.recording), film_times(source.recording)
        other = Film(times)
        found = what_if(source.recording, source.profiles, profiles, history=history, observer=other)
        return cls(
            source=source,
            profiles=profiles,
            title=title,
            other_title=other_title,
            found=found,
            recorded=recorded_film(source.recording, history, times),
            other=other,
            groups=group_courses(source.recording),
            _decisions=RecordedDecisions(source.recording),
            _asked=frozenset(
                PodName(namespace=each.metadata.namespace, name=each.metadata.name) for each in history.pods.values()
            ),
            _compared={_name_of(each): each for each in found.other.pods},
            _evictions=_OtherEvictions(other, found.other.pods),
        )

    def document(self) -> Document:
        different = [each for each in self.found.other.pods if not each.is_equal]
        measured = (self.found.recorded, self.found.again.measures, self.found.other.measures)
        return {
            "title": self.title,
            "other_title": self.other_title,
            "times": [at.timestamp() for at in self.recorded.times],
            "recorded": {"labels": self.recorded.labels, "steps": self.recorded.steps},
            "other": {"labels": self.other.labels, "steps": self.other.steps},
            "asked": len(self.found.other.pods),
            "summary": summary_of(self.found.other.pods),
            "again": summary_of(self.found.again.pods),
            "measures": list(zip(MEASURES, *map(measure_cells, measured), strict=True)),
            "different": [_different_json(each) for each in different[:MOST_LISTED]],
            "more": max(0, len(different) - MOST_LISTED),
            "groups": [self._group_json(each) for each in self.groups[:MOST_GROUPS]],
            "notes": [note[:TEXT_CHARACTERS] for note in self.notes[:MOST_NOTES]],
        }

    def node_json(self, name: str, step: int) -> Document:
        """The node in both clusters at a step.

        Raises:
            NotFoundError: neither cluster has the node.
            UsageError: there is no such step.
        """
        if not 0 <= step < len(self.recorded.times):
            raise UsageError(f"reading the step {step}: want 0 to {len(self.recorded.times) - 1}")
        if name not in self.recorded.nodes and name not in self.other.nodes:
            raise NotFoundError(f"looking for node {name!r:.300}: the recording has no such node")
        return {
            "node": name,
            "step": step,
            "recorded": [self._stay_json(each) for each in self.recorded.on_node(name, step)[:MOST_ON_A_NODE]],
            "other": [self._stay_json(each) for each in self.other.on_node(name, step)[:MOST_ON_A_NODE]],
        }

    def pod_json(self, name: PodName) -> Document:
        """The pod at the ends of both clusters.

        Raises:
            NotFoundError: neither cluster has the pod.
        """
        here, there = self.recorded.stays_of(name), self.other.stays_of(name)
        compared = self._compared.get(name)
        is_known = compared is not None or name in self._decisions or self._decisions.waited(name) is not None
        if not is_known and not here and not there:
            raise NotFoundError(f"looking for pod {str(name)!r}: the recording has no such pod")
        return {
            "pod": str(name),
            "difference": kind_of(compared) if compared is not None else "",
            "recorded": {**self._recorded_json(name, here), "stays": [self._stay_json(each) for each in here]},
            "other": {**self._other_json(name, compared, there), "stays": [self._stay_json(each) for each in there]},
        }

    def _group_json(self, course: GroupCourse) -> Document:
        """A group as it was recorded; both clusters have its pods there. ``bound``: the number from each step on."""
        waited = course.whole_at - course.asked_at if course.whole_at and course.asked_at else None
        return {
            "namespace": course.key.namespace,
            "name": course.key.name,
            "minimum": course.minimum,
            "bound": [[*each] for each in {self.recorded.step_of(at): count for at, count in course.bound}.items()],
            "whole_seconds": None if waited is None else max(0.0, waited.total_seconds()),
            "partial_seconds": course.partial_seconds if course.partial_seconds > PARTIAL_SECONDS else None,
            "is_partial": course.is_partial,
        }

    def _stay_json(self, stay: Stay) -> Document:
        return {
            "namespace": stay.pod.namespace,
            "name": stay.pod.name,
            "node": stay.node,
            "cpu": stay.cpu,
            "memory": stay.memory,
            "begin": stay.begin,
            "end": stay.end,
        }

    def _recorded_json(self, name: PodName, stays: Sequence[Stay]) -> Document:
        waited = self._decisions.waited(name)
        if name not in self._decisions:
            document = _undecided_json(name, stays, "no Decision on it was recorded")
            if waited is not None and all(each.end is not None for each in stays):
                document["sentences"] = list(waited_sentences(waited))
            return document
        explained = self._decisions.last(name)
        return _explained_json(explained, *() if waited is None else (waited_sentence(waited),))

    def _other_json(self, name: PodName, compared: ComparedPod | None, stays: Sequence[Stay]) -> Document:
        if compared is None:
            unasked = "no request to place it was recorded, so it is not placed anew"
            return _undecided_json(
                name, stays, unasked if name not in self._asked else "this configuration has no profile for it"
            )
        last = self.other.rankings.get(compared.uid)
        evicted_for = self._evictions.of_victim(compared.uid)
        if last is None:
            became = f"was evicted from {compared.other.node} for {evicted_for.pod}" if evicted_for is not None else ""
            return _undecided_json(name, stays, "no request to place it was recorded", became)
        explained = ExplainedDecision(
            decision=_other_decision(name, compared, last, self.profiles[last.profile].weights),
            at=last.at,
            now=self.source.recording.last_time,
            is_recorded=True,
            preemption=self._evictions.by_preemptor(compared.uid),
            evicted_for=evicted_for if compared.other.fate is Fate.EVICTED else None,
            has_left=compared.other.fate is Fate.PLACED and not self.other.ends_with(compared.uid),
        )
        return _explained_json(explained)


class _OtherEvictions:
    """Names of victims come from the comparison."""

    def __init__(self, film: Film, compared: Sequence[ComparedPod]) -> None:
        names = {each.uid: _name_of(each) for each in compared}
        self._by_preemptor: dict[str, EvictionRecord] = {}
        self._of_victim: dict[str, EvictionRecord] = {}
        for eviction in film.evictions:
            if eviction.uid not in names:
                continue
            victims = [
                Victim(uid=uid, namespace=names[uid].namespace, name=names[uid].name)
                for uid in eviction.victims
                if uid in names
            ]
            record = EvictionRecord(
                pod=names[eviction.uid],
                uid=eviction.uid,
                preemption=Preemption(node=eviction.node, victims=victims),
                at=eviction.at,
            )
            self._by_preemptor[eviction.uid] = record
            self._of_victim.update((uid, record) for uid in eviction.victims)

    def by_preemptor(self, uid: str) -> EvictionRecord | None:
        return self._by_preemptor.get(uid)

    def of_victim(self, uid: str) -> EvictionRecord | None:
        return self._of_victim.get(uid)


def _name_of(each: ComparedPod) -> PodName:
    namespace, _, name = each.pod.partition("/")
    return PodName(namespace=namespace, name=name)


def _different_json(each: ComparedPod) -> Document:
    name = _name_of(each)
    return {
        "namespace": name.namespace,
        "name": name.name,
        "kind": kind_of(each),
        "recorded": fate_text(each.recorded),
        "other": fate_text(each.other),
        "reason": (each.other.reason if each.other.fate is Fate.WAITS else "")[:TEXT_CHARACTERS],
    }


def _explained_json(explained: ExplainedDecision, *further: str) -> Document:
    return {
        "sentences": [*sentences_of(explained), *further],
        **decision_json(explained),
    }


def _undecided_json(name: PodName, stays: Sequence[Stay], reason: str, became: str = "") -> Document:
    """A pod without a ranking: its place at the end."""
    last = stays[-1] if stays else None
    if not became and last is not None:
        became = f"is on {last.node}" if last.end is None else f"was on {last.node}, which it has left"
    return {
        "sentences": [f"{name} {became or 'is on no node'}: {reason}"],
        "outcome": "placed" if last is not None and last.end is None else "not placed",
        "node": last.node if last is not None and last.end is None else "",
        "candidates": [],
        "rejections": [],
        "evaluated": 0,
        "feasible": 0,
    }


_OUTCOMES: Final = {Fate.PLACED: Outcome.BOUND, Fate.EVICTED: Outcome.BOUND, Fate.WAITS: Outcome.UNSCHEDULABLE}


def _other_decision(name: PodName, compared: ComparedPod, last: LastRanking, weights: dict[str, int]) -> Decision:
    """The Decision as the binder would have made it, so that one code explains both runs."""
    ranking, fate = last.ranking, compared.other
    return Decision(
        attempt="",
        profile=last.profile,
        epoch=0,
        outcome=Outcome.ERROR if fate.fate is Fate.WAITS and ranking.error else _OUTCOMES[fate.fate],
        namespace=name.namespace,
        pod=name.name,
        uid=compared.uid,
        node=fate.node,
        message=fate.reason,
        candidates=list(ranking.candidates),
        weights=weights,
        evaluated=ranking.evaluated,
        feasible=ranking.feasible,
        nodes=ranking.nodes,
        nominated_first=ranking.nominated_first,
        rejections=list(ranking.rejections),
        blockers=list(ranking.unschedulable_plugins),
    )
