"""The image: its contents, what it must not contain, its user and its entry point."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.servers.compose import IMAGE, ROOT, inspected, require_project
from harness.servers.docker_engine import DockerError, docker

pytestmark = pytest.mark.timeout(1500)  # the image may have to be built first

SERVICES = ("berth-watcher", "berth-scorer", "berth-binder", "berth-metrics-collector")
SHARED = ("core", "cli", "sim", "plugins-1-18")
BUILD_TOOLS = ("gcc", "cc", "make", "pip", "pip3", "uv", "git", "hatchling", "apt", "perl")


@pytest.fixture(autouse=True)
def image() -> None:
    require_project()


def run(*words: str) -> str:
    """What a container prints when these words follow the image."""
    return docker("run", "--rm", "--read-only", "--network", "none", "--cap-drop", "ALL", IMAGE, *words)


def test_it_runs_as_an_unprivileged_user():
    (found,) = inspected(IMAGE)
    assert found["Config"]["User"] == "65532:65532"
    assert run("sh", "-c", "id -u").strip() == "65532"


def test_every_program_starts_on_a_read_only_file_system():
    for program in ("berth", *SERVICES):
        assert f"Usage: {program} " in run(program, "--help")
    assert "simulated cluster" in run("python", "-m", "berth_sim", "--help")
    assert "DefaultProvider (1.18" in run("berth", "config", "providers")


@pytest.mark.parametrize("words", [(), ("--help",), ("why", "--help"), ("top", "--help"), ("berth", "why", "--help")])
def test_words_after_the_image_are_those_of_the_command(words):
    command = " ".join(("berth", *[word for word in words if word not in {"berth", "--help"}]))
    assert f"Usage: {command} " in run(*words)


def test_it_is_below_250_megabytes():
    (found,) = inspected(IMAGE)
    assert found["Size"] < 250_000_000


def test_it_contains_no_build_tool_and_no_installer():
    assert run("sh", "-c", f"command -v {' '.join(BUILD_TOOLS)}; true").split() == []
    with pytest.raises(DockerError, match="No module named pip"):
        run("python", "-m", "pip", "--version")


def test_its_packages_are_those_of_the_lock():
    program = "import importlib.metadata as m; print(*(f'{d.name}=={d.version}' for d in m.distributions()))"
    listed = run("python", "-c", program)
    locked = re.findall(r"^([a-z0-9._-]+==[^ ]+)", (ROOT / "deploy" / "requirements.lock").read_text(), re.MULTILINE)
    installed = {_normal(each) for each in listed.split()}
    ours = {each for each in installed if each.startswith("berth-")}
    assert {each.partition("==")[0] for each in ours} == {*SERVICES, *(f"berth-{name}" for name in SHARED)}
    assert installed - ours <= {_normal(each) for each in locked}


def _normal(requirement: str) -> str:
    name, _, version = requirement.partition("==")
    return f"{re.sub(r'[-_.]+', '-', name).lower()}=={version}"


def test_it_has_the_standard_labels():
    (found,) = inspected(IMAGE)
    labels = found["Config"]["Labels"]
    names = {name.removeprefix("org.opencontainers.image.") for name in labels}
    assert names >= {"title", "description", "licenses", "version", "revision"}
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"


def test_it_contains_no_secret_and_no_setting_of_the_build_machine():
    (found,) = inspected(IMAGE)
    variables = dict(each.split("=", 1) for each in found["Config"]["Env"])
    assert not [name for name in variables if re.search(r"PASSWORD|TOKEN|SECRET|PIP_|CERT", name)]
    history = docker("history", "--no-trunc", "--format", "{{.CreatedBy}}", IMAGE)
    assert not re.search(r"PASSWORD|TOKEN|SECRET|PIP_|index-url", history)
    assert run("sh", "-c", "ls -A /run/secrets /etc/pip.conf 2>/dev/null; true") == ""


def test_the_build_context_contains_only_the_sources():
    lines = (Path(ROOT) / ".dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    assert {rule for rule in rules if rule.startswith("!")} == {
        "!deploy/requirements.lock",
        "!deploy/build-requirements.lock",
        "!deploy/strip_symbols.py",
        "!deploy/healthy.py",
        "!deploy/entrypoint",
        "!shared",
        "!services",
    }
