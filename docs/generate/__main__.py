"""Write generated files: tables of configuration.md and security.md, schemas, and the drawings in docs/pictures.

    .venv/bin/python docs/generate [FOLDER]

FOLDER has the results in place of docs/. A test compares them with what is committed.
"""

from __future__ import annotations

import sys
from pathlib import Path

import configuration
import dashboards
import flames
import plots
import schemas
import security

DOCS = Path(__file__).parents[1]


def main(folder: Path) -> None:
    """Write every file."""
    pages = {"configuration.md": configuration.with_tables, "security.md": security.with_tables}
    tables = {name: with_tables((DOCS / name).read_text()) for name, with_tables in pages.items()}
    made = {**tables, **schemas.files(), **plots.files(DOCS), **flames.files(DOCS), **dashboards.files(DOCS)}
    for name, text in made.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else DOCS)
