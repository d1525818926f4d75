"""The numbers of the components `hpa` and `keda` in the controller manager's formula, over hours of load, by a model.

The model is of the scorers' work alone: so many CPU seconds a pod (tests/bench/results, drain-5000-nodes), one core
each, a window of a quarter second of work, and a queue of what does not fit into it. No process runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import pytest

from harness.worlds.autoscalers import SYNC_SECONDS, Autoscaler, of_hpa, of_keda

CPU_SECONDS_PER_POD: Final = 0.82e-3
A_SCORERS_PODS: Final = 1 / CPU_SECONDS_PER_POD
"""Pods per second of one core."""
WINDOW_FLOOR: Final = 64
SECONDS_IN_FLIGHT: Final = 0.02
"""Of a pod that does not wait."""
START_SECONDS: Final = 10
"""From a new replica to its first pod."""
HOUR: Final = 3600

Load = Callable[[float], float]
"""Pods per second at a time."""


@dataclass(frozen=True, kw_only=True)
class Second:
    """What the model shows of one second."""

    replicas: int
    queued: float


def model(autoscaler: Autoscaler, load: Load, seconds: int, overhead: float) -> list[Second]:
    """``overhead``: cores of each scorer that do not come from its own pods, such as for reading the others'."""
    replicas, ready_at, queue, cores = autoscaler.least, [0.0] * autoscaler.least, 0.0, 0.0
    seen: list[Second] = []
    for now in range(seconds):
        ready = sum(at <= now for at in ready_at)
        queue += load(now)
        done = min(queue, ready * (1 - overhead) * A_SCORERS_PODS)
        queue -= done
        window = max(WINDOW_FLOOR, done / 4)
        lag = min(window, queue + done * SECONDS_IN_FLIGHT)
        cores += (done * CPU_SECONDS_PER_POD + replicas * overhead - cores) / 15  # a mean of some 30 s
        if now % SYNC_SECONDS == 0:
            replicas = autoscaler.decide(now, replicas, totals(autoscaler, lag, max(0.0, queue - window), cores))
            ready_at = [*ready_at[:replicas], *[now + START_SECONDS] * (replicas - len(ready_at))]
        seen.append(Second(replicas=replicas, queued=queue))
    return seen


def totals(autoscaler: Autoscaler, lag: float, queued: float, cores: float) -> Mapping[str, float]:
    """Each metric of the autoscaler, by what its query asks for."""
    named = {"cpu": cores, "lag": lag}
    queried = {'scheduler_pending_pods{queue="active"}': queued, "process_cpu_seconds_total": cores}
    found = {}
    for metric in autoscaler.targets:
        (found[metric],) = (
            [named[metric]] if metric in named else [figure for name, figure in queried.items() if name in metric]
        )
    return found


def turns(seen: list[Second]) -> int:
    """How often the number of replicas has gone up after going down, or the other way round."""
    steps = [after.replicas - before.replicas for before, after in pairwise(seen) if after != before]
    directions = [step > 0 for step in steps if step]
    return sum(after != before for before, after in pairwise(directions))


AUTOSCALERS = pytest.mark.parametrize("make", [of_hpa, of_keda], ids=["hpa", "keda"])
OVERHEADS = pytest.mark.parametrize("overhead", [0.0, 0.1, 0.2], ids="overhead of {} cores".format)


@AUTOSCALERS
@OVERHEADS
@pytest.mark.parametrize("scorers_of_work", [0.1, 0.8, 1.5, 2.1, 2.5, 3.3, 4.2])
def test_a_constant_load_ends_in_a_constant_number_that_carries_it(
    make: Callable[[], Autoscaler], overhead: float, scorers_of_work: float
):
    autoscaler = make()
    seen = model(autoscaler, lambda _: scorers_of_work * A_SCORERS_PODS, 2 * HOUR, overhead)
    assert turns(seen) <= 1
    settled = seen[HOUR:]
    assert len({each.replicas for each in settled}) == 1
    assert max(each.queued for each in settled) < WINDOW_FLOOR
    if scorers_of_work < 1:
        assert settled[0].replicas == autoscaler.least


@AUTOSCALERS
@OVERHEADS
def test_the_number_follows_a_day(make: Callable[[], Autoscaler], overhead: float):
    """Up, down, and up again for less than the window: one way up, one way down each time, back to the least."""
    autoscaler = make()
    bursts = [(HOUR, 2 * HOUR), (4 * HOUR, 5 * HOUR)]

    def load(now: float) -> float:
        return A_SCORERS_PODS * (3.5 if any(start <= now < end for start, end in bursts) else 0.2)

    seen = model(autoscaler, load, 7 * HOUR, overhead)
    assert [seen[at].replicas for at in (HOUR - 1, 4 * HOUR - 1, 7 * HOUR - 1)] == [autoscaler.least] * 3
    assert all(seen[end - 1].replicas >= 4 for _, end in bursts)
    assert turns(seen) == 3


@AUTOSCALERS
def test_a_backlog_brings_scorers_within_a_minute_and_keeps_them_until_it_is_gone(make: Callable[[], Autoscaler]):
    autoscaler = make()
    seen = model(autoscaler, lambda now: 200_000 if now == 100 else 0, HOUR, 0.1)
    assert max(each.replicas for each in seen[:175]) >= 5
    assert all(after.replicas >= before.replicas for before, after in pairwise(seen) if before.queued > WINDOW_FLOOR)
    assert seen[-1].replicas == autoscaler.least


@AUTOSCALERS
def test_a_scorer_goes_at_most_every_minute_and_only_after_five(make: Callable[[], Autoscaler]):
    autoscaler = make()
    seen = model(autoscaler, lambda now: 4 * A_SCORERS_PODS if now < 600 else 0, HOUR, 0.1)
    gone = [at for at, (before, after) in enumerate(pairwise(seen)) if after.replicas < before.replicas]
    assert gone[0] >= 600 + autoscaler.down.window - SYNC_SECONDS
    assert all(later - earlier >= 60 for earlier, later in pairwise(gone))
    assert all(before.replicas - after.replicas <= 1 for before, after in pairwise(seen))
