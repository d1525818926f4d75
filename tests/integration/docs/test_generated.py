"""What docs/generate makes from the sources is what is committed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs")
    subprocess.run([sys.executable, DOCS / "generate", folder], check=True, timeout=60)
    return folder


def test_pages_schemas_and_plots_are_those_of_the_sources(made: Path):
    names = sorted(path.relative_to(made).as_posix() for path in made.rglob("*") if path.is_file())
    assert names
    assert [name for name in names if (DOCS / name).read_text() != (made / name).read_text()] == [], (
        "run .venv/bin/python docs/generate"
    )


def test_every_schema_that_is_committed_is_made(made: Path):
    committed = {path.name for path in (DOCS / "schemas").glob("*.json")}
    assert committed == {path.name for path in (made / "schemas").glob("*.json")}


def test_a_field_has_the_sentences_of_its_class_and_of_the_parents(made: Path):
    types = json.loads((made / "schemas/ranked.json").read_text())["$defs"]
    meanings = {name: part["properties"] for name, part in types.items()}
    assert meanings["Candidate"]["loss"]["description"].startswith("`loss` are the points that one more equal")
    assert meanings["Ranked"]["weights"]["description"].startswith("`weights` are those by which")
    assert meanings["Received"]["expired"]["description"].startswith("`expired`: pods whose proposals expired")


def test_every_plot_that_is_committed_is_made(made: Path):
    committed = {path.name for path in (DOCS / "pictures").glob("scale-*.svg")}
    assert committed == {path.name for path in (made / "pictures").glob("scale-*.svg")}
    assert committed
