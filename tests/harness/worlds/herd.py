"""Pods that arrive between two samples, on nodes whose load follows what is placed on them, by a simulated clock.

Scorers, views and binder are those of :mod:`harness.worlds.many_scorers`. Each node is scraped every 15 s at a moment
of its own; a sample is the mean of its load over the minute before. Beside berth's plugins, the rules of Trimaran and
Koordinator get the same samples, and an oracle knows the load as it is.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

import numpy as np
import numpy.typing as npt

from berth.api.config.load import load
from berth.api.config.presets import DEFAULT
from berth.framework.profile import Profile
from berth.messages.livedata import MeasuredUsage, NodeSample
from berth.plugins.registry import BUILT_IN
from berth.profiles.configuration import profiles_of
from harness.worlds.many_scorers import PROFILE, START, ManyScorers
from harness.worlds.placements import NodeKind, Scenario

Amounts = npt.NDArray[np.float64]

SCRAPE_SECONDS: Final = 15.0
WINDOW_SECONDS: Final = 60.0
CORES: Final = 10
THRESHOLD: Final = 65
"""Percent of CPU."""
REQUEST: Final = 1.0
"""Cores of each pod."""


@dataclass(frozen=True, kw_only=True)
class Herd:
    """One cluster and its pods, from a seed. ``seconds``: over how long the pods arrive; 0: at once."""

    seed: int
    nodes: int = 100
    pods: int = 200
    seconds: float = 0.0
    use: tuple[float, float] = (0.85, 0.85)
    """What pods use of their requests, drawn evenly from a range. NodeLoad estimates 0.85."""
    bases: Amounts = field(init=False)
    """Cores of each node that its other pods use: 1 to 6."""
    uses: Amounts = field(init=False)
    """Cores that each pod uses."""
    offsets: Amounts = field(init=False)
    """Seconds after a multiple of 15 at which each node is scraped."""

    def __post_init__(self) -> None:
        chance = np.random.default_rng(self.seed)
        object.__setattr__(self, "bases", chance.uniform(1, 6, self.nodes))
        object.__setattr__(self, "uses", REQUEST * chance.uniform(*self.use, self.pods))
        object.__setattr__(self, "offsets", chance.uniform(0, SCRAPE_SECONDS, self.nodes))

    @property
    def scenario(self) -> Scenario:
        kind = NodeKind(name="node", count=self.nodes, cpu=str(CORES), memory="64Gi")
        return Scenario(name="herd", kinds=(kind,), pods=self.pods, cpu=f"{REQUEST:g}", memory="1Gi")

    @property
    def largest_pod(self) -> float:
        """Percent of a node's CPU."""
        return 100 * float(self.uses.max()) / CORES

    def arrival(self, pod: int) -> float:
        return self.seconds * pod / self.pods

    def loads(self, placed: Mapping[int, int]) -> Amounts:
        """Percent of each node's CPU that is used in the end. ``placed``: node by pod."""
        used = self.bases.copy()
        for pod, node in placed.items():
            used[node] += self.uses[pod]
        return 100 * used / CORES

    def scraped_at(self, now: float) -> Amounts:
        """When each node was scraped last."""
        return np.floor((now - self.offsets) / SCRAPE_SECONDS) * SCRAPE_SECONDS + self.offsets

    def sampled(self, now: float, since: Mapping[int, tuple[int, float]]) -> Amounts:
        """Cores of each node by its last sample. ``since``: by pod, its node and when it was placed."""
        at, used = self.scraped_at(now), self.bases.copy()
        for pod, (node, placed_at) in since.items():
            used[node] += self.uses[pod] * min(1.0, max(0.0, (at[node] - placed_at) / WINDOW_SECONDS))
        return used


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The load in the end, in percent of a node's CPU."""

    loads: Amounts

    @property
    def above(self) -> float:
        """How far the busiest node is above the threshold, in points; 0 if none is."""
        return max(0.0, float(self.loads.max()) - THRESHOLD)

    @property
    def nodes_above(self) -> int:
        return int(np.count_nonzero(self.loads > THRESHOLD))

    @property
    def deviation(self) -> float:
        return float(self.loads.std())


def by_node_load(percent: int = 85, url: str = "") -> str:
    """A configuration: the default filters, and NodeLoad as filter and only score, on samples of a minute of CPU alone.

    `percent` of its requests is what it estimates a pod to use.
    """
    return f"""\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: {PROFILE}
  plugins:
    preScore: {{disabled: [{{name: "*"}}]}}
    score: {{disabled: [{{name: "*"}}], enabled: [{{name: NodeLoad}}]}}
    filter: {{enabled: [{{name: NodeLoad}}]}}
  pluginConfig:
  - name: NodeLoad
    args:
      url: "{url}"
      range: {WINDOW_SECONDS:g}s
      resourceWeights: {{cpu: 1}}
      usageThresholds: {{cpu: {THRESHOLD}}}
      estimatedScalingFactors: {{cpu: {percent}}}
"""


def node_load(percent: int = 85) -> Profile:
    return profiles_of(load(by_node_load(percent), known=BUILT_IN, preset=DEFAULT))[PROFILE]


class MeasuredScorers(ManyScorers):
    """Berth's scorers and binder, whose samples follow what they place."""

    def __init__(self, herd: Herd, profile: Profile, scorers: int) -> None:
        self._herd = herd
        self._placed: dict[int, tuple[int, float]] = {}
        super().__init__(herd.scenario, profile, scorers, seed=herd.seed)

    def outcome(self) -> Outcome:
        placed = {number: _number(node) for number, node in self.run().nodes.items()}
        return Outcome(loads=self._herd.loads(placed))

    def _add_nodes(self) -> None:
        super()._add_nodes()
        waiting, self._unpublished = list(self._unpublished), type(self._unpublished)()
        for pod in waiting:
            self._at(self._herd.arrival(pod), lambda pod=pod: self._arrive(pod))
        self._collect()

    def _arrive(self, pod: int) -> None:
        self._unpublished.append(pod)
        self._publish()

    def _collect(self) -> None:
        """One round of the metrics collector."""
        cores = self._herd.sampled(self._now, self._placed)
        scraped_at = self._herd.scraped_at(self._now)
        snapshots = (self._cache.snapshot, *(view.snapshot for view in self._views))
        for node in range(self._herd.nodes):
            used = MeasuredUsage(average=1000 * float(cores[node]), allocatable=1000.0 * CORES)
            sample = NodeSample(cpu=used, sampled_at=START + timedelta(seconds=float(scraped_at[node])))
            for snapshot in snapshots:
                for source in self.profile.live_sources:
                    snapshot.live.set_sample(source.name, f"node-{node}", sample)
        for snapshot in snapshots:
            snapshot.live.observe_time(START.timestamp() + self._now)
        if len(self._bound) < self._herd.pods:
            self._at(self._now + SCRAPE_SECONDS, self._collect)

    def _decided(self, decision) -> None:
        super()._decided(decision)
        if decision.node:
            self._placed[self._numbers[decision.uid]] = (_number(decision.node), self._now)


def _number(node: str) -> int:
    return int(node.removeprefix("node-"))


# Rules that are computed beside, for one scheduler.


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a rule knows when a pod arrives: cores by the samples, their times, and earlier pods by node and time."""

    now: float
    sampled: Amounts
    sampled_at: Amounts
    since: Mapping[int, tuple[int, float]]

    def added(self, counts: Callable[[int, float], bool], cores: float) -> Amounts:
        """Cores for the pods that count; ``counts``: by node and the time of placement."""
        added = np.zeros(len(self.sampled))
        for node, placed_at in self.since.values():
            if counts(node, placed_at):
                added[node] += cores
        return added


Rule = Callable[[Seen], Amounts]
"""The points of each node; below 0: the node is filtered out."""

ALIKE_SECONDS: Final = 60.0
"""Trimaran's metricsAgentReportingIntervalSeconds and Koordinator's report interval."""
TARGET: Final = THRESHOLD - 10
"""TargetLoadPacking's documentation: 10 below the wanted limit."""


def trimaran_packing(seen: Seen) -> Amounts:
    """TargetLoadPacking: 1.5 of the request, whole, for pods since 60 s before the sample."""
    added = seen.added(lambda node, at: at > seen.sampled_at[node] - ALIKE_SECONDS, 1.5 * REQUEST)
    percent = 100 * (seen.sampled + added + 1.5 * REQUEST) / CORES
    below, above = (100 - TARGET) * percent / TARGET + TARGET, TARGET * (100 - percent) / (100 - TARGET)
    return np.floor(np.where(percent <= TARGET, below, np.where(percent <= 100, above, 0)) + 0.5)


def trimaran_balancing(seen: Seen) -> Amounts:
    """LoadVariationRiskBalancing with steady loads: newcomers do not count."""
    mean = np.minimum((seen.sampled + REQUEST) / CORES, 1)
    return np.floor((1 - mean / 2) * 100 + 0.5)


def koordinator(seen: Seen) -> Amounts:
    """LoadAwareScheduling: 85 % of the request, whole, for pods since a report's interval before the sample."""
    added = seen.added(lambda node, at: at > seen.sampled_at[node] - ALIKE_SECONDS, 0.85 * REQUEST)
    used = seen.sampled + added + 0.85 * REQUEST
    fits = np.floor(100 * used / CORES + 0.5) <= THRESHOLD
    return np.where(fits, np.floor(np.maximum(CORES - used, 0) * 100 / CORES), -1)


RULES: Final[Mapping[str, tuple[Rule, float]]] = {
    # With the seconds until a rule knows of a placed pod: Trimaran's once it is bound, Koordinator's at Reserve.
    "TargetLoadPacking": (trimaran_packing, 0.02),
    "LoadVariationRiskBalancing": (trimaran_balancing, 0.02),
    "LoadAwareScheduling": (koordinator, 0.0),
}


def by_rule(herd: Herd, rule: Rule, lag: float) -> Outcome:
    """One scheduler that places a pod every 5 ms at most; among equal nodes any."""
    chance = random.Random(herd.seed)
    since: dict[int, tuple[int, float]] = {}
    for pod in range(herd.pods):
        now = max(herd.arrival(pod), 0.005 * pod)
        asked_at = math.floor(now / SCRAPE_SECONDS) * SCRAPE_SECONDS
        known = {number: placed for number, placed in since.items() if placed[1] + lag <= now}
        seen = Seen(now=now, sampled=herd.sampled(asked_at, since), sampled_at=herd.scraped_at(asked_at), since=known)
        points = rule(seen)
        since[pod] = (chance.choice(np.flatnonzero(points == points.max()).tolist()), now)
    return Outcome(loads=herd.loads({pod: node for pod, (node, _) in since.items()}))


def by_oracle(herd: Herd) -> Outcome:
    """Each pod to the node that uses the least CPU at that moment, other new pods included."""
    used, placed = herd.bases.copy(), {}
    for pod in range(herd.pods):
        placed[pod] = int(used.argmin())
        used[placed[pod]] += herd.uses[pod]
    return Outcome(loads=herd.loads(placed))


def by_informed(herd: Herd) -> Outcome:
    """The same, knowing what all pods use on average, but of none its own use: no sample can show that in time."""
    used, placed = herd.bases.copy(), {}
    for pod in range(herd.pods):
        placed[pod] = int(used.argmin())
        used[placed[pod]] += herd.uses.mean()
    return Outcome(loads=herd.loads(placed))
