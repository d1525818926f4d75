"""Updated columns of placed pods equal new ones."""

from __future__ import annotations

import random

import msgspec
import pytest

from berth.api.pod import Pod, PodStatus
from berth.cluster.placedpods import NOWHERE, UNKNOWN_START, PlacedPods
from berth.cluster.snapshot import Snapshot
from harness.builders.objects import a_container, a_node, a_pod
from harness.plugins.long_runs import often

Row = tuple[str, int, float, int, str]


def seen(pods: PlacedPods, snapshot: Snapshot) -> list[Row]:
    """The values of each pod in the columns, sorted."""
    pods.refresh()
    return sorted(
        (
            snapshot.rows.names[row],
            int(pods.priorities[place]),
            float(pods.since[place]),
            pods.pod_classes[pods.classes[place]].requests.amounts.get("cpu", 0),
            pods.pod_groups[pods.groups[place]].labels["app"],
        )
        for place, row in enumerate(pods.rows.tolist())
        if row != NOWHERE
    )


def random_pod(chance: random.Random, number: int) -> Pod:
    pod = a_pod(
        f"p{number}",
        labels={"app": chance.choice(["web", "db"])},
        priority=chance.choice([None, -1, 0, 7]),
        containers=[a_container(cpu=chance.choice(["1", "2"]))],
    )
    start = chance.choice([None, f"2026-01-01T00:00:{chance.randrange(60):02d}Z"])
    return msgspec.structs.replace(pod, status=PodStatus(start_time=start))


@pytest.mark.parametrize("seed", range(often(5)))
def test_updated_columns_equal_new_ones(seed):
    chance, snapshot = random.Random(seed), Snapshot()
    kept = PlacedPods(snapshot)
    for step in range(120):
        node = f"n{chance.randrange(5)}"
        match chance.randrange(5):
            case 0:
                snapshot.set_node(a_node(node))
            case 1:
                snapshot.remove_pod(f"uid-p{chance.randrange(30)}")
            case 2 if step % 7 == 0:
                snapshot.remove_node(node)
            case _:
                snapshot.place(random_pod(chance, chance.randrange(30)), node)
        if chance.random() < 0.3:
            assert seen(kept, snapshot) == seen(PlacedPods(snapshot), snapshot)


def test_columns_grow_with_the_number_of_pods():
    snapshot = Snapshot()
    kept = PlacedPods(snapshot)
    for number in range(700):
        snapshot.place(random_pod(random.Random(number), number), f"n{number % 9}")
        if number % 100 == 0:
            kept.refresh()
    assert len(seen(kept, snapshot)) == 700
    assert seen(kept, snapshot) == seen(PlacedPods(snapshot), snapshot)


def test_a_pod_without_a_start_time_is_the_youngest():
    snapshot = Snapshot()
    snapshot.place(a_pod("web", labels={"app": "web"}), "n1")
    assert [since for _, _, since, _, _ in seen(PlacedPods(snapshot), snapshot)] == [UNKNOWN_START]
