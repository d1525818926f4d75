"""Docker for tests: whether an image can be had, and what a command said."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path
from typing import Final

import yaml

COMPOSE_FILE: Final = Path(__file__).parents[3] / "compose.yaml"
PULL_SECONDS = 600.0
COMMAND_SECONDS = 120.0


class DockerError(RuntimeError):
    """A command failed; the message ends with what it said last."""


def docker(*arguments: str, seconds: float = COMMAND_SECONDS) -> str:
    """Run a command of docker's and return what it printed.

    Raises:
        DockerError: it failed.
    """
    answer = subprocess.run(["docker", *arguments], capture_output=True, text=True, timeout=seconds, check=False)
    if answer.returncode:
        raise DockerError(f"docker {' '.join(arguments)}: {answer.stderr.strip()[-2000:]}")
    return answer.stdout


@cache
def compose_image(service: str) -> str:
    """The image that compose.yaml has for a service: what users run is what tests run."""
    return str(yaml.safe_load(COMPOSE_FILE.read_text(encoding="utf-8"))["services"][service]["image"])


@cache
def why_no_image(name: str) -> str:
    """Have the image here, pulling it if need be; empty when that worked, else the reason why it did not."""
    try:
        docker("image", "inspect", name)
    except DockerError:
        try:
            docker("pull", "--quiet", name, seconds=PULL_SECONDS)
        except (DockerError, subprocess.TimeoutExpired) as exc:
            return str(exc).splitlines()[-1]
    return ""
