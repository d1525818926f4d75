"""DynamicResources: a pod with resource claims is rejected with the claims' names."""

from berth.api.pod import PodResourceClaim
from berth.cluster.snapshot import Snapshot
from berth.framework.cycle import rank
from berth.framework.events import Action, ClusterEvent, Resource
from harness.builders.objects import a_node, a_pod, first_attempt
from harness.builders.profiles import default_profile
from harness.builders.volumes import pod_with_claims
from harness.worlds.queueing_hints import may_help


def said_of(pod):
    snapshot = Snapshot()
    snapshot.set_node(a_node("n0"))
    return rank(pod, snapshot, default_profile(), attempt=first_attempt(pod))


def test_a_pod_with_claims_is_rejected_with_their_names():
    claims = [PodResourceClaim(name="gpu"), PodResourceClaim(name="nic")]
    ranking = said_of(a_pod(resource_claims=claims))
    assert ranking.message == (
        "0/1 nodes are available: berth does not allocate resource claims (spec.resourceClaims: gpu, nic): "
        "remove them, or name a scheduler that does in spec.schedulerName."
    )
    assert (ranking.candidates, ranking.unschedulable_plugins, ranking.nomination) == ((), ("DynamicResources",), None)


def test_no_event_requeues_it():
    event = ClusterEvent(Resource.NODE, Action.ADD)
    pod = a_pod(resource_claims=[PodResourceClaim(name="gpu")])
    assert may_help(default_profile(), {"DynamicResources"}, event, pod, None, a_node("n")) is False


def test_after_another_pre_filter_rejected_the_message_is_its_reason_alone():
    assert said_of(pod_with_claims()).message == '0/1 nodes are available: persistentvolumeclaim "data" not found.'


def test_a_pod_without_claims_is_placed():
    assert [candidate.node for candidate in said_of(a_pod()).candidates] == ["n0"]
