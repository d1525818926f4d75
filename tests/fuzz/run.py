"""Try berth's readers with many mutated inputs: `make fuzz`.

Where atheris is installed, it tries each reader for some seconds with inputs that it chooses by coverage first.
"""

from __future__ import annotations

import argparse
import logging
import random
import resource
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

from fuzz.targets import FOUND, SLOW, TARGETS, Target, mutated

MOST_SECONDS = 1.0
"""Of processor time, for one input."""
MOST_BYTES = 3 << 30
"""Address space: an input that needs more ends in a MemoryError, which is a finding."""


def failure(target: Target, data: bytes) -> str | None:
    """What is wrong with how the target took the input."""
    began = time.thread_time()
    try:
        target.run(data)
    except target.errors:
        pass
    except Exception as error:
        return f"{type(error).__name__}: {error!s:.300}"
    took = time.thread_time() - began
    return f"took {took:.1f} s" if took > MOST_SECONDS else None


def inputs_of(total: int) -> dict[str, int]:
    """The number of inputs of each target: slow ones get fewer."""
    shares = {name: 1 / SLOW.get(name, 1) for name in TARGETS}
    return {name: max(100, round(total * share / sum(shares.values()))) for name, share in shares.items()}


def run(total: int, seed: int) -> int:
    findings = 0
    for name, data in FOUND:
        if problem := failure(TARGETS[name], data):
            findings += 1
            print(f"{name}: {problem}\n    {data!r}", flush=True)
    for name, count in inputs_of(total).items():
        chance, began, seen = random.Random(f"{seed} {name}"), time.monotonic(), set[str]()
        for _ in range(count):
            data = mutated(TARGETS[name].seeds, chance)
            problem = failure(TARGETS[name], data)
            if problem is not None and problem[:60] not in seen:
                seen.add(problem[:60])
                print(f"{name}: {problem}\n    {data!r:.2000}", flush=True)
        findings += len(seen)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        print(f"{name}: {count} inputs in {time.monotonic() - began:.0f} s, {peak} MiB at most", flush=True)
    return findings


def run_by_coverage(seconds: int) -> int:
    """Each target in a process of its own, which ends at its first finding and writes the input to a file."""
    findings = 0
    for name in TARGETS:
        with tempfile.TemporaryDirectory(prefix="berth-fuzz-") as folder:
            kept = Path(tempfile.gettempdir()) / f"berth-fuzz-{name.replace(' ', '-')}-"
            flags = [f"-max_total_time={seconds}", f"-artifact_prefix={kept}", f"-rss_limit_mb={MOST_BYTES >> 20}"]
            command = [sys.executable, "-m", "fuzz.by_coverage", name, folder, *flags, "-print_final_stats=1"]
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        findings += bool(done.returncode)
        if done.returncode:
            print(f"{name}: by coverage\n{done.stdout[-2_000:]}{done.stderr[-4_000:]}", flush=True)
        else:
            tried = [line for line in done.stderr.splitlines() if "number_of_executed_units" in line]
            print(f"{name}: by coverage, {' '.join(tried)}", flush=True)
    return findings


def main() -> int:
    parser = argparse.ArgumentParser(prog="make fuzz ARGS=...", description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="how many mutated inputs")
    parser.add_argument("--seed", type=int, default=0, help="another number, other inputs")
    parser.add_argument("--seconds", type=int, default=30, help="for each target by coverage, with atheris")
    arguments = parser.parse_args()
    logging.disable()
    findings = run_by_coverage(arguments.seconds) if find_spec("atheris") and arguments.seconds else 0
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    findings += run(arguments.inputs, arguments.seed)
    print(f"{findings} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
