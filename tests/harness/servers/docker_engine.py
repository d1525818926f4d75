"""Docker for tests: whether an image is available, and the output of commands."""

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
    """A command failed; the message ends with its last output."""


def docker(*arguments: str, seconds: float = COMMAND_SECONDS) -> str:
    """Run a docker command and return its output.

    Raises:
        DockerError: it failed.
    """
    answer = subprocess.run(["docker", *arguments], capture_output=True, text=True, timeout=seconds, check=False)
    if answer.returncode:
        raise DockerError(f"docker {' '.join(arguments)}: {answer.stderr.strip()[-2000:]}")
    return answer.stdout


@cache
def compose_image(service: str) -> str:
    """The image of a service in compose.yaml, so that tests run the same image as users."""
    return str(yaml.safe_load(COMPOSE_FILE.read_text(encoding="utf-8"))["services"][service]["image"])


@cache
def why_no_image(name: str) -> str:
    """Pull the image if it is not here; empty when it is available, else the reason."""
    try:
        docker("image", "inspect", name)
    except DockerError:
        try:
            docker("pull", "--quiet", name, seconds=PULL_SECONDS)
        except (DockerError, subprocess.TimeoutExpired) as exc:
            return str(exc).splitlines()[-1]
    return ""
