"""Ten minutes of a cluster whose load follows what NodeLoad places: feeds that stop, restart, or come with a busy node.

Scraped every 15 s, averaged over a minute; two pods of 0.1 cores come after each scrape. Time is played.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta

from berth.api.config.nodeload.args import NodeLoadArgs, reading_of
from berth.cluster.snapshot import Snapshot
from berth.framework.cycle import rank
from berth.plugins.nodeload.plugin import NodeLoad
from berth_metrics_collector.nodenames import NodeNames
from berth_metrics_collector.poller import Reporter, UsageMeasurement
from berth_metrics_collector.prometheus import SampleRow, SourceError
from berth_metrics_collector.queries import ScrapeSeconds, exporter_queries, usage_queries
from harness.builders.objects import a_pod, first_attempt
from harness.builders.profiles import profile_of
from harness.fakes.recording_meter import RecordingMeter
from harness.worlds.collector_world import node_at, sample_row

NOW = 1_700_000_000.0
SCRAPE = 15.0
RANGE = 60.0
CORES = 64  # of harness.worlds.collector_world.node_at
POD_CORES = 0.8
ARGS = NodeLoadArgs(
    url="http://played",
    range=timedelta(seconds=RANGE),
    resource_weights={"cpu": 1},
    estimated_scaling_factors={"cpu": 100},
    maximum_age=timedelta(minutes=5),
)
QUERY = reading_of(ARGS).query


class PlayedCluster:
    """Nodes, the Prometheus that measures them, and a scheduler with NodeLoad alone."""

    def __init__(self, **cores: float) -> None:
        self.now = NOW
        self.is_away = False
        self.silent: set[str] = set()  # nodes whose exporter does not answer
        self.placed = Counter[str]()
        self._cores = cores  # what a node uses beside the pods that are placed here
        self._began = dict.fromkeys(cores, NOW - 3600)  # each exporter's series
        self._pods: list[tuple[float, str]] = []
        self._snapshot = Snapshot()
        self._profile = profile_of(NodeLoad(ARGS))
        self._measurement = UsageMeasurement(QUERY, {"average"}, self, inventory_rounds=8)
        self._reporter = Reporter(QUERY, RecordingMeter())
        for name in cores:
            self._snapshot.set_node(node_at(name))

    def join(self, node: str, cores: float) -> None:
        self._cores[node] = cores
        self._snapshot.set_node(node_at(node))
        self.restart(node)

    def restart(self, node: str) -> None:
        """Another pod of the exporter: its series are new."""
        self.silent.discard(node)
        self._began[node] = self.now

    def cores_of(self, node: str) -> float:
        return self._cores[node] + POD_CORES * self.placed[node]

    async def query(self, promql: str) -> Sequence[SampleRow]:
        if self.is_away:
            raise SourceError("not reachable", cause="unreachable")
        usage, exporters = usage_queries(QUERY, {"average"}, ScrapeSeconds(SCRAPE, SCRAPE)), exporter_queries(QUERY)
        answers: dict[str, Callable[[str], float | None]] = {
            usage.cpu["average"]: self._rate,
            usage.memory["average"]: lambda _: 2.0**30,
            usage.young: lambda node: self._age(node) // SCRAPE if self._age(node) < RANGE else None,
            usage.young_since: lambda node: self._began[node] + SCRAPE,
            usage.gapped: lambda _: None,
            usage.scraped_at: lambda _: self.now,
            exporters.names: lambda _: self.now,
            exporters.interval: lambda _: SCRAPE,
        }
        value = answers[promql]
        labels = {
            node: {"instance": f"{node}:9100", "job": "j", "pod": f"{self._began[node]:.0f}"} for node in self._cores
        }
        found = {node: value(node) for node in self._cores.keys() - self.silent if self._age(node) >= SCRAPE}
        return [sample_row(amount, **labels[node]) for node, amount in found.items() if amount is not None]

    def _age(self, node: str) -> float:
        return self.now - self._began[node]

    def _rate(self, node: str) -> float:
        """As Prometheus divides by the whole range, of a young series too little."""
        pods = (min(RANGE, self.now - since) for since, name in self._pods if name == node)
        return (self._cores[node] + POD_CORES * sum(pods) / RANGE) * min(1.0, self._age(node) / RANGE)

    async def pass_time(self, seconds: float, pods: int = 2) -> dict[str, str]:
        """Scrape, measure and place pods until then; return what was said of each node at the end."""
        said: dict[str, str] = {}
        for _ in range(int(seconds / SCRAPE)):
            self.now += SCRAPE
            self._snapshot.live.observe_time(self.now)
            names = NodeNames([node_at(name) for name in self._cores])
            try:
                found = (await self._measurement.measure(names, self._reporter)).found.samples
            except SourceError:
                found = {}
            for node, sample in found.items():
                self._snapshot.live.set_sample(QUERY.token, node, sample)
            for _ in range(pods):
                said = self._place()
        return said

    def _place(self) -> dict[str, str]:
        pod = a_pod(f"web-{len(self._pods)}", cpu=f"{POD_CORES * 1000:.0f}m")
        candidates = rank(pod, self._snapshot, self._profile, attempt=first_attempt(pod)).candidates
        node = candidates[0].node
        self._snapshot.place(pod, node, bound_at=self.now)
        self._pods.append((self.now, node))
        self.placed[node] += 1
        return {candidate.node: candidate.details["NodeLoad"] for candidate in candidates}

    def is_even(self, *nodes: str) -> bool:
        """Whether these nodes differ by two pods at most. A pod is 1.25 % of a node, and scores are whole percents."""
        used = [self.cores_of(node) for node in nodes or self._cores]
        return max(used) - min(used) <= 2 * POD_CORES + 0.01


def even(count: int) -> dict[str, float]:
    return {f"n{number}": 8.0 for number in range(count)}


async def test_when_the_feed_stops_for_ten_minutes_pods_are_spread_all_the_while():
    cluster = PlayedCluster(**even(8))
    said = await cluster.pass_time(120)
    assert all("sample 0 s old" in text for text in said.values())
    cluster.is_away = True
    said = await cluster.pass_time(240)
    assert cluster.is_even()
    assert all("sample 240 s old" in text for text in said.values())
    said = await cluster.pass_time(360)
    assert cluster.is_even()
    assert set(said.values()) == {"CPU abstains: 0 of 8 nodes have a recent sample"}
    cluster.is_away = False
    said = await cluster.pass_time(120)
    assert cluster.is_even()
    assert all("sample 0 s old" in text for text in said.values())


async def test_when_half_of_the_nodes_lose_theirs_these_are_neither_flooded_nor_shunned():
    cluster = PlayedCluster(**even(8))
    await cluster.pass_time(120)
    cluster.silent = {"n0", "n1", "n2", "n3"}
    said = await cluster.pass_time(600)
    assert cluster.is_even()
    assert said["n0"].startswith("CPU counted as the mean: ")
    assert "sample 600 s old" in said["n0"]
    assert "sample 0 s old" in said["n7"]
    for node in list(cluster.silent):
        cluster.restart(node)
    said = await cluster.pass_time(120)
    assert cluster.is_even()
    assert "sample 0 s old" in said["n0"]


async def test_a_busy_node_gets_no_pod_while_its_exporter_restarts():
    cluster = PlayedCluster(**even(8), busy=56.0)
    await cluster.pass_time(120)
    cluster.silent = {"busy"}
    said = await cluster.pass_time(60)
    assert "sample 60 s old" in said["busy"]
    cluster.restart("busy")
    said = await cluster.pass_time(30)
    assert "sample 90 s old" in said["busy"]  # too few scrapes yet
    said = await cluster.pass_time(90)
    assert "sample 0 s old" in said["busy"]
    assert cluster.placed["busy"] == 0
    assert cluster.is_even(*even(8))


async def test_a_node_that_joins_busy_gets_no_more_than_its_share_until_it_is_known():
    cluster = PlayedCluster(**even(8))
    await cluster.pass_time(120)
    cluster.join("busy", 56.0)
    said = await cluster.pass_time(45)
    assert said["busy"].startswith("CPU counted as the mean: ")
    until_known = cluster.placed["busy"]
    assert until_known <= 2  # of 6 pods; by the mean it is one of nine even nodes, which differ by two pods at most
    said = await cluster.pass_time(300)
    assert "sample 0 s old" in said["busy"]
    assert cluster.placed["busy"] == until_known
