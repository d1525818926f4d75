"""Claims with WaitForFirstConsumer: the binder claims volumes or has them provisioned, waits, and gives up in time."""

from __future__ import annotations

import msgspec
import pytest

from berth.api.pod import ClaimSource, Pod, Volume
from berth.api.volumes import PersistentVolume, PersistentVolumeClaim, StorageClass
from berth.framework.interface import ClaimName, KeepVolume, SelectNode
from berth.kube.listwatch import Deleted, Upserted
from berth.messages.attempts import Outcome, Reason
from berth.plugins.volumes.volumebinding.claimmatcher import SELECTED_NODE
from berth_binder.events import NO_ANSWER, PostBinding, WriteObjects, WritesAnswer
from harness.builders.objects import a_node
from harness.builders.volumes import a_claim, a_class, a_volume, kind_of
from harness.worlds.binder_bench import Bench, make_pod, ranked

TEN_MINUTES = 600.0


def selected(node: str, version: int = 5, **more) -> PersistentVolumeClaim:
    return a_claim(version=version, annotations={SELECTED_NODE: node}, **more)


def claimed(volume: PersistentVolume) -> PersistentVolume:
    """The volume as the API shows it once it is bound to a claim."""
    raw = msgspec.to_builtins(volume)
    raw["metadata"]["resourceVersion"] = "6"
    raw["spec"]["claimRef"] = {"namespace": "default", "name": "data", "uid": "uid-data"}
    return msgspec.convert(raw, PersistentVolume)


def using(name: str, claim: str = "data") -> Pod:
    volume = Volume(name="v", persistent_volume_claim=ClaimSource(claim_name=claim))
    return make_pod(name, spec={"volumes": [volume]})


class World(Bench):
    """A bench with storage; ``provisioner`` is that of its StorageClass."""

    def show_storage(self, *things: StorageClass | PersistentVolume | PersistentVolumeClaim) -> None:
        for thing in things:
            self.observe(Upserted(kind=kind_of(thing), object=thing))

    def written(self, pod: Pod, status: int = 200, **versions: int):
        return self.handle(WritesAnswer(uid=pod.uid, status=status, message="so it is", versions=versions))

    @property
    def writes(self) -> list[tuple]:
        return [effect.requests for effect in self.effects if isinstance(effect, WriteObjects)]

    @property
    def posts(self) -> list[str]:
        return [effect.node for effect in self.effects if isinstance(effect, PostBinding)]


@pytest.fixture
def world() -> World:
    world = World()
    world.show_storage(a_class(), a_claim())
    return world


CLAIM = ClaimName(namespace="default", name="data", uid="uid-data")


def test_volume_is_provisioned_before_the_pod_is_bound(world):
    pod = world.show(using("web"))
    world.take(ranked(pod, "n1"))
    assert (world.writes, world.posts) == ([(SelectNode(claim=CLAIM, node="n1"),)], [])
    world.written(pod, pvc=5)
    world.show_storage(selected("n1"))
    world.wait(1)
    assert (world.outcomes, world.posts) == (["waiting"], [])
    unseen = "waiting for the API server: the watch has not shown the writes before the Binding yet"
    assert world.decisions[0].message == unseen
    world.wait(10)
    assert world.decisions[-1].message == "waiting for VolumeBinding: its claims are not bound yet"
    world.show_storage(a_volume("made", version=6), selected("n1", version=7, volume="made"))
    world.wait(1)
    assert world.posts == ["n1"]


def test_free_volume_that_the_node_reaches_is_claimed(world):
    volume = a_volume("disk")
    world.show_storage(volume)
    pod = world.show(using("web"))
    world.take(ranked(pod, "n2"))
    assert world.writes == [(KeepVolume(volume="disk", claim=CLAIM),)]
    world.written(pod, pv=6)
    world.show_storage(claimed(volume), a_claim(version=7, volume="disk"))
    world.wait(1)
    assert world.posts == ["n2"]


def test_two_pods_never_get_one_volume(world):
    world.show_storage(a_class("kubernetes.io/no-provisioner"), a_volume("disk"), a_claim("other"))
    first, second = world.show(using("first")), world.show(using("second", "other"))
    world.take(ranked(first, "n1"))
    world.take(ranked(second, "n1", "n2"))
    assert [[write.volume for write in requests] for requests in world.writes] == [["disk"]]
    assert world.outcomes == ["conflict"]


def test_binding_waits_until_the_watch_shows_what_was_written(world):
    """Before that the claim looks as if the provisioner had rejected the node."""
    pod = world.show(using("web"))
    world.take(ranked(pod, "n1"))
    world.written(pod, pvc=5)
    world.wait(1)
    assert world.outcomes == ["waiting"]
    world.show_storage(selected("n1", version=5))
    world.wait(1)
    assert world.outcomes == ["waiting"]


def test_pod_is_not_bound_to_a_node_that_is_deleted_while_its_volume_is_asked_for(world):
    pod = world.show(using("web"))
    world.take(ranked(pod, "n1", "n2"))
    world.observe(Deleted(kind="node", object=a_node("n1")))
    world.written(pod, pvc=5)
    assert (world.outcomes, world.posts) == (["conflict"], [])


def test_rejected_provisioning_sends_the_pod_to_another_node(world):
    pod = world.show(using("web"))
    world.take(ranked(pod, "n1"))
    world.written(pod, pvc=5)
    world.show_storage(selected("n1"))
    world.wait(1)
    world.show_storage(a_claim(version=9))
    world.wait(1)
    assert world.outcomes == ["waiting", "unschedulable"]
    assert world.decisions[-1].message == 'binding volumes: provisioning failed for PVC "data"'
    assert world.decisions[-1].blockers == ["VolumeBinding"]
    assert world.cache.assumed_pod(pod.uid) is None


def test_pod_whose_claims_are_not_bound_in_time_is_unschedulable(world):
    pod = world.show(using("web"))
    world.take(ranked(pod, "n1"))
    world.written(pod, pvc=5)
    world.show_storage(selected("n1"))
    began = world.now
    while "unschedulable" not in world.outcomes:
        world.wait(1)
    assert world.now - began == 1 + TEN_MINUTES  # PreBind ran first when the watch had shown the writes
    assert (world.outcomes[-1], world.decisions[-1].message) == (
        "unschedulable",
        "binding volumes: context deadline exceeded",
    )


@pytest.mark.parametrize("status", [404, 409])
def test_conflicting_write_is_ranked_again_and_frees_the_volume(world, status):
    world.show_storage(a_class("kubernetes.io/no-provisioner"), a_volume("disk"), a_claim("other"))
    first, second = world.show(using("first")), world.show(using("second", "other"))
    world.take(ranked(first, "n1"))
    world.written(first, status)
    assert [(decision.outcome, decision.reason) for decision in world.decisions] == [(Outcome.CONFLICT, Reason.VOLUMES)]
    world.take(ranked(second, "n1"))
    assert [write.claim.name for requests in world.writes for write in requests] == ["data", "other"]


def test_rejected_write_is_an_error_with_the_apis_message(world):
    pod = world.show(using("web"))
    world.take(ranked(pod, "n1"))
    world.written(pod, 403)
    assert world.decisions[-1].outcome is Outcome.ERROR
    assert world.decisions[-1].message == "writes before the Binding were rejected by the API server: 403: so it is"


def test_write_without_an_answer_is_retried_on_the_same_node(world):
    pod = world.show(using("web"))
    world.take(ranked(pod, "n1", "n2"))
    world.written(pod, NO_ANSWER)
    world.wait(1)
    sent = [effect for effect in world.effects if isinstance(effect, WriteObjects)]
    assert len(sent) == 1  # equal effects are kept once
    assert world.core.in_flight == 1
    world.written(pod, pvc=5)
    assert world.core.in_flight == 0


def test_successor_keeps_the_selected_node(world):
    pod = world.show(using("web"))
    world.take(ranked(pod, "n1"))
    world.written(pod, pvc=5)
    world.show_storage(selected("n1"))
    world.succeed()
    world.take(ranked(pod, "n2", "n1"))
    assert world.writes[-1] == (SelectNode(claim=CLAIM, node="n1"),)


def test_nothing_is_assumed_after_a_new_takeover(world):
    volume = a_volume("disk")
    world.show_storage(volume)
    world.take(ranked(world.show(using("web")), "n1"))
    assert world.cache.snapshot.objects(PersistentVolume).named("disk").spec.claim_ref is not None
    world.cache.forget_former_epochs()
    assert world.cache.snapshot.objects(PersistentVolume).named("disk").spec.claim_ref is None


def test_pod_whose_claims_are_bound_is_bound_at_once(world):
    world.show_storage(a_volume("made"), a_claim(version=4, volume="made"))
    world.take(ranked(world.show(using("web")), "n1"))
    assert (world.writes, world.posts) == ([], ["n1"])
