"""Settings: where they come from, and that everything that is wrong is said at once."""

import pickle
from datetime import timedelta
from pathlib import Path

import pytest

from berth.settings.readers import Secret
from berth.settings.settings import Settings, broken_rules
from berth.settings.sources import SettingsError, leaves, misspelt, read_settings


def problems_of(**given) -> tuple[str, ...]:
    with pytest.raises(SettingsError) as caught:
        read_settings(**{"environment": {}, **given})
    return caught.value.problems


def test_defaults_keep_their_own_rules():
    assert broken_rules(Settings()) == []


def test_a_flag_beats_a_variable_beats_the_file_beats_the_default():
    path, variable = "leader_election.resource_name", "BERTH_LEADER_ELECTION_RESOURCE_NAME"
    file = {path: "of-file"}
    environment = {variable: "of-variable"}

    def name(**given):
        return read_settings(**{"environment": {}, **given}).leader_election.resource_name

    assert name(flags={path: "of-flag"}, environment=environment, file=file) == "of-flag"
    assert name(environment=environment, file=file) == "of-variable"
    assert name(file=file) == "of-file"
    assert name() == "berth"


def test_a_misspelt_variable_is_named_with_the_one_that_was_meant():
    environment = {
        "BERTH_NUMBERS_BEAST": "9",
        "BERTH_NATS_PASWORD_FILE": "p",
        "BERTH_NATS_PORT_4222_TCP": "tcp://10.0.0.1:4222",
    }
    assert list(misspelt({**environment, "BERTH_CONFIG": "x", "NUMBERS_BEAST": "x"})) == [
        "the variable BERTH_NUMBERS_BEAST is read by nothing: did you mean BERTH_NUMBERS_BEST?",
        "the variable BERTH_NATS_PASWORD_FILE is read by nothing: did you mean BERTH_NATS_PASSWORD_FILE?",
    ]


def test_every_error_of_every_source_is_said_at_once_with_its_path():
    found = problems_of(
        flags={"health.port": "70000", "nats.url": "http://nats"},
        environment={"BERTH_NUMBERS_BEST": "many", "BERTH_LOG_FORMAT": "xml", "BERTH_NATS_CA_FILE": "/nowhere"},
        file={"leader_election.renew_deadline": timedelta(seconds=14)},
    )
    assert set(found) == {
        "nats.url: want nats:// or tls:// and HOST[:PORT], got 'http://nats'",
        "health.port: want 0..65535, got 70000",
        "numbers.best: want a whole number 1..64, got 'many'",
        "log.format: want one of auto, json, text, got 'xml'",
        "nats.caFile: want a file that exists, got '/nowhere'",
        "leaderElection.renewDeadline: want less than leaseDuration (15 s) - 2 s, got 14 s",
    }


@pytest.mark.parametrize(
    ("environment", "path"),
    [
        pytest.param(
            {"BERTH_LEADER_ELECTION_RENEW_DEADLINE": "13s"}, "leaderElection.renewDeadline", id="slack of 2 s"
        ),
        pytest.param({"BERTH_LEADER_ELECTION_RETRY_PERIOD": "9s"}, "leaderElection.retryPeriod", id="9 s x 1.2 > 10 s"),
        pytest.param({"BERTH_LEADER_ELECTION_LEASE_DURATION": "30s"}, "numbers.proposal", id="Lease is not < proposal"),
        pytest.param(
            {"BERTH_NUMBERS_DUPLICATE_WINDOW": "30s"}, "numbers.duplicateWindow", id="proposal is not < window"
        ),
        pytest.param({"BERTH_NATS_USER": "scorer"}, "nats.password", id="user without password"),
        pytest.param(
            {"BERTH_NATS_TOKEN": "t", "BERTH_NATS_USER": "u", "BERTH_NATS_PASSWORD": "p"}, "nats.user", id="2 ways"
        ),
        pytest.param({"BERTH_NATS_CERT_FILE": __file__}, "nats.certFile", id="certificate without key"),
    ],
)
def test_values_that_do_not_go_together_are_refused(environment, path):
    (problem,) = problems_of(environment=environment)
    assert problem.startswith(f"{path}: want ")


@pytest.mark.parametrize(
    ("text", "seconds"), [("15s", 15), ("1m30s", 90), ("500ms", 0.5), ("1h", 3600), ("2.5", 2.5), ("1.5s", 1.5)]
)
def test_durations_are_read_in_gos_form_and_as_plain_seconds(text, seconds):
    settings = read_settings(environment={"BERTH_LEADER_ELECTION_RETRY_PERIOD": "1s", "BERTH_STOP_DEADLINE": "3600"})
    assert settings.stop_deadline == timedelta(hours=1)
    read = next(leaf.read for leaf in leaves() if leaf.path == "numbers.position_wait")
    if seconds <= 60:
        assert read(text) == timedelta(seconds=seconds)
    else:
        with pytest.raises(ValueError, match=r"want 0s\.\.60s"):
            read(text)


@pytest.mark.parametrize("text", ["", "s", "15 s", "abc", "-1s", "1d", "inf", "nan", "1e400"])
def test_what_is_no_duration_is_refused_with_an_example(text):
    (problem,) = problems_of(environment={"BERTH_NUMBERS_POSITION_WAIT": text})
    assert problem.startswith("numbers.positionWait: want ")


@pytest.mark.parametrize(
    "given",
    ["nats://h:99999", "nats://h:abc", "nats://h:0", "nats://a b:1", "nats://h:4222/x", "nats://", "nats://h?a=b"],
)
def test_an_address_that_no_server_can_have_is_refused(given):
    (problem,) = problems_of(environment={"BERTH_NATS_URL": given})
    assert problem == f"nats.url: want nats:// or tls:// and HOST[:PORT], got {given!r}"


def test_a_password_in_the_address_is_refused_without_repeating_it():
    (problem,) = problems_of(environment={"BERTH_NATS_URL": "nats://scorer:hunter2@nats:4222"})
    assert "hunter2" not in problem
    assert "BERTH_NATS_PASSWORD_FILE" in problem


def test_a_secret_that_cannot_be_read_is_not_also_missing(tmp_path: Path):
    path = tmp_path / "none"
    (problem,) = problems_of(environment={"BERTH_NATS_USER": "scorer", "BERTH_NATS_PASSWORD_FILE": str(path)})
    assert problem == f"nats.password: want a file that can be read, got '{path}' (No such file or directory)"


def test_a_secret_is_read_from_a_file_and_shown_nowhere(tmp_path: Path):
    (tmp_path / "password").write_text("hunter2\n")
    environment = {"BERTH_NATS_USER": "scorer", "BERTH_NATS_PASSWORD_FILE": str(tmp_path / "password")}
    settings = read_settings(environment=environment)
    assert settings.nats.password == Secret("hunter2")
    assert "hunter2" not in f"{settings!r} {settings.nats.password} {settings.nats.password!r}"
    with pytest.raises(TypeError, match="secret"):
        pickle.dumps(settings.nats.password)


def test_a_secrets_file_that_cannot_be_read_is_named():
    (problem,) = problems_of(environment={"BERTH_NATS_TOKEN_FILE": "/nowhere/token"})
    assert problem == "nats.token: want a file that can be read, got '/nowhere/token' (No such file or directory)"


def test_every_setting_has_its_own_variable_and_a_valid_default():
    settings = read_settings(environment={})
    seen = [leaf.variable for leaf in leaves()]
    assert len(seen) == len(set(seen))
    for leaf in leaves():
        value = settings
        for name in leaf.path.split("."):
            value = getattr(value, name)
        if isinstance(value, timedelta):
            assert leaf.read(f"{value.total_seconds():g}s") == value
        elif value is not None:
            assert leaf.read(str(value).lower() if isinstance(value, bool) else str(value)) == value


def test_two_processes_never_have_the_same_identity():
    assert read_settings(environment={}).identity != read_settings(environment={}).identity
