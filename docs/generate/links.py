"""What MkDocs does not do by itself: files outside of docs/ on the site, folders in the navigation, links to sources.

A hook of mkdocs.yml. Links stay written as a reader of the repository needs them.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).parents[2]
OF_THE_ROOT: Final = ("ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
"""Pages at the top of the repository that are on the site; README is its first page in other words."""
ELSEWHERE: Final = {"README.md": "docs/index.md"}
MARK: Final = "shared/cli/src/berth_cli/console/page/mark.svg"
"""The console's mark, also the site's logo."""
FOUND_LAST: Final = ("adr/", "CONTRIBUTING.md", "CHANGELOG.md", "ARCHITECTURE.md", "protocol.md")
"""Pages that the search shows after those for users."""
LINK: Final = re.compile(r"\[([^\]]*)\]\((?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]*)?\)")
FENCE: Final = re.compile(r"(^ *```.*?^ *```)", re.MULTILINE | re.DOTALL)


def on_config(config: MkDocsConfig) -> None:
    """Write the pages of ``folder/*`` into the navigation."""
    config.nav = _with_folders(config.nav, Path(config.docs_dir))


def _with_folders(entry: Any, docs: Path) -> Any:
    if isinstance(entry, list):
        return [_with_folders(each, docs) for each in entry]
    if isinstance(entry, dict):
        return {title: _with_folders(each, docs) for title, each in entry.items()}
    if not entry.endswith("/*"):
        return entry
    return sorted(page.relative_to(docs).as_posix() for page in docs.glob(f"{entry}.md"))


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the pages at the top of the repository, and the logo."""
    for name in OF_THE_ROOT:
        files.append(File.generated(config, name, content=(ROOT / name).read_text()))
    files.append(File.generated(config, "pictures/mark.svg", content=(ROOT / MARK).read_text()))


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Have links lead to where their targets are on the site; what is not on it is named by its path."""
    if page.file.src_uri.startswith(FOUND_LAST):
        page.meta["search"] = {"boost": 0.001}
    place = "" if page.file.src_uri in OF_THE_ROOT else "docs"
    folder = posixpath.join(place, posixpath.dirname(page.file.src_uri))

    def moved(link: re.Match[str]) -> str:
        text, target, section = link[1], posixpath.normpath(posixpath.join(folder, link[2])), link[3] or ""
        target = ELSEWHERE.get(target, target)
        if target in OF_THE_ROOT or (target.startswith("docs/") and (ROOT / target).is_file()):
            here = posixpath.relpath(target.removeprefix("docs/"), posixpath.dirname(page.file.src_uri) or ".")
            return f"[{text}]({here}{section})"
        if not (ROOT / target).exists():
            return link[0]  # MkDocs reports it
        return text if target in text else f"{text} (`{target}`)"

    parts = FENCE.split(markdown)
    return "".join(part if at % 2 else LINK.sub(moved, part) for at, part in enumerate(parts))
