"""The site of docs/ (mkdocs.yml, `make docs`) has every page, and no page that is not there."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
NAVIGATION = re.search(r"^nav:\n(.*?)^\S", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE | re.DOTALL)
ENTRY = re.compile(r"(\S+\.md|\S+/\*)$", re.MULTILINE)
OF_THE_ROOT = {"ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"}
"""Those that docs/generate/links.py puts on the site."""


def listed() -> list[str]:
    assert NAVIGATION is not None
    return ENTRY.findall(NAVIGATION[1])


def pages(entry: str) -> set[str]:
    """The pages of an entry; `folder/*` is every page of a folder."""
    found = DOCS.glob(f"{entry}.md") if entry.endswith("/*") else [DOCS / entry]
    return {page.relative_to(DOCS).as_posix() for page in found}


def test_every_page_is_in_the_navigation_once():
    there = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")} | OF_THE_ROOT
    seen = [page for entry in listed() for page in sorted(pages(entry))]
    assert sorted(there) == sorted(seen), "name a new page in the nav of mkdocs.yml"


def test_the_navigation_has_the_four_kinds_of_pages():
    assert NAVIGATION is not None
    kinds = re.findall(r"^  - ([\w ]+):", NAVIGATION[1], re.MULTILINE)
    assert kinds == ["Home", "Tutorial", "How to", "Reference", "Explanation"]


def test_every_alert_is_on_the_page_of_metrics_and_alerts():
    rules = yaml.safe_load((ROOT / "deploy/compose/prometheus/rules/berth.yml").read_text())
    alerts = {rule["alert"] for group in rules["groups"] for rule in group["rules"] if "alert" in rule}
    page = (DOCS / "metrics.md").read_text()
    assert {name for name in alerts if f"| [{name}](runbooks/{name}.md) |" not in page} == set()
