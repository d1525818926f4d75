"""Rules of groups that show in messages and requests before an outcome is wrong (docs/protocol.md, 3.17 to 5.23)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from berth.api.pod import Pod, digest_of, priority_of
from berth.api.podgroups import Dialect, GroupKey, Members, group_of, is_scheduled
from berth.bus.interface import PubAck
from berth.bus.topology import CONTROL, DECISIONS, PENDING, RANKED, bucket_prefix
from berth.errors import DecodeError
from berth.messages.attempts import Outcome, Reason
from berth.messages.groupattempts import GROUP_SUBJECT, GroupPending, GroupRanked, decode_group
from berth_binder.core import FIRST_SECONDS, BinderCore
from berth_binder.takeover import FENCED_KEY
from berth_sim.apiserver.kinds import NODES, PODS, Route
from berth_watcher.core import WatcherCore
from berth_watcher.queue.groups import GroupEntry
from berth_watcher.queue.queuedpod import Stage, created_at
from simulation.api import ApiRequest
from simulation.groups import KINDS, GroupInvariants, cache_of, form_of
from simulation.loop import SimulatedProcess
from simulation.patches import true_time
from simulation.truth import decoded, truth_of
from simulation.world import World

FENCED: Final = f"{bucket_prefix(CONTROL)}{FENCED_KEY}"
MOST_CONFLICTS: Final = 3
"""In a row, of a group that nobody has changed: after the second it goes alone."""
BACKOFF_SECONDS: Final = 10.5
"""After which no group backs off any more."""
FIRST_BACKOFF_SECONDS: Final = 2.0
"""The same of one that has failed once."""
SOON_SECONDS: Final = 1.0
SETTLED_SECONDS: Final = 1.0
"""In which a watcher has published what is next, and its mirror has stored what is new."""
REPLACED_SECONDS: Final = 0.3
"""After a loss, in which only the loss can have woken another group: its room is left to the replacement for longer."""


class _Decision(msgspec.Struct):
    attempt: str = ""
    outcome: str = ""
    reason: str = ""


@dataclass
class _Known:
    """What is known of a group by its messages."""

    conflicts: int = 0
    conflicts_since: float = 0.0
    refused_at: float | None = None
    """When there was last no room for it."""
    failed_at: float | None = None
    """When its last attempt failed, after which it backed off."""
    is_first: bool = False
    """Whether its last attempt was a conflict, after which it goes first."""


class GroupRules:
    """Watches one world."""

    def __init__(self, world: World, invariants: GroupInvariants, schedulers: frozenset[str]) -> None:
        self._world = world
        self._invariants = invariants
        self._schedulers = schedulers
        self._attempts: set[str] = set()
        """All that were published."""
        self._in_flight: dict[str, str] = {}
        """By uid of a pod, the uid of the pod or PodGroup whose undecided attempt has it."""
        self._planned: dict[str, str] = {}
        """By uid of a member, its digest in the latest message of its group."""
        self._alone: set[str] = set()
        """Uids of pods that were published alone and not decided since, whatever group they have joined."""
        self._waiting: set[str] = set()
        """Of these, those that take no slot of the window any more."""
        self._known: dict[str, _Known] = {}
        """By uid of a PodGroup."""
        self._fenced_at: dict[str, float] = {}
        """By process, when it had fenced what former binders left."""
        self._fencer = ""
        self._begun: dict[str, GroupKey] = {}
        """By uid of a PodGroup: begun groups with a message in RANKED at the takeover that are not examined yet."""
        self._passed: dict[GroupKey, str] = {}
        """Of these, those before which another pod was bound, and the problem if they were examined after it.

        The Decision of one that was examined in vain is under way then.
        """
        self._go_first: set[GroupKey] = set()
        """All that were begun then: they go before everything else, in any order."""
        self._posts: dict[str, set[str]] = {}
        """By process, members whose Binding is on its way."""
        self._lost_at: dict[GroupKey, float] = {}
        """When a begun group last lost a member that its minimum needs."""
        self._were_whole: set[str] = set()
        """Uids of PodGroups whose minimum was bound at some time."""
        self._changed_at: dict[GroupKey, float] = {}
        """When a PodGroup or the pods that name it last were others."""
        self._room_at = 0.0
        """When a pod that nobody replaces last left its node, or a node changed."""
        world.api.store.table(NODES).listeners[self._on_node] = None
        world.bus.on_stored.append(self._on_stored)
        world.bus.on_wiped.append(self._on_lost)
        world.bus.on_messages_lost.append(self._on_lost)
        world.api.on_sending.append(self._on_sending)
        world.api.answered.append(self._on_answer)
        world.api.store.table(PODS).listeners[self._on_pod] = None
        for kind in KINDS.values():
            world.api.store.table(kind).listeners[self._on_group] = None

    def _on_lost(self) -> None:
        self._attempts.clear()
        self._in_flight.clear()
        self._begun.clear()
        self._passed.clear()

    # --- messages

    def _on_stored(self, subject: str, data: bytes, _headers: Mapping[str, str], ack: PubAck) -> None:
        if subject == FENCED:
            self._on_fenced()
        elif ack.duplicate:
            return
        elif ack.stream == PENDING and GROUP_SUBJECT in subject:
            if (pending := _decoded_group(data, GroupPending)) is not None:
                self._on_group_pending(pending)
        elif ack.stream == PENDING:
            attempt = _decision_in(data).attempt
            uid, _, number = attempt.partition(".")
            if self._world.is_calm:  # else it may be somebody's garbage
                self._check_number(attempt)
            self._publish(uid, uid)
            self._alone.add(uid)
            self._planned.pop(uid, None)
            if number.endswith(".1") and self._world.is_calm:
                self._check_passed_by(uid)
        elif ack.stream == DECISIONS:
            self._on_decision(_decision_in(data), is_group=GROUP_SUBJECT in subject)

    def _queue(self) -> Iterator[Any]:
        """What waits in the watcher that is being served, and for how many seconds it has been active."""
        process = self._world.bus.serving
        cores = [] if process is None else [part for part in process.parts if isinstance(part, WatcherCore)]
        for queued in cores[-1]._queue.pods() if process is not None and cores else ():
            if queued.stage is Stage.ACTIVE:
                yield queued, self._world.api.loop.time() + process.steady_offset - queued.active_since

    def _check_passed_by(self, uid: str) -> None:
        """A group at the head waits for its slots, and what came later and is not more important waits behind it."""
        pod = next((each for each in self._pods() if each.uid == uid), None)
        created = None if pod is None else created_at(pod)
        if pod is None or created is None:
            return
        age = (true_time() - created).total_seconds()
        for entry, waits in self._queue():
            is_behind = isinstance(entry, GroupEntry) and priority_of(pod) <= priority_of(entry.pod)
            if is_behind and waits > max(age, SETTLED_SECONDS):
                self._world.problem(f"{pod.key} came later than {entry.pod.key}, and is published before this group")

    def _on_group_pending(self, pending: GroupPending) -> None:
        uid, members = pending.group.uid, pending.bundle.members
        for member in members:
            self._check_number(f"{member.uid}.{pending.attempt.split('.')[1]}.{member.n}")
            self._publish(member.uid, uid)
            self._planned[member.uid] = member.digest
        if self._world.is_calm:
            self._check_window(pending)
        if self._world.is_calm and not pending.bound:
            self._check_rests(pending)
            self._check_order(pending)
        self._known.setdefault(uid, _Known()).is_first = False
        if not pending.error and len(members) < pending.need:
            self._world.problem(
                f"group {pending.group.key} is published with {len(members)} pods, and needs {pending.need}"
            )

    def _check_window(self, pending: GroupPending) -> None:
        """A group has a slot for each member, or nothing else is in flight."""
        process = self._world.bus.serving
        cores = [] if process is None else [part for part in process.parts if isinstance(part, WatcherCore)]
        there = {pod.uid for pod in self._pods() if not (pod.spec.node_name or pod.metadata.deletion_timestamp)}
        own = {pending.group.uid, *self._waiting}
        others = sum(uid in there and by not in own for uid, by in self._in_flight.items())
        if not cores or not others:
            return
        size = cores[-1]._attempts.window.sizes(cores[-1]._clock.now)[pending.profile]
        if others + len(pending.bundle.members) > size:
            self._world.problem(
                f"group {pending.group.key} of {len(pending.bundle.members)} goes beside {others} pods in flight, and "
                f"the window has {size} slots"
            )

    def _check_number(self, attempt: str) -> None:
        """A number of an attempt is not used again: also a member has one of its own in each message of its group."""
        if attempt in self._attempts:
            self._world.problem(f"attempt {attempt} is published twice")
        self._attempts.add(attempt)

    def _publish(self, pod: str, by: str) -> None:
        """Two messages about a pod would both be right."""
        before = self._in_flight.get(pod, by)
        if before != by and self._world.is_calm:
            self._world.problem(f"pod {pod} is published with {by}, and its attempt with {before} has not ended")
        self._in_flight[pod] = by

    def _on_decision(self, decision: _Decision, *, is_group: bool) -> None:
        uid = decision.attempt.partition(".")[0]
        if decision.outcome == Outcome.WAITING:
            self._waiting.add(uid)
        if decision.outcome == Outcome.WAITING or not decision.outcome:
            return
        self._waiting.discard(uid)
        self._alone.discard(uid)
        self._in_flight = {pod: by for pod, by in self._in_flight.items() if by != uid}
        if not is_group:
            return
        if (begun := self._begun.pop(uid, None)) is not None:
            self._passed.pop(begun, None)
        known = self._known.setdefault(uid, _Known())
        if decision.outcome in (Outcome.UNSCHEDULABLE, Outcome.BOUND):
            known.refused_at = self._world.now if decision.outcome == Outcome.UNSCHEDULABLE else None
        known.is_first = decision.outcome == Outcome.CONFLICT and decision.reason != Reason.PROPOSALS
        if not known.is_first:
            known.failed_at = self._world.now if decision.outcome != Outcome.BOUND else None
        self._check_held(uid, decision)
        self._count_conflict(uid, known, decision)

    def _check_held(self, uid: str, decision: _Decision) -> None:
        """What a binder has assumed for a group does not outlive its Decision."""
        process = self._world.bus.serving
        cache = None if process is None else cache_of(process)
        if process is None or cache is None:
            return
        cores = [part for part in process.parts if isinstance(part, BinderCore)]
        # A PodGroup that was made again has another uid, and the same members.
        former = {pod for each in cores[-1:] for other in each._groups if other.uid != uid for pod in other.members}
        held = [
            each.pod.key
            for each in cache.assumed_pods.values()
            if not each.is_bound
            and each.pod.uid not in self._alone
            and each.pod.uid not in former
            and (key := group_of(each.pod)) is not None
            and (group := cache.groups.get(key)) is not None
            and group.uid == uid
        ]
        if held:
            self._world.problem(f"{process.name} holds room for {', '.join(held)} after {decision.outcome} of {uid}")

    def _count_conflict(self, uid: str, known: _Known, decision: _Decision) -> None:
        if decision.outcome != Outcome.CONFLICT or decision.reason != Reason.NO_CANDIDATE:
            known.conflicts = 0
            return
        if not known.conflicts or self._invariants.last_act() > known.conflicts_since - 1.0:
            known.conflicts, known.conflicts_since = 0, self._world.now
        known.conflicts += 1
        if known.conflicts > MOST_CONFLICTS and self._world.is_calm:
            self._world.problem(f"group {uid} has lost its nodes to others {known.conflicts} times in a row")

    # --- what goes first

    def _check_rests(self, pending: GroupPending) -> None:
        """The rest of a begun group goes before a fresh one of its priority, once there is room for either."""
        truth = truth_of(self._world.api.store, kinds=self._world.read_kinds)
        for key, group in self._invariants.groups().items():
            refused_at = self._known.setdefault(group.uid, _Known()).refused_at
            has_waited = refused_at is not None and refused_at + BACKOFF_SECONDS < self._room_at
            if not has_waited or self._world.now - self._room_at > SOON_SECONDS:
                continue
            members = Members.of(self._invariants.pods_of(key), self._schedulers)
            is_asked = bool(self._in_flight.keys() & {pod.uid for pod in members.pending})
            is_rest = members.is_begun and members.wanted(group) > 0 and not is_asked
            if is_rest and members.priority(group) >= pending.priority and self._invariants.fits(group, members, truth):
                self._world.problem(f"group {pending.group.key} goes before the rest of {key}, which fits")

    def _check_order(self, pending: GroupPending) -> None:
        """Among equals that wait for slots begun groups go first, then those whose last attempt failed earlier."""
        known = self._known.setdefault(pending.group.uid, _Known())
        # Before one that has come since then it may have gone early.
        has_failed = known.failed_at is not None and max(self._changed_at.values(), default=0.0) < known.failed_at
        for entry, waits in self._queue():
            if not isinstance(entry, GroupEntry) or waits < SETTLED_SECONDS or known.is_first:
                continue
            key, before = entry.group.key, self._known.setdefault(entry.uid, _Known()).failed_at
            members = Members.of(self._invariants.pods_of(key), self._schedulers)
            if not members.pending or priority_of(entry.pod) != pending.priority:
                continue
            if members.is_begun:
                self._world.problem(f"group {pending.group.key} goes before its equal {key}, which is begun")
            elif has_failed and before is not None and self._changed_at.get(key, 0.0) < before < known.failed_at:
                self._world.problem(f"group {pending.group.key} goes before its equal {key}, which failed earlier")

    # --- takeovers

    def _on_fenced(self) -> None:
        process = self._world.bus.serving
        cache = None if process is None else cache_of(process)
        if process is None or cache is None:
            return
        self._fencer = process.name
        self._fenced_at[process.name] = self._world.api.loop.time()
        self._begun.clear()
        self._passed.clear()
        ranked = self._world.bus._store._streams[RANKED].all_after(0)
        for stored in ranked:
            message = _decoded_group(stored.data, GroupRanked) if GROUP_SUBJECT in stored.subject else None
            group = cache.groups.get(message.group.key) if message is not None else None
            if message is not None and group is not None and group.uid == message.group.uid:
                members = cache.members_of(group.key)
                if members.is_begun and members.need(group):
                    self._begun[group.uid] = group.key
        self._go_first = set(self._begun.values())

    def _on_sending(self, process: SimulatedProcess, method: str, route: Route) -> None:
        if method != "POST" or route.kind is not PODS or route.subresource != "binding":
            return
        stored = self._world.api.store.table(PODS).items.get(route.key)
        pod = None if stored is None else decoded(stored)
        if pod is None:
            return
        key = group_of(pod)
        if key is not None and self._in_flight.get(pod.uid) != pod.uid:
            self._count_post(process, pod)
        assumed = self._invariants.assumed(process) if self._begun else {}
        self._begun = {
            uid: begun
            for uid, begun in self._begun.items()
            if begun != key and not any(pod.uid in assumed for pod in self._invariants.pods_of(begun))
        }
        is_soon = self._world.api.loop.time() - self._fenced_at.get(process.name, 0.0) < FIRST_SECONDS
        if key is not None and key in self._passed:
            self._world.problem(self._passed.pop(key))
        is_due = process.name == self._fencer and key not in self._go_first
        if self._begun and is_soon and is_due and not self._world.is_meddled:
            for begun in self._begun.values():
                self._passed.setdefault(
                    begun, f"{process.name} sends the Binding of {pod.key} before it examines {begun}, which is begun"
                )

    # --- requests

    def _count_post(self, process: SimulatedProcess, pod: Pod) -> None:
        """A group leaves a quarter of the requests to others."""
        posts = self._posts.setdefault(process.name, set())
        posts.add(pod.uid)
        most = max(1, self._world.numbers.max_in_flight_bindings * 3 // 4)
        if self._world.is_calm and len(posts) > most:
            self._world.problem(f"{len(posts)} members have Bindings on their way, and an urgent pod would wait")

    def _on_answer(self, request: ApiRequest, response: Any) -> None:
        if request.route.kind is not PODS or request.route.subresource != "binding":
            return
        self._posts.get(request.process.name, set()).discard((request.body.get("metadata") or {}).get("uid"))
        if not request.is_dry and response.status == 201:
            self._check_epoch(request)

    def _check_epoch(self, request: ApiRequest) -> None:
        """No Binding of a former epoch completes or breaks what is planned later."""
        fenced_at = self._fenced_at.get(self._fencer, 0.0)
        is_former = request.process.name != self._fencer and request.sent_at < fenced_at
        if is_former and not self._world.is_meddled:
            self._world.problem(
                f"{request.process.name}'s Binding of {request.route.name} lands after {self._fencer} has taken over"
            )

    # --- objects

    def _on_pod(self, change: Any) -> None:
        before, after = (each.value if each is not None else None for each in (change.before, change.after))
        keys = {None if each is None else group_of(decoded(each)) for each in (change.before, change.after)}
        if len(keys) > 1:
            self._changed_at |= {key: self._world.now for key in keys if key is not None}
        self._note_whole(keys)
        was_bound = before is not None and _is_running(before)
        if was_bound and (after is None or not _is_running(after)):
            is_finished = after is not None and "deletionTimestamp" not in after["metadata"]
            self._on_left(decoded(change.before), is_lost=not is_finished)
        elif after is not None and not was_bound and after["spec"].get("nodeName"):
            if before is not None and not before["spec"].get("nodeName"):
                self._check_unchanged(decoded(change.before))
            self._on_bound(decoded(change.after))

    def _check_unchanged(self, waiting: Pod) -> None:
        """A member that has changed since it was planned is not bound by the plan."""
        if self._planned.get(waiting.uid) not in (None, digest_of(waiting)) and self._world.is_calm:
            self._world.problem(f"{waiting.key} has changed since its group was planned, and is bound by the plan")

    def _note_whole(self, keys: Iterable[GroupKey | None]) -> None:
        groups = self._invariants.groups()
        for group in (groups[key] for key in keys if key in groups):
            if group.uid not in self._were_whole:
                members = Members.of(self._invariants.pods_of(group.key), self._schedulers)
                self._were_whole |= {group.uid} if members.is_begun and not members.need(group) else set()

    def _on_left(self, pod: Pod, *, is_lost: bool) -> None:
        key = group_of(pod)
        group = None if key is None else self._invariants.groups().get(key)
        if key is None or group is None:
            self._room_at = self._world.now
            return
        members = Members.of(self._invariants.pods_of(key), self._schedulers)
        if is_lost and members.is_begun and members.need(group):
            self._lost_at[key] = self._world.now
        else:
            self._room_at = self._world.now

    def _on_bound(self, pod: Pod) -> None:
        """A fresh group does not take the room of a lost member before its replacement exists."""
        key = group_of(pod)
        group = None if key is None else self._invariants.groups().get(key)
        if group is None or not self._world.is_calm:
            return
        members = Members.of(self._invariants.pods_of(group.key), self._schedulers)
        refused_at = self._known.setdefault(group.uid, _Known()).refused_at
        changed_at = max(self._room_at, self._changed_at.get(group.key, 0.0))
        if len(members.bound) > 1 or refused_at is None or changed_at > refused_at:
            return
        for other, lost_at in self._lost_at.items():
            ago = self._world.now - lost_at
            if other != group.key and refused_at + FIRST_BACKOFF_SECONDS < lost_at and ago < REPLACED_SECONDS:
                self._world.problem(f"group {group.key} takes the room that {other} lost {ago:.3f} s ago")

    def _on_node(self, _change: Any) -> None:
        self._room_at = self._world.now

    def _on_group(self, change: Any) -> None:
        """A PodGroup counts as scheduled once its minimum is bound."""
        of_spec = [each.value.get("spec") for each in (change.before, change.after) if each is not None]
        if len(of_spec) == 1 or of_spec[0] != of_spec[1]:
            self._changed_at[form_of(change.before or change.after).key] = self._world.now
        if (
            change.after is None
            or change.after.kind is not KINDS[Dialect.UPSTREAM]
            or not is_scheduled(decoded(change.after))
        ):
            return
        if change.before is not None and is_scheduled(decoded(change.before)):
            return
        form = form_of(change.after)
        members = Members.of(self._invariants.pods_of(form.key), self._schedulers)
        if members.need(form) and form.uid not in self._were_whole and self._world.is_calm:
            self._world.problem(
                f"group {form.key} counts as scheduled with {len(members.bound)} of {form.minimum} bound"
            )

    def _pods(self) -> Iterator[Pod]:
        for stored in self._world.api.store.table(PODS).in_order():
            if (pod := decoded(stored)) is not None:
                yield pod


def _is_running(pod: Mapping[str, Any]) -> bool:
    is_there = pod["status"].get("phase") not in ("Succeeded", "Failed")
    return bool(pod["spec"].get("nodeName")) and is_there and "deletionTimestamp" not in pod["metadata"]


def _decoded_group(data: bytes, kind: Any) -> Any:
    try:
        return decode_group(data, kind)
    except DecodeError:
        return None  # somebody's garbage


def _decision_in(data: bytes) -> _Decision:
    try:
        return msgspec.json.decode(data, type=_Decision)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return _Decision()
