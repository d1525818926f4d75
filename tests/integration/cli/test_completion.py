"""What a shell and kubectl get when they ask for completions; the version; names as kubectl takes them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from berth import __version__
from berth.exits import UsageError
from berth_cli.app import COMMANDS, KUBECTL_COMMANDS, app_with, completed, needed
from berth_cli.options import KubectlPlugin, PodArgument, PodNamespace, parse_pod

PROGRAMS = {
    one.name: one.value for one in entry_points(group="console_scripts") if one.value.startswith("berth_cli.")
} | {
    "berth": "berth_cli.__main__:main",
    "kubectl-berth": "berth_cli.__main__:kubectl_main",
    "kubectl_complete-berth": "berth_cli.__main__:kubectl_complete_main",
}


def write_program(folder: Path, name: str) -> None:
    """A program as the wheel installs it."""
    module, function = PROGRAMS[name].split(":")
    path = folder / name
    path.write_text(f"#!{sys.executable}\nimport sys\nfrom {module} import {function}\nsys.exit({function}())\n")
    path.chmod(0o755)


@pytest.fixture
def programs(tmp_path: Path) -> dict[str, str]:
    """An environment in which they are on the PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in PROGRAMS:
        write_program(folder, name)
    return {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


def run(*words: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=60, env=env)


def test_the_wheel_has_the_programs():
    written = Path(__file__).parents[3] / "shared" / "cli" / "pyproject.toml"
    assert all(f'{name} = "{value}"' in written.read_text() for name, value in PROGRAMS.items())


def test_version(programs):
    done = run("berth", "--version", env=programs)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"berth {__version__}\n", "")


@pytest.mark.parametrize(
    ("typed", "expected"),
    [("berth que", ["queue"]), ("berth queue wh", ["why"]), ("berth why --names", ["--namespace"])],
)
def test_bash_completes_by_the_printed_script(programs, typed, expected):
    words = typed.split()
    program = f"""
        source <(berth completion bash)
        COMP_WORDS=({typed}) COMP_CWORD={len(words) - 1}
        $(complete -p berth | sed 's/.*-F \\([^ ]*\\).*/\\1/') berth {words[-1]} {words[-2]}
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = run("bash", "-c", program, env=programs)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, expected, "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_script_names_the_command_and_its_variable(programs, shell):
    text = run("berth", "completion", shell, env=programs).stdout
    assert "berth" in text
    assert f"_BERTH_COMPLETE=complete_{shell}" in text


def test_a_shell_without_a_script_is_an_error_of_usage(programs):
    assert run("berth", "completion", "tcsh", env=programs).returncode == 2


def test_kubectl_gets_completions_in_its_own_form(programs):
    lines = run("kubectl_complete-berth", "why", "--n", env=programs).stdout.splitlines()
    assert [line.split("\t")[0] for line in lines] == ["--namespace", "--now", "--nats", ":4"]
    lines = run("kubectl_complete-berth", "", env=programs).stdout.splitlines()
    assert [line.split("\t")[0] for line in lines] == [*KUBECTL_COMMANDS, ":4"]
    lines = run("kubectl_complete-berth", "queue", "", env=programs).stdout.splitlines()
    assert [line.split("\t")[0] for line in lines] == ["list", "why", ":4"]


@pytest.mark.requires("kubectl")
def test_kubectl_finds_its_plugin_and_its_completions(programs):
    done = run("kubectl", "berth", "--version", env=programs)
    assert (done.returncode, done.stdout) == (0, f"berth {__version__}\n")
    done = run("kubectl", "berth", "up", env=programs)
    assert (done.returncode, done.stderr) == (
        2,
        "kubectl berth: no such command 'up': `berth up` is one\n",
    )
    done = run("kubectl", "__complete", "berth", "tr", env=programs)
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == ["trace", ":4"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("berth", []),
        ("berth q", ["queue"]),
        ("berth d", ["devices", "dead", "drain"]),
        ("berth queue why", ["queue"]),
        ("berth nope", []),
        ("berth --vers", []),
    ],
)
def test_only_commands_that_can_be_meant_are_imported(words, expected):
    assert list(completed(COMMANDS, {"COMP_WORDS": words})) == expected


def test_a_command_that_is_named_is_imported_alone():
    assert list(needed(["why", "web"], COMMANDS)) == ["why"]
    assert list(needed(["--help"], COMMANDS)) == []
    assert list(needed(["up"], KUBECTL_COMMANDS)) == []


def test_the_help_has_the_first_lines_of_the_commands_that_it_does_not_import():
    whole, listed = (CliRunner().invoke(app, ["--help"]).output for app in (app_with(), app_with((), listed=COMMANDS)))
    assert listed == whole


@pytest.fixture
def parsed(tmp_path, monkeypatch):
    """Parse words as `why` does; with kubectl, and a kubeconfig whose context has the namespace `shop`."""
    cluster = {"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}
    context = {"name": "c", "context": {"cluster": "c", "namespace": "shop"}}
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(json.dumps({"clusters": [cluster], "contexts": [context], "current-context": "c"}))
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    monkeypatch.delenv("BERTH_KUBECONFIG", raising=False)

    def parse(*words: str, kubectl: bool = False) -> str:
        app = typer.Typer()
        found = []

        @app.command()
        def command(pod: PodArgument, *, namespace: PodNamespace = None) -> None:
            found.append(str(parse_pod(pod, namespace)))

        app(args=list(words), standalone_mode=False, obj=KubectlPlugin() if kubectl else None)
        return found[0]

    return parse


@pytest.mark.parametrize(
    ("words", "kubectl", "expected"),
    [
        (["web"], False, "default/web"),
        (["web", "-n", "lab"], False, "lab/web"),
        (["lab/web", "-n", "lab"], False, "lab/web"),
        (["pod/web"], False, "pod/web"),
        (["web"], True, "shop/web"),
        (["pod/web"], True, "shop/web"),
        (["po/web", "-n", "lab"], True, "lab/web"),
        (["web", "--namespace=lab"], True, "lab/web"),
    ],
)
def test_names_of_pods(parsed, words, kubectl, expected):
    assert parsed(*words, kubectl=kubectl) == expected


def test_kubectl_without_a_usable_kubeconfig_means_default(parsed, monkeypatch, tmp_path):
    (tmp_path / "broken").write_text("not: [a kubeconfig")
    for path in ("broken", "missing"):
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / path))
        assert parsed("web", kubectl=True) == "default/web"


def test_two_namespaces_are_refused(parsed):
    with pytest.raises(UsageError, match="it names another namespace than -n lab"):
        parsed("shop/web", "-n", "lab")
