"""What every suite has: the list of suites left out, the look for processes left behind, and the real parts."""

pytest_plugins = [
    "pytester",
    "harness.left_out",
    "harness.leftover_processes",
    "harness.fixtures_cluster",
]
