"""Clients made from settings: nothing that was set is lost on the way."""

import json
from datetime import timedelta
from pathlib import Path

import pytest

from berth.exits import Exit, exit_for
from berth.kube.errors import ApiUnreachableError, KubeconfigError
from berth.lifecycle.apiserver import kube_client
from berth.lifecycle.clients import nats_bus
from berth.settings.sources import SettingsError, read_settings
from berth_sim.cluster import SimulatedCluster, kubeconfig
from harness.fakes.recording_meter import RecordingMeter


def test_the_bus_is_told_where_who_and_with_which_numbers(tmp_path: Path):
    for name in ("ca", "cert", "key"):
        (tmp_path / name).touch()
    settings = read_settings(
        environment={
            "BERTH_NATS_URL": "nats://a:4222,tls://b:4222",
            "BERTH_NATS_USER": "scorer",
            "BERTH_NATS_PASSWORD": "hunter2",
            "BERTH_NATS_INBOX_PREFIX": "_INBOX_scorer",
            "BERTH_NATS_PREFIX": "east",
            "BERTH_NATS_CA_FILE": str(tmp_path / "ca"),
            "BERTH_NATS_CERT_FILE": str(tmp_path / "cert"),
            "BERTH_NATS_KEY_FILE": str(tmp_path / "key"),
            "BERTH_NATS_REPLICAS": "3",
            "BERTH_NATS_STORAGE": "memory",
            "BERTH_NATS_DECISIONS_AGE": "5m",
            "BERTH_NUMBERS_SCORER_ACK_WAIT": "4s",
            "BERTH_NUMBERS_DUPLICATE_WINDOW": "3m",
        }
    )
    made = nats_bus(settings).settings
    assert made.servers == ("nats://a:4222", "tls://b:4222")
    assert (made.credentials.user, made.credentials.password) == ("scorer", "hunter2")
    assert made.inbox_prefix == "_INBOX_scorer"
    assert made.tls.key_file == tmp_path / "key"
    assert (made.topology.replicas, made.topology.storage) == (3, "memory")
    assert made.topology.decisions_age == timedelta(minutes=5)
    assert made.topology.prefix == "east"
    assert made.topology.scorer_ack_wait == timedelta(seconds=4)
    assert made.topology.duplicate_window == timedelta(minutes=3)


@pytest.mark.parametrize("prefix", ["_INBOX.>", "a..b", "", "a b"])
def test_an_inbox_prefix_that_is_no_part_of_a_subject_is_refused(prefix: str):
    with pytest.raises(SettingsError, match="BERTH_NATS_INBOX_PREFIX: want tokens"):
        read_settings(environment={"BERTH_NATS_INBOX_PREFIX": prefix})


@pytest.mark.parametrize("prefix", ["berth", "stored", "a.b", "-a", "_INBOX", "$JS", "a" * 33, "a b", "a>"])
def test_a_prefix_that_another_berths_names_begin_with_or_no_token_is_refused(prefix: str):
    with pytest.raises(SettingsError, match="BERTH_NATS_PREFIX: want 1 to 32 letters"):
        read_settings(environment={"BERTH_NATS_PREFIX": prefix})


def test_a_server_without_users_and_tls_is_met_without():
    made = nats_bus(read_settings(environment={})).settings
    assert made.tls is None
    assert made.credentials.user is made.credentials.token is None


def test_seed_of_an_nkey_is_a_way_to_log_in_of_its_own(tmp_path: Path):
    seed = tmp_path / "seed"
    seed.touch()
    named = {"BERTH_NATS_NKEY_SEED_FILE": str(seed)}
    assert nats_bus(read_settings(environment=named)).settings.credentials.nkey_seed_file == seed
    with pytest.raises(
        SettingsError, match="want one way to log in, got BERTH_NATS_TOKEN and BERTH_NATS_NKEY_SEED_FILE"
    ):
        read_settings(environment={**named, "BERTH_NATS_TOKEN": "t"})


async def test_the_kubeconfig_that_was_named_is_used(tmp_path: Path):
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(kubeconfig("http://127.0.0.1:9")))
    settings = read_settings(flags={"kube.kubeconfig": str(path), "kube.qps": "50"}, environment={})
    async with kube_client(settings, name="watcher", meter=RecordingMeter()) as client:
        assert client.server == "http://127.0.0.1:9"


@pytest.mark.slow
async def test_requests_are_counted_under_the_names_of_kubernetes_own_client():
    meter = RecordingMeter()
    async with SimulatedCluster(kubelet=None) as cluster:
        settings = read_settings(flags={"kube.kubeconfig": str(cluster.kubeconfig_path)}, environment={})
        host = cluster.url.removeprefix("http://")
        async with kube_client(settings, name="watcher", meter=meter) as client:
            await client.request("GET", "/api/v1/nodes")
            await client.request("GET", "/api/v1/nodes/none")
            await cluster.stop()
            with pytest.raises(ApiUnreachableError):
                await client.request("POST", "/api/v1/namespaces/default/pods/web/binding", body=b"{}")
    requests = "rest_client_requests_total"
    assert meter.value(requests, code="200", method="GET", host=host) == 1
    assert meter.value(requests, code="404", method="GET", host=host) == 1
    assert meter.value(requests, code="<error>", method="POST", host=host) == 1
    assert len(meter.observed["rest_client_request_duration_seconds", "GET", host]) == 2


async def test_a_kubeconfig_that_is_not_there_is_wrong_usage():
    settings = read_settings(flags={"kube.kubeconfig": "/nowhere"}, environment={})
    with pytest.raises(KubeconfigError, match="/nowhere") as caught:
        async with kube_client(settings, name="watcher", meter=RecordingMeter()):
            pass
    assert exit_for(caught.value) is Exit.USAGE
