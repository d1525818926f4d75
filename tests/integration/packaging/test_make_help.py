"""``make help``: every target once, with the benchmarks apart."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[3]
KINDS = ["Start", "Change", "Release", "Break", "Measure"]


def test_make_help_lists_every_target_once_with_the_benchmarks_apart():
    done = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    _, *parts = re.split(r"^(\w+)\n", done.stdout, flags=re.MULTILINE)
    targets = [re.findall(r"^  make (\S+) ", text, re.MULTILINE) for text in parts[1::2]]
    kinds = dict(zip(parts[::2], targets, strict=True))
    assert list(kinds) == KINDS
    listed = [target for of_kind in targets for target in of_kind]
    described = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(described)
    benchmarks = {target for target in listed if target.startswith("bench")}
    assert benchmarks <= set(kinds["Measure"])
    assert kinds["Start"] == ["help", "setup", "run", "up"]
