"""Nodes that are kept free for a group that has waited long (docs/adr/0074-a-group-that-waits-long-gets-an-earmark.md).

The binder gives it and says so in the group's Decision. The watcher writes it to ``cluster``, where scorers read it.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from berth.api.meta import Int32, Name, ObjectMeta
from berth.api.pod import Pod, priority_of
from berth.api.podgroups import MOST_MEMBERS, Dialect, GroupKey, group_of

# The name under which earmarks reject nodes, among those of plugins.
FILTER: Final = "GroupEarmark"
# The first token of an earmark's key in ``cluster``: earmark.<profile>.
EARMARK: Final = "earmark"
# Seconds for which one holds. Nodes stand idle meanwhile.
EARMARK_SECONDS: Final = 300


class Earmark(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``uid`` is the PodGroup's. ``seconds``: for how long it holds after its Decision, by the binder's clock.

    ``until``, in ``cluster`` only, is for people: the time at which it ends, RFC 3339.
    """

    dialect: Dialect
    namespace: Name
    name: Name
    uid: Name
    profile: Name
    priority: Int32 = 0
    nodes: Annotated[list[Name], msgspec.Meta(max_length=MOST_MEMBERS)] = []
    seconds: Annotated[int, msgspec.Meta(ge=0, le=EARMARK_SECONDS)] = EARMARK_SECONDS
    until: Annotated[str, msgspec.Meta(max_length=64)] = ""

    @property
    def group(self) -> GroupKey:
        return GroupKey(self.dialect, self.namespace, self.name)

    @property
    def metadata(self) -> ObjectMeta:
        """Its name in ``cluster``."""
        return ObjectMeta(name=self.profile)

    def keeps_out(self, pod: Pod) -> bool:
        """Whether the pod may not go to these nodes: not of the group, and of no higher priority."""
        return priority_of(pod) <= self.priority and group_of(pod) != self.group
