"""The number of scorers follows the load, set by the formulas of the components `hpa` and `keda` from real endpoints.

Real are the API server, NATS, Prometheus and every process of berth; a scorer that goes gets SIGTERM. Time runs ten
times as fast, and a core is a tenth of one (harness.worlds.scaled_scorers). What pods count is not scaled: 64 pods in
flight and 500 in the queue are what the manifests say. `tests/integration/deploy/test_autoscaling.py` has the same
formulas over hours of other loads, by a model. Both autoscalers decide in `make test-long`, for minutes each.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest

from berth.messages.attempts import Decision, Outcome
from berth.messages.encoding import decode
from berth.messages.subjects import Attempt
from harness.servers.control_plane import ControlPlane
from harness.worlds.audit import audit, successful_bindings
from harness.worlds.autoscalers import SYNC_SECONDS, Autoscaler, of_hpa, of_keda
from harness.worlds.cluster_user import ClusterUser, eventually
from harness.worlds.scaled_scorers import FASTER, ScaledPipeline, Sync, follow, scaled_pipeline

pytestmark = [pytest.mark.requires("kubebuilder_assets", "nats-server", "prometheus"), pytest.mark.timeout(600)]

NODES: Final = 30
BACKLOG: Final = 1500
"""Pods that wait when the pipeline starts: the queue by itself asks for three scorers."""
STREAM: Final = 30
"""Pods per second that come then, more than one scorer's work, for ``STREAM_SECONDS``."""
STREAM_SECONDS: Final = 10
TRICKLE: Final = 1
"""Pods per second from then on."""
SMALL_BACKLOG: Final = 400
"""Pods that wait for longer than Prometheus takes to see them."""
HELD: Final = 8
"""Pods that come just before a scorer goes, so that it has some."""
BOUND_SECONDS: Final = 180.0
BACK_SECONDS: Final = 150.0
REPEATS_PER_100: Final = 3
"""The promise of docs/design.md, 3.9."""


class Load:
    """The pods that have been created, by name."""

    def __init__(self, seen: ClusterUser) -> None:
        self._seen = seen
        self.names: list[str] = []

    async def add(self, count: int) -> None:
        names = [f"pod-{len(self.names) + number}" for number in range(count)]
        self.names += names
        await self._seen.create(self._seen.pod(name, cpu="1m", memory="1Mi") for name in names)

    async def stream(self, per_second: int, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """A creation that takes long does not make them fewer."""
        began, first = time.monotonic(), len(self.names)
        while (passed := time.monotonic() - began) < seconds and not until():
            await self.add(max(0, int(passed * per_second) - (len(self.names) - first)))
            await asyncio.sleep(0.2)


@pytest.fixture(params=[of_keda, of_hpa], ids=lambda of: of.__name__)
def autoscaler(request: pytest.FixtureRequest) -> Autoscaler:
    made: Autoscaler = request.param()
    return made


async def test_each_metric_of_keda_is_there_and_a_scorer_that_ends_loses_no_pod(
    own_control_plane: ControlPlane, cluster_outside: ClusterUser, tmp_path: Path
):
    autoscaler, load, shown = of_keda(), Load(cluster_outside), set[str]()
    await cluster_outside.add_nodes(NODES, cpu="32", pods=500)
    bindings = await successful_bindings(cluster_outside)
    async with audit(cluster_outside) as audited:
        await load.add(SMALL_BACKLOG)
        async with scaled_pipeline(own_control_plane, tmp_path, autoscaler.least) as pipeline:

            async def metrics_are_shown() -> bool:
                await asyncio.sleep(SYNC_SECONDS / FASTER)
                shown.update(name for name, total in (await pipeline.of_keda()).items() if total > 0)
                return shown == autoscaler.targets.keys()

            async def all_bound() -> bool:
                return audited.placements == len(load.names)

            await eventually(metrics_are_shown, "every metric to be there", BOUND_SECONDS)
            await load.add(HELD)
            pipeline.resize(autoscaler.least - 1)
            await eventually(all_bound, "the pods to be bound", BOUND_SECONDS)
            codes = await pipeline.exit_codes()
            attempts = await attempts_of(pipeline)
    assert codes == [0]
    assert audited.problems == []
    assert await successful_bindings(cluster_outside) - bindings == len(load.names)
    each_pod_had_few_attempts(attempts, load)


@pytest.mark.long(only=True)
async def test_scorers_come_and_go_with_the_load_and_no_pod_is_lost(
    autoscaler: Autoscaler, own_control_plane: ControlPlane, cluster_outside: ClusterUser, tmp_path: Path
):
    seen, load = list[Sync](), Load(cluster_outside)
    await cluster_outside.add_nodes(NODES, cpu="32", pods=500)
    bindings = await successful_bindings(cluster_outside)
    async with audit(cluster_outside) as audited:
        await load.add(BACKLOG)
        async with (
            scaled_pipeline(own_control_plane, tmp_path, autoscaler.least) as pipeline,
            running(scaling(pipeline, autoscaler, load, seen)) as task,
        ):

            async def all_bound() -> bool:
                still_runs(task)
                return audited.placements == len(load.names)

            def few_again() -> bool:
                still_runs(task)
                return seen[-1].replicas == autoscaler.least

            await load.stream(STREAM, STREAM_SECONDS)
            await eventually(all_bound, "the load to be bound", BOUND_SECONDS)
            await load.stream(TRICKLE, BACK_SECONDS, few_again)
            await eventually(all_bound, "the pods that came last to be bound", BOUND_SECONDS)
            codes = await pipeline.exit_codes()
            attempts = await attempts_of(pipeline)

    assert seen[-1].replicas == autoscaler.least
    it_goes_up_once_and_down_once(autoscaler, seen)
    every_metric_was_real(autoscaler, seen)
    assert set(codes) == {0}
    assert audited.problems == []
    assert await successful_bindings(cluster_outside) - bindings == len(load.names)
    each_pod_had_few_attempts(attempts, load)


def each_pod_had_few_attempts(attempts: dict[str, int], load: Load) -> None:
    assert attempts.keys() == set(load.names)
    repeats = sum(n - 1 for n in attempts.values())
    assert repeats <= REPEATS_PER_100 * len(attempts) / 100


def it_goes_up_once_and_down_once(autoscaler: Autoscaler, seen: list[Sync]) -> None:
    """And stays for the window of scaling down in between."""
    told = "\n".join(map(str, seen))
    counts = [autoscaler.least, *(sync.replicas for sync in seen)]
    changes = [after - before for before, after in pairwise(counts) if after != before]
    ups = [change for change in changes if change > 0]
    assert ups, told
    assert changes[: len(ups)] == ups, told
    assert set(changes[len(ups) :]) == {-1}, told
    at_most = [sync.at for sync in seen if sync.replicas == max(counts)]
    assert at_most[-1] - at_most[0] >= autoscaler.down.window - 2 * SYNC_SECONDS, told


def every_metric_was_real(autoscaler: Autoscaler, seen: list[Sync]) -> None:
    """Each asked for more scorers by itself. Only the lag cannot: one scorer may hold all that is in flight."""
    for name, target in autoscaler.targets.items():
        peak = max(sync.totals[name] for sync in seen)
        assert peak > target * (0.5 if name == "lag" else autoscaler.least), (name, peak)


async def attempts_of(pipeline: ScaledPipeline) -> dict[str, int]:
    """The number of the attempt that bound each pod."""
    session, found = await pipeline.session(), {}
    try:
        async for stored in session.scan("DECISIONS", "berth.decision.>"):
            decision = decode(stored.data, Decision)
            if decision.outcome is Outcome.BOUND:
                found[decision.pod] = Attempt.parse(decision.attempt).n
    finally:
        await session.close()
    return found


async def scaling(pipeline: ScaledPipeline, autoscaler: Autoscaler, load: Load, seen: list[Sync]) -> None:
    measure = pipeline.of_hpa if autoscaler.targets.keys() == {"cpu"} else pipeline.of_keda
    await follow(pipeline, autoscaler, measure, lambda: load.add(HELD), seen)


@asynccontextmanager
async def running(work: Coroutine[None, None, None]) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def still_runs(task: asyncio.Task[None]) -> None:
    if task.done():
        task.result()
