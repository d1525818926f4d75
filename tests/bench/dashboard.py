"""What berth's main dashboard shows of a run: the rows that `docs/generate/dashboards.py` draws, as JSON.

    PYTHONPATH=tests .venv/bin/python -m bench.dashboard --seconds 180

A pipeline with two scorers on four simulated nodes, under a load that comes in waves, with pods that fit nowhere. A
real Prometheus scrapes it and evaluates each panel's queries over the run.
"""

from __future__ import annotations

import asyncio
import json
import math
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from harness.worlds.monitored_pipeline import Monitored, monitored_pipeline

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "deploy/compose/grafana/dashboards/berth.json"
OUT = ROOT / "docs/performance/dashboard.json"
ROWS = 2  # of graphs
STEP_SECONDS = 3
WAVE_SECONDS = 45


async def measure(seconds: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        async with monitored_pipeline(Path(folder)) as made:
            begin = time.time()
            await load(made, seconds)
            end = time.time()
            panels = [{**place(panel), "series": await series(made, panel, begin, end)} for panel in shown()]
    return {"seconds": seconds, "step": STEP_SECONDS, "panels": panels}


async def load(made: Monitored, seconds: int) -> None:
    """Waves of pods that are bound, and some that wait."""
    seen, begin = made.seen, time.monotonic()
    await seen.create([seen.pod(f"large-{number}", cpu="64", spec={"nodeSelector": {}}) for number in range(3)])
    number = 0
    while (passed := time.monotonic() - begin) < seconds:
        pods = round(6 + 5 * math.sin(2 * math.pi * passed / WAVE_SECONDS))
        names = [f"web-{number + each}" for each in range(pods)]
        await seen.create([seen.pod(name, cpu="1m", memory="1Mi", spec={"nodeSelector": {}}) for name in names])
        number += pods
        await asyncio.sleep(1)


def shown() -> Iterator[dict[str, Any]]:
    """The single numbers, and the graphs of the first rows."""
    rows = 0
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        rows += panel["type"] == "row"
        if rows > ROWS:
            return
        yield panel


def place(panel: dict[str, Any]) -> dict[str, Any]:
    defaults = panel.get("fieldConfig", {}).get("defaults", {})
    named = {
        "title": panel["title"],
        "type": panel["type"],
        "place": panel["gridPos"],
        "unit": defaults.get("unit", ""),
    }
    return {**named, "steps": defaults.get("thresholds", {}).get("steps", [])}


async def series(made: Monitored, panel: dict[str, Any], begin: float, end: float) -> dict[str, list[float | None]]:
    """The values of each line by its legend, one every step."""
    found = {}
    for target in panel.get("targets", ()):
        query = target["expr"].replace("$__rate_interval", "20s").replace("$job", "berth")
        params = {"query": query, "start": f"{begin}", "end": f"{end}", "step": f"{STEP_SECONDS}"}
        for row in (await made.ask_range(**params))["data"]["result"]:
            legend = target["legendFormat"]
            for label, value in row["metric"].items():
                legend = legend.replace(f"{{{{{label}}}}}", value)
            values = {round((at - begin) / STEP_SECONDS): float(value) for at, value in row["values"]}
            found[legend] = [rounded(values.get(each)) for each in range(int((end - begin) / STEP_SECONDS) + 1)]
    return found


def rounded(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.3g}")


def main(seconds: Annotated[int, typer.Option(help="Length of the run.")] = 180) -> None:
    """Run, ask, and write the file that the picture is drawn from."""
    OUT.write_text(json.dumps(asyncio.run(measure(seconds)), separators=(",", ":")) + "\n")


if __name__ == "__main__":
    typer.run(main)
