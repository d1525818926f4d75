"""The tables of docs/security.md, made from the declarations that the servers' configurations are made from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

import yaml

from berth_cli.pipeline.accounts import API, DOMAIN, User, publishes, subscribes, users

RIGHTS = Path(__file__).parents[1] / "rights" / "berth.yaml"


def bus_table() -> str:
    """A row for each user of NATS and each kind of subject."""
    rows = ["| user (account) | may | subjects |", "|---|---|---|"]
    for user in users():
        who = f"`{user.name}` ({user.account})"
        for may, subjects in _of(user):
            rows.append(f"| {who} | {may} | {', '.join(f'`{subject}`' for subject in subjects)} |")
            who = ""
    return "\n".join(rows)


def _of(user: User) -> Iterator[tuple[str, Iterable[str]]]:
    apis = (f"{API}.", f"$JS.{DOMAIN}.API.")
    sent = publishes(user)
    requests = [subject.removeprefix(api) for subject in sent for api in apis if subject.startswith(api)]
    yield "publish", [subject for subject in sent if not subject.startswith(apis)]
    yield "ask JetStream", list(_together(requests))
    yield "subscribe to", subscribes(user)


def _together(requests: list[str]) -> Iterator[str]:
    """``STREAM.INFO.{A, B}``: requests of one kind about several streams."""

    def kind(request: str) -> str:
        parts = request.split(".")
        return ".".join(parts[:2]) + ("" if parts[0] != "DIRECT" or not request.endswith(".>") else " of a subject")

    for _, group in groupby(sorted(requests, key=kind), kind):
        alike = list(group)
        verb = ".".join(alike[0].split(".")[:2])
        rest = sorted(request.removeprefix(f"{verb}.") for request in alike)
        yield f"{verb}.{{{', '.join(rest)}}}" if len(rest) > 1 else alike[0]


def rights_table() -> str:
    """A row for each rule of each role of the API server."""
    documents = list(yaml.safe_load_all(RIGHTS.read_text()))
    bound: dict[tuple[str, str], list[str]] = {}
    for each in documents:
        if each["kind"].endswith("Binding"):
            role = (each["roleRef"]["kind"], each["roleRef"]["name"])
            bound[role] = [f"`{subject['name']}`" for subject in each["subjects"]]
    rows = ["| ServiceAccount | where | may | of |", "|---|---|---|---|"]
    for each in documents:
        if each["kind"] in ("Role", "ClusterRole"):
            who = ", ".join(bound[each["kind"], each["metadata"]["name"]])
            where = f"namespace `{each['metadata']['namespace']}`" if each["kind"] == "Role" else "everywhere"
            for rule in each["rules"]:
                names = f" named {', '.join(rule['resourceNames'])}" if "resourceNames" in rule else ""
                rows.append(f"| {who} | {where} | {', '.join(rule['verbs'])} | {', '.join(rule['resources'])}{names} |")
    return "\n".join(rows)


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
