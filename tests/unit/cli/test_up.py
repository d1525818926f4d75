"""Errors and notes of `berth up` before it starts anything."""

import subprocess
import sys


def test_a_ready_file_in_a_missing_folder_is_an_error(tmp_path):
    path = tmp_path / "none" / "ready"
    command = [sys.executable, "-m", "berth.cli", "up", "--nodes", "1", "--ready-file", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [f"berth: --ready-file '{path}': there is no folder '{path.parent}'"]


def test_the_conversion_of_an_older_file_is_noted(tmp_path):
    config, version = tmp_path / "old.yaml", "kubescheduler.config.k8s.io/v1"
    config.write_text(f"apiVersion: {version}beta3\nkind: KubeSchedulerConfiguration\n")
    words = ["--nodes", "1", "--config", str(config), "--ready-file", str(tmp_path / "none" / "ready")]
    command = [sys.executable, "-m", "berth.cli", "up", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr.splitlines()[0] == f"berth: {config}: apiVersion: read {version}beta3 as {version}"


def test_a_number_of_nodes_for_a_given_cluster_is_an_error(tmp_path):
    command = [sys.executable, "-m", "berth.cli", "up", "--nodes", "7", "--kubeconfig", str(tmp_path / "kubeconfig")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    reason = "it is for a simulated cluster, and --kubeconfig names another: leave one out"
    assert done.stderr.splitlines() == [f"berth: --nodes 7: {reason}"]
