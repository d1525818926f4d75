"""What clients can make NATS keep is bounded by the generated configuration."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from berth.bus.consumer import HEARTBEATS_MISSED
from berth.bus.settings import MEBIBYTE, BusSettings
from berth_cli.pipeline.accounts import users
from berth_cli.pipeline.natsconf import nats_conf
from berth_cli.pipeline.natsserver import MOST_CONNECTIONS, MOST_PAYLOAD_BYTES, MOST_PENDING_BYTES
from berth_cli.pipeline.programs import MEMORY

DEPLOY = Path(__file__).parents[3] / "deploy"
MEMORIES = ("chart/values.yaml", "kubernetes/components/nats/nats.yaml", "kubernetes/overlays/static-pod/nats.yaml")
CONFIGURATIONS = (
    "compose/nats/nats.conf",
    "kubernetes/components/nats-single/nats.conf",
    "kubernetes/components/nats/configuration/nats.conf",
)
RUNTIME_LIMITS = ("../compose.yaml", "chart/templates/nats-cluster.yaml", *MEMORIES[1:])


def test_clients_that_read_nothing_take_less_than_the_runtime_of_nats_may():
    connections = sum(user.connections for user in users())
    assert min(user.connections for user in users() if not user.is_own) > 0
    # 112 connections x 16 MiB = 1,792 MiB; NATS itself uses 60 MiB
    assert connections * MOST_PENDING_BYTES + 100 * MEBIBYTE < int(MEMORY.removesuffix("MiB")) * MEBIBYTE


@pytest.mark.parametrize("file", MEMORIES)
def test_a_pod_of_nats_has_what_its_clients_can_make_it_keep(file):
    (limit,) = re.findall(r"limits: \{memory: (2560)Mi\}", (DEPLOY / file).read_text(encoding="utf-8"))
    outside = [user for user in users() if not user.is_own]
    unread = sum(user.connections for user in outside) * MOST_PENDING_BYTES
    unfinished = sum(user.connections * (user.payload_bytes or MOST_PAYLOAD_BYTES) for user in outside)
    # 1,792 MiB that nobody reads, 518 of unfinished messages, 88 of 2,048 clients without a login, and 100 of NATS
    kept = unread + unfinished + MOST_CONNECTIONS * 44 * 1024 + 100 * MEBIBYTE
    assert int(MEMORY.removesuffix("MiB")) * MEBIBYTE < kept < int(limit) * MEBIBYTE


@pytest.mark.parametrize("file", CONFIGURATIONS)
def test_every_configuration_limits_connections_as_the_embedded_server_does(file):
    found = re.findall(r"^max_connections: (\d+)", (DEPLOY / file).read_text(encoding="utf-8"), re.MULTILINE)
    assert found == [str(MOST_CONNECTIONS)]


@pytest.mark.parametrize("file", RUNTIME_LIMITS)
def test_every_server_with_users_is_told_how_much_it_may_take(file):
    assert MEMORY in re.findall(r"GOMEMLIMIT(?:, value)?: (\w+)", (DEPLOY / file).read_text(encoding="utf-8"))


@pytest.mark.parametrize("prefixes", [(), ("", "east")], ids=str)
def test_every_account_but_that_of_the_streams_has_limits(prefixes):
    conf = nats_conf(*prefixes)
    accounts = re.findall(r"^  ([\w-]+): \{\n    (.*)$", conf, re.MULTILINE)
    unlimited = {name for name, first in accounts if not first.startswith("limits { max_connections: ")}
    assert unlimited == ({"BERTH", "east-BERTH"} if prefixes else {"BERTH"})


def test_the_server_forgets_every_request_to_another_account_but_not_an_open_pull():
    exported = re.findall(r'\{ service: "(.*?)",(.*)accounts: ', nats_conf())
    seconds = {subject: int(re.findall(r'response_threshold: "(\d+)s"', rest)[0]) for subject, rest in exported}
    settings = BusSettings()
    pull = settings.pull_expires + HEARTBEATS_MISSED * settings.pull_heartbeat
    assert len(seconds) > 50
    for subject, kept in seconds.items():
        needed = pull if "MSG.NEXT" in subject else settings.answer_timeout
        assert needed.total_seconds() < kept <= 15, subject
