"""The requests of a pod: the most that its containers need at one time, and its overhead."""

import pytest

from berth.api.pod import Container, PodSpec, ResourceRequirements
from berth.api.resources import amount_in_words, is_counted, is_extended, is_scalar, pod_requests
from harness.builders.objects import a_container

MIB = 1024 * 1024


def amounts(**spec) -> dict[str, int]:
    return pod_requests(PodSpec(**spec)).amounts


def sidecar(**requests) -> Container:
    return Container(resources=ResourceRequirements(requests=requests), restart_policy="Always")


def test_containers_run_together():
    assert amounts(containers=[a_container(cpu="1"), a_container(cpu="500m", memory="1Mi")]) == {
        "cpu": 1500,
        "memory": MIB,
    }


def test_init_containers_run_one_after_another_before_them():
    init = [a_container(cpu="3"), a_container(memory="5Mi")]
    assert amounts(containers=[a_container(cpu="1", memory="1Mi")], init_containers=init) == {
        "cpu": 3000,
        "memory": 5 * MIB,
    }


def test_sidecars_run_beside_everything_that_starts_after_them():
    init = [a_container(cpu="3"), sidecar(cpu="1"), a_container(cpu="2500m")]
    # 3000; then the sidecar's 1000 with 2500 beside it: 3500; then 1000 + 2000
    assert amounts(containers=[a_container(cpu="2")], init_containers=init) == {"cpu": 3500}
    assert amounts(containers=[a_container(cpu="4")], init_containers=init) == {"cpu": 5000}


def test_overhead_comes_on_top():
    assert amounts(containers=[a_container(cpu="1")], overhead={"cpu": "250m", "memory": "1Mi"}) == {
        "cpu": 1250,
        "memory": MIB,
    }


def test_requests_of_the_whole_pod_take_the_place_of_its_containers():
    whole = ResourceRequirements(requests={"cpu": "3", "hugepages-2Mi": "4Mi", "example.com/gpu": "9"})
    given = amounts(containers=[a_container(cpu="1", memory="1Mi")], resources=whole, overhead={"cpu": "1"})
    assert given == {"cpu": 4000, "memory": MIB, "hugepages-2Mi": 4 * MIB}


@pytest.mark.parametrize(
    ("spec", "cpu", "memory"),
    [
        pytest.param({"containers": [a_container()]}, 100, 200 * MIB, id="nothing named"),
        pytest.param({"containers": [a_container(cpu="0", memory="0")]}, 0, 0, id="an explicit 0 stays 0"),
        pytest.param({"containers": [a_container(), a_container(cpu="1")]}, 1100, 400 * MIB, id="each container"),
        pytest.param(
            {"containers": [a_container()], "init_containers": [a_container(cpu="50m"), sidecar()]},
            200,
            400 * MIB,
            id="init containers and sidecars too",
        ),
        pytest.param(
            {"containers": [a_container()], "resources": ResourceRequirements(requests={"cpu": "2"})},
            2000,
            200 * MIB,
            id="the whole pod names cpu",
        ),
    ],
)
def test_scores_count_defaults_for_what_is_not_named(spec, cpu, memory):
    requests = pod_requests(PodSpec(**spec))
    assert (requests.nonzero_cpu, requests.nonzero_memory) == (cpu, memory)


def test_an_invalid_quantity_counts_as_0_and_is_reported_with_its_path():
    requests = pod_requests(PodSpec(containers=[a_container(cpu="1"), a_container(cpu="x")], overhead={"memory": "?"}))
    assert requests.amounts == {"cpu": 1000, "memory": 0}
    assert requests.problems == (
        "spec.containers[1].resources.requests.cpu: want a quantity such as 500m or 2Gi, got 'x'",
        "spec.overhead.memory: want a quantity such as 500m or 2Gi, got '?'",
    )


@pytest.mark.parametrize(
    ("resource", "scalar", "extended", "counted"),
    [
        ("cpu", False, False, True),
        ("ephemeral-storage", False, False, True),
        ("example.com/gpu", True, True, True),
        ("hugepages-2Mi", True, False, True),
        ("kubernetes.io/batch-cpu", True, False, True),
        ("requests.example.com/gpu", False, False, False),
        ("pods", False, False, False),
        ("unknown", False, False, False),
    ],
)
def test_kinds_of_resources(resource, scalar, extended, counted):
    assert (is_scalar(resource), is_extended(resource), is_counted(resource)) == (scalar, extended, counted)


@pytest.mark.parametrize(
    ("resource", "value", "up", "expected"),
    [
        pytest.param("cpu", 2500, False, "2.5", id="cores"),
        pytest.param("cpu", 500, False, "500m", id="millicores"),
        pytest.param("cpu", 0, False, "0", id="none"),
        pytest.param("memory", 4 * 2**30, False, "4 GiB", id="whole"),
        pytest.param("memory", 4 * 2**30 - 1, False, "3.99 GiB", id="room is rounded down"),
        pytest.param("memory", 4 * 2**30 + 1, True, "4.01 GiB", id="requests are rounded up"),
        pytest.param("memory", 17, False, "17 B", id="bytes"),
        pytest.param("hugepages-2Mi", 2**31, False, "2 GiB", id="huge pages"),
        pytest.param("example.com/gpu", 3, False, "3", id="a count"),
    ],
)
def test_amounts_are_rounded_so_that_no_shortage_disappears(resource, value, up, expected):
    assert amount_in_words(resource, value, up=up) == expected
