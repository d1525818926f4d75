"""How the API server of tests is started again."""

from harness.servers import control_plane
from harness.servers.child_processes import spawn, stop
from harness.servers.control_plane import ControlPlane


def test_an_api_server_that_ends_while_it_starts_is_started_again(tmp_path, monkeypatch):
    """kube-apiserver ends itself where its first checks take longer than a minute; a kubelet starts it again."""
    tried = tmp_path / "tried"
    command = ["sh", "-c", f"test -e {tried} && exec sleep 60; touch {tried}; exit 255"]
    etcd = spawn(["sleep", "60"], tmp_path / "etcd.log")
    plane = ControlPlane(
        url="", etcd_url="", ca_path=tmp_path, folder=tmp_path, processes=[etcd, etcd], api_command=command
    )
    monkeypatch.setattr(control_plane, "_is_ready", lambda plane: tried.exists() and len(list(tmp_path.glob("k*"))) > 1)
    try:
        plane.start_api_server()
        assert plane.processes[-1].poll() is None
    finally:
        stop(plane.processes)
