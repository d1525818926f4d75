"""The forms of ResourceSlices, ResourceClaims and DeviceClasses on the bus."""

from __future__ import annotations

from typing import TypeVar

import msgspec
import pytest

from berth.api.devices import (
    EXTENDED_RESOURCE_CLAIM,
    DeviceClass,
    OpaqueConfiguration,
    PackedSlice,
    ResourceClaim,
    ResourceSlice,
    SliceDevice,
    as_mirrored,
)
from berth.api.kinds import RESOURCE_SLICE
from berth.kube.listwatch import ObjectDecoder
from berth.plugins.dynamicresources.claims import BindingState, binding_of
from harness.builders.devices import the_largest_slice

T = TypeVar("T")
PARAMETERS = {"opaque": {"driver": "d", "parameters": {"k": 1}}}


def test_a_packed_slice_decodes_to_the_slice_and_is_a_third_of_it():
    whole = the_largest_slice()
    data = msgspec.json.encode(PackedSlice.of(whole))
    assert msgspec.json.decode(data, type=ResourceSlice) == whole
    assert 3 * len(data) < len(msgspec.json.encode(whole)) > 700_000


@pytest.mark.parametrize("text", ["?", "bm90IHppcHBlZA==", "eJyrVkrNSc1NzSsBAA=="])
def test_a_packed_slice_that_cannot_be_read_is_a_decoding_error(text: str):
    with pytest.raises(msgspec.DecodeError):
        msgspec.json.decode(msgspec.json.encode({"metadata": {"name": "s"}, "packed": text}), type=ResourceSlice)


def test_scorers_get_no_parameters_of_drivers_and_no_finalizers():
    results = [{"request": "r", "driver": "d", "pool": "p", "device": "x"}]
    allocation = {"devices": {"results": results, "config": [{"source": "FromClaim", **PARAMETERS}]}}
    claim = _decoded(
        ResourceClaim,
        metadata={"name": "c", "namespace": "ns", "uid": "u", "finalizers": ["f"]},
        spec={"devices": {"requests": [{"name": "r"}], "config": [PARAMETERS]}},
        status={"allocation": allocation},
    )
    kept = as_mirrored(claim)
    assert b"opaque" not in msgspec.json.encode(kept)
    assert kept.metadata.finalizers is None
    assert kept.status.allocation.devices.results == claim.status.allocation.devices.results
    assert as_mirrored(kept) == kept
    device_class = _decoded(DeviceClass, metadata={"name": "x"}, spec={"config": [PARAMETERS]})
    assert as_mirrored(device_class).spec.config is None


def test_of_what_drivers_report_scorers_get_the_conditions_for_which_pods_wait():
    device = {"driver": "d", "pool": "p", "device": "x"}
    result = {"request": "r", **device, "bindingConditions": ["ready"], "tolerations": [{"key": "k"}]}
    conditions = [{"type": kind, "status": "True", "message": "m" * 999} for kind in ("ready", "hot")]
    devices = [{**device, "conditions": conditions}, {**device, "device": "y", "conditions": conditions}]
    metadata = {"name": "c", "labels": {"l": "1"}, "annotations": {"note": "1", EXTENDED_RESOURCE_CLAIM: "true"}}
    allocation = {"devices": {"results": [result]}}
    claim = _decoded(ResourceClaim, metadata=metadata, status={"allocation": allocation, "devices": devices})
    kept = as_mirrored(claim)
    assert (kept.metadata.labels, kept.metadata.annotations) == (None, {EXTENDED_RESOURCE_CLAIM: "true"})
    assert kept.status.allocation.devices.results[0].tolerations is None
    [shown] = kept.status.devices
    assert [(each.type, each.message) for each in shown.conditions] == [("ready", "m" * 256)]
    given = claim.status.allocation
    assert binding_of(kept, given)[0] is binding_of(claim, given)[0] is BindingState.DONE


def _decoded(kind: type[T], **body: object) -> T:
    return msgspec.json.decode(msgspec.json.encode(body), type=kind)


def test_parameters_are_kept_as_they_came_and_equal_by_their_bytes():
    digits = b'{"parameters": {"k":0.12345678901234567890}}'
    page = b'[%b, %b, {"parameters": {}}]' % (digits, digits)
    one, two, other = msgspec.json.decode(page, type=list[OpaqueConfiguration])
    assert (one == two, one == other) == (True, False)
    assert msgspec.json.encode(one) == b'{"parameters":{"k":0.12345678901234567890}}'


def test_equal_names_attributes_and_capacities_of_devices_are_kept_once():
    device = {
        "name": "gpu-0",
        "attributes": {"model": {"string": "h100"}},
        "capacity": {"memory": {"value": "80Gi"}, "cores": {"value": "8"}},
    }
    first, second = _devices_of_two_slices(device)
    assert first.attributes["model"] is second.attributes["model"]
    assert first.name is second.name
    assert first.capacity is second.capacity


@pytest.mark.parametrize(
    "capacity",
    [{"memory": {"value": 80}}, {"memory": {"value": "80Gi", "requestPolicy": {"validValues": ["1Gi"]}}}],
    ids=["number", "policy"],
)
def test_other_capacities_of_devices_stay_as_they_are(capacity: dict):
    for each in _devices_of_two_slices({"name": "d", "capacity": capacity}):
        assert msgspec.to_builtins(each)["capacity"] == capacity


def _devices_of_two_slices(device: dict) -> tuple[SliceDevice, SliceDevice]:
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 1}
    decoder = ObjectDecoder(RESOURCE_SLICE)
    first, second = [
        decoder.one(
            msgspec.json.encode(
                {"metadata": {"name": name}, "spec": {"driver": "d", "pool": pool, "devices": [device]}}
            )
        )
        for name in "ab"
    ]
    return first.spec.devices[0], second.spec.devices[0]
