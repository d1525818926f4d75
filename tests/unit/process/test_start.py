"""From what was typed to a running service, and every error of settings and configuration at once."""

import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from berth.exits import Exit
from berth.lifecycle.start import old_ways, read_all, start
from berth.profiles.configuration import problems_in_services, read_configuration
from berth.settings.file import public_configuration
from berth.settings.sources import SettingsError


class ForeignArgs(msgspec.Struct):
    """Arguments of another distribution's plugin."""

    token: str


HEAD = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"


@pytest.fixture
def written(tmp_path: Path):
    def write(text: str) -> str:
        path = tmp_path / "config.yaml"
        path.write_text(HEAD + text)
        return str(path)

    return write


def test_leader_election_of_the_file_is_used_and_a_flag_beats_it(written):
    config = written("leaderElection: {leaseDuration: 20s, renewDeadline: 12s, resourceName: mine}\n")
    settings, _ = read_all({"config": config, "leader_election.renew_deadline": "11s"}, {}, read_configuration)
    election = settings.leader_election
    assert election.lease_duration == timedelta(seconds=20)
    assert election.renew_deadline == timedelta(seconds=11)
    assert election.resource_name == "mine"


def test_configz_shows_what_is_in_force_without_what_may_be_secret(written):
    config = written(
        "leaderElection: {leaseDuration: 20s}\n"
        "extenders: [{urlPrefix: 'https://me:hunter2@e.example/x', filterVerb: f,"
        " tlsConfig: {certData: Y2VydA==, keyData: aHVudGVyMg==}}]\n"
    )
    settings, configuration = read_all(
        {"config": config, "leader_election.leader_elect": "false"}, {}, read_configuration
    )
    shown = public_configuration(configuration, settings)
    assert shown["leaderElection"]["leaderElect"] is False
    assert shown["leaderElection"]["leaseDuration"] == "20s"
    assert shown["profiles"][0]["schedulerName"] == "berth"
    assert shown["extenders"][0]["filterVerb"] == "f"
    assert "keyData" not in shown["extenders"][0]["tlsConfig"]
    assert "hunter2" not in str(shown)
    foreign = replace(configuration.profiles[0], args={"Foreign": ForeignArgs(token="hunter2")})  # noqa: S106 - of nobody
    shown = public_configuration(replace(configuration, profiles=(foreign,)), settings)
    assert shown["profiles"][0]["pluginConfig"] == []


def test_the_file_may_be_named_by_a_variable(written):
    _, configuration = read_all(
        {}, {"BERTH_CONFIG": written("profiles: [{schedulerName: mine}]\n")}, read_configuration
    )
    assert [profile.scheduler_name for profile in configuration.profiles] == ["mine"]


def test_a_path_that_begins_with_a_home_is_read_there(written, monkeypatch):
    config = Path(written("leaderElection: {resourceName: mine}\n"))
    monkeypatch.setenv("HOME", str(config.parent))
    settings, _ = read_all({"config": f"~/{config.name}"}, {}, read_configuration)
    assert (settings.config, settings.leader_election.resource_name) == (config, "mine")
    with pytest.raises(SettingsError, match=r"^~nobody-of-that-name/config\.yaml: reading: No such file or directory$"):
        read_all({"config": "~nobody-of-that-name/config.yaml"}, {}, read_configuration)


def test_errors_of_file_flags_and_variables_are_said_together(written):
    config = written("clientConnection: {qps: fast}\n")
    with pytest.raises(SettingsError) as caught:
        read_all({"config": config, "log.verbosity": "loud"}, {"BERTH_HEALTH_PORT": "-1"}, read_configuration)
    text = "\n".join(caught.value.problems)
    for path in ("clientConnection.qps", "--v", "BERTH_HEALTH_PORT"):
        assert f"{path}: want " in text
    assert f"{config}: clientConnection.qps: want " in text  # the file is named where it is the file's error


LEASES = Path(__file__).parents[2] / "data" / "long-lease"  # OpenShift's own file, and one of a minute


@pytest.mark.parametrize("environment", [{}, {"BERTH_NUMBERS_PROPOSAL": "150s"}])
@pytest.mark.parametrize("path", sorted(LEASES.glob("*.yaml")), ids=lambda path: path.stem)
def test_files_of_kube_scheduler_with_a_long_lease_are_taken_as_they_are(path, environment):
    assert list(problems_in_services(read_configuration(path), environment)) == []
    settings, _ = read_all({"config": str(path)}, environment, read_configuration)
    assert settings.numbers.proposal > settings.leader_election.lease_duration > timedelta(seconds=30)


def problems(written, text: str, environment: dict, flags: dict | None = None) -> list[str]:
    configuration = read_configuration(Path(written(text)))
    return list(problems_in_services(configuration, environment, flags, source="f.yaml"))


def test_what_only_services_refuse_is_known_from_file_and_environment(written):
    forty, proposal = "leaderElection: {leaseDuration: 40s}\n", {"BERTH_NUMBERS_PROPOSAL": "35s"}
    assert problems(written, forty, proposal) == [
        "BERTH_NUMBERS_PROPOSAL: want more than leaderElection.leaseDuration (40s), got 35s",
    ]
    assert problems(written, forty, {**proposal, "BERTH_LEADER_ELECTION_LEASE_DURATION": "20s"}) == []
    assert problems(written, forty, proposal, {"leader_election.leader_elect": "false"}) == []
    assert problems(written, "leaderElection: {leaderElect: false, retryPeriod: 39s}\n", {}) == []
    assert problems(written, "leaderElection: {renewDeadline: 20s}\n", {}) == [
        "f.yaml: leaderElection.renewDeadline: want less than leaderElection.leaseDuration (15s) - 2s, got 20s"
    ]
    assert (
        problems(written, "leaderElection: {renewDeadline: 20s}\n", {"BERTH_LEADER_ELECTION_LEASE_DURATION": "1m"})
        == []
    )


def test_how_an_older_file_was_read_is_said(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(HEAD.replace("/v1", "/v1beta3"))

    version = "kubescheduler.config.k8s.io/v1"
    assert old_ways(*read_all({"config": str(path)}, {}, read_configuration)) == [
        f"{path}: apiVersion: read {version}beta3 as {version}"
    ]


@pytest.mark.slow
def test_wrong_usage_is_exit_code_2_also_when_standard_error_is_closed():
    service = (
        "from berth.lifecycle.start import start; from berth.profiles.configuration import read_configuration as read; "
        "raise SystemExit(start({'nats.url': 'x'}, name='w', read=read, serve=None))"
    )
    command = ["sh", "-c", 'exec "$@" 2>&-', "sh", sys.executable, "-c", service]
    assert subprocess.run(command, timeout=60, check=False).returncode == Exit.USAGE


def test_wrong_usage_is_exit_code_2_and_one_line_per_problem(capsys):
    async def serve(process, configuration) -> None:
        pytest.fail("nothing may be started")

    flags = {"config": "/nowhere.yaml", "nats.url": "http://n"}
    code = start(flags, name="watcher", read=read_configuration, serve=serve, environment={})
    assert code == Exit.USAGE
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) >= 2
    assert all(line.startswith("berth-watcher: ") for line in lines)
    assert [line for line in lines if "/nowhere.yaml" in line] == [
        "berth-watcher: /nowhere.yaml: reading: No such file or directory"
    ]
    assert any(line.startswith("berth-watcher: --nats: want ") for line in lines)
