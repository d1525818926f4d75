"""Errors and notes of `berth up` before it starts anything."""

import os
import subprocess
import sys

import pytest


def test_a_ready_file_in_a_missing_folder_is_an_error(tmp_path):
    path = tmp_path / "none" / "ready"
    command = [sys.executable, "-m", "berth_cli", "up", "--nodes", "1", "--ready-file", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [f"berth: --ready-file '{path}': there is no folder '{path.parent}'"]


def test_the_conversion_of_an_older_file_is_noted(tmp_path):
    config, version = tmp_path / "old.yaml", "kubescheduler.config.k8s.io/v1"
    config.write_text(f"apiVersion: {version}beta3\nkind: KubeSchedulerConfiguration\n")
    words = ["--nodes", "1", "--config", str(config), "--ready-file", str(tmp_path / "none" / "ready")]
    command = [sys.executable, "-m", "berth_cli", "up", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr.splitlines()[0] == f"berth: {config}: apiVersion: read {version}beta3 as {version}"


def test_a_number_of_nodes_for_a_given_cluster_is_an_error(tmp_path):
    command = [sys.executable, "-m", "berth_cli", "up", "--nodes", "7", "--kubeconfig", str(tmp_path / "kubeconfig")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    reason = "it is for a simulated cluster, and --kubeconfig names another: leave one out"
    assert done.stderr.splitlines() == [f"berth: --nodes 7: {reason}"]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (("packed",), "--shadow 'packed': want NAME=FILE"),
        (("packed=",), "--shadow 'packed=': want NAME=FILE"),
        (
            ("Packed.One={same}",),
            "--shadow 'Packed.One={same}': its name: want up to 63 lower-case letters, digits and '-', got 'Packed",
        ),
        (
            ("packed={same}", "packed={same}"),
            "--shadow 'packed={same}': there are two shadows called 'packed': rename one of them",
        ),
        (
            ("packed={other}",),
            "--shadow 'packed={other}': it has no profile of the live configuration (berth): add one",
        ),
        (("packed={wrong}",), "{wrong}: profiles[0].plugin: unknown field"),
    ],
)
def test_a_shadow_that_cannot_be_started_is_an_error(tmp_path, given, reason):
    files = {name: tmp_path / f"{name}.yaml" for name in ("same", "other", "wrong")}
    head = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
    files["same"].write_text(head)
    files["other"].write_text(f"{head}profiles: [{{schedulerName: another}}]\n")
    files["wrong"].write_text(f"{head}profiles: [{{schedulerName: berth, plugin: 7}}]\n")
    words = [word for each in given for word in ("--shadow", each.format(**files))]
    command = [sys.executable, "-m", "berth_cli", "up", "--nodes", "1", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines()[0].startswith(f"berth: {reason.format(**files)}")


def test_a_variable_that_makes_shadows_of_all_scorers_is_an_error():
    command = [sys.executable, "-m", "berth_cli", "up", "--nodes", "1"]
    environment = {**os.environ, "BERTH_SHADOW": "packed"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert done.returncode == 2
    reason = "BERTH_SHADOW makes shadows of all scorers, and nothing would be ranked: unset it"
    assert done.stderr.splitlines() == [f"berth: {reason}"]
