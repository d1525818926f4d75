"""The tables of docs/security.md, made from docs/rights: what is possible on the bus and at the API server."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import yaml

from berth_cli.pipeline.accounts import users

OWN_ACCOUNT = "its own account"
RIGHTS = Path(__file__).parents[1] / "rights"
METRICS_GROUP = "metrics.k8s.io"
METRICS_RIGHTS = Path(__file__).parents[2] / "deploy/kubernetes/components/metrics-api/rights.yaml"


def bus_table() -> str:
    """A row for each user of NATS, what it does, and where that ends."""
    table = yaml.safe_load((RIGHTS / "bus.yaml").read_text(encoding="utf-8"))
    rows = ["| user (account) | does | what | where that ends, comes from or is about |", "|---|---|---|---|"]
    shown: dict[int, str] = {}
    for user in users():
        who = f"`{user.name}` ({user.account})"
        for does, lines in table[user.name].items():
            if id(lines) in shown:  # an alias in the file
                rows.append(f"| {who} | {does} | the same as of `{shown[id(lines)]}` | |")
                continue
            shown[id(lines)], named = user.name, does
            of_ends = defaultdict(list)
            for what, ends in lines.items():
                of_ends[", ".join(ends)].append(f"`{what}`")
            for end, subjects in of_ends.items():
                rows.append(f"| {who} | {named} | {', '.join(subjects)} | {end or OWN_ACCOUNT} |")
                who = named = ""
    return "\n".join(rows)


def rights_table() -> str:
    """A row for what an account may do in one place with the same verbs."""
    files = (RIGHTS / "berth.yaml", METRICS_RIGHTS)
    documents = [each for file in files for each in yaml.safe_load_all(file.read_text())]
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
                group = f".{METRICS_GROUP}" if METRICS_GROUP in rule["apiGroups"] else ""  # its nodes are others
                resources = ", ".join(f"{resource}{group}" for resource in rule["resources"])
                of[who, where, ", ".join(rule["verbs"])].append(resources + names)
    rows = [f"| {who} | {where} | {verbs} | {'; '.join(what)} |" for (who, where, verbs), what in of.items()]
    return "\n".join(["| ServiceAccount | where | may | of |", "|---|---|---|---|", *rows])


TABLES = {"bus": bus_table, "rights": rights_table}


def with_tables(page: str) -> str:
    """The page with its tables made again; they stand between ``<!-- NAME -->`` and ``<!-- end -->``."""
    for name, table in TABLES.items():
        before, mark, rest = page.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        if not mark or not end:
            raise LookupError(f"writing the table {name!r}: want its place between two marks, got none")
        page = f"{before}{mark}\n{table()}\n\n{end}{after}"
    return page
