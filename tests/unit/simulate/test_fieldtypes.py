"""Fields held to their types: everything wrong at once, and null as if nothing were said."""

import msgspec
import pytest

from berth.api.pod import Pod
from berth.simulate.documents import fitted

NUMBER = "a whole number, -2147483648..2147483647"


def told(spec):
    problems: list[str] = []
    fitted({"metadata": {"name": "web"}, "spec": spec}, Pod, problems)
    return problems


def taken(spec):
    problems: list[str] = []
    value = fitted({"metadata": {"name": "web"}, "spec": spec}, Pod, problems)
    assert problems == []
    return msgspec.convert(value, Pod).spec


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"priority": "high"}, f"spec.priority: want {NUMBER}, got 'high'"),
        ({"priority": True}, f"spec.priority: want {NUMBER}, got True"),
        ({"priority": 2**31}, f"spec.priority: want {NUMBER}, got 2147483648"),
        ({"schedulerName": 5}, "spec.schedulerName: want text, got 5"),
        ({"hostNetwork": "yes"}, "spec.hostNetwork: want true or false, got 'yes'"),
        ({"containers": {"name": "a"}}, "spec.containers: want a list, got {'name': 'a'}"),
        ({"containers": ["a"]}, "spec.containers[0]: want a mapping, got 'a'"),
        ({"nodeSelector": {"zone": 1}}, "spec.nodeSelector.zone: want text, got 1"),
        (
            {"containers": [{"resources": {"requests": {"cpu": []}}}]},
            "spec.containers[0].resources.requests.cpu: want a quantity such as 500m or 2Gi, got []",
        ),
        (
            {"topologySpreadConstraints": [{"topologyKey": "zone", "whenUnsatisfiable": "x"}]},
            "spec.topologySpreadConstraints[0].maxSkew: missing",
        ),
        ({"schedulerName": ["x" * 100]}, f"spec.schedulerName: want text, got ['{'x' * 58}..."),
    ],
    ids=str,
)
def test_a_field_of_another_type_is_told_with_its_path(spec, said):
    assert told(spec) == [said]


def test_everything_wrong_in_an_object_is_told():
    wrong = {"priority": "a", "hostNetwork": 1, "tolerations": [{"key": 1}, {"key": "a"}, {"effect": 2}]}
    assert [problem.split(":")[0] for problem in told(wrong)] == [
        "spec.priority",
        "spec.tolerations[0].key",
        "spec.tolerations[2].effect",
        "spec.hostNetwork",
    ]


def test_nulls_are_as_if_nothing_were_said():
    spec = taken(
        {
            "priorityClassName": None,
            "schedulerName": None,
            "containers": [None, {"image": None, "resources": {"requests": {"cpu": None}}}],
            "nodeSelector": {"zone": None},
        }
    )
    assert (spec.priority_class_name, spec.scheduler_name) == ("", "default-scheduler")
    assert [container.image for container in spec.containers] == ["", ""]
    assert spec.containers[1].resources.requests == {"cpu": "0"}
    assert spec.node_selector == {"zone": ""}
