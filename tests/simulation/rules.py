"""Rules of docs/protocol.md that show in messages, in consumers, and in requests of who may not send any.

An outcome that is wrong may need several faults at once. That a rule is broken shows at the first occasion.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import msgspec

from berth.bus.interface import PubAck
from berth.bus.topology import CLUSTER, CONTROL, DECISIONS, PENDING, RANKED, bucket_prefix, bucket_stream
from berth.messages.attempts import Positions
from berth_sim.apiserver.kinds import LEASES, NODES, PODS, Route
from simulation.api import ApiRequest
from simulation.devices import CLAIMS, users_of
from simulation.loop import SimulatedProcess
from simulation.truth import simulated
from simulation.world import World

POSITION_WAIT_SECONDS: Final = 1.0
WAITING_SECONDS: Final = 11.0
"""``waiting`` is repeated every 10 s."""
LOST_SECONDS: Final = 60.0
"""For so long after a loss of messages, requests of their attempts may arrive."""


class _Plan(msgspec.Struct, frozen=True):
    error: str = ""


class _Message(msgspec.Struct):
    attempt: str = ""
    after: Positions = Positions()
    positions: Positions = Positions()
    error: str = ""
    plan: _Plan = _Plan()
    """Of a group."""
    outcome: str = ""
    resource_versions: dict[str, str] = {}


class Rules:
    """Watches one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._numbers: dict[str, int] = {}
        """By role, the highest number of a leadership. It outlives the store."""
        self._is_wiped = False
        self._epochs: dict[str, int] = {}
        """By process, the binder's epoch."""
        self._nodes: dict[int, dict[str, str]] = {}
        """By term, the nodes that the watcher had been shown when it began: name and uid."""
        self._created: dict[str, int] = {}
        """By uid of a node, the revision at which it was created."""
        self._asked: dict[str, tuple[float, Positions]] = {}
        """By attempt, when PENDING was stored, and the positions that a scorer must reach."""
        self._waiting: dict[str, float] = {}
        """By attempt, when its last ``waiting`` was stored."""
        self._revisions: dict[str, set[int]] = {}
        """By kind, the revisions at which an object was written or deleted."""
        for kind in world.read_kinds:
            table = world.api.store.table(simulated(kind))
            self._revisions[kind.name] = {stored.revision for stored in table.in_order()}
            table.listeners[partial(self._on_change, kind.name)] = None
        world.api.store.table(NODES).listeners[self._on_node] = None
        world.bus.on_stored.append(self._on_stored)
        world.bus.on_wiped.append(self._on_wiped)
        world.bus.on_consumer_deleted.append(self._on_consumer_deleted)
        world.bus.on_delivered.append(self._on_delivered)
        world.api.on_sending.append(self._on_sending)
        self._claims = ClaimRules(world)

    def _on_change(self, kind: str, change: Any) -> None:
        self._revisions[kind].add(change.revision)

    def _on_node(self, change: Any) -> None:
        if change.before is None:
            self._created[change.after.value["metadata"]["uid"]] = change.revision

    def _on_wiped(self) -> None:
        self._is_wiped = True
        self._nodes.clear()
        self._asked.clear()

    def _on_stored(self, subject: str, data: bytes, _headers: Mapping[str, str], ack: PubAck) -> None:
        if ack.duplicate:
            return
        if subject.startswith(TERMS):
            self._on_number(subject.removeprefix(TERMS), data)
        elif ack.stream in (PENDING, RANKED, DECISIONS):
            message = _decoded(data)
            if message is not None and message.attempt:
                {PENDING: self._on_pending, RANKED: self._on_ranked, DECISIONS: self._on_decision}[ack.stream](message)

    # --- 1: numbers never come again

    def _on_number(self, role: str, data: bytes) -> None:
        number = int(data)
        is_forgotten = self._is_wiped and self._world.is_meddled  # the Lease had the other copy
        if number <= self._numbers.get(role, 0) and not is_forgotten:
            self._world.problem(f"the {role} takes number {number}, and {self._numbers[role]} was taken before")
        self._numbers[role] = number
        if role == "watcher":
            stored, shown = self._world.api.store.table(NODES).in_order(), self._shown(NODES.plural)
            nodes = {each.key[1]: each.value["metadata"]["uid"] for each in stored}
            self._nodes[number] = {name: uid for name, uid in nodes.items() if self._created.get(uid, 0) <= shown}
        elif self._world.bus.serving is not None:
            self._epochs[self._world.bus.serving.name] = number

    def _shown(self, plural: str) -> int:
        """Up to which revision the API server has shown objects to the process whose request NATS carries out."""
        process = self._world.bus.serving
        client = self._world.client_of(process) if process is not None else None
        return client.seen.get(plural, 0) if client is not None else 0

    # --- 3: first the mirror, then the queue; 4: positions are awaited

    def _on_pending(self, message: _Message) -> None:
        self._asked.setdefault(message.attempt, (self._world.now, message.after))
        nodes = self._nodes.pop(int(message.attempt.split(".")[1]), {})
        bucket = self._world.bus._store._streams[bucket_stream(CLUSTER)]
        for name, uid in nodes.items():
            there = self._world.api.store.table(NODES).items.get(("", name))
            mirrored = bucket.last(f"{bucket_prefix(CLUSTER)}node.{name}")
            if there is not None and there.value["metadata"]["uid"] == uid and not (mirrored and mirrored.data):
                self._world.problem(f"attempt {message.attempt} is published, and the mirror lacks node {name}")

    def _on_ranked(self, message: _Message) -> None:
        at, after = self._asked.pop(message.attempt, (0.0, Positions()))
        if message.attempt in self._world.stolen:
            return
        if (
            message.error
            or message.plan.error
            or self._world.now - at >= POSITION_WAIT_SECONDS
            or message.positions.covers(after)
        ):
            return
        self._world.problem(
            f"attempt {message.attempt} is ranked at {message.positions}, {self._world.now - at:.3f} s after it was "
            f"asked for at {after}"
        )

    # --- 3: what a conflict waits for; 5: ``waiting`` is repeated

    def _on_decision(self, message: _Message) -> None:
        if message.outcome == "conflict":
            for kind, version in message.resource_versions.items():
                if int(version) not in self._revisions.get(kind, ()):
                    self._world.problem(f"a conflict waits for {kind} {version}, which is of no object or event")
        before = self._waiting.pop(message.attempt, self._world.now)
        if self._world.is_calm and self._world.now - before > WAITING_SECONDS:
            self._world.problem(f"nothing is said of {message.attempt} for {self._world.now - before:.1f} s: it waits")
        if message.outcome == "waiting":
            self._waiting[message.attempt] = self._world.now

    # --- 5: consumers, and the leader's clock

    def _on_consumer_deleted(self, process: SimulatedProcess, stream: str, consumer: str) -> None:
        own = self._epochs.get(process.name, 0)
        if stream == RANKED and int(consumer.removeprefix("binder-")) >= own:
            self._world.problem(f"{process.name} of epoch {own} deletes the consumer {consumer}")

    def _on_delivered(self, process: SimulatedProcess, stream: str, sequence: int, highest: int) -> None:
        if stream == RANKED and sequence < highest:
            self._world.problem(
                f"{process.name} gets message {sequence} of RANKED for the first time after message {highest}"
            )

    def _on_sending(self, process: SimulatedProcess, method: str, route: Route) -> None:
        is_final = route.subresource == "binding" or method == "DELETE"
        if route.kind is not PODS or not is_final or self._world.is_meddled:
            return
        for stored in self._world.api.store.table(LEASES).in_order():
            holder = (stored.value.get("spec") or {}).get("holderIdentity")
            if stored.key[1].endswith("-binder") and holder and holder != process.name:
                self._world.problem(f"{process.name} sends {method} for {route.name}, and {holder} leads")


class ClaimRules:
    """What a binder writes to claims is taken back before its Decision, and none of it lands later (ADR 67)."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._request: ApiRequest | None = None
        """The request that the API server carries out."""
        self._reserved: dict[tuple[str, str], str] = {}
        """By the uids of claim and pod that is not bound, the binder that has reserved it in its present leadership."""
        self._leads_since = 0.0
        self._lost_at = -LOST_SECONDS
        world.api.observers.append(self._on_request)
        world.api.answered.append(self._on_answer)
        world.api.store.table(CLAIMS).listeners[self._on_claim] = None
        world.api.store.table(PODS).listeners[self._on_pod] = None
        world.bus.on_stored.append(self._on_stored)
        world.bus.on_wiped.append(self._on_lost)
        world.bus.on_messages_lost.append(self._on_lost)

    def _on_lost(self) -> None:
        self._lost_at = self._world.now

    def _on_request(self, request: ApiRequest) -> None:
        self._request = request

    def _on_answer(self, *_: object) -> None:
        self._request = None

    def _on_claim(self, change: Any) -> None:
        request = self._request
        if request is None or request.route.kind is not CLAIMS or change.after is None:
            return
        uid = change.after.value["metadata"]["uid"]
        before = users_of(change.before.value) if change.before is not None else []
        for pod in users_of(change.after.value):
            if pod not in before:
                if request.sent_at >= self._leads_since:
                    self._reserved[uid, pod] = request.process.name
                self._check_late(change.key[1], pod)

    def _on_pod(self, change: Any) -> None:
        """A bound pod keeps its claims until it ends, and then a controller takes them."""
        if change.after is not None and change.after.value["spec"].get("nodeName"):
            uid = change.after.value["metadata"]["uid"]
            self._reserved = {(claim, pod): by for (claim, pod), by in self._reserved.items() if pod != uid}

    def _check_late(self, claim: str, pod: str) -> None:
        stream = self._world.bus._store._streams.get(RANKED)  # not there yet, soon after NATS has lost its store
        ranked = stream.all_after(0) if stream is not None else ()
        attempts = (message.attempt for each in ranked if (message := _decoded(each.data)) is not None)
        is_ranked = any(attempt.partition(".")[0] == pod for attempt in attempts)
        if not is_ranked and self._world.now - self._lost_at >= LOST_SECONDS:
            self._world.problem(f"claim {claim} is reserved for {pod}, about which RANKED has no message")

    def _on_stored(self, subject: str, data: bytes, _headers: Mapping[str, str], ack: PubAck) -> None:
        if subject == f"{TERMS}binder":
            self._reserved.clear()
            self._leads_since = self._world.api.loop.time()
        elif ack.stream == DECISIONS and not ack.duplicate and (message := _decoded(data)) is not None:
            self._check_released(message)

    def _check_released(self, decision: _Message) -> None:
        pod, process = decision.attempt.partition(".")[0], self._world.bus.serving
        if decision.outcome in ("bound", "waiting") or process is None:
            return
        for stored in self._world.api.store.table(CLAIMS).in_order():
            reserved_by = self._reserved.get((stored.value["metadata"]["uid"], pod))
            if pod in users_of(stored.value) and reserved_by == process.name:
                self._world.problem(
                    f"attempt {decision.attempt} is {decision.outcome}, and claim {stored.key[1]} is reserved for it"
                )


TERMS: Final = f"{bucket_prefix(CONTROL)}term."


def _decoded(data: bytes) -> _Message | None:
    try:
        return msgspec.json.decode(data, type=_Message)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None  # somebody's garbage
