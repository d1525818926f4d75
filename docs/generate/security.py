"""The table of docs/security.md that is made from docs/rights/berth.yaml: what is possible at the API server."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import yaml

RIGHTS = Path(__file__).parents[1] / "rights"


def rights_table() -> str:
    """A row for what an account may do in one place with the same verbs."""
    documents = list(yaml.safe_load_all((RIGHTS / "berth.yaml").read_text()))
    bound: dict[tuple[str, str], list[str]] = {}
    for each in documents:
        if each["kind"].endswith("Binding"):
            role = (each["roleRef"]["kind"], each["roleRef"]["name"])
            bound[role] = [f"`{subject['name']}`" for subject in each["subjects"]]
    of: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for each in documents:
        if each["kind"] in ("Role", "ClusterRole"):
            who = ", ".join(bound[each["kind"], each["metadata"]["name"]])
            where = f"namespace `{each['metadata']['namespace']}`" if each["kind"] == "Role" else "everywhere"
            for rule in each["rules"]:
                names = f" named {', '.join(rule['resourceNames'])}" if "resourceNames" in rule else ""
                of[who, where, ", ".join(rule["verbs"])].append(", ".join(rule["resources"]) + names)
    rows = [f"| {who} | {where} | {verbs} | {'; '.join(what)} |" for (who, where, verbs), what in of.items()]
    return "\n".join(["| ServiceAccount | where | may | of |", "|---|---|---|---|", *rows])


TABLES = {"rights": rights_table}


def with_tables(page: str) -> str:
    """The page with its tables made again; they stand between ``<!-- NAME -->`` and ``<!-- end -->``."""
    for name, table in TABLES.items():
        before, mark, rest = page.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        if not mark or not end:
            raise LookupError(f"writing the table {name!r}: want its place between two marks, got none")
        page = f"{before}{mark}\n{table()}\n\n{end}{after}"
    return page
