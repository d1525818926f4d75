"""The pods of `berth run` by the traffic of their nodes, and what it starts."""

import os
import stat
from datetime import UTC, datetime

import pytest

from berth.messages.livedata import NodeSample, encode_sample
from berth.profiles.configuration import read_configuration
from berth_cli.commands.run import first_samples, next_steps, traffic_summary
from berth_cli.pipeline import access, programs
from berth_cli.pipeline.programs import write_traffic_configuration
from harness.fakes.memory_bus import MemoryBus

TRAFFIC = {"a": 1e6, "b": 40e6, "c": 3e6, "d": 20e6}


def test_pods_are_counted_on_quiet_and_busy_nodes():
    # a and c: (1 + 3) / 2 = 2; b and d: (40 + 20) / 2 = 30
    assert traffic_summary(TRAFFIC, {"a": 5, "c": 4, "d": 1}) == (
        "traffic: quieter half of the nodes (2 MB/s on average) got 9 pods, "
        "busier half of the nodes (30 MB/s on average) got 1 pods"
    )


def test_missing_samples_are_reported():
    assert traffic_summary({}, {"a": 1}) == "traffic: no samples"


async def test_unreadable_samples_are_left_out():
    bus = MemoryBus()
    session = await bus.connect(name="test")
    await session.apply()
    now = datetime(2026, 1, 1, tzinfo=UTC)
    for node, rate in TRAFFIC.items():
        await session.put("bandwidth", f"query.{node}", encode_sample(NodeSample(receive=rate, sampled_at=now)))
    await session.put("bandwidth", "query.junk", b"junk")
    assert await first_samples(session, len(TRAFFIC)) == TRAFFIC


def test_the_configuration_enables_the_plugin_beside_the_default_ones(tmp_path):
    (profile,) = read_configuration(write_traffic_configuration(tmp_path, "http://127.0.0.1:1")).profiles
    assert profile.args["NetworkTraffic"].url == "http://127.0.0.1:1/prometheus"
    assert "NodeResourcesFit" in profile.args


@pytest.mark.parametrize(("cores", "given", "threads"), [(2, "", "1"), (16, "", "4"), (None, "", "1"), (16, "2", "2")])
def test_nats_has_a_quarter_of_the_cores_unless_told_otherwise(tmp_path, monkeypatch, cores, given, threads):
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.setenv("GOMAXPROCS", given)
    monkeypatch.setattr(programs, "find_nats_server", lambda: tmp_path / "nats-server")

    assert programs.nats_server(tmp_path, 4222, name="nats").environment["GOMAXPROCS"] == threads


def test_every_run_has_passwords_of_its_own_which_nobody_else_may_read(tmp_path):
    found: list[str] = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir(mode=0o755)
        access.create_passwords(tmp_path / name)
        (private,) = (each for each in (tmp_path / name).iterdir() if each.is_dir())
        assert stat.S_IMODE(private.stat().st_mode) == 0o700
        assert {stat.S_IMODE(each.stat().st_mode) for each in private.iterdir()} == {0o600}
        found += [each.read_text().strip() for each in private.iterdir()]

    assert len(found) == len(set(found)) > 2
    assert min(map(len, found)) >= 32


def test_the_end_of_a_run_says_what_to_type_next(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    of_a_checkout = next_steps(".venv/bin/berth").splitlines()
    assert of_a_checkout[:3] == [
        "",
        "next:",
        "  .venv/bin/berth up --nodes 12    # the same until Ctrl-C; it prints the path of a kubeconfig",
    ]
    assert all(len(line) <= 100 for line in of_a_checkout)
    assert "  berth why default/web          # why it is on its node" in next_steps("/usr/bin/berth").splitlines()
