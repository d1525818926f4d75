"""One pod on its way from RANKED to a final Decision.

Which messages are held for it, what is under way, and until when it pauses. There is one commitment per uid; later
attempts of the uid join it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from berth.api.messages import Decision, Ranked
from berth.api.meta import version_number
from berth.api.pod import Pod
from berth.api.subjects import Attempt
from berth_binder.conflictcheck import EvictionPlan
from berth_binder.effects import RankedMessage
from berth_binder.pluginsteps import PluginSteps


class AttemptPhase(Enum):
    """What a commitment waits for."""

    POSTING = "the answer to a Binding"
    READING = "the answer to the reading of the pod"
    EVICTING = "the answers to the evictions for it"
    WRITING = "the answers to what is written before the Binding"
    PAUSED = "the end of a back-off"
    DECIDING = "the PubAck of its Decision"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankedDelivery:
    """One RANKED message for the pod."""

    ranked: Ranked
    attempt: Attempt
    held: RankedMessage


@dataclass(slots=True, kw_only=True, eq=False)
class BindingAttempt:
    """The state of one uid. ``claims`` are all messages held, ``foremost`` is the one of the highest attempt."""

    foremost: RankedDelivery
    claims: list[RankedDelivery]
    phase: AttemptPhase
    pod: Pod
    """The newest state known; its resourceVersion is the Binding's precondition."""
    node: str = ""
    """Whose room is reserved; empty as long as none was chosen."""
    eviction: EvictionPlan | None = None
    """Whom it costs, while they are being evicted."""
    steps: PluginSteps | None = None
    """The plugins' part on the way to that node."""
    unseen: Mapping[str, int] = field(default_factory=dict)
    """The resourceVersions, by kind, of what was written for it: the watches must have shown them."""
    is_posted: bool = False
    """Whether a Binding to that node has ever been sent."""
    posted_version: int = 0
    """The highest resourceVersion that a POST has named: once the pod's is higher, none of them can land any more."""
    failures: int = 0
    """BackoffSettings so far: the next is longer."""
    collisions: int = 0
    """409 answers since the last pause."""
    tries: int = 0
    """Exceptions of our own."""
    due: float = 0.0
    """When the pause ends, on the clock that is handed in."""
    next_word: float | None = None
    """When ``waiting`` is to be said; ``None`` as long as nothing has held it up."""
    is_waiting: bool = False
    """Whether ``waiting`` was said."""
    hold_up: str = ""
    """What it waits for, for people."""
    repeats: int = 0
    """How many times it was said for the foremost attempt."""
    decision: Decision | None = None
    """The final one, while its PubAck is awaited."""
    decided: Attempt | None = None
    """Whose it is: a later attempt may join meanwhile."""

    @property
    def uid(self) -> str:
        """The pod's uid."""
        return self.pod.uid

    @property
    def sequence(self) -> int:
        """Where the pod stands in the order of POSTs: where its first message stood."""
        return self.claims[0].held.sequence

    def join(self, claim: RankedDelivery) -> bool:
        """Hold one more message for the pod; whether it is a later attempt, which takes everything over."""
        self.claims.append(claim)
        if claim.attempt.order <= self.foremost.attempt.order:
            return False
        self.foremost = claim
        self.repeats = 0
        return True

    def claims_decided(self) -> list[RankedDelivery]:
        """The messages that the Decision settles: those of its attempt and of earlier ones."""
        if self.decided is None:
            return []
        order = self.decided.order
        return [claim for claim in self.claims if claim.attempt.order <= order]

    def claims_left(self) -> list[RankedDelivery]:
        """The messages that came for later attempts while the Decision was being published."""
        decided = self.claims_decided()
        return [claim for claim in self.claims if claim not in decided]

    def posted(self) -> None:
        """A Binding is on its way with the present resourceVersion."""
        self.phase = AttemptPhase.POSTING
        self.is_posted = True
        self.posted_version = max(self.posted_version, version_number(self.pod.metadata.resource_version))

    def learn(self, pod: Pod) -> bool:
        """Take a newer state of the pod; whether every POST so far is dead, since none of them named this version."""
        self.pod = pod
        return version_number(pod.metadata.resource_version) > self.posted_version
