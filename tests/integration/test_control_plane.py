"""The harness of the real control plane removes its processes and folders however a test ends."""

import json
import os
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from harness.servers.control_plane import NOBODY, ControlPlane, remove_folders_of_killed_runs

STARTER = """
import json, sys, time
from harness.servers.control_plane import assets_folder, control_plane
with control_plane(assets_folder()) as plane:
    children = open("/proc/self/task/%d/children" % __import__("os").getpid()).read().split()
    print(json.dumps({"children": children, "folder": str(plane.folder)}), flush=True)
    sys.stdin.read()
"""
END_SECONDS = 10.0


@pytest.mark.requires("kubebuilder_assets")
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends children with their parent")
@pytest.mark.parametrize("ending", ["kill -9", "end of the block"])
def test_programs_end_with_the_process_that_started_them(ending: str):
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    with subprocess.Popen(
        [sys.executable, "-c", STARTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as starter:
        assert starter.stdout is not None
        started = json.loads(starter.stdout.readline())
        assert len(started["children"]) == 2
        if ending == "kill -9":
            starter.send_signal(signal.SIGKILL)
        starter.communicate(timeout=30)
    deadline = time.monotonic() + END_SECONDS
    while any(is_running(pid) for pid in started["children"]):
        assert time.monotonic() < deadline, f"{started['children']} outlive their parent"
        time.sleep(0.05)
    remove_folders_of_killed_runs()
    assert not Path(started["folder"]).exists()


def is_running(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_kubeconfig_of_a_user_holds_its_token(real_control_plane: ControlPlane):
    path = real_control_plane.write_kubeconfig(NOBODY.name, NOBODY.token)
    written = json.loads(path.read_text())
    assert written["users"] == [{"name": "nobody", "user": {"token": NOBODY.token}}]
    assert written["clusters"][0]["cluster"]["server"] == real_control_plane.url
    assert real_control_plane.kubeconfig_path.exists()


def test_user_without_groups_may_list_nothing(real_control_plane: ControlPlane):
    trust = ssl.create_default_context(cafile=str(real_control_plane.ca_path))
    headers = {"Authorization": f"Bearer {NOBODY.token}"}
    request = urllib.request.Request(f"{real_control_plane.url}/api/v1/pods", headers=headers)  # noqa: S310 - our own
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=10, context=trust)  # noqa: S310 - our own server
    with caught.value:
        assert caught.value.code == 403
