"""Try berth's readers with many mutated inputs: `make fuzz`.

`--atheris TARGET` lets atheris choose the inputs by coverage, where it is installed (`pip install atheris`).
"""

from __future__ import annotations

import argparse
import logging
import random
import resource
import sys
import time

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
    print(f"{findings} findings")
    return 1 if findings else 0


def by_coverage(name: str, rest: list[str]) -> None:
    import atheris

    target = TARGETS[name]

    def one(data: bytes) -> None:
        if problem := failure(target, data):
            raise RuntimeError(problem)

    atheris.instrument_all()
    atheris.Setup([sys.argv[0], *rest], one)
    atheris.Fuzz()


def main() -> int:
    parser = argparse.ArgumentParser(prog="make fuzz ARGS=...", description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--atheris", metavar="TARGET", choices=TARGETS)
    arguments, rest = parser.parse_known_args()
    logging.disable()
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    if arguments.atheris:
        by_coverage(arguments.atheris, rest)
        return 0
    return run(arguments.inputs, arguments.seed)


if __name__ == "__main__":
    sys.exit(main())
