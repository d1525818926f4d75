"""docs/schemas/README.md explains every field of RANKED, and only those."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from berth.messages.attempts import Candidate, Ranked

PAGE = (Path(__file__).parents[3] / "docs/schemas/README.md").read_text()
TABLES = PAGE.split("\n## The fields of RANKED\n")[1].split("\n| of a candidate | means |\n")


def first_column(table: str) -> list[str]:
    rows = re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE)
    return sorted(name for row in rows for name in re.findall(r"`(\w+)`", row))


def test_the_table_has_the_fields_of_the_message():
    assert first_column(TABLES[0]) == sorted(field.encode_name for field in msgspec.structs.fields(Ranked))


def test_the_table_of_candidates_has_theirs():
    assert first_column(TABLES[1]) == sorted(field.encode_name for field in msgspec.structs.fields(Candidate))
