"""Flags in the forms that kube-scheduler takes; lines marked so are the articles' own."""

import pytest

from berth.lifecycle.start import service_command
from berth.profiles.configuration import read_configuration
from berth.settings.sources import read_settings, variables


async def serve_nothing(_process, _configuration) -> None:
    pytest.fail("nothing may be started")


@pytest.fixture
def typed(monkeypatch):
    """Type a line; returns the flags by path, or the exit code when it was refused."""

    def run(line: str) -> dict[str, str] | int:
        given = []
        monkeypatch.setattr("berth.lifecycle.start.start", lambda flags, **_: given.append(dict(flags)) or 0)
        main = service_command("test", about="For tests.", read=read_configuration, serve=serve_nothing)
        monkeypatch.setattr("sys.argv", ["berth-test", *line.split()])
        with pytest.raises(SystemExit) as ended:
            main()
        return given[0] if given else ended.value.code

    return run


@pytest.mark.parametrize(
    ("line", "flags"),
    [
        pytest.param(
            "--leader-elect=false --config nodelabelscore.yaml",
            {"leader_election.leader_elect": "false", "config": "nodelabelscore.yaml"},
            id="article: a custom plugin run by hand",
        ),
        pytest.param(
            "--config=/etc/kubernetes/scheduler-config.yaml --v=2",
            {"config": "/etc/kubernetes/scheduler-config.yaml", "log.verbosity": "2"},
            id="article: a Deployment's arguments",
        ),
        pytest.param("--v=4", {"log.verbosity": "4"}, id="--v=4"),
        pytest.param("--v 4", {"log.verbosity": "4"}, id="--v 4"),
        pytest.param("-v 4", {"log.verbosity": "4"}, id="-v 4"),
        pytest.param("-v=4", {"log.verbosity": "4"}, id="-v=4"),
        pytest.param("-v4", {"log.verbosity": "4"}, id="-v4"),
        pytest.param("--leader-elect", {"leader_election.leader_elect": "true"}, id="a boolean alone is true"),
        pytest.param(
            "--leader-elect --kubeconfig k",
            {"leader_election.leader_elect": "true", "kube.kubeconfig": "k"},
            id="a boolean alone takes nothing from the next flag",
        ),
        pytest.param("--leader-elect=true", {"leader_election.leader_elect": "true"}, id="=true"),
        pytest.param(
            "--allow-other-scheduler --v=2",
            {"allow_other_scheduler": "true", "log.verbosity": "2"},
            id="another boolean",
        ),
        pytest.param("--kubeconfig=k", {"kube.kubeconfig": "k"}, id="--kubeconfig=k"),
        pytest.param("--kubeconfig k", {"kube.kubeconfig": "k"}, id="--kubeconfig k"),
        pytest.param("--nats nats://n:4222", {"nats.url": "nats://n:4222"}, id="--nats"),
        pytest.param(
            "--health-port 0 --identity me --ready-file ready",
            {"health.port": "0", "identity": "me", "ready_file": "ready"},
            id="berth's own",
        ),
        pytest.param(
            "--leader-elect-lease-duration=30s --leader-elect-resource-name=mine --kube-api-qps=100",
            {
                "leader_election.lease_duration": "30s",
                "leader_election.resource_name": "mine",
                "kube.qps": "100",
            },
            id="kube-scheduler's rarer ones",
        ),
        pytest.param(
            "--authentication-kubeconfig=/etc/kubernetes/scheduler.conf"
            " --authorization-kubeconfig=/etc/kubernetes/scheduler.conf --bind-address=127.0.0.1"
            " --kubeconfig=/etc/kubernetes/scheduler.conf --leader-elect=true --secure-port=10259",
            {
                "health.host": "127.0.0.1",
                "health.port": "10259",
                "kube.kubeconfig": "/etc/kubernetes/scheduler.conf",
                "leader_election.leader_elect": "true",
            },
            id="kubeadm's manifest",
        ),
        pytest.param("", {}, id="none"),
    ],
)
def test_a_flag_is_taken_in_each_of_its_forms(typed, line, flags):
    assert typed(line) == flags


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("--leader-elect false", id="a boolean takes its value behind = only, as in kube-scheduler"),
        pytest.param("--unknown", id="a flag that is not there"),
        pytest.param("--config", id="a file that is not named"),
        pytest.param("--health-port=1 --secure-port=2", id="two flags of one setting"),
    ],
)
def test_what_cannot_be_understood_is_refused_as_wrong_usage(typed, line, capsys):
    assert typed(line) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("berth-test: ")
    assert said.endswith(": see berth-test --help")


def test_every_flag_belongs_to_a_setting(typed):
    flags = typed("--leader-elect=0 --v=3 --logging-format=text --kube-api-burst=7 --leader-elect-retry-period=1s")
    settings = read_settings(flags=flags, environment={})
    assert settings.leader_election.leader_elect is False
    assert (settings.log.verbosity, settings.log.format, settings.kube.burst) == (3, "text", 7)
    assert settings.leader_election.retry_period.total_seconds() == 1


def test_flags_that_mean_less_than_kube_schedulers_say_so_once_each(monkeypatch, capsys):
    line = "--authentication-kubeconfig=a --authorization-kubeconfig=b --bind-address=0.0.0.0 --secure-port=10259 -v=11"
    main = service_command("test", about="For tests.", read=read_configuration, serve=serve_nothing)
    monkeypatch.setattr("sys.argv", ["berth-test", *line.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2  # -v is at most 10, so that nothing is started
    *notes, problem = capsys.readouterr().err.splitlines()
    beginnings = [note.removeprefix("berth-test: ").split(":")[0] for note in notes]
    assert beginnings == [
        "--bind-address",
        "--secure-port",
        "--authentication-kubeconfig",
        "--authorization-kubeconfig",
    ]
    assert "HTTP without TLS" in notes[1]
    assert all("anybody who reaches the health port" in note for note in (notes[0], *notes[2:]))
    assert problem.startswith("berth-test: --v: want 0..10, got 11")


def test_a_boolean_that_is_none_is_said_with_its_path(typed):
    with pytest.raises(Exception, match=r"leaderElection\.leaderElect: want true or false, got 'maybe'"):
        read_settings(flags=typed("--leader-elect=maybe"), environment={})


def test_help_ends_with_every_variable_and_its_default(monkeypatch, capsys):
    main = service_command("test", about="For tests.", read=read_configuration, serve=serve_nothing)
    monkeypatch.setattr("sys.argv", ["berth-test", "--help"])
    with pytest.raises(SystemExit):
        main()
    lines = [line.split() for line in capsys.readouterr().out.partition("Variables; ")[2].splitlines()]
    shown = {line[0]: line[1:] for line in lines if line and line[0].startswith("BERTH_")}
    for variable in variables():
        assert shown[variable.name] == ([variable.default] if variable.default else []), variable.name
    assert "BERTH_NATS_PASSWORD_FILE," in shown
