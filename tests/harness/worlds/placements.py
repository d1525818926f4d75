"""Clusters and pods whose placement is compared: what N scorers do with what one does (docs/design.md, 3.9).

The simulation of many scorers and the benchmark on the real pipeline use the same ones.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

DEFAULT: Final = """\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: berth
"""
LIVE: Final = """\
  plugins:
    multiPoint:
      enabled: [{name: NetworkTraffic, weight: 5}]
  pluginConfig:
  - name: NetworkTraffic
    args: {url: "http://127.0.0.1:9", devices: [eth0], range: 10m, podBandwidth: 10M}
"""
AVOIDING: Final = """\
  plugins:
    multiPoint:
      enabled: [{name: NodeScoreLabel}]
"""
MEGA: Final = 1_000_000.0


@dataclass(frozen=True, kw_only=True)
class NodeKind:
    """``count`` equal nodes."""

    name: str
    count: int
    cpu: str = "4"
    memory: str = "16Gi"
    labels: Mapping[str, str] = field(default_factory=dict)
    traffic: float | None = None
    """Bytes per second that the node receives; None: no sample."""
    present: int = 0
    """Pods that are on each node from the start, of the tenants in turn."""

    def nodes(self) -> list[str]:
        return [f"{self.name}-{number}" for number in range(self.count)]


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A cluster, pods that arrive at once, and a configuration. ``tenants``: pods take turns among so many."""

    name: str
    kinds: tuple[NodeKind, ...]
    pods: int
    cpu: str = "250m"
    memory: str = "1Gi"
    config: str = DEFAULT
    provider: str = "default"
    tenants: int = 0

    def labels_of(self, number: int) -> dict[str, str]:
        return {"tenant": f"t{number % self.tenants}"} if self.tenants else {}

    @property
    def node_count(self) -> int:
        return sum(kind.count for kind in self.kinds)


def scenarios(scale: int) -> tuple[Scenario, ...]:
    """Clusters of ``scale`` nodes with pods in proportion, and two small ones on which few nodes are good."""
    third = scale // 3
    sizes = tuple(
        NodeKind(name=name, count=third, cpu=str(cpu), memory=f"{4 * cpu}Gi")
        for name, cpu in (("small", 4), ("middle", 8), ("large", 16))
    )
    quiet, busy = max(5, scale // 40), scale // 2
    traffic = (
        NodeKind(name="quiet", count=quiet, traffic=2 * MEGA),
        NodeKind(name="some", count=scale - quiet - busy, traffic=30 * MEGA),
        NodeKind(name="busy", count=busy, traffic=100 * MEGA),
    )
    avoided = (
        NodeKind(name="plain", count=scale - 1),
        NodeKind(name="avoided", count=1, labels={"node": "hello"}),
    )
    equal = (NodeKind(name="equal", count=scale),)
    return (
        Scenario(name="equal nodes", kinds=equal, pods=5 * scale),
        Scenario(name="three sizes", kinds=sizes, pods=5 * scale),
        Scenario(name="live bandwidth", kinds=traffic, pods=2 * scale, config=DEFAULT + LIVE),
        Scenario(name="one avoided node", kinds=avoided, pods=3 * scale, config=DEFAULT + AVOIDING),
        Scenario(
            name="tenants",
            kinds=equal,
            pods=6 * scale,
            provider="FromScratchMultiTenant",
            tenants=3,
        ),
        Scenario(
            name="five quiet nodes",
            kinds=(
                NodeKind(name="quiet", count=5, traffic=2 * MEGA),
                NodeKind(name="busy", count=25, traffic=100 * MEGA),
            ),
            pods=30,
            cpu="100m",
            memory="128Mi",
            config=DEFAULT + LIVE,
        ),
        Scenario(
            name="new nodes",
            kinds=(NodeKind(name="old", count=40, present=12), NodeKind(name="new", count=5)),
            pods=40,
            cpu="100m",
            memory="128Mi",
            provider="FromScratchMultiTenant",
            tenants=2,
        ),
    )


@dataclass(frozen=True, kw_only=True)
class Placements:
    """Where the pods went: node by number of the pod, and how many attempts each needed."""

    scenario: Scenario
    nodes: Mapping[int, str]
    attempts: Mapping[int, int]

    @property
    def repeats_per_100(self) -> float:
        """Attempts beyond each pod's first."""
        return 100 * sum(n - 1 for n in self.attempts.values()) / len(self.nodes)

    def counts(self, of: Callable[[int], object] = lambda _: None) -> dict[object, dict[str, list[int]]]:
        """By group of pods and kind of node, the pods on each node of the kind, sorted."""
        groups: dict[object, Counter[str]] = defaultdict(Counter)
        for number, node in self.nodes.items():
            groups[of(number)][node] += 1
        return {
            group: {kind.name: sorted(on[node] for node in kind.nodes()) for kind in self.scenario.kinds}
            for group, on in groups.items()
        }

    @property
    def _group_of(self) -> Callable[[int], object]:
        return lambda number: number % self.scenario.tenants if self.scenario.tenants else None

    @property
    def widest(self) -> int:
        """The largest difference between equal nodes, among pods of one tenant."""
        lists = (counts for by_kind in self.counts(self._group_of).values() for counts in by_kind.values())
        return max(max(counts) - min(counts) for counts in lists)

    def misplaced_percent(self, by_one: Placements) -> float:
        """How many pods would have to move for the same counts as with one scorer, equal nodes being exchangeable."""
        ours, theirs = self.counts(self._group_of), by_one.counts(self._group_of)
        moves = sum(
            abs(a - b)
            for group, by_kind in theirs.items()
            for kind, counts in by_kind.items()
            for a, b in zip(ours[group][kind], counts, strict=True)
        )
        return 100 * moves / 2 / len(self.nodes)

    def on_shunned(self, by_one: Placements) -> int:
        """Pods on nodes of a kind on which one scorer puts no pod at all."""
        (ours,), (theirs,) = self.counts().values(), by_one.counts().values()
        return sum(sum(counts) for kind, counts in ours.items() if not any(theirs[kind]))


def per_kind(placements: Placements) -> str:
    """``small 120 (1..2), large 400 (4..5)``."""
    (counts,) = placements.counts().values()
    return ", ".join(f"{kind} {sum(on)} ({on[0]}..{on[-1]})" for kind, on in counts.items())


def placements(scenario: Scenario, bound: Iterable[tuple[int, str, int]]) -> Placements:
    """From the pod's number, its node and the number of its attempts."""
    rows = list(bound)
    return Placements(
        scenario=scenario,
        nodes={number: node for number, node, _ in rows},
        attempts={number: attempts for number, _, attempts in rows},
    )
