"""The cost of a scheduling cycle for a pod with a ResourceClaim: CPU milliseconds, by what is known of its expression.

    make bench-devices ARGS="--nodes 5000 --devices 8"

Every device has twelve attributes, one of which no other device has. A cycle filters every node and scores with the
default profile, in one thread; a scorer takes other pods between the steps of `prepare`, so `longest step` is what
another pod waits at most. A figure is the CPU time of the process. CEL is loaded by the first class, as in a scorer,
from bytecode, as in the image.
"""

from __future__ import annotations

import compileall
import gc
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from time import process_time_ns
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from berth import cel
from berth.api.devices import (
    CelSelector,
    ClaimMeta,
    DeviceAttribute,
    DeviceCapacity,
    DeviceClaim,
    DeviceClass,
    DeviceClassSpec,
    DeviceConstraint,
    DeviceRequest,
    ExactDeviceRequest,
    ExpressionSelector,
    ResourceClaim,
    ResourceClaimSpec,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
    SliceDevice,
)
from berth.api.meta import ObjectMeta
from berth.api.pod import Pod, PodResourceClaim
from berth.cluster.snapshot import Snapshot
from berth.framework.cycle import rank
from berth.framework.profile import Profile
from berth.memory import keep_freed_memory
from berth.messages.subjects import Attempt, Term, Uid
from berth.ranking.proposals import Proposals
from harness.builders.objects import a_node, a_pod
from harness.builders.profiles import default_profile

DRIVER = "gpu.example.com"
CLASS = "gpu"
ATTRIBUTES = f'device.attributes["{DRIVER}"]'
SLICE = 10_000_000  # ns, as a core of a service
ENDLESS = 50  # nodes
MODELS = ("A100", "H100", "H200")
UNIQUE = f'{ATTRIBUTES}.uuid.startsWith("GPU-1")'


@dataclass
class Devices:
    """A cluster with devices, the default profile, and numbers for new claims."""

    snapshot: Snapshot
    profile: Profile
    numbers: Iterator[int]
    loading_ms: float  # of CPU, with the first class

    def claiming(self, expression: str) -> Pod:
        """A pod whose claim asks for one device with this expression."""
        name = f"train-{next(self.numbers)}"
        self._claim(name, ExactDeviceRequest(device_class_name=CLASS, selectors=[selector(expression)]))
        return a_pod(name, resource_claims=[PodResourceClaim(name="gpu", resource_claim_name=name)])

    def endless(self) -> Pod:
        """A pod that wants 41 of 40 devices which all differ: 847,660,528 ways to take the first thirty."""
        distinct = DeviceConstraint(distinct_attribute=f"{DRIVER}/uuid")
        self._claim("most", ExactDeviceRequest(device_class_name=CLASS, count=30), distinct)
        self._claim("rest", ExactDeviceRequest(device_class_name=CLASS, count=11))
        claims = [PodResourceClaim(name=name, resource_claim_name=name) for name in ("most", "rest")]
        return a_pod("endless", resource_claims=claims)

    def _claim(self, name: str, request: ExactDeviceRequest, *constraints: DeviceConstraint) -> None:
        devices = DeviceClaim(requests=[DeviceRequest(name="gpu", exactly=request)], constraints=list(constraints))
        metadata = ClaimMeta(name=name, namespace="default", uid=f"claim-{name}")
        claim = ResourceClaim(metadata=metadata, spec=ResourceClaimSpec(devices=devices))
        self.snapshot.objects(ResourceClaim).set(claim.metadata.uid, claim)

    def cycle(self, pod: Pod, *, fits: bool = True) -> tuple[float, float]:
        """CPU milliseconds of the pod's cycle with its preparation, and of the longest step."""
        steps, begun = [], process_time_ns()
        (plugin,) = self.profile.allocating
        while not plugin.prepare(pod, self.snapshot, _within(begun + SLICE)):
            steps.append(process_time_ns() - begun)
            begun = process_time_ns()
        ranking = rank(pod, self.snapshot, self.profile, attempt=Attempt(uid=Uid(pod.uid), term=Term(1), n=1))
        steps.append(process_time_ns() - begun)
        assert bool(ranking.feasible) is fits, ranking.message
        return sum(steps) / 1e6, max(steps) / 1e6


def _within(end: int) -> Callable[[], bool]:
    return lambda: process_time_ns() < end


def selector(expression: str) -> ExpressionSelector:
    return ExpressionSelector(cel=CelSelector(expression=expression))


def cluster(node_count: int, per_node: int) -> Devices:
    snapshot = Snapshot()
    Proposals(snapshot)  # as in a scorer: pools are made as slices are read, and the first class loads CEL
    begun = process_time_ns()
    snapshot.objects(DeviceClass).set(CLASS, device_class())
    loading = (process_time_ns() - begun) / 1e6
    for number in range(node_count):
        node = f"n{number}"
        snapshot.set_node(a_node(node, cpu="64"))
        snapshot.objects(ResourceSlice).set(node, resource_slice(node, number, per_node))
    return Devices(snapshot, default_profile(), count(), loading)


def device_class() -> DeviceClass:
    selectors = [selector(f'device.driver == "{DRIVER}"')]
    return DeviceClass(metadata=ObjectMeta(name=CLASS), spec=DeviceClassSpec(selectors=selectors))


def resource_slice(node: str, number: int, per_node: int) -> ResourceSlice:
    """The devices of a node, by its name and number."""
    devices = [_device(number, index) for index in range(per_node)]
    pool = ResourcePool(name=node, generation=1, resource_slice_count=1)
    spec = ResourceSliceSpec(driver=DRIVER, node_name=node, pool=pool, devices=devices)
    return ResourceSlice(metadata=ObjectMeta(name=node), spec=spec)


def _device(node: int, index: int) -> SliceDevice:
    common = {f"{DRIVER}/feature{n}": DeviceAttribute(string_value=f"v{n}") for n in range(8)}
    own = {
        "model": DeviceAttribute(string_value=MODELS[node % len(MODELS)]),
        "index": DeviceAttribute(int_value=index),
        "numa": DeviceAttribute(int_value=index // 4),
        "uuid": DeviceAttribute(string_value=f"GPU-{node}-{index}"),
    }
    return SliceDevice(name=f"gpu-{index}", attributes=common | own, capacity={"memory": DeviceCapacity(value="80Gi")})


def new_expressions(rounds: int) -> Iterator[str]:
    for number in range(rounds):
        yield (
            f'{ATTRIBUTES}.model == "H100" && {ATTRIBUTES}.numa >= 0 && '
            f'device.capacity["{DRIVER}"].memory.compareTo(quantity("{number + 1}Gi")) > 0'
        )


def main(
    nodes: Annotated[int, typer.Option(min=1, help="Number of nodes.")] = 5000,
    devices: Annotated[int, typer.Option(min=1, help="Devices of each node.")] = 8,
    rounds: Annotated[int, typer.Option(min=3, help="Measured runs per figure.")] = 10,
) -> None:
    """Measure and print a table."""
    compileall.compile_dir(Path(cel.__file__).parent, quiet=1)
    keep_freed_memory()
    made = cluster(nodes, devices)
    gc.freeze()  # as a service does: later collections skip the objects that exist at the start
    table = Table("expression", "median ms", "most ms", "longest step ms", title_justify="left")
    table.title = f"{nodes} nodes with {devices} devices each"
    known = f'{ATTRIBUTES}.model == "A100"'
    loading = f"{made.loading_ms:.1f}"
    table.add_row("none: the first class loads CEL", loading, loading, loading)
    for name, expressions in (
        ("the first of the process", [known]),
        ("new", list(new_expressions(rounds))),
        ("new, of an attribute that every device has for itself", [UNIQUE]),
        ("known", [known] * rounds),
    ):
        spent = [made.cycle(made.claiming(expression)) for expression in expressions]
        wholes, longest = [whole for whole, _ in spent], max(step for _, step in spent)
        table.add_row(name, f"{statistics.median(wholes):.1f}", f"{max(wholes):.1f}", f"{longest:.1f}")
    small = cluster(ENDLESS, 40)
    whole, longest = small.cycle(small.endless(), fits=False)
    table.add_row(f"no solution on {ENDLESS} nodes with 40 devices", f"{whole:.0f}", f"{whole:.0f}", f"{longest:.1f}")
    Console(highlight=False, soft_wrap=True).print(table)


if __name__ == "__main__":
    typer.run(main)
