"""One cluster, one bus: the decision alone."""

import pytest

from berth.leader.onecluster import BusAndCluster, OtherBus, mismatch

OTHER = OtherBus(lease="berth-watcher", holder="host_1", bus_id="bus-b")


def pair(**given) -> BusAndCluster:
    return BusAndCluster(
        **{"bus_id": "bus-a", "cluster_id": "c1", "served_cluster_id": "c1", "other_bus": None, **given}
    )


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({}, id="the bus serves this cluster"),
        pytest.param({"served_cluster_id": ""}, id="nobody has said whom the bus serves"),
    ],
)
def test_a_pair_that_belongs_together_is_accepted(given):
    assert mismatch(pair(**given)) is None


def test_a_bus_of_another_cluster_is_refused_with_both_ids_and_what_to_do():
    sentence = mismatch(pair(served_cluster_id="c2"))
    assert "'c1'" in sentence
    assert "'c2'" in sentence
    assert "--nats or --kubeconfig" in sentence


def test_another_pipeline_in_this_cluster_is_refused_with_its_holder_and_bus():
    sentence = mismatch(pair(other_bus=OTHER))
    for part in ("'bus-a'", "'bus-b'", "'host_1'", "'berth-watcher'", "--nats"):
        assert part in sentence
