"""Plans of groups made again from the messages of a run, as ``berth replay`` does: they are the same (ADR 72)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from berth.bus.interface import PubAck
from berth.bus.topology import BANDWIDTH, CLUSTER, DECISIONS, FACTS, PENDING, RANKED, bucket_prefix, bucket_stream
from berth.messages.groupattempts import GroupRanked
from berth_cli.recording.file import Begun, Recording, header, recorded
from berth_cli.recording.replay import Replay
from simulation.patches import EPOCH, true_time
from simulation.world import World

BUCKETS: Final = {bucket_stream(bucket): bucket for bucket in (CLUSTER, BANDWIDTH, FACTS)}


class ReplayedPlans:
    """Records one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._is_whole = True
        head = header(at=EPOCH, bus_id="", config=world.configuration.digest, release="1.36", configuration={})
        self._recording = Recording(header=head, begun=Begun(positions={}), is_cut=False)
        world.bus.on_stored.append(self._on_stored)
        world.bus.on_wiped.append(self._on_lost)
        world.bus.on_messages_lost.append(self._on_lost)

    def _on_lost(self) -> None:
        self._is_whole = False

    def _on_stored(self, subject: str, data: bytes, _headers: Mapping[str, str], ack: PubAck) -> None:
        bucket = BUCKETS.get(ack.stream)
        if ack.duplicate or (bucket is None and ack.stream not in (PENDING, RANKED, DECISIONS)):
            return
        source, key = (ack.stream, subject) if bucket is None else (bucket, subject.removeprefix(bucket_prefix(bucket)))
        record = recorded(source, ack.sequence, true_time(), key, data or None)
        self._recording.messages.setdefault(source, []).append(record)

    def check(self) -> None:
        """A run in which NATS has lost messages shows nothing."""
        if not self._is_whole:
            return
        world = self._world
        for made in Replay(self._recording, world.fresh_profiles(), best=world.numbers.best).run():
            if isinstance(made.ranking.message, GroupRanked):
                for difference in made.differences:
                    world.problem(
                        f"the plan of {made.ranking.message.attempt} is another one in a replay: {difference}"
                    )
