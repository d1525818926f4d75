"""berth simulate gives devices: claims of the files, claims made of templates, and each device once."""

from pathlib import Path

import msgspec

from berth.profiles.configuration import profiles_of, read_configuration
from berth_cli.simulate.engine import Simulation
from berth_cli.simulate.inputs import read_inputs

EXAMPLE = Path(__file__).parents[3] / "docs/examples/devices"
PROFILES = dict(profiles_of(read_configuration(None)))


def test_each_pod_of_a_template_gets_a_device_of_its_own_as_long_as_there_are_some():
    inputs = read_inputs([str(EXAMPLE / "cluster.yaml")], [str(EXAMPLE / "pods.yaml")], list(PROFILES))
    reports = list(Simulation(snapshot=inputs.snapshot, profiles=PROFILES).in_queue_order(inputs.pods))
    assert [(each.pod, each.bound) for each in reports] == [
        ("default/train-0", "node-2"),
        ("default/train-1", "node-2"),
        ("default/train-2", None),
    ]
    devices = [f"gpu.example.com/node-2/gpu-{number}" for number in range(2)]
    assert [list(each.devices.values()) for each in reports[:2]] == [[[device]] for device in devices]
    assert list(reports[0].devices) == ["default/train-0-gpu"]
    assert b'"devices":{"default/train-0-gpu":[' in msgspec.json.encode(reports[0])
    assert b'"devices"' not in msgspec.json.encode(reports[2])
    assert reports[-1].message.startswith("0/2 nodes are available: 2 cannot allocate all claims.")


def test_a_template_that_is_not_in_the_files_is_named(tmp_path):
    pods = tmp_path / "pods.yaml"
    pods.write_text(
        (EXAMPLE / "pods.yaml").read_text().replace("metadata: {name: large-gpu}", "metadata: {name: other}")
    )
    inputs = read_inputs([str(EXAMPLE / "cluster.yaml")], [str(pods)], list(PROFILES))
    (report, *_) = Simulation(snapshot=inputs.snapshot, profiles=PROFILES).independently(inputs.pods)
    lacks = 'ResourceClaimTemplate "large-gpu" may be missing'
    assert f'pod "default/train-0": ResourceClaim not created yet, {lacks}.' in report.message
