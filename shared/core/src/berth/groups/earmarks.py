"""The nodes to earmark for a group that waits: those that it gets once the youngest pods of no higher priority end.

Nothing is evicted. The same dry run as for evictions finds the fewest pods whose end is enough (ADR 74).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping

from berth.api.podgroups import GroupKey, PodGroup
from berth.cluster.snapshot import Snapshot
from berth.framework.profile import Profile
from berth.groups.evictions import GroupDryRun
from berth.groups.question import GroupQuestion, claims_devices
from berth.groups.workspace import MemberError
from berth.messages.groups import GroupPlan


def plan_earmark(  # noqa: PLR0913 - the question, the cluster, and the clock
    question: GroupQuestion,
    snapshot: Snapshot,
    profile: Profile,
    *,
    priority: int,
    groups: Mapping[GroupKey, PodGroup],
    may_continue: Callable[[], bool] = lambda: True,
) -> Generator[None, None, GroupPlan | None]:
    """The plan whose nodes to earmark; None where the group finds no place although every such pod has ended.

    ``priority`` is the group's. Works on a copy, in which devices of pods that end are not free: a group with devices
    gets no earmark. Yields when ``may_continue`` says that its time is over. Raises no exception.
    """
    if claims_devices(question, snapshot):
        return None
    planning = GroupDryRun(question, snapshot.copied(), profile.of_plans, priority + 1, groups).plan()
    try:
        while True:
            next(planning)
            if not may_continue():
                yield
    except StopIteration as end:
        found: GroupPlan | None = end.value
        return found
    except MemberError:
        return None
