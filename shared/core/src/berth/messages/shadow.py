"""What shadows say: messages and numbers, as they are on the bus. Commands read them without the code that ranks.

Differences are broadcast on ``berth.shadow.<name>.<profile>.<namespace>.<pod>`` with both rankings, so that a person
can read them side by side; the numbers are in the shadow's metrics and statistics (ADR 35).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

import msgspec

from berth.messages.attempts import NAME_CHARACTERS, Candidate, Message, Outcome, Rejection
from berth.messages.subjects import PREFIX, escape_dotted, escape_token

ALL_SHADOWS: Final = f"{PREFIX}.shadow.>"
SHADOW_SERVICE: Final = "shadow"
"""What a shadow is called among the services."""

SHOWN_CANDIDATES: Final = 8
"""Of each ranking, and the node that the other one has first."""
SHOWN_REJECTIONS: Final = 16
TEXT_CHARACTERS: Final = 1024
MOST_COMPARISON_BYTES: Final = 64 * 1024
"""Of a difference that is broadcast: ten times what one takes. A hostile scorer may write longer names."""


class ShadowResult(StrEnum):
    """How two rankings of a pod compare."""

    EQUAL = "equal"
    """The same node is best, or neither finds one and both would evict on the same node or on none."""
    NODE = "node"
    """Another node is best."""
    REFUSED = "refused"
    """Only the live scorer finds a node."""
    FEASIBLE = "feasible"
    """Only the shadow finds a node."""
    PREEMPTION = "preemption"
    """Neither finds a node, and they differ in where evictions would make room."""
    ERROR = "error"
    """The shadow could not rank the pod."""


class SkipReason(StrEnum):
    """Why a live ranking was not compared."""

    BUSY = "busy"
    """More came than the shadow ranks."""
    MISSED = "missed"
    """NATS dropped the copy, or it cannot be decoded."""
    PROFILE = "profile"
    """The shadow's configuration has no profile of that name."""
    EXTENDERS = "extenders"
    """The shadow's profile has extenders for such a pod, and a shadow asks none."""
    LIVE = "live"
    """The live ranking failed, or was made on a view that was behind: it says nothing about the configuration."""
    UNDECIDED = "undecided"
    """No final Decision followed in time."""


_Text = Annotated[str, msgspec.Meta(max_length=TEXT_CHARACTERS + 4)]
_Name = Annotated[str, msgspec.Meta(max_length=NAME_CHARACTERS)]


class ShownRanking(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One of the two rankings, as far as a person reads it. ``preempts_on`` is where evictions would make room."""

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
    """Two rankings of an attempt. ``config`` is the digest of the shadow's configuration.

    ``points_apart``: by how many of the shadow's points its best node is above the live one; ``place``: which place
    the live best node has among the shadow's nodes (nodes with more points, and 1). Both are ``None`` where the shadow
    has not scored that node; then ``refused_by`` is the plugin that refuses it, if one does, for ``reason``.
    ``outcome`` and ``node`` are the Decision's.
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
    refused_by: _Name = ""
    reason: _Text = ""
    live: ShownRanking
    own: ShownRanking
    outcome: Outcome | None = None
    node: _Name = ""

    @property
    def subject(self) -> str:
        """Where it is broadcast: one subscription follows a pod in all shadows, another everything of one shadow."""
        profile, namespace = escape_token(self.profile), escape_token(self.namespace)
        return f"{PREFIX}.shadow.{escape_token(self.shadow)}.{profile}.{namespace}.{escape_dotted(self.pod)}"


class ShadowFigures(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A shadow's numbers since it was started, as its statistics have them.

    ``refused_by`` counts, by plugin, the live best nodes that the shadow refuses; ``placed_against`` the live plugins
    that refused what the shadow would place. ``points_apart`` is the mean over the pods with another node.
    """

    name: _Name
    compared: int = 0
    results: Annotated[dict[_Name, int], msgspec.Meta(max_length=16)] = {}
    skipped: Annotated[dict[_Name, int], msgspec.Meta(max_length=16)] = {}
    refused_by: Annotated[dict[_Name, int], msgspec.Meta(max_length=64)] = {}
    placed_against: Annotated[dict[_Name, int], msgspec.Meta(max_length=64)] = {}
    points_apart: float | None = None
