"""The messages of an attempt, from PENDING to the Decision, and dead letters (docs/protocol.md, 1 to 5)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Final

import msgspec

from berth.api.devices import AllocationResult
from berth.api.meta import NAME_CHARACTERS, Int64, Name, ObjectMeta
from berth.api.pod import Pod
from berth.api.podgroups import LabelKey
from berth.api.podlimits import MOST_CLAIMS
from berth.decoding import MAX_DIGITS
from berth.errors import DecodeError
from berth.messages.earmarks import Earmark
from berth.messages.encoding import Message
from berth.messages.subjects import Attempt

# Names that Kubernetes allows: they become subjects, headers and paths at the API server.
_NAME: Final = re.compile("[a-zA-Z0-9](?:[a-zA-Z0-9._-]{0,251}[a-zA-Z0-9])?")
# Of a rejection's reason and of a plugin's explanation: as many as an Event takes.
SENTENCE_CHARACTERS: Final = 1024
# Of a message or an error, which joins many reasons. A watcher keeps it for each waiting pod.
MESSAGE_CHARACTERS: Final = 8192
# Plugins named for one pod: ten times those of the default profile.
MOST_PLUGINS: Final = 256
MOST_REJECTIONS: Final = 4096
MOST_VICTIMS: Final = 4096  # more pods than a node has
MOST_MISSING: Final = 64  # members of a group that its Decision names
MOST_CLASSES: Final = 64  # of equal pods in one group: jobs have a handful of roles
# Devices of one pod. Of a pod with more, other scorers learn the devices from the claims.
MOST_RESULTS: Final = 512

Sentence = Annotated[str, msgspec.Meta(max_length=SENTENCE_CHARACTERS)]
Text = Annotated[str, msgspec.Meta(max_length=MESSAGE_CHARACTERS)]
ClaimedDevices = Annotated[dict[Name, AllocationResult], msgspec.Meta(max_length=MOST_CLAIMS)]
# A pod's name, or a group's in a subject: `~~` before the name of its PodGroup.
SubjectName = Annotated[str, msgspec.Meta(max_length=NAME_CHARACTERS + 2)]
# A number of pods, nodes or attempts. Bounded, so that differences and sums of such numbers can be decoded as well.
Count = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
# What the plan of a group took.
PlanSeconds = Annotated[float, msgspec.Meta(ge=0, le=3600)]
AttemptText = Annotated[str, msgspec.Meta(max_length=NAME_CHARACTERS + 2 * (MAX_DIGITS + 1))]  # the uid and two numbers


class Outcome(StrEnum):
    """The outcome of an attempt (docs/protocol.md, 5.17). All are final but ``waiting``."""

    BOUND = "bound"
    UNSCHEDULABLE = "unschedulable"
    CONFLICT = "conflict"
    PREEMPTING = "preempting"
    GONE = "gone"
    ERROR = "error"
    WAITING = "waiting"

    @property
    def final(self) -> bool:
        return self is not Outcome.WAITING


class Reason(StrEnum):
    """Why an attempt ended in a conflict, or a wait without a Binding."""

    NO_CANDIDATE = "no-candidate"  # no candidate fits any more
    CHANGED = "changed"  # the pod was changed after the ranking
    # The pod was unschedulable only because of proposals that are not bound yet.
    PROPOSALS = "proposals"
    # The pod was rejected on a view behind the positions that PENDING requires.
    BEHIND = "behind"
    VICTIMS = "victims"  # preemption was proposed, but the binder found no victims, or one is being bound
    # Preemption was proposed, but by the binder's cache the pod fits on a node without it.
    FITS = "fits"
    # Another client changed a volume or claim that the pod was to use.
    VOLUMES = "volumes"
    # Another client changed a ResourceClaim that the pod was to use, or the pod does not fit where its devices are.
    CLAIMS = "claims"
    # Unschedulable, because it waited where a more important pod gets the room.
    PREEMPTED = "preempted"
    # Some members of a group are bound, and fewer than its minimum.
    BEGUN = "begun"
    # Unschedulable, because there are no nodes, or none with the label of the group's topology: others may help.
    NO_NODES = "no-nodes"


# A time with its zone: without one it cannot be compared with NATS's times.
Time = Annotated[datetime, msgspec.Meta(tz=True)]


class Positions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The stream sequence up to which a scorer's view has read each source."""

    cluster: int = 0
    decisions: int = 0
    bandwidth: int = 0
    facts: int = 0

    def covers(self, wanted: Positions) -> bool:
        """Whether a view at these positions has reached the wanted ones."""
        return (
            self.cluster >= wanted.cluster
            and self.decisions >= wanted.decisions
            and self.bandwidth >= wanted.bandwidth
            and self.facts >= wanted.facts
        )


class Received(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of a scorer's view at a ranking beyond its ``Positions``, so that the ranking can be repeated.

    ``ranked``: the sequence in RANKED up to which peers' rankings counted; the scorer's own count from the ranking on.
    ``pending``: the newest received message of PENDING; its time is the least that the scorer's clock shows.
    ``expired``: pods whose proposals expired since this scorer's last ranking.
    ``missed``: the newest message of RANKED below ``ranked`` that did not arrive, so that it did not count.
    """

    ranked: int = 0
    missed: int = 0
    pending: int = 0
    expired: Annotated[list[Name], msgspec.Meta(max_length=65536)] = []


_MOST: Final = 2.0**53  # more than any loss


class Candidate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One of the K best nodes.

    ``scores`` are weighted and after NormalizeScore, by plugin; ``total`` is their sum. ``pods`` is the scorer's count
    of pods on the node, with proposals, without the pod itself and nominated pods. ``loss`` are the points that one
    more equal pod costs there, averaged over the next four that fit. ``newcomers``, in Decisions only, is the binder's
    count at its choice minus ``pods``. ``place``, in Decisions only, is its place in RANKED if others before it are
    left out; 0 otherwise. ``details`` are plugins' explanations of its points (a sample's value and age). Only the
    first few of RANKED have ``scores`` and ``details``.
    """

    node: Name
    total: Int64
    scores: Annotated[dict[Name, Int64], msgspec.Meta(max_length=MOST_PLUGINS)] = {}
    pods: Count = 0
    loss: Annotated[float, msgspec.Meta(ge=-_MOST, le=_MOST)] = 0
    newcomers: Int64 = 0
    place: Count = 0
    details: Annotated[dict[Name, Sentence], msgspec.Meta(max_length=MOST_PLUGINS)] = {}

    @property
    def estimate(self) -> float:
        """The node's total with its newcomers, as far as they are like this pod."""
        return self.total - self.loss * self.newcomers


def by_best_estimate(candidates: Iterable[Candidate]) -> list[Candidate]:
    """The order in which the binder tries the nodes (docs/protocol.md, 5): the highest estimate first.

    Equal ones: the fewest newcomers first, then the scorer's order, as in ``candidates``.
    """
    return sorted(candidates, key=lambda each: (each.loss * each.newcomers - each.total, each.newcomers))


class Rejection(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One reason for rejecting nodes: the plugin, the number of nodes, and some of their names.

    ``resolvable``: evicting pods may help.
    """

    plugin: Sentence
    reason: Sentence
    nodes: Count
    examples: Annotated[list[Name], msgspec.Meta(max_length=16)] = []
    resolvable: bool = True


class Victim(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that is evicted for one of higher priority."""

    uid: Name
    namespace: Name
    name: Name


class Preemption(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The node that the pod is nominated to, and the pods to evict there, highest priority first.

    Without victims, terminating pods make enough room. ``violations`` is the number of evictions that violate a
    PodDisruptionBudget.
    """

    node: Name
    victims: Annotated[list[Victim], msgspec.Meta(max_length=MOST_VICTIMS)] = []
    violations: Count = 0


class Pending(Message, frozen=True, kw_only=True):
    """PENDING: rank this pod. ``after`` are the positions that the scorer's view must reach first.

    ``error``: the pod cannot be ranked for this reason, and ``pod`` may have only its name. RANKED passes the reason on
    to the binder, which reports it on the pod. ``failures`` counts the pod's consecutive attempts before this one that
    ended in back-off; RANKED and the Decision repeat it for the next watcher. ``suspect``: the attempt before it stayed
    in PENDING until this one replaced it, so the pod may have ended the scorers that ranked it.
    """

    attempt: str
    profile: str
    pod: Pod
    failures: Count = 0
    after: Positions = Positions()
    error: str = ""
    suspect: bool = False


class AttemptReport(Message, frozen=True, kw_only=True):
    """The part common to RANKED and DECISIONS: the attempt and the result of its ranking.

    ``positions`` and ``view_age_seconds`` describe the scorer's view. ``blockers`` are the plugins that rejected
    nodes, as they are or after evictions: their registered events may help the pod. ``asked_at`` is the time at which
    NATS stored PENDING. ``evaluated`` is the number of tried nodes of the scorer's ``nodes``: fewer if
    percentageOfNodesToScore was reached, and one if the pod's nominated node, which is tried first, passed
    (``nominated_first``). ``nodes`` is ``None`` if ranking failed. ``weights`` are those by which the candidates'
    ``scores`` were multiplied. ``devices``: by claim, the devices that the pod would get on the first candidate, or
    in a Decision got on its node.
    """

    attempt: AttemptText
    profile: Name
    failures: Count = 0
    scorer: Name = ""
    asked_at: Time | None = None
    positions: Positions = Positions()
    view_age_seconds: float | None = None
    evaluated: Count = 0
    feasible: Count = 0
    nodes: Count | None = None
    nominated_first: bool = False
    candidates: Annotated[list[Candidate], msgspec.Meta(max_length=256)] = []
    weights: Annotated[dict[Name, Int64], msgspec.Meta(max_length=MOST_PLUGINS)] = {}
    rejections: Annotated[list[Rejection], msgspec.Meta(max_length=MOST_REJECTIONS)] = []
    blockers: Annotated[list[Name], msgspec.Meta(max_length=MOST_PLUGINS)] = []
    preemption: Preemption | None = None
    devices: ClaimedDevices = {}
    message: Text = ""


class Ranked(AttemptReport, frozen=True, kw_only=True):
    """RANKED: the best K nodes, or why no node is feasible, or why ranking failed.

    It has exactly one of ``candidates``, ``rejections`` with ``message``, or ``error``. Next to ``rejections``,
    ``preemption`` is where evictions would make the pod fit, and ``clears_nomination`` means that the pod's nomination
    does not help it. ``proposals_counted``: the rejections may be due to a proposal that is not bound yet. ``behind``:
    the view was behind the positions in PENDING. ``received`` completes the positions of the view for ``berth replay``.
    """

    pod: Pod
    received: Received = Received()
    proposals_counted: bool = False
    behind: bool = False
    clears_nomination: bool = False
    error: Text = ""

    def pending(self, after: Positions) -> Pending:
        """The PENDING to rank the pod again, without PENDING's ``error``, which RANKED does not repeat."""
        return Pending(config=self.config, **_values(self, _OF_PENDING), pod=self.pod, after=after)


class ClassResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Equal members of a group: how many were pending, how many had a node, and why ``example`` had none."""

    members: Count
    placed: Count = 0
    example: Name = ""
    rejections: Annotated[list[Rejection], msgspec.Meta(max_length=MOST_REJECTIONS)] = []


class GroupResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The part of a group's Decision that no pod's has.

    ``need``: how many members had to be placed together. ``bound``: members that this attempt has bound. ``missing``:
    names of some without a node. ``domain`` is the value of the topology label ``topology_key``.
    """

    need: Count = 0
    bound: Count = 0
    missing: Annotated[list[Name], msgspec.Meta(max_length=MOST_MISSING)] = []
    classes: Annotated[list[ClassResult], msgspec.Meta(max_length=MOST_CLASSES)] = []
    topology_key: LabelKey = ""
    domain: Name = ""
    note: Text = ""


class Decision(AttemptReport, frozen=True, kw_only=True):
    """DECISIONS: the outcome of an attempt, with everything that explains it.

    ``preemption`` has the binder's evictions. ``resource_versions`` name, on a conflict, the newest **object or event**
    of each kind that the binder has seen: the watcher tries again once its own reflectors have reached them. ``repeat``
    counts Decisions of the outcome ``waiting``. ``ranked_at`` is the time at which NATS stored RANKED.

    Of a group, ``attempt`` and ``uid`` are its PodGroup's, ``pod`` is its name in a subject, and ``plan_seconds`` what
    its plan took, and ``earmark`` the nodes that are kept for it. ``of_group``, of a member, is the group's attempt in
    which it was decided.
    """

    epoch: Annotated[int, msgspec.Meta(ge=0, lt=10**15)]
    outcome: Outcome
    namespace: Name
    pod: SubjectName
    uid: Name
    node: Name = ""
    reason: Name = ""
    repeat: Count = 0
    resource_versions: Annotated[dict[Name, Name], msgspec.Meta(max_length=256)] = {}
    ranked_at: Time | None = None
    of_group: AttemptText = ""
    plan_seconds: PlanSeconds = 0
    group: GroupResult | None = None
    earmark: Earmark | None = None


_OF_REPORT: Final = tuple(name for name in AttemptReport.__struct_fields__ if name not in Message.__struct_fields__)
_OF_PENDING: Final = tuple(name for name in _OF_REPORT if name in Pending.__struct_fields__)


def repeated(message: Pending | AttemptReport) -> dict[str, Any]:
    """Fields that the next message of the attempt has too: RANKED those of PENDING, the Decision those of RANKED."""
    return _values(message, _OF_PENDING if isinstance(message, Pending) else _OF_REPORT)


def _values(message: Message, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(message, name) for name in names}


class RankedNode(msgspec.Struct, frozen=True):
    """The name of a candidate; the rest of it is not decoded."""

    node: Name


class RankedSummary(Message, frozen=True, kw_only=True):
    """The part of RANKED that other scorers read: the pod, its proposed node, and who proposes it.

    The rest is skipped in decoding, which takes a third of the time.
    """

    attempt: AttemptText
    pod: Pod
    candidates: Annotated[list[RankedNode], msgspec.Meta(max_length=256)] = []
    scorer: Name = ""
    preemption: Preemption | None = None
    devices: ClaimedDevices = {}
    proposals_counted: bool = False


class DecisionSummary(Message, frozen=True, kw_only=True):
    """The part of a Decision that watcher and scorers read: the outcome of the attempt.

    The rest is skipped in decoding, which takes a third of the time.
    """

    attempt: AttemptText
    profile: Name
    epoch: Annotated[int, msgspec.Meta(ge=0, lt=10**15)]
    outcome: Outcome
    uid: Name
    node: Name = ""
    reason: Name = ""
    failures: Count = 0
    message: Text = ""
    asked_at: Time | None = None
    ranked_at: Time | None = None
    positions: Positions = Positions()
    blockers: Annotated[list[Name], msgspec.Meta(max_length=MOST_PLUGINS)] = []
    devices: ClaimedDevices = {}
    resource_versions: Annotated[dict[Name, Name], msgspec.Meta(max_length=256)] = {}
    of_group: AttemptText = ""
    plan_seconds: PlanSeconds = 0
    preemption: Preemption | None = None
    earmark: Earmark | None = None


class DeadLetter(Message, frozen=True, kw_only=True):
    """dead: an undecodable or repeatedly failed message, and why. ``payload`` is cut to a readable length."""

    subject: str
    reason: str
    service: str
    attempt: str = ""
    payload: str = ""


def attempt_of(message: Pending | Ranked) -> Attempt:
    """The attempt of a message. Raises as :func:`check_attempt`, and for a profile with too long a name."""
    attempt = check_attempt(message)
    if len(message.profile.encode()) > NAME_CHARACTERS:
        raise DecodeError(f"decoding a message: want a profile of {NAME_CHARACTERS} bytes at most")
    return attempt


def check_attempt(message: Pending | Ranked | RankedSummary) -> Attempt:
    """The attempt of a message, which must belong to its pod.

    Raises:
        DecodeError: malformed, of another pod than the message's, or a name that Kubernetes does not allow.
    """
    metadata = message.pod.metadata
    attempt, uid = Attempt.parse(message.attempt), metadata.uid
    if not attempt.uid or attempt.uid != uid:
        raise DecodeError(f"decoding a message: want an attempt of pod {uid!r:.80}, got {message.attempt!r:.80}")
    check_names(metadata)
    return attempt


def check_names(metadata: ObjectMeta) -> None:
    """Check the names and the uid of a message's pod.

    Raises:
        DecodeError: Kubernetes does not allow one of them.
    """
    for name in (metadata.uid, metadata.name, metadata.namespace):
        if not _NAME.fullmatch(name):
            want = f"letters, digits, '-', '_' and '.', {NAME_CHARACTERS} at most"
            raise DecodeError(f"decoding a message: want names of {want}, got {name!r:.80}")
