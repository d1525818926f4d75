"""From verdicts to the messages that everybody reads."""

from __future__ import annotations

from dataclasses import dataclass

from berth.api.identity import Epoch
from berth.api.messages import Decision, Outcome
from binder.commitment import Commitment
from binder.ledger import Ledger
from binder.verdict import Verdict, waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class Stand:
    """On whose behalf Decisions are made."""

    epoch: Epoch
    config: str
    """Digest of the configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statements:
    """Makes the Decisions of one epoch, each with everything that explains it."""

    ledger: Ledger
    stand: Stand

    def final(self, commitment: Commitment, verdict: Verdict) -> Decision:
        """What became of the pod, for its highest attempt."""
        return self._decision(commitment, verdict, repeat=0)

    def waiting(self, commitment: Commitment) -> Decision:
        """That it is not decided yet, and why; the next one is another message."""
        word = self._decision(commitment, waiting(commitment.node, commitment.hold_up), repeat=commitment.repeats)
        commitment.repeats += 1
        commitment.is_waiting = True
        return word

    def _decision(self, commitment: Commitment, verdict: Verdict, *, repeat: int) -> Decision:
        ranked, metadata = commitment.foremost.ranked, commitment.pod.metadata
        conflict = verdict.outcome is Outcome.CONFLICT
        return Decision(
            config=self.stand.config,
            attempt=ranked.attempt,
            epoch=self.stand.epoch,
            outcome=verdict.outcome,
            profile=ranked.profile,
            namespace=metadata.namespace,
            pod=metadata.name,
            uid=metadata.uid,
            node=verdict.node,
            reason=verdict.reason,
            message=verdict.message,
            repeat=repeat,
            evaluated=ranked.evaluated,
            feasible=ranked.feasible,
            candidates=ranked.candidates,
            rejections=list(verdict.refusals) or ranked.rejections,
            blockers=list(verdict.blockers) or ranked.blockers,
            preemption=verdict.preemption,
            positions=ranked.positions,
            resource_versions=self.ledger.newest_objects() if conflict else {},
            scorer=ranked.scorer,
            view_age_seconds=ranked.view_age_seconds,
            asked_at=ranked.asked_at,
        )
