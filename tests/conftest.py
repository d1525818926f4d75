"""What every suite has: the list of suites left out, the look for processes left behind, and the real parts."""

from pathlib import Path

# In the order of their names; a part of the harness that a checkout lacks is not asked for.
FIXTURES = sorted(f"harness.{path.stem}" for path in (Path(__file__).parent / "harness").glob("fixtures_*.py"))

pytest_plugins = ["pytester", "harness.left_out", "harness.leftover_processes", *FIXTURES]
