"""The credentials that compose makes: once, each for its service alone, and a token that ends its line."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "deploy/compose/credentials/make-credentials.sh"


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """The folder of the credentials, made by the script in a folder of its own."""
    folder = tmp_path / "credentials"
    folder.mkdir()
    make(tmp_path)
    return folder


def make(root: Path) -> None:
    text = SCRIPT.read_text().replace("folder=/run/berth/credentials", f"folder={root}/credentials")
    for name in ("data", "prometheus", "recordings"):
        (root / name).mkdir(exist_ok=True)
        text = text.replace(f" /{name}\n", f" {root}/{name}\n")
    commands = root / "bin"
    commands.mkdir(exist_ok=True)
    chown = commands / "chown"  # only root may give files away
    chown.write_text("#!/bin/sh\n")
    chown.chmod(0o700)
    environment = {**os.environ, "PATH": f"{commands}:{os.environ['PATH']}"}
    subprocess.run(["sh", "-c", text], check=True, env=environment, timeout=30)


def test_the_token_ends_its_line_since_people_print_it(made: Path):
    assert (made / "console").read_text().endswith("\n")
    assert len((made / "console").read_text().split()) == 1


def test_passwords_have_no_end_of_line(made: Path):
    assert not (made / "people").read_text().endswith("\n")
    assert f'people_PASSWORD: "{(made / "people").read_text()}"' in (made / "nats.conf").read_text()


def test_a_second_start_changes_nothing_but_ends_the_line_of_an_older_token(made: Path, tmp_path: Path):
    token = made / "console"
    before = {each.name: each.read_text() for each in made.iterdir()}
    make(tmp_path)
    assert {each.name: each.read_text() for each in made.iterdir()} == before
    token.chmod(0o600)
    token.write_text("an-older-token-without-an-end")
    make(tmp_path)
    assert token.read_text() == "an-older-token-without-an-end\n"
    assert token.stat().st_mode & 0o777 == 0o400
