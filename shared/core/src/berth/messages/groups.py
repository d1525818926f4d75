"""The plan of a group: a node for each member, others for each class, or why there is none.

Nodes are numbers of one table, because a thousand members share a hundred nodes.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from berth.api.meta import Int64, Name
from berth.api.podgroups import MOST_MEMBERS, LabelKey
from berth.messages.attempts import (
    MOST_CLASSES,
    MOST_PLUGINS,
    MOST_REJECTIONS,
    ClaimedDevices,
    ClassResult,
    Count,
    Rejection,
    Text,
)

# Further nodes named for each class: the binder takes one of them where a member's own no longer fits.
MOST_ALTERNATES: Final = 16

_MOST: Final = 2.0**53


class PlannedMember(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A member that has a place: its uid, and the numbers of its class and node."""

    uid: Name
    of_class: Count
    node: Count


class Alternate(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A further node for members of a class, as after the plan.

    ``total`` are its points, ``pods`` the pods that count there, ``loss`` the points that one more member costs, and
    ``fits`` how many more fit, counted up to the size of the class.
    """

    node: Count
    total: Int64
    pods: Count
    loss: Annotated[float, msgspec.Meta(ge=-_MOST, le=_MOST)]
    fits: Count


class ClassPlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Pending members with an equal spec: how many there are, and how many of them have a place.

    ``example`` is the first member, or the first without a place. ``scores``: by plugin, the points of one of the
    alternates. ``rejections``: why the example has no place.
    """

    members: Count
    placed: Count = 0
    example: Name = ""
    alternates: Annotated[list[Alternate], msgspec.Meta(max_length=MOST_ALTERNATES)] = []
    scores: Annotated[dict[Name, Int64], msgspec.Meta(max_length=MOST_PLUGINS)] = {}
    rejections: Annotated[list[Rejection], msgspec.Meta(max_length=MOST_REJECTIONS)] = []


class GroupPlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``members`` are in the order in which they were placed: the binder checks them in it.

    ``need``: how many had to be placed. Without a plan ``members`` is empty, ``message`` says why, and ``classes`` how
    many had a place in the best attempt. ``domain`` is the value of the topology label ``topology_key``. ``note`` is
    what people should know of a plan. ``is_impossible``: no order of placing could succeed on this view. ``orders`` and
    ``steps``: what was tried. ``devices``: by member and claim, the devices it would get.
    """

    need: Count
    nodes: Annotated[list[Name], msgspec.Meta(max_length=MOST_MEMBERS + MOST_CLASSES * MOST_ALTERNATES)] = []
    members: Annotated[list[PlannedMember], msgspec.Meta(max_length=MOST_MEMBERS)] = []
    classes: Annotated[list[ClassPlan], msgspec.Meta(max_length=MOST_CLASSES)] = []
    topology_key: LabelKey = ""
    domain: Name = ""
    note: Text = ""
    message: Text = ""
    error: Text = ""
    is_impossible: bool = False
    orders: Count = 0
    steps: Count = 0
    devices: Annotated[dict[Name, ClaimedDevices], msgspec.Meta(max_length=MOST_MEMBERS)] = {}

    @property
    def is_found(self) -> bool:
        return bool(self.members)

    @property
    def results(self) -> list[ClassResult]:
        """How many members of each class have a place, and why the example of one has none."""
        return [
            ClassResult(members=each.members, placed=each.placed, example=each.example, rejections=each.rejections)
            for each in self.classes
        ]
