"""The state of each pod at the end of a recording.

That is the pod's last Decision, also one from before the recording if the pod waited at its begin. Pods without a
Decision have the watcher's answer, or their message in PENDING or RANKED.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Final

import msgspec

from berth.api.kinds import POD
from berth.api.pod import Pod
from berth.bus.topology import CLUSTER, PENDING, RANKED
from berth.decoding import decode_json
from berth.errors import DecodeError
from berth.messages.attempts import Decision, Outcome
from berth.messages.encoding import decode
from berth.messages.mirror import decode_entry, watermark_key
from berth.messages.queue import QueueAnswer, QueuedPodDetail
from berth.messages.subjects import PodSubject, key
from berth_cli.options import NotFoundError, PodName
from berth_cli.pods.lookup import MIRRORED_WITHIN, EvictionRecord, ExplainedDecision
from berth_cli.pods.waiting import detail_json, detail_lines
from berth_cli.recording.file import Recorded, Recording, Source
from berth_cli.recording.history import KnownWaiting, RecordedQueue, all_decisions, decoded_records
from berth_cli.rendering import clock, duration
from berth_cli.simulate.inputs import counted

_STAGES: Final[Mapping[Source, str]] = {RANKED: "to be bound", PENDING: "to be ranked"}


class RecordedDecisions:
    """Reads the Decisions of a recording once, and finds each pod's last one."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._waiting = RecordedQueue(recording)
        # By key, the newest record of the mirror.
        self._mirror = {record.subject: record for record in recording.of(CLUSTER)}
        self._last: dict[PodName, Recorded] = {}
        # By uid of the preemptor, its last eviction up to its last Decision.
        self._evictions: dict[str, EvictionRecord] = {}
        self._evicted_for: dict[PodName, EvictionRecord] = {}
        # The pod of each name with the newest Decision. Names may be reused.
        self._uids: dict[PodName, str] = {}
        names: dict[str, PodName] = {}
        for record, decision in decoded_records(all_decisions(recording), Decision):
            name = PodName(namespace=decision.namespace, name=decision.pod)
            self._last[name] = record
            self._evicted_for.pop(name, None)
            names[decision.uid], self._uids[name] = name, decision.uid
            eviction = _eviction_of(decision, name, record)
            if eviction is None:
                continue
            self._evictions[decision.uid] = eviction
            for victim in eviction.preemption.victims:
                evicted = names.get(victim.uid)
                if evicted is not None and self._uids[evicted] == victim.uid:
                    self._evicted_for[evicted] = eviction

    def __contains__(self, name: PodName) -> bool:
        """Whether the last pod of this name has a Decision."""
        waited = self.waited(name)
        return name in self._last and (waited is None or waited.pod.uid == self._uids[name])

    def waited(self, name: PodName) -> KnownWaiting | None:
        """The answer about the last pod of this name, if it waited."""
        known, decided = self._waiting.of(name.namespace, name.name), self._last.get(name)
        if known is None or decided is None or known.pod.uid == self._uids[name] or known.at > decided.time:
            return known
        return None

    def last(self, name: PodName) -> ExplainedDecision:
        """The pod's last Decision, seen from the end of the recording.

        Raises:
            NotFoundError: it has no Decision.
        """
        record = self._last.get(name)
        if record is None:
            raise NotFoundError(f"looking for pod {str(name)!r}: the recording has no Decision on it{self._why(name)}")
        decision = decode(record.payload or b"", Decision)
        return ExplainedDecision(
            decision=decision,
            at=record.time,
            now=self._recording.last_time,
            is_recorded=True,
            preemption=self._evictions.get(decision.uid),
            evicted_for=self._evicted_for.get(name),
            has_left=decision.outcome is Outcome.BOUND and self._has_left(decision.uid, record.time),
        )

    def _has_left(self, uid: str, bound_at: datetime) -> bool:
        """Whether a bound pod is missing in the mirror at the end, as in :func:`berth_cli.pods.lookup._has_left`."""
        mirrored = self._mirror.get(key(POD.name, uid))
        if mirrored is not None:
            return mirrored.payload is None
        complete = self._mirror.get(watermark_key(POD.name))
        was_read = self._recording.begun is not None
        return was_read and complete is not None and complete.time > bound_at + MIRRORED_WITHIN

    def _why(self, name: PodName) -> str:
        """A possible reason for the missing Decision."""
        for source, waits in _STAGES.items():
            at = next((record.time for record in reversed(self._recording.of(source)) if _is_about(record, name)), None)
            if at is not None:
                before = duration(max(0.0, (self._recording.last_time - at).total_seconds()))
                return f": it waited {waits}, published {before} before the recording ended"
        if node := _node_of(self._recording, name):
            return f"; it is on {node}, where it was placed before"
        if not self._waiting.was_asked:
            return "; the waiting pods were not recorded"
        more = self._waiting.more
        return f"; the recording lacks {counted(more, 'waiting pod')}" if more else ""


def _node_of(recording: Recording, name: PodName) -> str:
    ended: set[str] = set()
    for record in reversed(recording.of(CLUSTER)):
        if not record.subject.startswith(f"{POD.name}.") or record.subject in ended:
            continue
        ended.add(record.subject)
        with suppress(DecodeError):
            pod = decode_json(_POD, decode_entry(record.payload).object, "a mirrored pod") if record.payload else None
            if pod is not None and pod.key == str(name):
                return pod.spec.node_name
    return ""


_POD: Final = msgspec.json.Decoder(Pod)


def _is_about(record: Recorded, name: PodName) -> bool:
    try:
        subject = PodSubject.parse(record.subject)
    except DecodeError:
        return False
    return (subject.namespace, subject.pod) == (name.namespace, name.name)


def waited_sentences(known: KnownWaiting) -> Iterator[str]:
    """Sentences about a waiting pod, in the words of `berth why`."""
    for line in detail_lines(_answer(known), QueuedPodDetail(pod=known.pod)):
        if isinstance(line, str):
            yield line.strip()
    yield f"according to the watcher at {clock(known.at)}"


def waited_sentence(known: KnownWaiting) -> str:
    """Since when a pod with a Decision waited."""
    waits = duration(max(0.0, (known.at - known.pod.since).total_seconds()))
    return f"at {clock(known.at)} it had waited for {waits}, according to the watcher"


def waited_json(known: KnownWaiting) -> dict[str, object]:
    return detail_json(_answer(known), QueuedPodDetail(pod=known.pod), "")


def _answer(known: KnownWaiting) -> QueueAnswer:
    return QueueAnswer(now=known.at, draining=known.draining)


def _eviction_of(decision: Decision, name: PodName, record: Recorded) -> EvictionRecord | None:
    preemption = decision.preemption
    if decision.outcome is not Outcome.PREEMPTING or preemption is None or not preemption.victims:
        return None
    return EvictionRecord(pod=name, uid=decision.uid, preemption=preemption, at=record.time)
