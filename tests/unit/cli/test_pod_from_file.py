"""A pod that is given in a file, for `berth why --now --from`."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from berth.exits import UsageError
from berth_cli.options import PodName
from berth_cli.pods.finding import POD_BYTES, read_pod
from harness.builders.objects import a_pod

POD = PodName(namespace="default", name="web")


def test_a_pod_is_read_from_a_file(tmp_path: Path):
    pod = a_pod("web", cpu="100m")
    (tmp_path / "pod.json").write_bytes(msgspec.json.encode(pod))
    found = read_pod(tmp_path / "pod.json", POD)
    assert (found.pod, found.where) == (pod, str(tmp_path / "pod.json"))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        pytest.param(b"", "decoding a pod", id="nothing"),
        pytest.param(b"kind: Pod", "decoding a pod", id="YAML"),
        pytest.param(b"[" * 100, "inside each other", id="nesting"),
        pytest.param(b" " * (POD_BYTES + 1), "at most", id="too much"),
        pytest.param(msgspec.json.encode(a_pod("other")), "want default/web, got 'default/other'", id="another pod"),
    ],
)
def test_a_file_that_is_not_that_pod_is_refused(tmp_path: Path, data: bytes, reason: str):
    (tmp_path / "pod.json").write_bytes(data)
    with pytest.raises(UsageError, match=reason):
        read_pod(tmp_path / "pod.json", POD)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path):
    with pytest.raises(UsageError, match="No such file"):
        read_pod(tmp_path / "none.json", POD)
