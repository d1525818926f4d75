"""Settings: where they come from, and that everything that is wrong is said at once."""

import pickle
import random
from datetime import timedelta
from pathlib import Path

import pytest

from berth.settings.readers import Secret
from berth.settings.settings import Settings, broken_rules
from berth.settings.sources import SettingsError, leaves, misspelt, read_settings


def problems_of(**given) -> tuple[str, ...]:
    with pytest.raises(SettingsError) as caught:
        read_settings(**{"environment": {}, "file": {}, **given})
    return caught.value.problems


def test_defaults_keep_their_own_rules():
    assert list(broken_rules(Settings())) == []


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
        "BERTH_NUMBERS_BEST: want a whole number 1..64, got 'many'",
        "BERTH_LOG_FORMAT: want one of auto, json, text, got 'xml'",
        "BERTH_NATS_CA_FILE: want a file that exists, got '/nowhere'",
        "leaderElection.renewDeadline: want less than BERTH_LEADER_ELECTION_LEASE_DURATION (15s) - 2s, got 14s",
    }


def test_the_content_of_a_file_in_place_of_its_path_is_an_error_and_is_not_repeated():
    names = [leaf.variable for leaf in leaves()]
    for variable in (name for name in names if name.startswith("BERTH_NATS_") and name.endswith("_FILE")):
        (problem,) = (one for one in problems_of(environment={variable: "x" * 5000}) if "a file that exists" in one)
        assert problem.startswith(f"{variable}: want a file that exists, got 'xxx")
        assert len(problem) < 300


def names_of(path: str) -> str:
    return next(leaf.variable for leaf in leaves() if leaf.path == path)


PROPOSAL, LEASE = "BERTH_NUMBERS_PROPOSAL", "BERTH_LEADER_ELECTION_LEASE_DURATION"
ELECTION = "BERTH_LEADER_ELECTION_"
SECRET = {"BERTH_NATS_USER": "u", "BERTH_NATS_PASSWORD": "p"}


@pytest.mark.parametrize(
    ("environment", "problem"),
    [
        pytest.param(
            {f"{ELECTION}RENEW_DEADLINE": "13s"},
            f"{ELECTION}RENEW_DEADLINE: want less than {LEASE} (15s) - 2s, got 13s",
            id="slack of 2 s",
        ),
        pytest.param(
            {f"{ELECTION}RETRY_PERIOD": "9s"},
            f"{ELECTION}RETRY_PERIOD: want more than 0s and 1.2 times it less than "
            f"{ELECTION}RENEW_DEADLINE (10s), got 9s",
            id="9 s x 1.2 > 10 s",
        ),
        pytest.param(
            {LEASE: "30s", PROPOSAL: "30s"},
            f"{PROPOSAL}: want more than {LEASE} (30s), got 30s",
            id="no longer proposal",
        ),
        pytest.param(
            {"BERTH_NUMBERS_PLUGIN_DEADLINE": "3s"},
            "BERTH_NUMBERS_SCORER_ACK_WAIT: want more than BERTH_NUMBERS_PLUGIN_DEADLINE (3s), got 3s",
            id="a plugin may block a scorer for longer than its ack_wait",
        ),
        pytest.param(
            {"BERTH_NUMBERS_PLUGIN_DEADLINE": "30s", "BERTH_NUMBERS_SCORER_ACK_WAIT": "40s"},
            "BERTH_NUMBERS_BINDER_ACK_WAIT: want more than BERTH_NUMBERS_PLUGIN_DEADLINE (30s), got 30s",
            id="and the binder",
        ),
        pytest.param(
            {"BERTH_NATS_USER": "scorer"},
            "BERTH_NATS_PASSWORD: want BERTH_NATS_USER and BERTH_NATS_PASSWORD together, got BERTH_NATS_USER alone",
            id="user without password",
        ),
        pytest.param(
            {"BERTH_NATS_PASSWORD_FILE": __file__},
            "BERTH_NATS_USER: want BERTH_NATS_USER and BERTH_NATS_PASSWORD_FILE together, "
            "got BERTH_NATS_PASSWORD_FILE alone",
            id="a password's file without user",
        ),
        pytest.param(
            {"BERTH_NATS_TOKEN": "t", **SECRET},
            "BERTH_NATS_USER: want one way to log in, got BERTH_NATS_USER and BERTH_NATS_TOKEN",
            id="2 ways",
        ),
        pytest.param(
            {"BERTH_NATS_CERT_FILE": __file__},
            "BERTH_NATS_KEY_FILE: want BERTH_NATS_CERT_FILE and BERTH_NATS_KEY_FILE together, "
            "got BERTH_NATS_CERT_FILE alone",
            id="certificate without key",
        ),
    ],
)
def test_values_that_do_not_go_together_are_refused(environment, problem):
    assert problems_of(environment=environment) == (problem,)


ELECTION_RULES = {
    "leader_election.lease_duration": (15, 300),
    "leader_election.renew_deadline": (10, 250),
    "leader_election.retry_period": (2, 200),
}


@pytest.mark.parametrize("seed", range(200))
def test_errors_name_the_place_that_has_the_value_and_times_follow_the_lease(seed):
    """Times at random from flags, variables, a file or left out: each rule is kept, or its error names its place."""
    rng = random.Random(seed)
    flags, environment, file, flag_names, names = {}, {}, {}, {}, {}
    seconds = {path: default for path, (default, _) in ELECTION_RULES.items()}
    for path, (_, most) in [*ELECTION_RULES.items(), ("numbers.proposal", (None, 600))]:
        variable, place = names_of(path), rng.choice(["flag", "variable", "file", "default"])
        if path == "numbers.proposal":
            place = rng.choice(["variable", "default", "default"])
        value = rng.randint(5, most)
        names[path] = variable
        match place:
            case "flag":
                flags[path], flag_names[path] = f"{value}s", f"--of-{path}"
                names[path] = flag_names[path]
            case "variable":
                environment[variable] = f"{value}s"
            case "file":
                file[path] = timedelta(seconds=value)
                names[path] = "f.yaml: leaderElection." + path.partition(".")[2].title().replace("_", "")
        if place != "default":
            seconds[path] = value
    lease, renew, retry = (seconds[path] for path in ELECTION_RULES)
    proposal = seconds.setdefault("numbers.proposal", max(30, 2 * lease))
    broken = {
        "leader_election.renew_deadline": renew + 2 >= lease,
        "leader_election.retry_period": retry * 1.2 >= renew,
        "numbers.proposal": proposal <= lease,
    }
    expected = [names[path].lower() for path, is_broken in broken.items() if is_broken]
    given = {"flags": flags, "environment": environment, "file": file, "flag_names": flag_names, "file_name": "f.yaml"}
    if expected:
        assert [problem.partition(": want ")[0].lower() for problem in problems_of(**given)] == expected
    else:
        assert read_settings(**given).numbers.proposal == timedelta(seconds=proposal)


@pytest.mark.parametrize(
    ("lease", "leads", "proposal"), [(3, True, 30), (15, True, 30), (60, True, 120), (137, True, 274), (137, False, 30)]
)
def test_a_proposal_lives_for_two_leases_unless_it_is_set(lease, leads, proposal):
    file = {
        "leader_election.lease_duration": timedelta(seconds=lease),
        "leader_election.leader_elect": leads,
        "leader_election.renew_deadline": timedelta(seconds=0.9),
        "leader_election.retry_period": timedelta(seconds=0.5),
    }
    assert read_settings(environment={}, file=file).numbers.proposal == timedelta(seconds=proposal)
    given = {PROPOSAL: f"{lease + 1}s"} if lease > 4 else {}
    life = lease + 1 if given else proposal
    assert read_settings(environment=given, file=file).numbers.proposal == timedelta(seconds=life)


def test_rules_of_the_file_are_left_out_where_it_is_not_known():
    """`berth why` in a shell whose variables go with a file that it does not read."""
    environment = {f"{ELECTION}RENEW_DEADLINE": "107s", PROPOSAL: "10s"}
    assert read_settings(environment=environment).numbers.proposal == timedelta(seconds=10)
    assert len(problems_of(environment=environment)) == 2


@pytest.mark.parametrize(
    ("text", "seconds"), [("15s", 15), ("1m30s", 90), ("500ms", 0.5), ("1h", 3600), ("2.5", 2.5), ("1.5s", 1.5)]
)
def test_durations_are_read_in_gos_form_and_as_plain_seconds(text, seconds):
    settings = read_settings(environment={"BERTH_LEADER_ELECTION_RETRY_PERIOD": "1s", "BERTH_STOP_DEADLINE": "3600"})
    assert settings.stop_deadline == timedelta(hours=1)
    assert read_settings(environment={}).stop_deadline == timedelta(seconds=10)
    read = next(leaf.read for leaf in leaves() if leaf.path == "numbers.position_wait")
    if seconds <= 60:
        assert read(text) == timedelta(seconds=seconds)
    else:
        with pytest.raises(ValueError, match=r"want 0s\.\.60s"):
            read(text)


@pytest.mark.parametrize("text", ["", "s", "15 s", "abc", "-1s", "1d", "inf", "nan", "1e400"])
def test_what_is_no_duration_is_refused_with_an_example(text):
    (problem,) = problems_of(environment={"BERTH_NUMBERS_POSITION_WAIT": text})
    assert problem.startswith("BERTH_NUMBERS_POSITION_WAIT: want ")


@pytest.mark.parametrize(
    "given",
    ["nats://h:99999", "nats://h:abc", "nats://h:0", "nats://a b:1", "nats://h:4222/x", "nats://", "nats://h?a=b"],
)
def test_an_address_that_no_server_can_have_is_refused(given):
    (problem,) = problems_of(environment={"BERTH_NATS_URL": given})
    assert problem == f"BERTH_NATS_URL: want nats:// or tls:// and HOST[:PORT], got {given!r}"


def test_a_password_in_the_address_is_refused_without_repeating_it():
    (problem,) = problems_of(environment={"BERTH_NATS_URL": "nats://scorer:hunter2@nats:4222"})
    assert "hunter2" not in problem
    assert "BERTH_NATS_PASSWORD_FILE" in problem


def test_a_secret_that_cannot_be_read_is_not_also_missing(tmp_path: Path):
    path = tmp_path / "none"
    (problem,) = problems_of(environment={"BERTH_NATS_USER": "scorer", "BERTH_NATS_PASSWORD_FILE": str(path)})
    assert (
        problem == f"BERTH_NATS_PASSWORD_FILE: want a file that can be read, got '{path}' (No such file or directory)"
    )


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
    assert (
        problem
        == "BERTH_NATS_TOKEN_FILE: want a file that can be read, got '/nowhere/token' (No such file or directory)"
    )


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
