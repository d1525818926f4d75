"""The requests of commitments: each takes a place on the wire until it is answered."""

from __future__ import annotations

from dataclasses import dataclass

from binder.commitment import Commitment, Phase
from binder.effects import Demote, Effect, Evict, Post, Read, Write
from binder.ledger import Ledger
from binder.plugin_steps import PluginSteps
from binder.preempting import Eviction
from binder.wire import Wire


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """Starts requests of one epoch."""

    ledger: Ledger
    wire: Wire

    def evict(self, commitment: Commitment, eviction: Eviction) -> list[Effect]:
        """Have the victims go. The node is kept for the pod from here on: its room is nobody else's."""
        commitment.pod, commitment.eviction, commitment.phase = eviction.pod, eviction, Phase.EVICTING
        victims = frozenset(victim.uid for victim in eviction.victims)
        self.ledger.keep(eviction.pod, eviction.node, victims)
        self.wire.start(commitment.uid)
        demoted = [Demote(pod=pod) for pod in eviction.demoted]
        return [*demoted, Evict(pod=eviction.pod, node=eviction.node, victims=eviction.victims)]

    def write(self, commitment: Commitment, steps: PluginSteps) -> list[Effect]:
        """Write what plugins want written before the Binding."""
        commitment.phase = Phase.WRITING
        self.wire.start(commitment.uid)
        return [Write(pod=commitment.pod, requests=steps.unwritten)]

    def have_been_seen(self, commitment: Commitment) -> bool:
        """Whether the watches have shown what was written."""
        return all(self.ledger.reached(kind) >= version for kind, version in commitment.unseen.items())

    def post(self, commitment: Commitment, steps: PluginSteps) -> list[Effect]:
        """Bind the pod as it is known now."""
        node = steps.binding().node
        commitment.posted()
        self.wire.start(commitment.uid)
        return [Post(pod=commitment.pod, node=node)]

    def look(self, commitment: Commitment) -> list[Effect]:
        """Read the pod."""
        commitment.phase = Phase.READING
        self.wire.start(commitment.uid)
        return [Read(pod=commitment.pod)]
