"""deploy/compose/people.sh: what it says to `berth` in a shell, and what is left when compose is not up."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "deploy/compose/people.sh"
ASKS = '. "$SCRIPT"; echo "ends with $?"; env | grep ^BERTH_ | sort'
ENGINE = """#!/bin/sh
case "$*" in
  "compose exec -T console cat /run/berth/credentials/people") printf secret ;;
  "compose exec -T console cat /run/berth/configuration/scheduler.yaml") echo kind: KubeSchedulerConfiguration ;;
  "compose port nats 4222") echo 127.0.0.1:14222 ;;
  *) exit 9 ;;
esac
"""


@pytest.fixture(params=["sh", "bash"])
def shell(request: pytest.FixtureRequest) -> str:
    found = shutil.which(request.param)
    if found is None:
        pytest.skip(f"no {request.param} on the PATH")
    return found


def sourced(shell: str, folder: Path, engine: str) -> tuple[list[str], str]:
    """What a shell in this folder prints, with this as its `docker`."""
    programs = folder / "programs"
    programs.mkdir()
    (programs / "docker").write_text(engine)
    (programs / "docker").chmod(0o755)
    plain = {name: text for name, text in os.environ.items() if not name.startswith("BERTH_")}
    told = plain | {"PATH": f"{programs}:{plain['PATH']}", "SCRIPT": str(SCRIPT)}
    done = subprocess.run([shell, "-c", ASKS], cwd=folder, env=told, capture_output=True, text=True, check=False)
    return done.stdout.splitlines(), done.stderr


def test_a_shell_asks_compose_as_people_with_the_configuration_of_its_services(shell: str, tmp_path: Path):
    (tmp_path / "people.password").touch(0o644)
    printed, said = sourced(shell, tmp_path, ENGINE)
    assert said == ""
    assert printed == [
        "ends with 0",
        f"BERTH_CONFIG={tmp_path}/services.yaml",
        "BERTH_NATS_DOMAIN=berth",
        f"BERTH_NATS_PASSWORD_FILE={tmp_path}/people.password",
        "BERTH_NATS_URL=nats://127.0.0.1:14222",
        "BERTH_NATS_USER=people",
    ]
    assert (tmp_path / "people.password").read_text() == "secret"
    assert (tmp_path / "services.yaml").read_text() == "kind: KubeSchedulerConfiguration\n"
    for name in ("people.password", "services.yaml"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


def test_where_compose_is_not_up_nothing_is_set_and_nothing_left(shell: str, tmp_path: Path):
    printed, said = sourced(shell, tmp_path, "#!/bin/sh\necho no such service >&2\nexit 1\n")
    assert printed == ["ends with 1"]
    assert said.endswith("people.sh: want it sourced in the folder of compose.yaml, after docker compose up --wait\n")
    assert [each.name for each in tmp_path.iterdir()] == ["programs"]


def test_git_ignores_what_it_writes():
    ignored = (SCRIPT.parents[2] / ".gitignore").read_text().splitlines()
    assert {"/people.password", "/services.yaml"} <= set(ignored)


def test_the_documented_replay_has_a_profile_for_every_pod_of_compose():
    in_use, other = (
        {profile["schedulerName"] for profile in yaml.safe_load((ROOT / file).read_text())["profiles"]}
        for file in ("deploy/compose/cluster/only-scheduler.yaml", "docs/recordings/packing.yaml")
    )
    assert in_use <= other
