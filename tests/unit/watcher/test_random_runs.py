"""Random histories: whatever happens in between, the bucket ends up as the cluster is, and every pod is tried again."""

import random

import pytest

from berth.api.messages import Outcome, Positions
from berth_watcher.events import AttemptLookedUp
from harness.worlds.watcher_world import WatcherUnderTest, a_node, a_pod, attempt, foreign_value

SEEDS = range(150)
OUTCOMES = [Outcome.UNSCHEDULABLE, Outcome.CONFLICT, Outcome.ERROR, Outcome.PREEMPTING, Outcome.WAITING]


def settle(world: WatcherUnderTest) -> None:
    """Everything that is under way is answered and read back."""
    for _ in range(50):
        world.answer_writes()
        world.advance(1)
        if not world.held_writes:
            return


@pytest.mark.parametrize("seed", SEEDS)
def test_the_bucket_ends_up_as_the_cluster_is(seed):
    chance = random.Random(seed)
    world = WatcherUnderTest(hold_writes=True).lead()
    there: dict[str, str] = {}
    written: list[tuple[str, bytes]] = []
    for version in range(2, 60):
        _something_happens_to_a_node(world, chance, version, there)
        written += [(key, entry.data) for key, entry in world.bucket.items() if entry.data is not None]
        if written and chance.random() < 0.1:
            world.put(*chance.choice(written))  # a write of long ago lands late
        if chance.random() < 0.5:
            world.read_back()

    settle(world)

    held = {key: world.mirrored(key) for key in world.bucket if key.startswith("node.")}
    cpus = {key: node["status"]["allocatable"]["cpu"] for key, node in held.items() if node is not None}
    assert cpus == {f"node.{name}": cpu for name, cpu in there.items()}
    assert world.core.figures(world.now).unsettled_keys == 0


def _something_happens_to_a_node(
    world: WatcherUnderTest, chance: random.Random, version: int, there: dict[str, str]
) -> None:
    name = f"n{chance.randrange(4)}"
    match chance.choice(["set", "set", "delete", "answer", "answer", "foreign", "purge", "expire"]):
        case "set":
            there[name] = str(version)
            world.show(a_node(name, cpu=str(version), version=version))
        case "delete" if name in there:
            del there[name]
            world.delete(a_node(name, version=version))
        case "answer":
            world.answer_writes()
        case "foreign":
            world.put(f"node.{name}", foreign_value(a_node(name, cpu="9999"), term=chance.randrange(7)))
        case "purge":
            world.put(f"node.{name}", None)
        case "expire":
            world.bucket = {key: entry for key, entry in world.bucket.items() if entry.data is not None}


@pytest.mark.parametrize("seed", SEEDS)
def test_every_pod_is_tried_until_it_is_bound(seed):
    chance = random.Random(seed)
    names = [f"p{number}" for number in range(8)]
    world = WatcherUnderTest(hold_writes=chance.random() < 0.5).lead(a_node("n1"))
    bound: set[str] = set()
    for version, name in enumerate(names, start=20):
        world.show(a_pod(name, version=version))
        for _ in range(chance.randrange(6)):
            _something_happens(world, chance, chance.choice(names), bound)
    for _ in range(400):
        world.answer_writes()
        world.advance(1)
        for name in names:
            _is_decided_well(world, name, bound)

    assert bound == set(names)
    assert all(world.stage(name) == "gone" for name in names)
    assert world.core.figures(world.now).in_flight == 0


def _something_happens(world: WatcherUnderTest, chance: random.Random, name: str, bound: set[str]) -> None:
    if name in bound or name not in world.pods_published:
        world.advance(0.1)
        return
    positions = Positions(cluster=chance.randrange(world.sequence + 1))
    blockers = chance.choice([[], ["NodeResourcesFit"], ["NodeAffinity"]])
    what = chance.choice(["outcome", "outcome", "lost", "changed", "node", "time", "duplicate"])
    if what == "outcome":
        outcome = chance.choice(OUTCOMES)
        versions = chance.choice([{}, {"node": "30"}, {"pod": "100000"}])
        world.decide(name, outcome, positions=positions, blockers=blockers, resource_versions=versions)
    elif what == "lost":
        latest = world.core.find(f"uid-{name}").attempt
        world.send(AttemptLookedUp(attempt=attempt(name, latest.term, latest.n), in_work_queue=False))
    elif what == "changed":
        world.show(a_pod(name, version=500, labels={"n": str(chance.random())}))
    elif what == "node":
        world.show(a_node("n1", cpu=str(chance.randrange(64)), version=600))
    elif what == "duplicate":
        decision = world.decision(name, Outcome.CONFLICT)
        world.send(decision, decision)
    else:
        world.advance(chance.random() * 12)


def _is_decided_well(world: WatcherUnderTest, name: str, bound: set[str]) -> None:
    """What is in flight is bound, as the binder says and the API shows."""
    if world.stage(name) == "in flight":
        world.decide(name, Outcome.BOUND)
        world.show(a_pod(name, node="n1", version=10_000))
        bound.add(name)
