"""Writes the Grafana dashboards: `python deploy/compose/grafana/generate`, or into another folder that is named.

What a dashboard shows stands in one file each, a few lines a panel; the rest of what Grafana wants is the same for all
of them. A test holds the files that are committed to this program, and every query to a running pipeline.
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
    """Write every dashboard."""
    for dashboard in (PIPELINE, SCORERS, BANDWIDTH):
        text = json.dumps(rendered(dashboard), indent=2, ensure_ascii=False)
        (folder / f"{dashboard.uid}.json").write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
