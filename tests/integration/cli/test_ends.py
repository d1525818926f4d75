"""How the command ends: after Ctrl-C, when its output cannot be written, and when it is used wrongly."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

IMPORTING = """
import os, signal, sys

class CtrlC:
    def find_spec(self, name, *_):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, CtrlC())
sys.argv = ["berth", "plugin", "list"]
from berth_cli.__main__ import main
main()
"""

WORKING = """
import asyncio, os, signal, sys
import typer
from berth_cli.options import run_command, until_stopped
from berth.exits import UsageError

def send(name):
    os.kill(os.getpid(), getattr(signal, name))

async def fails_while_it_stops():
    try:
        send("SIGTERM")
        await asyncio.sleep(60)
    finally:
        raise UsageError("removing the folder")

async def fails_before_it_is_stopped():
    send("SIGTERM")
    raise UsageError("no such folder")

async def answers_although_it_is_stopped():
    try:
        send("SIGTERM")
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        return "half done"

async def is_stopped_while_a_timeout_of_its_own_ends():
    try:
        async with asyncio.timeout(0.01):
            try:
                await asyncio.sleep(60)
            finally:
                send("SIGTERM")
                await asyncio.sleep(0.1)
    except TimeoutError:
        await asyncio.sleep(60)

async def goes_on():
    send(sys.argv[2])
    await asyncio.sleep(0.1)
    return "done"

for ignored in sys.argv[2:]:
    signal.signal(getattr(signal, ignored), signal.SIG_IGN)
try:
    print(run_command(until_stopped(globals()[sys.argv[1]]())))
except typer.Exit as end:
    sys.exit(end.exit_code)
"""


def working(*words):
    """Exit code, output and errors of such work, run as `berth up` and `berth run` do."""
    command = [sys.executable, "-c", WORKING, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    return done.returncode, done.stdout, done.stderr


def test_an_error_while_the_command_stops_is_reported():
    assert working("fails_while_it_stops") == (2, "", "berth: stopping\nberth: removing the folder\n")
    assert working("fails_before_it_is_stopped") == (2, "", "berth: no such folder\n")


def test_what_a_stopped_command_answers_counts():
    assert working("answers_although_it_is_stopped") == (0, "half done\n", "berth: stopping\n")


def test_a_command_is_stopped_also_while_a_timeout_of_its_own_ends():
    assert working("is_stopped_while_a_timeout_of_its_own_ends") == (0, "None\n", "berth: stopping\n")


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_that_was_ignored_at_the_start_stays_ignored(name):
    assert working("goes_on", name) == (0, "done\n", "")


def berth(*words, stdout=subprocess.PIPE, **other):
    command = [sys.executable, "-m", "berth_cli", *words]
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=60, check=False, **other)


def test_ctrl_c_while_the_commands_are_imported_is_silent():
    done = subprocess.run([sys.executable, "-c", IMPORTING], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


@pytest.fixture
def files(tmp_path):
    """A cluster of one node, and pods whose reports are more than a pipe takes."""
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}, "status": {"allocatable": {"pods": "1"}}}
    spec = {"schedulerName": "berth", "containers": [{"name": "c"}]}
    pods = [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"p{i}"}, "spec": spec} for i in range(500)]
    (tmp_path / "node.json").write_text(json.dumps(node))
    (tmp_path / "pods.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": pods}))
    return ("--cluster", str(tmp_path / "node.json"), "--pods", str(tmp_path / "pods.json"))


@pytest.mark.parametrize(
    "words", [("plugin", "list"), ("config", "providers"), ("--help",), ("why", "--help"), ("simulate",)]
)
def test_output_that_cannot_be_written_is_an_error_on_one_line(words, files):
    with Path("/dev/full").open("w") as full:
        done = berth(*words, *(files if words == ("simulate",) else ()), stdout=full)
    assert done.stderr == "berth: writing to standard output: No space left on device\n"
    assert done.returncode == 3


@pytest.mark.parametrize(
    ("words", "stream", "code"),
    [
        (("plugin", "list"), ">", 0),
        (("bus", "permissions"), ">", 0),
        (("why", "x/>"), "2>", 2),
        (("nope",), "2>", 2),
        (("simulate", "--cluster", "-", "--pods", "/dev/null"), "<", 2),
    ],
)
def test_a_standard_stream_that_is_closed_is_as_dev_null(words, stream, code):
    def ends(redirection):
        command = ["sh", "-c", f'exec "$@" {stream}{redirection}', "sh", sys.executable, "-m", "berth_cli", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stdout, done.stderr

    closed = ends("&-")
    assert closed == ends("/dev/null")
    assert closed[0] == code


def test_a_reader_that_has_enough_ends_the_command_silently(files):
    command = [sys.executable, "-m", "berth_cli", "simulate", *files, "-o", "json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline().startswith("{")
        process.stdout.close()
        assert (process.stderr.read(), process.wait(60)) == ("", 141)


@pytest.mark.parametrize(
    ("words", "command", "named"),
    [
        (("why",), "berth why", "missing argument 'NAMESPACE/POD'"),
        (("up", "--nope"), "berth up", "no such option: --nope"),
        (("up", "--nodes", "-1"), "berth up", "invalid value for '--nodes': "),
        (("top", "-o", "xml"), "berth top", "'xml' is not one of 'table', 'json', 'yaml'"),
        (("why", "web", "--from", "web.json"), "berth why", "want it with --now, and without --kubeconfig"),
        (("why", "web", "--now", "--from", "-", "--kubeconfig", "f"), "berth why", "want it with --now"),
        (("top", "--interval", "nan"), "berth top", "invalid value for '--interval': want at most 31622400 seconds"),
        (("top", "--watch", "--interval", "1e300"), "berth top", "want at most 31622400 seconds, got 1e+300"),
        (("drain", "--timeout", "nan"), "berth drain", "invalid value for '--timeout': want at most 31622400 seconds"),
        (("run", "--deadline", "inf"), "berth run", "invalid value for '--deadline': want at most 31622400 seconds"),
        (("console", "--port", "70000"), "berth console", "invalid value for '--port': "),
        (("config", "nope"), "berth config", "no such command 'nope'"),
        (("nope",), "berth", "no such command 'nope'"),
        (("drian",), "berth", "no such command 'drian', did you mean 'drain': see"),
    ],
)
def test_wrong_usage_is_an_error_on_one_line(words, command, named):
    done = berth(*words)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"{command}: ")
    assert named in line
    assert line.endswith(f": see {command} --help")


@pytest.mark.parametrize("words", [(), ("why",), ("dead", "list")])
def test_h_is_help(words):
    short, long = berth(*words, "-h"), berth(*words, "--help")
    assert (short.returncode, short.stderr, short.stdout) == (0, "", long.stdout)
    assert "-h, --help" in long.stdout


def test_h_is_help_of_a_service_too():
    done = subprocess.run(
        [Path(sys.executable).with_name("berth-scorer"), "-h"], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: berth-scorer ")


@pytest.mark.parametrize("words", [(), ("config",)])
def test_a_command_without_words_prints_its_help(words):
    done = berth(*words)
    assert (done.returncode, done.stderr) == (2, "")
    assert "Usage:" in done.stdout


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        pytest.param(
            ("top", "--nats", "ws://127.0.0.1:1"),
            2,
            "--nats: want nats:// or tls:// and HOST[:PORT], got 'ws://127.0.0.1:1'",
            id="WebSockets",
        ),
        pytest.param(
            ("config", "check", "/dev/null"), 2, "/dev/null: is empty: want a KubeSchedulerConfiguration", id="empty"
        ),
        pytest.param(
            ("why", "default/>"),
            2,
            "reading the pod 'default/>': no pod has such a name: "
            "want a DNS name (lower-case letters, digits, '-', '.'), got '>'",
            id="no name",
        ),
    ],
)
def test_what_cannot_be_meant_is_an_error_of_usage(words, code, said):
    done = berth(*words)
    assert (done.returncode, done.stderr) == (code, f"berth: {said}\n")


def test_a_nats_that_does_not_answer_is_an_error_with_a_hint():
    done = berth("up", "--nats", "nats://127.0.0.1:1", "--nodes", "1")
    assert done.returncode == 3
    assert done.stderr.endswith(": name another server with --nats, or none to run one here\n")


@pytest.mark.parametrize("content", [None, b"\x00\xff\x80", b"[1, 2]"], ids=["missing", "binary", "a list"])
def test_a_cluster_that_cannot_be_read_is_the_only_error(content, tmp_path):
    cluster, pods = tmp_path / "cluster", tmp_path / "pods.json"
    if content is not None:
        cluster.write_bytes(content)
    spec = {"schedulerName": "berth", "priorityClassName": "urgent", "containers": [{"name": "c"}]}
    pods.write_text(json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}))
    done = berth("simulate", "--cluster", str(cluster), "--pods", str(pods))
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"berth: {cluster}: ")
