"""Messages and numbers of shadows on the bus. Commands read them without the code that ranks.

Differences are broadcast on ``berth.shadow.<name>.<profile>.<namespace>.<pod>`` with both rankings, so that a person
can read them side by side; the numbers are in the shadow's metrics and statistics (ADR 35).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

import msgspec

from berth.api.meta import NAME_CHARACTERS
from berth.messages.attempts import Candidate, Outcome, Rejection
from berth.messages.encoding import Message
from berth.messages.subjects import PREFIX, escape_dotted, escape_token

ALL_SHADOWS: Final = f"{PREFIX}.shadow.>"
SHADOW_SERVICE: Final = "shadow"  # its name among the services

SHOWN_CANDIDATES: Final = 8  # of each ranking, and the other's best node
SHOWN_REJECTIONS: Final = 16
TEXT_CHARACTERS: Final = 1024
# Bytes of a broadcast difference: ten times the usual. A hostile scorer may write longer names.
MOST_COMPARISON_BYTES: Final = 64 * 1024


class ShadowResult(StrEnum):
    """The result of comparing two rankings of a pod, or two plans of a group."""

    # The same node is best, or neither finds one and both would evict on the same node or on none. Of a group: as many
    # members of each kind on the same nodes, or neither finds a plan and both would evict, or neither.
    EQUAL = "equal"
    NODE = "node"  # another node is best; of a group: members elsewhere
    REFUSED = "refused"  # only the live scorer finds a node
    FEASIBLE = "feasible"  # only the shadow finds a node
    # Neither finds a node, and they differ in where evictions would make room.
    PREEMPTION = "preemption"
    ERROR = "error"  # the shadow could not rank the pod


class SkipReason(StrEnum):
    """Why a live ranking was not compared."""

    BUSY = "busy"  # more rankings arrived than the shadow can make
    MISSED = "missed"  # NATS dropped the copy, or it cannot be decoded
    # The shadow's configuration has no profile of that name.
    PROFILE = "profile"
    # The shadow's profile has extenders for such a pod, and a shadow asks none.
    EXTENDERS = "extenders"
    # The live ranking failed or its view was behind, so it does not depend on the configuration alone.
    LIVE = "live"
    UNDECIDED = "undecided"  # no final Decision followed in time


_Text = Annotated[str, msgspec.Meta(max_length=TEXT_CHARACTERS + 4)]
_Name = Annotated[str, msgspec.Meta(max_length=NAME_CHARACTERS)]


class ShownRanking(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One of the two rankings, as far as a person reads it. ``preempts_on`` is where evictions would make room.

    A group's has no candidates: ``message`` says where its plan has the members.
    """

    scorer: _Name = ""
    config: _Name = ""
    evaluated: int = 0
    feasible: int = 0
    nodes: int | None = None
    candidates: Annotated[list[Candidate], msgspec.Meta(max_length=2 * SHOWN_CANDIDATES)] = []
    rejections: Annotated[list[Rejection], msgspec.Meta(max_length=SHOWN_REJECTIONS)] = []
    preempts_on: _Name = ""
    message: _Text = ""
    error: _Text = ""


class ShadowComparison(Message, frozen=True, kw_only=True):
    """Two rankings of an attempt, or two plans of a group. ``config`` is the digest of the shadow's configuration.

    Of a group ``pod`` is its name in subjects, and ``elsewhere`` the number of members that the plans have on different
    nodes.

    ``points_apart``: the shadow's points of its best node minus its points of the live one; ``place``: the live best
    node's place among the shadow's nodes. Both are ``None`` if the shadow has not scored that node; then ``refused_by``
    is the plugin that rejects it, if any, for ``reason``. ``outcome`` and ``node`` are the Decision's.
    """

    shadow: _Name
    attempt: Annotated[str, msgspec.Meta(max_length=NAME_CHARACTERS + 42)]
    profile: _Name
    namespace: _Name
    pod: _Name
    uid: _Name
    result: ShadowResult
    points_apart: int | None = None
    place: int | None = None
    elsewhere: int | None = None
    refused_by: _Name = ""
    reason: _Text = ""
    live: ShownRanking
    own: ShownRanking
    outcome: Outcome | None = None
    node: _Name = ""

    @property
    def subject(self) -> str:
        """Its subject: one subscription follows a pod in all shadows, another everything of one shadow."""
        profile, namespace = escape_token(self.profile), escape_token(self.namespace)
        return f"{PREFIX}.shadow.{escape_token(self.shadow)}.{profile}.{namespace}.{escape_dotted(self.pod)}"


class ShadowFigures(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A shadow's numbers since its start, as in its statistics.

    ``refused_by`` counts, by plugin, the live best nodes that the shadow rejects; ``placed_against`` the live plugins
    that rejected the shadow's node. ``points_apart`` is the mean over the pods with another node.
    """

    name: _Name
    compared: int = 0
    results: Annotated[dict[_Name, int], msgspec.Meta(max_length=16)] = {}
    skipped: Annotated[dict[_Name, int], msgspec.Meta(max_length=16)] = {}
    refused_by: Annotated[dict[_Name, int], msgspec.Meta(max_length=64)] = {}
    placed_against: Annotated[dict[_Name, int], msgspec.Meta(max_length=64)] = {}
    points_apart: float | None = None
