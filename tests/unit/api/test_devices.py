"""The forms of ResourceSlices, ResourceClaims and DeviceClasses on the bus."""

from __future__ import annotations

import msgspec
import pytest

from berth.api.devices import DeviceClass, PackedSlice, ResourceClaim, ResourceSlice, without_parameters
from berth.api.kinds import RESOURCE_SLICE
from berth.kube.listwatch import ObjectDecoder
from harness.builders.devices import the_largest_slice

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
    claim = msgspec.convert(
        {
            "metadata": {"name": "c", "namespace": "ns", "uid": "u", "finalizers": ["f"]},
            "spec": {"devices": {"requests": [{"name": "r"}], "config": [PARAMETERS]}},
            "status": {
                "allocation": {
                    "devices": {
                        "results": [{"request": "r", "driver": "d", "pool": "p", "device": "x"}],
                        "config": [{"source": "FromClaim", **PARAMETERS}],
                    }
                }
            },
        },
        ResourceClaim,
    )
    kept = without_parameters(claim)
    assert b"opaque" not in msgspec.json.encode(kept)
    assert kept.metadata.finalizers is None
    assert kept.status.allocation.devices.results == claim.status.allocation.devices.results
    device_class = msgspec.convert({"metadata": {"name": "x"}, "spec": {"config": [PARAMETERS]}}, DeviceClass)
    assert without_parameters(device_class).spec.config is None


def test_equal_attributes_of_devices_are_kept_once():
    device = {"name": "d", "attributes": {"model": {"string": "h100"}}}
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 1}
    decoder = ObjectDecoder(RESOURCE_SLICE)
    slices = [
        decoder.one(
            msgspec.json.encode(
                {"metadata": {"name": name}, "spec": {"driver": "d", "pool": pool, "devices": [device]}}
            )
        )
        for name in "ab"
    ]
    first, second = (each.spec.devices[0].attributes["model"] for each in slices)
    assert first is second
