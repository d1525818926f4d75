"""FreeDisk: prefers nodes with free disk, as an outside system says in the bucket ``facts``.

Score: the free percent of ``disks.<node>``, 0..100; 0 for a node of which nothing is known.
"""

from typing import ClassVar

import msgspec

from berth.api.config.types import Point
from berth.api.pod import Pod
from berth.cluster.nodes import NodeInfo, Nodes
from berth.framework.interface import PreScorePlugin, ScorePlugin
from berth.framework.status import SUCCESS, CycleState, StateKey, Status
from berth.messages.livedata import LiveSource
from berth.plugins.factory import PluginFactory

DISKS = LiveSource(bucket="facts", name="disks")
FREE = StateKey[dict[str, int]]("FreeDisk.free")


class Disk(msgspec.Struct):
    """A fact; what else it has is skipped."""

    free_percent: int = 0


class FreeDisk(PreScorePlugin, ScorePlugin):
    """Reads the facts once a pod."""

    name: ClassVar[str] = "FreeDisk"
    live_sources = frozenset({DISKS})

    def pre_score(self, state: CycleState, pod: Pod, nodes: Nodes) -> Status:
        """A fact of another form counts as none: what others write must not fail pods."""
        state.write(FREE, {name: free(fact) for name, fact in nodes.snapshot.live.facts(DISKS.name).items()})
        return SUCCESS

    def score(self, state: CycleState, pod: Pod, node: NodeInfo) -> int:
        """0..100."""
        return state.read(FREE).get(node.name, 0)


def free(fact: msgspec.Raw) -> int:
    """The free percent of a fact."""
    try:
        return min(100, max(0, msgspec.json.decode(fact, type=Disk).free_percent))
    except msgspec.MsgspecError:
        return 0


FACTORY = PluginFactory(name="FreeDisk", points=(Point.PRE_SCORE, Point.SCORE), build=lambda _args: FreeDisk())
