"""The cost of planning a group: CPU milliseconds by kind and number of its members, and members a second.

    make bench-groups ARGS="--nodes 5000 --racks 50 --rounds 20"

The nodes are those of a busy cluster (`bench.population`), with ten pods each, dealt to racks. Each plan filters and
scores with the default profile, in one thread, and its members stay placed, as proposals do. `longest step` is what
another pod waits at most while a scorer plans. A figure is the CPU time of the process, so other load on the machine
has little effect. `ms a check` is the binder's check of the plan on its own state, up to all members being assumed.
Sending and binding are not part of it.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from time import process_time_ns
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from bench.cycle import apart, loaded_cluster, plain
from berth.api.meta import OwnerReference
from berth.api.pod import Pod
from berth.api.podgroups import Dialect, PodGroup, Topology
from berth.cluster.snapshot import Snapshot
from berth.framework.profile import Profile
from berth.groups.planner import plan
from berth.groups.question import GroupQuestion
from berth.lifecycle.process import keep_freed_memory
from berth.messages.groups import GroupPlan
from berth.messages.subjects import Attempt, Term, Uid
from berth_binder.cache import Cache
from berth_binder.decisions.groupcheck import GroupCheck, GroupPlacement

RACK = "topology.kubernetes.io/rack"
SIZES = (4, 100, 1000)
SLICE = 30_000_000  # ns, as a scorer's
NUMBERS = count(10**8)


@dataclass(frozen=True, kw_only=True)
class Case:
    name: str
    member: Callable[[int, int], Pod]  # from a number of its own and its place in the group
    topology: Topology | None = None
    fits: bool = True


def equal(number: int, _: int) -> Pod:
    return plain(number, "500m", "512Mi", app="gang")


def of_a_job(number: int, index: int) -> Pod:
    """A pod of an Indexed Job: an owner, and a label that no other pod has."""
    pod = plain(number, "500m", "512Mi", app="gang")
    owner = OwnerReference(api_version="batch/v1", kind="Job", name="train", uid="job", controller=True)
    labels = {"app": "gang", "batch.kubernetes.io/job-completion-index": str(index)}
    return msgspec.structs.replace(
        pod, metadata=msgspec.structs.replace(pod.metadata, labels=labels, owner_references=[owner])
    )


def of_three_roles(number: int, index: int) -> Pod:
    return plain(number, ("500m", "1", "2")[index % 3], "512Mi", app="gang")


def apart_by_host(number: int, _: int) -> Pod:
    return apart(number)


def too_large(number: int, _: int) -> Pod:
    return plain(number, "30", "1Gi", app="gang")


IN_A_RACK = Topology(key=RACK)
CASES = (
    Case(name="equal members in one rack", member=equal, topology=IN_A_RACK),
    Case(name="equal members anywhere", member=equal),
    Case(name="three roles in one rack", member=of_three_roles, topology=IN_A_RACK),
    Case(name="an Indexed Job in one rack", member=of_a_job, topology=IN_A_RACK),
    Case(name="apart by host, anywhere", member=apart_by_host),
    Case(name="fits no rack", member=too_large, topology=IN_A_RACK, fits=False),
)


def main(
    nodes: Annotated[int, typer.Option(help="Number of nodes.")] = 5000,
    racks: Annotated[int, typer.Option(help="Number of racks.")] = 50,
    rounds: Annotated[int, typer.Option(min=3, help="Measured plans per figure.")] = 20,
    only: Annotated[str, typer.Option(help="Cases with this word in their name.")] = "",
) -> None:
    """Measure and print a table. A slow result is not an error."""
    keep_freed_memory()
    cluster = loaded_cluster(nodes)
    for row in range(nodes):
        if (node := cluster.snapshot.node_at(row)) is not None:
            labels = {**(node.metadata.labels or {}), RACK: f"rack-{row % racks:02d}"}
            metadata = msgspec.structs.replace(node.metadata, labels=labels)
            cluster.snapshot.set_node(msgspec.structs.replace(node, metadata=metadata))
    gc.freeze()
    table = Table("group", "members", "ms a plan", "p90", "members/s", "longest step ms", "steps", "ms a check")
    for case in (case for case in CASES if only in case.name):
        for size in SIZES:
            measured = [_planned(case, size, cluster.snapshot, cluster.profile) for _ in range(rounds + 2)][2:]
            spent = [each.milliseconds for each in measured]
            median = statistics.median(spent)
            table.add_row(
                case.name,
                str(size),
                f"{median:.1f}",
                f"{statistics.quantiles(spent, n=10)[8]:.1f}",
                f"{size / median * 1000:,.0f}" if case.fits else "",
                f"{max(each.longest for each in measured):.1f}",
                str(measured[-1].plan.steps),
                f"{statistics.median(each.checked for each in measured):.1f}" if case.fits else "",
            )
    begun = process_time_ns()
    cluster.snapshot.copied()
    table.add_section()
    table.add_row("copy of the Snapshot", "", f"{(process_time_ns() - begun) / 1e6:.1f}")
    Console(highlight=False, soft_wrap=True).print(table)


@dataclass(frozen=True)
class Planned:
    plan: GroupPlan
    milliseconds: float
    longest: float
    checked: float


def _planned(case: Case, size: int, snapshot: Snapshot, profile: Profile) -> Planned:
    number = next(NUMBERS)
    group = PodGroup(
        dialect=Dialect.COSCHEDULING,
        namespace="default",
        name=f"gang-{number}",
        uid=f"gang-{number}",
        minimum=size,
        topology=case.topology,
    )
    members = [case.member(next(NUMBERS), index) for index in range(size)]
    attempt = Attempt(uid=Uid(group.uid), term=Term(1), n=1)
    question = GroupQuestion(group=group, attempt=attempt, members=members, need=size)
    begun = last = process_time_ns()
    longest = sliced = 0

    def may_continue() -> bool:
        nonlocal last, longest
        now = process_time_ns()
        longest, last = max(longest, now - last), now
        return now - sliced < SLICE

    sliced = begun
    planning = plan(question, snapshot, profile, may_continue=may_continue)
    while True:
        try:
            next(planning)
            sliced = last = process_time_ns()
        except StopIteration as end:
            found: GroupPlan = end.value
            break
    spent = process_time_ns() - begun
    assert found.is_found == case.fits, found.message or found.error
    assert not case.fits or len(found.members) == size
    return Planned(found, spent / 1e6, longest / 1e6, _checked(question, found, snapshot, profile))


def _checked(question: GroupQuestion, found: GroupPlan, snapshot: Snapshot, profile: Profile) -> float:
    """CPU milliseconds of the binder's check, whose assumed members are taken off again."""
    check = GroupCheck(cache=Cache(snapshot), profiles={"berth": profile})
    pods = {pod.uid: pod for pod in question.members}
    placement: object = None
    begun = process_time_ns()
    try:
        next(check.examine(found, question.group, pods, len(found.members), "berth"))
    except StopIteration as end:
        placement = end.value
    spent = process_time_ns() - begun
    for uid in pods:
        snapshot.remove_pod(uid)
    assert found.members == [] or (isinstance(placement, GroupPlacement) and len(placement.nodes) == len(found.members))
    return spent / 1e6


if __name__ == "__main__":
    typer.run(main)
