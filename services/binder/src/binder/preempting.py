"""What a proposal to evict pods comes to before anybody goes: the dry run again, on the binder's own state. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from berth.api.eviction import is_being_preempted
from berth.api.messages import Outcome, Preemption, Ranked, Reason, Victim
from berth.api.pod import Pod, priority_of
from berth.framework.cycle import check
from berth.framework.guard import PluginFailure
from berth.framework.interface import Nomination
from berth.framework.postfilter import confirm
from berth.framework.profile import Profile
from berth.framework.status import Code
from binder.ledger import Ledger
from binder.recheck import RecheckError
from binder.verdict import Verdict

NOT_AS_PROPOSED: Final = "whom the pod would need gone is not as it was when the pod was ranked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Eviction:
    """These pods are to go from the node, so that this one can be there.

    ``demoted``: less important pods for which the node was kept; they look for another.
    """

    pod: Pod
    node: str
    victims: tuple[Pod, ...]
    demoted: tuple[Pod, ...]
    preemption: Preemption


@dataclass(frozen=True, slots=True, kw_only=True)
class Preempting:
    """Reads the ledger, changes nothing."""

    ledger: Ledger
    profiles: Mapping[str, Profile]

    def of(self, ranked: Ranked, proposed: Preemption, pod: Pod) -> Verdict | Eviction:
        """Whom to evict; or that victims are still going; or the conflict that others would be needed by now.

        Raises:
            RecheckError: a plugin could not answer.
        """
        profile = self.profiles[ranked.profile]
        kept = self.ledger.nominations.node_of(pod)
        if kept and self._is_being_vacated(pod, kept, profile):
            preemption = self._under_way(kept, proposed)
            return Verdict(outcome=Outcome.PREEMPTING, node=kept, message=ranked.message, preemption=preemption)
        now = self._needed_now(pod, proposed.node, profile)
        if now is None or not self._is_as_proposed(now, proposed):
            return Verdict(outcome=Outcome.CONFLICT, reason=Reason.VICTIMS, message=NOT_AS_PROPOSED)
        victims = tuple(placed.pod for uid in now.victims if (placed := self.ledger.snapshot.placed(uid)))
        return Eviction(
            pod=pod,
            node=now.node,
            victims=victims,
            demoted=self._less_important_nominees(pod, now.node),
            preemption=Preemption(node=now.node, victims=[_named(each) for each in victims], violations=now.violations),
        )

    def _is_being_vacated(self, pod: Pod, node: str, profile: Profile) -> bool:
        """Whether pods are still going for this one from a node that can take it then: nobody else is evicted."""
        info = self.ledger.snapshot.node_info(node)
        if info is None or check(pod, node, self.ledger.snapshot, profile).code is Code.UNSCHEDULABLE_AND_UNRESOLVABLE:
            return False
        if self.ledger.victims_left(pod.uid):
            return True
        there = (placed.pod for placed in info.placed())
        return any(is_being_preempted(other) and priority_of(other) < priority_of(pod) for other in there)

    def _under_way(self, node: str, proposed: Preemption) -> Preemption:
        """Of what was proposed, whom somebody has evicted already: a binder that was killed before it said so."""
        placed = ((victim, self.ledger.snapshot.placed(victim.uid)) for victim in proposed.victims)
        going = [victim for victim, found in placed if found is not None and is_being_preempted(found.pod)]
        return Preemption(node=node, victims=going, violations=proposed.violations)

    def _needed_now(self, pod: Pod, node: str, profile: Profile) -> Nomination | None:
        try:
            return confirm(pod, node, self.ledger.snapshot, profile)
        except PluginFailure as failure:
            raise RecheckError(f"choosing victims for {pod.key!r} on {node!r}: {failure}") from failure

    def _is_as_proposed(self, now: Nomination, proposed: Preemption) -> bool:
        """Whether nobody else has to go than was said, nothing is violated that was not, and all are bound indeed."""
        said = {victim.uid for victim in proposed.victims}
        all_bound = not any(uid in self.ledger.reservations for uid in now.victims)
        return said.issuperset(now.victims) and now.violations <= proposed.violations and all_bound

    def _less_important_nominees(self, pod: Pod, node: str) -> tuple[Pod, ...]:
        nominees = (each for each in self.ledger.snapshot.nominations() if each.node == node)
        return tuple(each.pod for each in nominees if priority_of(each.pod) < priority_of(pod))


def _named(pod: Pod) -> Victim:
    return Victim(uid=pod.uid, namespace=pod.metadata.namespace, name=pod.metadata.name)
