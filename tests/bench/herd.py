"""Where a burst of pods goes by measured load: berth, Trimaran's and Koordinator's rules, and an oracle.

    make bench-herd ARGS="--seeds 10"
    make bench-herd ARGS="--prometheus --seeds 1"

100 nodes whose load follows what is placed on them, samples of a minute every 15 s, 200 pods that come at once or
within two minutes. Time is simulated, one seed is one cluster for all. Berth's scorers and binder are the services'
own; the rules of the others are computed with the same samples for one scheduler, which is kind to them: theirs are of
5 and 15 minutes. The oracle knows each node's load with all pods so far; the informed one knows what pods use on
average in place of what each uses. With `--prometheus` berth's processes place the first of these bursts in real time,
by the samples of a Prometheus that scrapes 100 played exporters: three minutes a run.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table

from harness.worlds.herd import (
    RULES,
    THRESHOLD,
    Herd,
    MeasuredScorers,
    Outcome,
    by_informed,
    by_oracle,
    by_rule,
    node_load,
)
from harness.worlds.herd_on_prometheus import on_prometheus

RESULTS = Path(__file__).parent / "results"
ARRIVALS: Final = {"at once": 0.0, "within 2 min": 120.0}
USES: Final = {
    "as estimated": (0.85, 0.85),
    "less than estimated": (0.7, 0.7),
    "0.3 to 1.1 of the request": (0.3, 1.1),
}
SCORERS: Final = (1, 4)

console = Console(highlight=False, width=200)


def main(
    seeds: Annotated[int, typer.Option(min=1, help="Clusters of each kind.")] = 10,
    out: Annotated[Path, typer.Option(help="Folder for the figures as JSON.")] = RESULTS,
    *,
    prometheus: Annotated[bool, typer.Option(help="By a real Prometheus, in real time.")] = False,
) -> None:
    """Run, print a table, write the figures."""
    if prometheus:
        rows = list(measured_figures("as estimated", "at once", [Herd(seed=seed) for seed in range(seeds)]))
    else:
        rows = [
            row
            for use in USES
            for arrival, seconds in ARRIVALS.items()
            for row in figures(use, arrival, [Herd(seed=seed, seconds=seconds, use=USES[use]) for seed in range(seeds)])
        ]
    console.print(table(rows))
    now = datetime.now(UTC)
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"herd-{'on-prometheus-' if prometheus else ''}{now:%Y%m%dT%H%M%SZ}.json"
    machine = {"cores": os.cpu_count(), "system": platform.system(), "python": platform.python_version()}
    path.write_text(
        json.dumps({"at": now.isoformat(), "machine": machine, "seeds": seeds, "runs": rows}, indent=2) + "\n"
    )
    console.print(f"written to {path}")


def figures(use: str, arrival: str, herds: list[Herd]) -> Iterator[dict[str, Any]]:
    oracle = [by_oracle(herd) for herd in herds]
    yield row(use, arrival, "oracle", oracle, oracle, herds)
    yield row(use, arrival, "informed", [by_informed(herd) for herd in herds], oracle, herds)
    for scorers in SCORERS:
        found = [MeasuredScorers(herd, node_load(), scorers).outcome() for herd in herds]
        yield row(use, arrival, by_node_load_of(scorers), found, oracle, herds)
    percent = round(100 * fmean(USES[use]))
    found = [MeasuredScorers(herd, node_load(percent), 1).outcome() for herd in herds]
    yield row(use, arrival, f"NodeLoad that estimates {percent} %, 1 scorer", found, oracle, herds)
    for name, (rule, lag) in RULES.items():
        yield row(use, arrival, name, [by_rule(herd, rule, lag) for herd in herds], oracle, herds)


def measured_figures(use: str, arrival: str, herds: list[Herd]) -> Iterator[dict[str, Any]]:
    oracle = [by_oracle(herd) for herd in herds]
    for scorers in SCORERS:
        found = [placed_on_prometheus(herd, scorers) for herd in herds]
        yield row(use, arrival, by_node_load_of(scorers), found, oracle, herds)


def placed_on_prometheus(herd: Herd, scorers: int) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="berth-bench-") as folder:
        return asyncio.run(on_prometheus(herd, scorers, Path(folder)))


def by_node_load_of(scorers: int) -> str:
    return f"NodeLoad, {scorers} {'scorer' if scorers == 1 else 'scorers'}"


def row(
    use: str, arrival: str, name: str, found: list[Outcome], oracle: list[Outcome], herds: list[Herd]
) -> dict[str, Any]:
    ratios = [each.deviation / best.deviation for each, best in zip(found, oracle, strict=True)]
    return {
        "pods_use": use,
        "pods_come": arrival,
        "by": name,
        "points_above_threshold_worst": round(max(each.above for each in found), 1),
        "points_of_the_largest_pod": round(max(herd.largest_pod for herd in herds), 1),
        "nodes_above_threshold_mean": round(fmean(each.nodes_above for each in found), 2),
        "deviation_mean": round(fmean(each.deviation for each in found), 2),
        "deviation_to_oracle_mean": round(fmean(ratios), 2),
        "deviation_to_oracle_worst": round(max(ratios), 2),
    }


def table(rows: list[dict[str, Any]]) -> Table:
    heads = (
        *("pods use", "they come", "placed by", f"points above {THRESHOLD} %, worst", "one pod", "nodes above, mean"),
        *("deviation, mean", "to the oracle's, mean", "worst"),
    )
    made = Table(*heads)
    for each in rows:
        made.add_row(*(str(value) for value in each.values()))
    return made


if __name__ == "__main__":
    typer.run(main)
