"""Who has no credential of the bus and does harm through the API server: the kubelet of one node, and a tenant."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final

from berth_sim.apiserver.kinds import NODES, PODS
from berth_sim.apiserver.resources import DeleteOptions
from berth_sim.nodes import node_manifest, pod_manifest
from simulation.world import World

EVIL: Final = "evil"
ODD_PODS: Final = ("9223372036854775807", "1e30", "0", "18446744073709551616")
ODD_AMOUNTS: Final = ("9223372036854775807", "1e30", "4", "0")
NAMES_AT_ONCE: Final = 60
"""Resources that nobody has, in one status or one pod."""
LARGE_BYTES: Final = 50_000


class Intruder:
    """Acts every second until ``end``, which takes back what the API server still has of it."""

    def __init__(self, world: World, chance: random.Random) -> None:
        self._world = world
        self._chance = chance
        self._resources = world.api.resources
        self._made: list[tuple[str, str]] = []
        self._number = 0
        self._is_over = False

    def begin(self, kind: str) -> Callable[[], None]:
        """Be a ``kubelet`` or a ``tenant``; returns what ends it."""
        act, end = (self._report, self._leave) if kind == "kubelet" else (self._place, self._clean)
        self._again(act)

        def end_all() -> None:
            self._is_over = True
            end()

        return end_all

    def _again(self, act: Callable[[], None]) -> None:
        if not self._is_over:
            act()
            self._world.in_world(self._again, act, after=self._chance.uniform(0.2, 2.0))

    # --- a kubelet

    def _report(self) -> None:
        """A node of absurd size, with other resources each time."""
        manifest = node_manifest(
            EVIL, cpu=self._chance.choice(ODD_AMOUNTS), memory="8Gi", pods=4, zone="zone-a", taints=[]
        )
        allocatable = {**manifest["status"]["allocatable"], "pods": self._chance.choice(ODD_PODS), **self._odd_names()}
        manifest["status"] = {**manifest["status"], "allocatable": allocatable}
        stored = self._world.api.store.table(NODES).items.get(("", EVIL))
        if stored is None:
            self._resources.create(NODES, "", manifest)
        else:
            self._resources.update(NODES, stored, {**stored.value, "status": manifest["status"]}, "status")

    def _leave(self) -> None:
        store = self._resources.store
        if ("", EVIL) in self._world.api.store.table(NODES).items:
            store.remove(NODES, ("", EVIL))
        for pod in list(self._world.api.store.table(PODS).in_order()):
            if pod.value["spec"].get("nodeName") == EVIL:
                store.remove(PODS, pod.key)

    # --- a tenant

    def _place(self) -> None:
        """Pods on a node, named in their specs, that request what nobody has and are large; former ones are deleted."""
        self._clean()
        nodes = [stored.key[1] for stored in self._world.api.store.table(NODES).in_order()]
        for _ in range(self._chance.choice((1, 4)) if nodes else 0):
            self._number += 1
            name = f"odd-{self._number}-{self._chance.randrange(10**6)}"
            labels = {f"note-{number:04}": "x" * 44 for number in range(LARGE_BYTES // 59)}
            manifest = pod_manifest(
                name, cpu="0", memory="0", labels=labels, scheduler="other", priority_class="", spec={}
            )
            manifest["spec"]["nodeName"] = self._chance.choice(nodes)
            manifest["spec"]["containers"][0]["resources"]["requests"].update(self._odd_names())
            self._made.append(("default", name))
            self._resources.create(PODS, "default", manifest)

    def _clean(self) -> None:
        for key in self._made:
            if key in self._world.api.store.table(PODS).items:
                self._resources.delete(PODS, key, DeleteOptions(grace_seconds=0))
        self._made.clear()

    def _odd_names(self) -> dict[str, Any]:
        return {f"example.com/r-{self._chance.randrange(10**9)}": "1" for _ in range(NAMES_AT_ONCE)}
