"""``make simulate-faults``: run seeds, show the progress and a summary; or one seed with its trace.

--seeds N            how many (100)
--seed N [-v]        one seed; -v prints its trace
--first N            the first seed (0)
--focus NAME         smallest: the smallest clusters, thousands of runs in a minute; hostile: stolen credentials;
                     devices: pods with ResourceClaims; groups: PodGroups and their pods
--jobs N             processes (1)
--kept               the seeds that have found something
--digests            a digest of each run: equal when it went the same way
--mutations [NAME..] look for mutations (all)
--most N             in N seeds at most
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

_perf_counter = time.perf_counter
SEEDS_EACH: Final = 25
"""Runs of one process."""


def main() -> None:
    if os.environ.get("PYTHONHASHSEED") != "0":  # sets of text are iterated in the same order in every run
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "simulation", *sys.argv[1:]])
    parser = argparse.ArgumentParser(prog="make simulate-faults")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--kept", action="store_true")
    parser.add_argument("--focus", choices=("", "smallest", "hostile", "devices", "groups"), default="")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("-v", "--verbose", action="store_true")
    parser.add_argument("--digests", action="store_true")
    parser.add_argument("--mutations", nargs="*")
    parser.add_argument("--most", type=int, default=10**6)
    given = parser.parse_args()
    if given.mutations is not None:
        sys.exit(_mutations(given.mutations, given.jobs, given.most))
    if given.kept:
        from simulation.seeds import KEPT

        sys.exit(_many(list(KEPT), given.jobs, digests=given.digests))
    if given.seed is not None:
        sys.exit(_one(given.seed, verbose=given.verbose, focus=given.focus))
    seeds = range(given.first, given.first + given.seeds)
    sys.exit(_many(seeds, given.jobs, digests=given.digests, focus=given.focus))


def _one(seed: int, *, verbose: bool, focus: str) -> int:
    from simulation.simulate import run_seed, simulating

    gc.disable()
    with simulating():
        result = run_seed(seed, keep_trace=verbose, focus=_focus(focus))
    for line in result.trace:
        print(line)
    print(
        f"seed {seed}: {result.virtual_seconds:.1f} s, {result.steps} steps, {result.bindings} Bindings, "
        f"{result.evictions} evictions, digest {result.digest}"
    )
    for problem in result.problems:
        print(f"  {problem}")
    return 1 if result.problems else 0


def _mutations(names: list[str], jobs: int, most: int) -> int:
    from simulation.mutations import MUTATIONS

    _warm_up()
    missed = 0
    for name in names or MUTATIONS:
        mutation, began = MUTATIONS[name], _perf_counter()
        found = _first_found(name, jobs, most)
        took = f"{_perf_counter() - began:.1f} s"
        if found is None:
            missed += 1
            print(f"{name}: NOT FOUND in {mutation.seeds} seeds ({took}): {mutation.rule}", flush=True)
        else:
            problem = found.problems[0][:200]
            print(f"{name}: seed {found.seed} of {mutation.seeds} ({took}): {mutation.rule}: {problem}", flush=True)
    return 1 if missed else 0


def _first_found(name: str, jobs: int, most: int):
    """The first seed that fails with the mutation, and does not fail without it."""
    from simulation.mutations import MUTATIONS

    seeds = range(min(most, MUTATIONS[name].seeds))
    each = 1 + SEEDS_EACH // 5
    chunks = [(name, seeds[at : at + each]) for at in range(0, len(seeds), each)]
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=1) as pool:
        return next((found for found in pool.imap(_search, chunks) if found is not None), None)


def _search(chunk: tuple[str, Sequence[int]]):
    from simulation.mutations import MUTATIONS
    from simulation.simulate import run_seed, simulating

    mutation = MUTATIONS[chunk[0]]
    with simulating():
        for seed in chunk[1]:
            with mutation.applied():
                result = run_seed(seed, focus=mutation.focus)
            if result.problems and not run_seed(seed, focus=mutation.focus).problems:
                return result
    return None


def _work(chunk: tuple[Sequence[int], str]) -> list:
    """Run some seeds in a process that ends with them: nothing is collected in the middle of a run."""
    from simulation.simulate import run_seed, simulating

    seeds, focus = chunk
    with simulating():
        return [run_seed(seed, focus=_focus(focus)) for seed in seeds]


def _focus(name: str):
    from simulation.simulate import ATTACKS, DEVICES, GROUPS, SMALLEST

    return {"smallest": SMALLEST, "hostile": ATTACKS, "devices": DEVICES, "groups": GROUPS}.get(name)


def _results(seeds: Sequence[int], jobs: int, *, focus: str) -> Iterator:
    """Run the seeds in children of this process, which has imported everything."""
    _warm_up()
    each = SEEDS_EACH * (2 if focus == "smallest" else 1)
    chunks = [(seeds[at : at + each], focus) for at in range(0, len(seeds), each)]
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=1) as pool:
        for results in pool.imap_unordered(_work, chunks):
            yield from results


def _warm_up() -> None:
    """Fill what does not change from run to run: decoders, kinds, configurations. Children begin with it."""
    from simulation.simulate import run_seed, simulating

    with simulating():
        run_seed(0)
    gc.collect()
    gc.freeze()
    gc.disable()


def _many(seeds: Sequence[int], jobs: int, *, digests: bool, focus: str = "") -> int:
    began, failed, runs = _perf_counter(), [], 0
    faults, users, outcomes, events, totals = Counter(), Counter(), Counter(), Counter(), Counter()
    for result in _results(seeds, jobs, focus=focus):
        runs += 1
        if digests:
            print(f"{result.seed} {result.digest}", flush=True)
        faults.update(result.faults)
        users.update(result.users)
        outcomes.update(result.outcomes)
        events.update(result.events)
        totals.update(bindings=result.bindings, evictions=result.evictions, steps=result.steps)
        totals["cpu_ms"] += int(result.cpu_seconds * 1000)
        totals["virtual_s"] += int(result.virtual_seconds)
        if result.problems:
            failed.append(result.seed)
            print(f"seed {result.seed}: {'; '.join(result.problems[:3])[:400]}", flush=True)
        if runs % 1000 == 0:
            print(f"{runs} of {len(seeds)} runs, {len(failed)} failed, {_perf_counter() - began:.0f} s", flush=True)
    print(
        f"{runs} runs in {_perf_counter() - began:.1f} s ({totals['cpu_ms'] / max(1, runs):.0f} ms CPU, "
        f"{totals['virtual_s'] / max(1, runs):.0f} virtual seconds a run): {len(failed)} failed; "
        f"{totals['bindings']} Bindings, {totals['evictions']} evictions"
    )
    titled = (("faults", faults), ("cluster", users), ("decisions", outcomes), ("what services logged", events))
    for title, counts in titled:
        print(f"{title}: " + ", ".join(f"{name} {count}" for name, count in sorted(counts.items())))
    return 1 if failed else 0
