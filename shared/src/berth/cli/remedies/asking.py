"""What would help one pod: its last Decision, the pod itself where it can be found, and the nodes of the mirror."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from berth.api.config.configuration import KubeSchedulerConfiguration
from berth.api.errors import BerthError, DecodeError
from berth.api.messages import Decision, Outcome, decode
from berth.api.pod import Pod
from berth.bus.interface import Session
from berth.bus.topology import DECISIONS
from berth.cli.lookup import find_pod
from berth.cli.mirror import open_mirror
from berth.cli.options import PodName
from berth.cli.remedies.remedy import Advice
from berth.cli.remedies.resources import room_for
from berth.cli.remedies.telling import remedies_of
from berth.cluster.snapshot import Snapshot
from berth.framework.profile import Profile
from berth.process.configuration import profiles_of

FIND_SECONDS: Final = 5.0
"""For an API server that does not answer: what would help is said besides, and nobody waits long for it."""
OTHER_CONFIGURATION: Final = (
    "what would help is not known, since the pod was refused under another configuration: name it with --config, "
    "--algorithm-provider and --feature-gates"
)
NO_POD: Final = "how much the pod asks for is not on NATS: --kubeconfig FILE names the cluster that has it"

FindPod = Callable[[PodName], Awaitable[Pod | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Advisory:
    """What advice on any pod follows from. ``profiles`` are those of the configuration, made once."""

    session: Session
    snapshot: Snapshot
    digest: str
    profiles: Mapping[str, Profile]
    find: FindPod
    no_pod: str = NO_POD

    async def on(self, name: PodName) -> Advice:
        """What would help this pod; nothing for one whose last Decision is not that it fits nowhere."""
        stored = await self.session.last(DECISIONS, name.filter("decision"))
        try:
            decision = decode(stored.data, Decision) if stored is not None else None
        except DecodeError:
            return Advice()
        if decision is None or decision.outcome is not Outcome.UNSCHEDULABLE:
            return Advice()
        profile = self.profiles.get(decision.profile)
        if decision.config != self.digest or profile is None:
            return Advice(missing=OTHER_CONFIGURATION)
        pod = await self.find(name)
        if pod is None or pod.uid != decision.uid:
            return Advice(remedies=room_for(decision.rejections, self.snapshot), missing=self.no_pod)
        return Advice(remedies=remedies_of(pod, self.snapshot, profile))


@asynccontextmanager
async def open_advisory(
    session: Session, configuration: KubeSchedulerConfiguration, kubeconfig: Path | None
) -> AsyncIterator[Advisory]:
    """For a command, which finds pods on NATS or in a cluster: that of the kubeconfig, else KUBECONFIG's."""
    profiles = profiles_of(configuration)
    sources = {source for profile in profiles.values() for source in profile.live_sources_of_filters}
    async with open_mirror(session, sources=sources) as mirror:

        async def find(name: PodName) -> Pod | None:
            try:
                async with asyncio.timeout(FIND_SECONDS):
                    return (await find_pod(session, name, mirror.snapshot, kubeconfig)).pod
            except (BerthError, TimeoutError):
                return None

        yield Advisory(
            session=session, snapshot=mirror.snapshot, digest=configuration.digest, profiles=profiles, find=find
        )


async def advice_on(
    session: Session, name: PodName, configuration: KubeSchedulerConfiguration, kubeconfig: Path | None
) -> Advice:
    """What would help one pod, by a mirror that is read for it."""
    async with open_advisory(session, configuration, kubeconfig) as advisory:
        return await advisory.on(name)
