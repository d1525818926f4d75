"""Nulls are decoded as in Kubernetes; a field of another type is reported with its path."""

import json

import msgspec
import pytest

from berth.api.pod import Pod
from berth.errors import DecodeError
from berth_cli.simulate.documents import decode

DECODER = msgspec.json.Decoder(Pod)


def pod_with(spec):
    return decode(DECODER, json.dumps({"metadata": {"name": "web"}, "spec": spec}).encode())


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"priority": "high"}, "spec.priority"),
        ({"priority": 2**31}, "spec.priority"),
        ({"schedulerName": 5}, "spec.schedulerName"),
        ({"containers": {"name": "a"}}, "spec.containers"),
        ({"containers": ["a"]}, "spec.containers[0]"),
        ({"containers": [{"resources": {"requests": {"cpu": []}}}]}, "spec.containers[0].resources.requests[...]"),
        ({"topologySpreadConstraints": [{"topologyKey": "a"}]}, "spec.topologySpreadConstraints[0]"),
        ({"priorityClassName": None, "hostNetwork": "yes"}, "spec.hostNetwork"),
    ],
    ids=str,
)
def test_a_field_of_another_type_is_reported_with_its_path(spec, path):
    with pytest.raises(DecodeError) as caught:
        pod_with(spec)
    assert str(caught.value).startswith(f"{path}: ")


def test_a_null_field_is_absent_and_a_null_entry_is_zero():
    spec = pod_with(
        {
            "priorityClassName": None,
            "schedulerName": None,
            "containers": [None, {"image": None, "resources": {"requests": {"cpu": None}}}],
            "nodeSelector": {"zone": None},
        }
    ).spec
    assert (spec.priority_class_name, spec.scheduler_name) == ("", "default-scheduler")
    assert [container.image for container in spec.containers] == ["", ""]
    assert spec.containers[1].resources.requests == {"cpu": "0"}
    assert spec.node_selector == {"zone": ""}
