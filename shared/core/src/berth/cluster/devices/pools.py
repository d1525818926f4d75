"""The device pools of the cluster, as ResourceSlices make them up, and the pools that a node can use.

A pool is identified by driver and name. Its slices of the highest generation count; a node uses the ones that are for
it. Slices with shared counters concern every node, as in kube-scheduler. From an incomplete or invalid pool no device
is given. The order of devices is kube-scheduler's: by driver, pool, name of the slice, place in the slice; pools with
binding conditions come last.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from fractions import Fraction
from itertools import chain
from typing import Final

from berth.api.devices import (
    DeviceAttribute,
    ResourceSlice,
    SharedAttributes,
    SliceDevice,
    device_key,
    slice_refusal,
)
from berth.api.node import Node
from berth.api.pod import NodeSelector
from berth.api.resources import exact_or_zero
from berth.api.selectors import NodeTerms, compile_node_selector
from berth.cel.values import Failed, Semver
from berth.cluster.devices.changes import Changes
from berth.cluster.objects import Objects
from berth.cluster.snapshot import Snapshot

Amount = int | Fraction
# (counter set, counter): the amount.
Counters = dict[tuple[str, str], Amount]
PoolKey = tuple[str, str]  # driver and pool
_NO_AMOUNTS: Final[Mapping[str, Amount]] = {}

_MOST_UNUSED: Final = 4096  # numbers of former devices, above as many as there are devices


# What PooledDevice.flags says of a device.
EXISTS: Final = 1
IS_ODD: Final = 2
IS_SHAREABLE: Final = 4
HAS_TAINTS: Final = 8
HAS_CAPACITY: Final = 16


class PooledDevice:
    """A device as its slice stands: a changed slice has other objects."""

    __slots__ = ("capacities", "consumes", "device", "driver", "index", "is_odd", "part", "terms")

    def __init__(self, device: SliceDevice, part: PooledSlice, index: int) -> None:
        self.device = device
        self.part = part
        self.index = index  # in its slice
        self.driver = part.pool[0]
        self.is_odd = any(map(_is_odd, (device.attributes or {}).values()))  # expressions fail on an odd attribute
        # The search reads them at each step, for shareable devices only.
        self.capacities: Mapping[str, Amount] = _NO_AMOUNTS
        if self.is_shareable:
            self.capacities = {name: exact_or_zero(each.value) for name, each in (device.capacity or {}).items()}
        self.terms = None if device.node_selector is None else compile_node_selector(device.node_selector)
        self.consumes: Counters | None = None
        if device.consumes_counters:
            self.consumes = {
                (consumption.counter_set, name): exact_or_zero(counter.value)
                for consumption in device.consumes_counters
                for name, counter in (consumption.counters or {}).items()
            }

    # Computed, because a text and an integer for each device are a tenth of its memory.

    @property
    def key(self) -> str:
        return device_key(self.driver, self.part.pool[1], self.device.name)

    @property
    def number(self) -> int:
        """Its place in tables of all devices, until they are numbered again."""
        return self.part.begin + self.index

    @property
    def is_shareable(self) -> bool:
        return bool(self.device.allow_multiple_allocations)

    @property
    def is_plain(self) -> bool:
        """Whether it is taken whole, takes nothing else, and is for every node of its slice."""
        return self.consumes is None and not self.is_shareable and not self.part.per_device

    @property
    def flags(self) -> int:
        device = self.device
        return (
            EXISTS
            | (IS_ODD if self.is_odd else 0)
            | (IS_SHAREABLE if self.is_shareable else 0)
            | (HAS_TAINTS if device.taints else 0)
            | (HAS_CAPACITY if device.capacity else 0)
        )

    def is_for(self, node: Node) -> bool:
        """Whether the device itself can be used from the node of its slice."""
        if not self.part.per_device:
            return True
        if self.device.node_name:
            return node.metadata.name == self.device.node_name
        if self.device.all_nodes or self.terms is None:
            return bool(self.device.all_nodes)
        return self.terms.matches(node.metadata.name, node.metadata.labels or {})


def _is_odd(attribute: DeviceAttribute) -> bool:
    """Whether the attribute has a type that this release does not know, or a version that is none."""
    if attribute.version_value is not None:
        return isinstance(Semver.parse(attribute.version_value), Failed)
    return attribute.typed is None


@dataclass(slots=True, eq=False)
class PooledSlice:
    """``begin``: the number of its first device; those of the others follow. ``count``: slices of its generation."""

    name: str
    pool: PoolKey
    generation: int
    count: int
    node: str | None
    selector: NodeSelector | None
    terms: NodeTerms | None
    all_nodes: bool
    per_device: bool
    devices: tuple[PooledDevice, ...]
    counters: tuple[tuple[str, dict[str, Amount]], ...]  # by set, in the slice's order
    begin: int
    problem: str = ""  # why the slice is left out; then it has no devices

    def is_for(self, node: Node | None) -> bool:
        """Whether it concerns the node; None stands for any node that the slice does not name."""
        if self.counters:
            return True
        if node is None:
            return self.all_nodes
        if self.node is not None:
            return node.metadata.name == self.node
        if self.all_nodes:
            return True
        if self.terms is not None:
            return self.terms.matches(node.metadata.name, node.metadata.labels or {})
        return self.per_device and any(each.is_for(node) for each in self.devices)


class PoolState(Enum):
    USABLE = "usable"
    INCOMPLETE = "being updated"
    INVALID = "invalid"


@dataclass(frozen=True, slots=True, eq=False)
class NodePool:
    """A pool as one node sees it. ``devices``: of the slices for the node; empty if it is not usable.

    ``is_shared``: one object for all nodes that see the same slices. ``is_plain``: a pool of single nodes, of whose
    devices none is shared or depends on others. ``problem``: of a slice that makes it incomplete.
    """

    key: PoolKey
    state: PoolState
    devices: tuple[PooledDevice, ...] = ()
    binds: bool = False  # some device has binding conditions
    is_shared: bool = False
    is_plain: bool = False
    problem: str = ""

    @property
    def text(self) -> str:
        return f"{self.key[0]}/{self.key[1]}"

    @property
    def numbers(self) -> Sequence[int]:
        """Those of its devices."""
        part = self.devices[0].part if self.devices else None
        if part is not None and part.devices is self.devices:
            return range(part.begin, part.begin + len(self.devices))
        return [device.number for device in self.devices]

    @property
    def trouble(self) -> str:
        """What people read of its state; empty if it is usable."""
        if self.problem:
            return f"incomplete ({self.problem})"
        return "" if self.state is PoolState.USABLE else self.state.value


class _Pool:
    """All slices of a pool."""

    __slots__ = ("_by_name", "_counters", "_view_of_all", "nodes", "slices", "views")

    def __init__(self) -> None:
        self.slices: dict[str, PooledSlice] = {}
        # By generation, computed on first use.
        self._counters: dict[int, Counters] | None = None
        self._by_name: dict[int, dict[str, PooledDevice]] | None = None
        # By the slices that a node sees; unused for pools of single nodes.
        self.views: dict[tuple[PooledSlice, ...], NodePool | None] | None = None
        # Of one slice of one node, as most pools are, because a new claim asks for the views of all nodes at once.
        self._view_of_all: NodePool | None = None
        self.nodes: frozenset[str] | None = frozenset()

    def update(self, key: PoolKey) -> None:
        """Forget what was computed, after a change of the slices."""
        self._counters = self._by_name = self.views = self._view_of_all = None
        names = {each.node for each in self.slices.values()}
        # The only nodes with its devices; None if slices are not for one node each.
        self.nodes = None if None in names else frozenset(name for name in names if name)
        if self.nodes is not None and len(self.slices) == 1:
            self._view_of_all = self._view(tuple(self.slices.values()), key)

    def seen_from(self, node: Node | None, key: PoolKey) -> NodePool | None:
        if self._view_of_all is not None and node is not None and node.metadata.name in (self.nodes or ()):
            return self._view_of_all
        relevant = tuple([each for each in self.slices.values() if each.is_for(node)])
        if not relevant:
            return None
        if self.nodes is not None:
            return self._view(relevant, key)
        if self.views is None:
            self.views = {}
        if relevant not in self.views:
            view = self._view(relevant, key)
            self.views[relevant] = None if view is None else replace(view, is_shared=True)
        return self.views[relevant]

    def _view(self, slices: tuple[PooledSlice, ...], key: PoolKey) -> NodePool | None:
        relevant: Sequence[PooledSlice] = slices
        newest = max(each.generation for each in relevant)
        relevant = sorted((each for each in relevant if each.generation == newest), key=lambda each: each.name)
        every = relevant
        if len(relevant) != relevant[0].count:
            if any(each.generation > newest for each in self.slices.values()):
                return None  # the driver is replacing the pool
            every = [each for each in self.slices.values() if each.generation == newest]
        # Slices that disagree on their number are a mistake of the driver.
        if any(each.count != relevant[0].count for each in every):
            return NodePool(key, PoolState.INVALID)
        problem = next((f"slice {each.name}: {each.problem}" for each in every if each.problem), "")
        if problem or len(every) != relevant[0].count:
            return NodePool(key, PoolState.INCOMPLETE, problem=problem)
        with_devices = [each.devices for each in relevant if each.devices]
        # Of one slice the tuple itself, since caches keep it for each node.
        devices = with_devices[0] if len(with_devices) == 1 else tuple(chain.from_iterable(with_devices))
        if not _are_valid(devices, every):
            return NodePool(key, PoolState.INVALID)
        binds = any(device.device.binding_conditions for device in devices)
        is_plain = self.nodes is not None and all(each.is_plain for each in devices)
        return NodePool(key, PoolState.USABLE, devices, binds, is_plain=is_plain)

    def counters_of(self, generation: int) -> Counters:
        if self._counters is None:
            self._counters = {}
        known = self._counters.get(generation)
        if known is None:
            known = self._counters[generation] = {
                (name, counter): amount
                for each in self._of(generation)
                for name, counters in each.counters
                for counter, amount in counters.items()
            }
        return known

    def named(self, generation: int) -> dict[str, PooledDevice]:
        if self._by_name is None:
            self._by_name = {}
        known = self._by_name.get(generation)
        if known is None:
            devices = (device for each in self._of(generation) for device in each.devices)
            known = self._by_name[generation] = {device.device.name: device for device in devices}
        return known

    def newest(self) -> int:
        return max(each.generation for each in self.slices.values())

    def _of(self, generation: int) -> list[PooledSlice]:
        return [each for each in self.slices.values() if each.generation == generation]


def _are_valid(devices: tuple[PooledDevice, ...], every: Iterable[PooledSlice]) -> bool:
    """Whether names of devices and counter sets are unique, and consumed counters exist."""
    if len({each.device.name for each in devices}) != len(devices):
        return False
    sets: dict[str, dict[str, Amount]] = {}
    consumers: list[PooledDevice] = []
    for part in every:
        for name, counters in part.counters:
            if name in sets:
                return False
            sets[name] = counters
        consumers += [each for each in part.devices if each.consumes]
    return all(
        consumption.counter_set in sets and (consumption.counters or {}).keys() <= sets[consumption.counter_set].keys()
        for each in consumers
        for consumption in each.device.consumes_counters or ()
    )


class DevicePools:
    """All pools, kept up to date with the ResourceSlices of a Snapshot.

    ``changes``: the nodes concerned by each change of slices; None for all nodes.
    """

    def __init__(self, slices: Objects[ResourceSlice]) -> None:
        self.changes = Changes[frozenset[str] | None]()
        self.refused: dict[str, str] = {}  # by slice, why it is left out
        self._pools: dict[PoolKey, _Pool] = {}
        self._on_node: dict[str, dict[PoolKey, None]] = {}
        self._shared: dict[PoolKey, None] = {}
        # Pools of single nodes with counters, in the state in which all other nodes see them; only if it matters.
        self._troubled: dict[PoolKey, NodePool] = {}
        self._parts: dict[str, PooledSlice] = {}
        self._devices = 0
        self.numbers = 0  # the next device's number
        self.by_number: list[PooledDevice | None] = []  # None: it is gone
        self.flags = bytearray()  # by number
        self.numbering = 0  # increases when all devices are numbered again
        slices.prepare = SharedAttributes()
        for each in slices:
            self._add(each)
        slices.follow(self._change)

    @classmethod
    def of(cls, snapshot: Snapshot) -> DevicePools:
        """The pools of a Snapshot, which live as long as it does."""
        return snapshot.derived("device pools", lambda: cls(snapshot.objects(ResourceSlice)))

    def seen_from(self, node: Node) -> list[NodePool]:
        """The node's pools in the order in which devices are given."""
        name = node.metadata.name
        local = self._on_node.get(name, {})
        keys = {**local, **self._shared} if self._shared else local
        views = [view for key in keys if (view := self._pools[key].seen_from(node, key)) is not None]
        views += [view for key, view in self._troubled.items() if key not in keys]
        if len(views) > 1:
            views.sort(key=lambda view: (view.binds, view.key))
        return views

    def nodes_of(self, key: PoolKey) -> frozenset[str] | None:
        """The only nodes with devices of the pool; None if there are others."""
        pool = self._pools.get(key)
        return None if pool is None else pool.nodes

    def counters_of(self, part: PooledSlice) -> Counters:
        """The counters that the slice's devices share with those of its pool, as if nothing were allocated."""
        return self._pools[part.pool].counters_of(part.generation)

    def device(self, key: PoolKey, name: str, generation: int | None = None) -> PooledDevice | None:
        """A device by name, of this generation if it has it, else of the newest."""
        pool = self._pools.get(key)
        if pool is None:
            return None
        found = None if generation is None else pool.named(generation).get(name)
        return found or pool.named(pool.newest()).get(name)

    def devices_of(self, key: PoolKey) -> Collection[PooledDevice]:
        """The pool's devices of the newest generation, whether they can be given or not."""
        pool = self._pools.get(key)
        return () if pool is None else pool.named(pool.newest()).values()

    def devices_in(self, key: PoolKey) -> Iterator[PooledDevice]:
        """The devices in all slices of the pool, of any generation."""
        pool = self._pools.get(key)
        return (device for part in (pool.slices.values() if pool is not None else ()) for device in part.devices)

    def __iter__(self) -> Iterator[PooledDevice]:
        return chain.from_iterable(map(self.devices_in, self._pools))

    def _change(self, before: ResourceSlice | None, now: ResourceSlice | None) -> None:
        nodes: frozenset[str] | None = frozenset()
        for each, act in ((before, self._remove), (now, self._add)):
            concerned = act(each) if each is not None else frozenset()
            if nodes is None or concerned is None:
                nodes = None
            else:  # of a new slice the set itself, which its pool keeps too
                nodes = nodes | concerned if nodes and concerned else nodes or concerned
        if nodes is None or nodes:
            self.changes.add(nodes)

    def _add(self, resource_slice: ResourceSlice) -> frozenset[str] | None:
        name = resource_slice.metadata.name
        problem = slice_refusal(resource_slice)
        if problem:
            self.refused[name] = problem
        part = self._parts[name] = _part_of(resource_slice, self.numbers, problem)
        self._devices += len(part.devices)
        self._number(part)
        if self.numbers > _MOST_UNUSED + 2 * self._devices:
            self._number_again()
        pool = self._pools.setdefault(part.pool, _Pool())
        pool.slices[name] = part
        if part.node is not None:
            self._on_node.setdefault(part.node, {})[part.pool] = None
        return self._refresh(part.pool, pool)

    def _remove(self, resource_slice: ResourceSlice) -> frozenset[str] | None:
        name = resource_slice.metadata.name
        self.refused.pop(name, None)
        part = self._parts.pop(name)
        self._devices -= len(part.devices)
        for device in part.devices:
            self.by_number[device.number] = None
            self.flags[device.number] = 0
        pool = self._pools[part.pool]
        concerned = pool.nodes
        del pool.slices[name]
        if part.node is not None and all(each.node != part.node for each in pool.slices.values()):
            local = self._on_node[part.node]
            del local[part.pool]
            if not local:
                del self._on_node[part.node]
        after = self._refresh(part.pool, pool)
        return None if concerned is None or after is None else concerned | after

    def _number(self, part: PooledSlice) -> None:
        self.by_number += part.devices
        self.flags += bytes([device.flags for device in part.devices])
        self.numbers += len(part.devices)

    def _number_again(self) -> None:
        self.numbering += 1
        self.numbers = 0
        self.by_number.clear()
        self.flags.clear()
        for part in self._parts.values():
            part.begin = self.numbers
            self._number(part)

    def _refresh(self, key: PoolKey, pool: _Pool) -> frozenset[str] | None:
        # Sort the pool in after a change of its slices. Returns the nodes that see the change.
        pool.update(key)
        if not pool.slices:
            del self._pools[key]
        nodes = pool.nodes
        if nodes is None:
            self._shared[key] = None
        else:
            self._shared.pop(key, None)
        before = self._troubled.pop(key, None)
        now = pool.seen_from(None, key) if nodes is not None else None
        if now is not None and now.state is not PoolState.USABLE:
            self._troubled[key] = now
        return nodes if _state(before) is _state(self._troubled.get(key)) else None


def _state(pool: NodePool | None) -> PoolState:
    return PoolState.USABLE if pool is None else pool.state


def _part_of(resource_slice: ResourceSlice, begin: int, problem: str) -> PooledSlice:
    spec = resource_slice.spec
    part = PooledSlice(
        name=resource_slice.metadata.name,
        pool=(spec.driver, spec.pool.name),
        generation=spec.pool.generation,
        count=spec.pool.resource_slice_count,
        node=spec.node_name or None,
        selector=spec.node_selector,
        terms=None if spec.node_selector is None else compile_node_selector(spec.node_selector),
        all_nodes=bool(spec.all_nodes),
        per_device=bool(spec.per_device_node_selection),
        devices=(),
        counters=tuple(
            (each.name, {name: exact_or_zero(counter.value) for name, counter in (each.counters or {}).items()})
            for each in (() if problem else spec.shared_counters or ())
        ),
        begin=begin,
        problem=problem,
    )
    listed = () if problem else spec.devices or ()
    part.devices = tuple([PooledDevice(device, part, i) for i, device in enumerate(listed)])
    return part
