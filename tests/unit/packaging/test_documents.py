"""Documents name modules, files and sections that exist."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "services").glob("*/README.md")])
SOURCES = sorted([*(ROOT / "shared").glob("*/src/**/*.py"), *(ROOT / "services").glob("*/src/**/*.py")])
OURS = re.compile(r"`(berth(?:_[a-z]+)*(?:\.[a-z_0-9]+)+(?:\.[A-Za-z_]+)*)`")
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]*))?\)")
SUBJECT = re.compile(r"berth\.(pending|ranked|decision|dead|service|yaml)\b|berth\.[\w.]*\.(yaml|yml|json)$")
"""NATS subjects and files, which look like modules."""
PATH = re.compile(r"`((?:tests|shared|services|docs|deploy|\.ci)/[\w./-]+)`")
DECISION = re.compile(r"\bdocs/adr/(\d{4}(?:-[a-z0-9-]+(?:\.md)?)?)|\bADR (\d+)")
CITED = re.compile(r"docs/(protocol|design)\.md, (\d+(?:\.\d+)?)")


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def is_there(name: str) -> bool:
    """A module, or an attribute of one."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        try:
            for part in parts[length:]:
                found = getattr(found, part)
        except AttributeError:
            return False
        return True
    return False


def anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("page", [p for p in PAGES if "adr" not in p.parts and p.name != "CHANGELOG.md"], ids=named)
def test_modules_that_a_page_names_exist(page):
    names = {name for name in OURS.findall(page.read_text()) if not SUBJECT.match(name)}
    assert [name for name in sorted(names) if not is_there(name)] == []


@pytest.mark.parametrize("page", [p for p in PAGES if "adr" not in p.parts and p.name != "CHANGELOG.md"], ids=named)
def test_files_that_a_page_names_exist(page):
    assert [path for path in PATH.findall(page.read_text()) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_of_a_page_have_a_target(page):
    broken = []
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for path, section in LINK.findall(prose):
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            broken.append(path)
        elif section and target.suffix == ".md":
            headings = re.findall(r"^#+ (.*)$", target.read_text(), flags=re.MULTILINE)
            if section not in {anchor(heading) for heading in headings}:
                broken.append(f"{path}#{section}")
    assert broken == []


def test_rules_that_the_code_cites_are_written_down():
    sections = {
        page: set(re.findall(r"^## (\d+)\.", (ROOT / f"docs/{page}.md").read_text(), flags=re.MULTILINE))
        for page in ("protocol", "design")
    }
    rules = (ROOT / "docs/protocol.md").read_text()
    sections["protocol"] |= set(re.findall(r"^(\d+\.\d+)\. ", rules, flags=re.MULTILINE))
    promises = set(re.findall(r"^(\d+)\. ", (ROOT / "docs/design.md").read_text(), flags=re.MULTILINE))
    sections["design"] |= {f"3.{number}" for number in promises}
    cited = {match for path in SOURCES for match in CITED.findall(path.read_text())}
    assert cited
    assert [f"{page} {section}" for page, section in sorted(cited) if section not in sections[page]] == []


def test_decisions_that_the_code_cites_exist():
    decisions = {path.name for path in (ROOT / "docs/adr").glob("*.md")}
    cited = {name or f"{int(number):04}" for path in SOURCES for name, number in DECISION.findall(path.read_text())}
    assert cited
    assert [name for name in sorted(cited) if not any(decision.startswith(name) for decision in decisions)] == []
