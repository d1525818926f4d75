"""The last Decision on each pod of a recording, as if it were asked for when the recording ended."""

from __future__ import annotations

from berth.api.messages import Decision, Outcome, decode
from berth.bus.topology import DECISIONS
from berth.cli.lookup import EvictionRecord, ExplainedDecision
from berth.cli.options import NotFoundError, PodName
from berth.recording.file import Recorded, Recording
from berth.recording.history import decoded


class RecordedDecisions:
    """Reads the Decisions of a recording once, and remembers where each pod's last one is."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._last: dict[PodName, Recorded] = {}
        self._evictions: dict[str, EvictionRecord] = {}
        """By uid of the preemptor, its last eviction up to its last Decision."""
        self._evicted_for: dict[PodName, EvictionRecord] = {}
        names: dict[str, PodName] = {}
        uids: dict[PodName, str] = {}
        for record, decision in decoded(recording, DECISIONS, Decision):
            name = PodName(namespace=decision.namespace, name=decision.pod)
            self._last[name] = record
            self._evicted_for.pop(name, None)
            names[decision.uid], uids[name] = name, decision.uid
            eviction = _eviction_of(decision, name, record)
            if eviction is None:
                continue
            self._evictions[decision.uid] = eviction
            for victim in eviction.preemption.victims:
                evicted = names.get(victim.uid)
                if evicted is not None and uids[evicted] == victim.uid:
                    self._evicted_for[evicted] = eviction

    def __contains__(self, name: PodName) -> bool:
        return name in self._last

    def last(self, name: PodName) -> ExplainedDecision:
        """The pod's last Decision, seen from the end of the recording.

        Raises:
            NotFoundError: there is none.
        """
        record = self._last.get(name)
        if record is None:
            raise NotFoundError(f"looking for pod {str(name)!r}: the recording has no Decision on it")
        decision = decode(record.payload or b"", Decision)
        return ExplainedDecision(
            decision=decision,
            at=record.time,
            now=self._recording.last_time,
            preemption=self._evictions.get(decision.uid),
            evicted_for=self._evicted_for.get(name),
        )


def _eviction_of(decision: Decision, name: PodName, record: Recorded) -> EvictionRecord | None:
    preemption = decision.preemption
    if decision.outcome is not Outcome.PREEMPTING or preemption is None or not preemption.victims:
        return None
    return EvictionRecord(pod=name, uid=decision.uid, preemption=preemption, at=record.time)
