"""The end of a commitment: what is given back, and the Decision that says so."""

from __future__ import annotations

from dataclasses import dataclass

from berth.api.messages import Outcome
from binder.commitment import Commitment, Phase
from binder.effects import Demote, Effect, Publish
from binder.holdups import HoldUps
from binder.ledger import Ledger
from binder.statements import Statements
from binder.verdict import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """Ends commitments of one epoch."""

    ledger: Ledger
    statements: Statements
    hold_ups: HoldUps

    def settle(self, commitment: Commitment, verdict: Verdict, *, bury: bool = False) -> list[Effect]:
        """Have the verdict published; unless the pod is bound, its room and what plugins keep for it is free again."""
        if verdict.outcome is Outcome.BOUND:
            self._confirm(commitment)
        else:
            self._give_back(commitment)
        self.hold_ups.settled(commitment.uid)
        commitment.phase = Phase.DECIDING
        commitment.decision = self.statements.final(commitment, verdict)
        commitment.decided = commitment.foremost.attempt
        said = Publish(decision=commitment.decision, held=commitment.foremost.held, bury=bury)
        return [said, *_demoted(commitment, verdict)]

    def undo(self, commitment: Commitment) -> None:
        """The pod is not going to that node after all: plugins hear of it."""
        steps, commitment.steps = commitment.steps, None
        if steps is not None:
            steps.undo()

    def _confirm(self, commitment: Commitment) -> None:
        self.ledger.confirm(commitment.uid)
        if commitment.steps is not None:
            commitment.steps.after_binding()

    def _give_back(self, commitment: Commitment) -> None:
        self.ledger.release(commitment.uid)
        self.ledger.give_up_keeping(commitment.uid)
        self.undo(commitment)


def _demoted(commitment: Commitment, verdict: Verdict) -> list[Effect]:
    """A node that is kept for a pod which nothing helps is kept for nothing."""
    pod, ranked = commitment.pod, commitment.foremost.ranked
    is_of_no_use = verdict.outcome is Outcome.UNSCHEDULABLE and ranked.clears_nomination
    return [Demote(pod=pod)] if is_of_no_use and pod.status.nominated_node_name else []
