"""Writes the Grafana dashboards: `python deploy/compose/grafana/generate [FOLDER]`.

Each dashboard has a module that lists its panels, a few lines per panel. `rendering` adds the JSON that is the same for
all of them. Tests check that the committed files are up to date, and that a running pipeline answers every query.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

from bandwidth import BANDWIDTH
from pipeline import PIPELINE
from rendering import rendered
from scorers import SCORERS

FOLDER: Final = Path(__file__).parents[1] / "dashboards"


def main(folder: Path) -> None:
    for dashboard in (PIPELINE, SCORERS, BANDWIDTH):
        text = json.dumps(rendered(dashboard), indent=2, ensure_ascii=False)
        (folder / f"{dashboard.uid}.json").write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
