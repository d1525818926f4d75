"""One seed: which cluster, which services, which faults and when; then a quiet time, and the judgement at its end."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from berth_binder import apicalls
from simulation import patches
from simulation.cluster import ClusterUsers
from simulation.faults import FAULTS, Faults
from simulation.invariants import Invariants
from simulation.loop import TooManyStepsError
from simulation.world import World

WARM_UP_SECONDS: Final = 6.0
QUIET_SECONDS: Final = 60.0
"""Within which every pod that fits must be bound after the last fault."""
MOST_STEPS: Final = 400_000
SHORT_NAMES: Final = tuple(FAULTS)


@dataclass
class Result:
    """What a seed showed."""

    seed: int
    problems: list[str]
    faults: dict[str, int]
    users: dict[str, int]
    bindings: int
    evictions: int
    outcomes: dict[str, int]
    steps: int
    virtual_seconds: float
    cpu_seconds: float
    digest: str
    trace: list[str] = field(default_factory=list)


_current: list[tuple[World, Invariants | None]] = []


@contextlib.contextmanager
def simulating() -> Iterator[None]:
    """Replace what has to be replaced once for any number of seeds."""
    post, evict = apicalls.post_binding, apicalls.evict_pods

    async def post_binding(client: Any, effect: Any, *args: Any, **more: Any) -> Any:
        if (invariants := _current[0][1]) is not None:
            invariants.posting(effect.pod.uid, effect.node)
        return await post(client, effect, *args, **more)

    async def evict_pods(client: Any, effect: Any, *args: Any, **more: Any) -> Any:
        if (invariants := _current[0][1]) is not None:
            invariants.evicting(effect.pod, effect.node, list(effect.victims))
        return await evict(client, effect, *args, **more)

    def log(logger: Any, method: str, event: Any) -> Any:
        _current[0][0].log(logger, method, event)
        raise structlog.DropEvent

    apicalls.post_binding, apicalls.evict_pods = post_binding, evict_pods
    logging.disable(logging.CRITICAL)
    try:
        with patches.simulated(log):
            yield
    finally:
        apicalls.post_binding, apicalls.evict_pods = post, evict
        logging.disable(logging.NOTSET)


def run_seed(seed: int, *, keep_trace: bool = False) -> Result:
    """Run one seed. Call it inside ``simulating``."""
    began = time.process_time()
    world = World(seed, keep_trace=keep_trace)
    world.loop.most_steps = MOST_STEPS
    _current[:] = [(world, None)]
    script = Script(world)
    _current[:] = [(world, script.invariants)]
    try:
        script.run()
    except TooManyStepsError as error:
        world.problem(f"a service works without end: {error}")
    trace = [str(line) for line in world.trace]
    seconds, steps = world.now, world.loop.steps
    state = repr((steps, seconds, world.problems, script.invariants.bindings, world.api.store.revision))
    result = Result(
        seed=seed,
        problems=list(world.problems),
        faults=dict(world.network.faults),
        users=dict(script.users.counts),
        bindings=script.invariants.bindings,
        evictions=script.invariants.evictions,
        outcomes=dict(script.outcomes),
        steps=steps,
        virtual_seconds=seconds,
        cpu_seconds=0.0,
        digest=hashlib.blake2b(state.encode(), digest_size=8).hexdigest(),
        trace=trace,
    )
    world.close()
    result.cpu_seconds = time.process_time() - began
    return result


class Script:
    """The course of one run."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.chance = random.Random(world.chance.random())
        self.users = ClusterUsers(world, random.Random(world.chance.random()))
        self.faults = Faults(world, random.Random(world.chance.random()))
        self.invariants = Invariants(world, frozenset({"berth"}))
        self.outcomes: dict[str, int] = {}

    def run(self) -> None:
        chance, world = self.chance, self.world
        for _ in range(chance.randint(3, 8)):
            self.users.add_node()
        self.users.add_pods(chance.randint(0, 8))
        self._start_services()
        world.run_for(WARM_UP_SECONDS)
        self.users.add_pods(chance.randint(3, 12))
        last = self._plan()
        world.run_for(last + 0.1)
        world.run_for(max(0.0, self.faults.ends_at - world.now))
        self._quiet()

    def _start_services(self) -> None:
        chance = self.chance
        for role, count in (
            ("watcher", chance.choice((1, 2, 2))),
            ("binder", chance.choice((1, 2, 2))),
            ("scorer", chance.choice((1, 1, 2, 2, 3, 4, 8))),
        ):
            for _ in range(count):
                self._later(chance.uniform(0.0, 1.0), self.world.start, role)

    def _plan(self) -> float:
        """Faults and what users do, at random times; returns when the last of them begins."""
        chance, last = self.chance, 0.0
        for _ in range(chance.choice((0, 1, 1, 2, 3, 5))):
            at = chance.uniform(0.0, 25.0)
            self._later(at, self.faults.act, chance.choice(SHORT_NAMES))
            last = max(last, at)
        for _ in range(chance.choice((0, 5, 15))):
            at = chance.uniform(0.0, 25.0)
            self._later(at, self.users.act)
            last = max(last, at)
        return last

    def _later(self, seconds: float, act: Callable[..., object], *args: object) -> None:
        self.world.in_world(act, *args, after=seconds)

    def _quiet(self) -> None:
        """Nothing happens any more. The run is over when nothing is left to do, and too long after a minute."""
        deadline = self.world.now + QUIET_SECONDS
        while self.world.now < deadline:
            self.world.run_for(2.0)
            if not self.invariants.unsettled() and not self.invariants.could_be_bound():
                return
        for pod, node in self.invariants.could_be_bound().items():
            self.world.problem(f"{pod} is not bound a minute after the last fault, and fits on {node}")
        for message in self.invariants.unsettled():
            self.world.problem(f"a minute after the last fault nobody has settled {message}")
