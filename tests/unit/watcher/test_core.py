"""The core as a whole: objects that cannot be decoded, and random histories that lose no pod and no write."""

import random

import pytest

from berth.api.devices import ClaimMeta, ResourceClaim, ResourceClaimSpec
from berth.kube.listwatch import Undecodable
from berth.messages.attempts import Outcome, Positions
from berth.messages.encoding import encode
from berth_watcher.events import AttemptLookedUp, PublishDeadLetter, Warn
from harness.plugins.long_runs import often
from harness.worlds.watcher_world import KINDS, WatcherUnderTest, a_node, a_pod, attempt, foreign_value


def undecodable(raw: bytes, *, kind: str = "pod", version: str = "5", deleted: bool = False) -> Undecodable:
    return Undecodable(
        kind=kind,
        namespace="default" if kind == "pod" else "",
        name="odd",
        uid="uid-odd",
        resource_version=version,
        reason="Expected `array`, got `str` - at `$.spec.containers`",
        raw=raw,
        deleted=deleted,
    )


def test_undecodable_pod_of_ours_becomes_a_dead_letter_with_the_reason():
    watcher = WatcherUnderTest().lead()

    raw = b'{"spec": {"schedulerName": "berth", "containers": "none", "other": [{"env": [{"value": "canary"}]}]}}'
    watcher.send(undecodable(raw))

    (dead_letter,) = (effect.dead_letter for effect in watcher.of(PublishDeadLetter))
    assert dead_letter.subject == "berth.pending.berth.default.odd"
    assert "$.spec.containers" in dead_letter.reason
    assert '"containers":"str","other":[{"env":[{"value":"str"}]}]' in dead_letter.payload
    assert b"canary" not in encode(dead_letter)
    assert watcher.of(Warn)[0].fields["name"] == "default/odd"


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b'{"spec": {"schedulerName": "other"}}', id="another scheduler's"),
        pytest.param(b'{"spec": {"schedulerName": "berth", "nodeName": "n1"}}', id="bound"),
        pytest.param(b'{"spec": {"schedulerName": 5}}', id="unknown profile"),
        pytest.param(b"\xff", id="not JSON"),
    ],
)
def test_undecodable_pod_of_others_is_only_logged(raw):
    watcher = WatcherUnderTest().lead()

    watcher.send(undecodable(raw))

    assert watcher.of(PublishDeadLetter) == []
    assert len(watcher.of(Warn)) == 1


def test_a_claim_that_cannot_be_read_is_reported_and_counted_until_it_can():
    def claim(version: int, left_out: str) -> ResourceClaim:
        metadata = ClaimMeta(name="c", namespace="default", uid="u", resource_version=f"{version}")
        return ResourceClaim(metadata=metadata, spec=ResourceClaimSpec(left_out=left_out))

    watcher = WatcherUnderTest(kinds=(*KINDS, "resourceclaim")).lead(claim(1, "cannot be read: x"))
    watcher.show(claim(2, "cannot be read: x"))
    [warning] = watcher.of(Warn)
    assert (warning.fields["name"], warning.fields["reason"]) == ("default/c", "the claim cannot be read: x")
    assert watcher.core.figures(watcher.now).reduced["resourceclaim"] == 1
    watcher.show(claim(3, ""))
    assert watcher.core.figures(watcher.now).reduced["resourceclaim"] == 0


def test_undecodable_object_is_reported_once_per_version():
    watcher = WatcherUnderTest().lead()

    for version in ("5", "5", "6"):
        watcher.send(undecodable(b"{}", kind="node", version=version))

    assert len(watcher.of(Warn)) == 2


def test_undecodable_object_does_not_stop_others():
    watcher = WatcherUnderTest().lead(a_pod("web"))

    watcher.send(undecodable(b"{}"), undecodable(b"{}", deleted=True))
    watcher.show(a_pod("next"))

    assert watcher.pods_published == ["web", "next"]


def test_pod_with_an_invalid_quantity_is_published_unchanged():
    watcher = WatcherUnderTest().lead(a_pod("web", cpu="lots"))

    assert watcher.published[0].message.pod.spec.containers[0].resources.requests == {"cpu": "lots"}


SEEDS = range(often(5))
OUTCOMES = [Outcome.UNSCHEDULABLE, Outcome.CONFLICT, Outcome.ERROR, Outcome.PREEMPTING, Outcome.WAITING]


def settle(watcher: WatcherUnderTest) -> None:
    """Answer all writes and read them back."""
    for _ in range(50):
        watcher.answer_writes()
        watcher.advance(1)
        if not watcher.held_writes:
            return


@pytest.mark.parametrize("seed", SEEDS)
def test_bucket_ends_up_equal_to_the_cluster(seed):
    chance = random.Random(seed)
    watcher = WatcherUnderTest(hold_writes=True).lead()
    cluster: dict[str, str] = {}
    written: list[tuple[str, bytes]] = []
    for version in range(2, 60):
        _step_of_a_node(watcher, chance, version, cluster)
        written += [(key, entry.data) for key, entry in watcher.bucket.items() if entry.data is not None]
        if written and chance.random() < 0.1:
            watcher.put(*chance.choice(written))  # an old write is stored late
        if chance.random() < 0.5:
            watcher.read_back()

    settle(watcher)

    held = {key: watcher.mirrored(key) for key in watcher.bucket if key.startswith("node.")}
    cpus = {key: node["status"]["allocatable"]["cpu"] for key, node in held.items() if node is not None}
    assert cpus == {f"node.{name}": cpu for name, cpu in cluster.items()}
    assert watcher.core.figures(watcher.now).unsettled_keys == 0


def _step_of_a_node(watcher: WatcherUnderTest, chance: random.Random, version: int, cluster: dict[str, str]) -> None:
    name = f"n{chance.randrange(4)}"
    match chance.choice(["set", "set", "delete", "answer", "answer", "foreign", "purge", "expire"]):
        case "set":
            cluster[name] = str(version)
            watcher.show(a_node(name, cpu=str(version), version=version))
        case "delete" if name in cluster:
            del cluster[name]
            watcher.delete(a_node(name, version=version))
        case "answer":
            watcher.answer_writes()
        case "foreign":
            watcher.put(f"node.{name}", foreign_value(a_node(name, cpu="9999"), term=chance.randrange(7)))
        case "purge":
            watcher.put(f"node.{name}", None)
        case "expire":
            watcher.bucket = {key: entry for key, entry in watcher.bucket.items() if entry.data is not None}


@pytest.mark.parametrize("seed", SEEDS)
def test_every_pod_is_tried_until_it_is_bound(seed):
    chance = random.Random(seed)
    names = [f"p{number}" for number in range(8)]
    watcher = WatcherUnderTest(hold_writes=chance.random() < 0.5).lead(a_node("n1"))
    bound: set[str] = set()
    for version, name in enumerate(names, start=20):
        watcher.show(a_pod(name, version=version))
        for _ in range(chance.randrange(6)):
            _step_of_a_pod(watcher, chance, chance.choice(names), bound)
    for _ in range(400):
        watcher.answer_writes()
        watcher.advance(1)
        for name in names:
            _bind_if_in_flight(watcher, name, bound)

    assert bound == set(names)
    assert all(watcher.stage(name) == "gone" for name in names)
    assert watcher.core.figures(watcher.now).in_flight == {"berth": 0}


def _step_of_a_pod(watcher: WatcherUnderTest, chance: random.Random, name: str, bound: set[str]) -> None:
    if name in bound or name not in watcher.pods_published:
        watcher.advance(0.1)
        return
    positions = Positions(cluster=chance.randrange(watcher.sequence + 1))
    blockers = chance.choice([[], ["NodeResourcesFit"], ["NodeAffinity"]])
    what = chance.choice(["outcome", "outcome", "lost", "changed", "node", "time", "duplicate"])
    if what == "outcome":
        outcome = chance.choice(OUTCOMES)
        versions = chance.choice([{}, {"node": "30"}, {"pod": "100000"}])
        watcher.decide(name, outcome, positions=positions, blockers=blockers, resource_versions=versions)
    elif what == "lost":
        latest = watcher.core.find(f"uid-{name}").attempt
        watcher.send(AttemptLookedUp(attempt=attempt(name, latest.term, latest.n)))
    elif what == "changed":
        watcher.show(a_pod(name, version=500, labels={"n": str(chance.random())}))
    elif what == "node":
        watcher.show(a_node("n1", cpu=str(chance.randrange(64)), version=600))
    elif what == "duplicate":
        decision = watcher.decision(name, Outcome.CONFLICT)
        watcher.send(decision, decision)
    else:
        watcher.advance(chance.random() * 12)


def _bind_if_in_flight(watcher: WatcherUnderTest, name: str, bound: set[str]) -> None:
    """The binder decides it ``bound`` and the watch shows it."""
    if watcher.stage(name) == "in flight":
        watcher.decide(name, Outcome.BOUND)
        watcher.show(a_pod(name, node="n1", version=10_000))
        bound.add(name)
