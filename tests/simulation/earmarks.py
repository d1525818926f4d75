"""What must hold of earmarks in a run: newcomers keep off these nodes, and nobody waits for one whose group is over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from berth.api.pod import Pod
from berth.api.podgroups import group_of
from berth.bus.interface import PubAck
from berth.bus.topology import CLUSTER, DECISIONS, bucket_prefix, bucket_stream
from berth.cluster.buckets import MirroredSnapshot
from berth.cluster.snapshot import Snapshot
from berth.messages.attempts import DecisionSummary
from berth.messages.earmarks import EARMARK, EARMARK_SECONDS, Earmark
from berth.messages.encoding import decode
from berth_sim.apiserver.kinds import PODS
from simulation.groups import GroupInvariants, cache_of
from simulation.loop import OWNER
from simulation.world import World


class EarmarkInvariants:
    """Judges by the binder's own cache, and by when the API server showed a pod first."""

    def __init__(self, world: World, groups: GroupInvariants) -> None:
        self._world = world
        self._groups = groups
        self._created: dict[str, float] = {}
        """By uid of a pod, in the world's seconds."""
        self._given: dict[str, float] = {}
        """By uid of a PodGroup, when a Decision last gave it an earmark."""
        world.bus.on_stored.append(self._on_stored)
        world.api.store.table(PODS).listeners[self._on_pod] = None

    def _on_pod(self, change: Any) -> None:
        if change.before is None and change.after is not None:
            self._created[change.after.value["metadata"]["uid"]] = self._world.now

    def _on_stored(self, _subject: str, data: bytes, _headers: Mapping[str, str], ack: PubAck) -> None:
        if ack.stream == DECISIONS and b'"earmark"' in data and not ack.duplicate:
            earmark = decode(data, DecisionSummary).earmark
            if earmark is not None and earmark.seconds == EARMARK_SECONDS:
                self._world.events["earmark given"] += 1
                self._given[earmark.uid] = self._world.now

    def posting(self, pod: Pod, node: str) -> None:
        """A binder sends the pod's Binding to the node: it was there before the earmark, or may pass it."""
        cache = cache_of(OWNER.get())
        earmarks = {} if cache is None else cache.snapshot.earmarks
        for earmark in earmarks.values():
            is_new = self._created.get(pod.uid, 0.0) > self._given.get(earmark.uid, float("inf"))
            if node in earmark.nodes and is_new and _is_below(pod, earmark) and not self._is_begun(pod):
                self._world.problem(f"{pod.key} is about to be bound on {node}, which is earmarked for {earmark.group}")

    def _is_begun(self, pod: Pod) -> bool:
        key = group_of(pod)
        return key is not None and any(each.spec.node_name for each in self._groups.pods_of(key))

    def standing(self) -> dict[str, Earmark]:
        """The earmarks that scorers know, by profile, of groups that need them."""
        read = MirroredSnapshot(Snapshot())
        prefix = bucket_prefix(CLUSTER)
        stream = self._world.bus._store._streams.get(bucket_stream(CLUSTER))
        for stored in stream.all_after(0) if stream is not None else ():
            key = stored.subject.removeprefix(prefix)
            if key.startswith(f"{EARMARK}.") and stored.data:
                read.apply(key, stored.data)
        wanted = {group.uid for group in self._groups.in_need()}
        return {profile: each for profile, each in read.snapshot.earmarks.items() if each.uid in wanted}


def _is_below(pod: Pod, earmark: Earmark) -> bool:
    return (pod.spec.priority or 0) <= earmark.priority and group_of(pod) != earmark.group
