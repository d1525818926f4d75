"""An object that cannot be decoded is said once, to whoever owns it, and stops nobody else."""

import pytest

from berth.kube.watch import Undecodable
from berth_watcher.events import PublishDeadLetter, Warn
from harness.worlds.watcher_world import WatcherUnderTest, a_pod


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


def test_a_pod_of_ours_goes_to_dead_with_the_reason():
    world = WatcherUnderTest().lead()

    world.send(undecodable(b'{"spec": {"schedulerName": "berth", "containers": "none"}}'))

    (letter,) = (effect.dead_letter for effect in world.of(PublishDeadLetter))
    assert letter.subject == "berth.pending.berth.default.odd"
    assert "$.spec.containers" in letter.reason
    assert '"containers": "none"' in letter.payload
    assert "'default/odd' cannot be decoded" in world.of(Warn)[0].message


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b'{"spec": {"schedulerName": "other"}}', id="another scheduler's"),
        pytest.param(b'{"spec": {"schedulerName": "berth", "nodeName": "n1"}}', id="bound"),
        pytest.param(b'{"spec": {"schedulerName": 5}}', id="nobody knows whose"),
        pytest.param(b"\xff", id="not JSON"),
    ],
)
def test_a_pod_that_is_not_known_to_be_ours_is_only_said_in_the_log(raw):
    world = WatcherUnderTest().lead()

    world.send(undecodable(raw))

    assert world.of(PublishDeadLetter) == []
    assert len(world.of(Warn)) == 1


def test_it_is_said_once_for_each_version():
    world = WatcherUnderTest().lead()

    for version in ("5", "5", "6"):
        world.send(undecodable(b"{}", kind="node", version=version))

    assert len(world.of(Warn)) == 2


def test_its_removal_is_taken_in_and_others_go_on():
    world = WatcherUnderTest().lead(a_pod("web"))

    world.send(undecodable(b"{}"), undecodable(b"{}", deleted=True))
    world.show(a_pod("next"))

    assert world.pods_published == ["web", "next"]


def test_a_pending_pod_with_an_unparseable_quantity_is_published_as_it_is():
    world = WatcherUnderTest().lead(a_pod("web", cpu="lots"))

    assert world.published[0].message.pod.spec.containers[0].resources.requests == {"cpu": "lots"}
