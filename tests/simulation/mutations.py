"""The shipped code with one rule taken away: each must be found by the simulation within so many seeds.

A mutation replaces functions of the services and says where to look for it: which faults, which pods, how many
processes. What a seed finds is any broken invariant, so a table entry also says what went wrong.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from msgspec import structs

from berth.bus import stages
from berth.cluster import columns
from berth.cluster.devices import ledger
from berth.framework import cycle, filtering
from berth.framework import preemption as framework_preemption
from berth.framework.events import Resource
from berth.framework.plugincalls import ONE_TIME
from berth.framework.status import SUCCESS
from berth.kube import claims as claims_of_kube
from berth.kube import writes
from berth.leader import checks, session
from berth.leader.session import LeaderSession
from berth.messages.attempts import Outcome, Positions, Reason
from berth.plugins.volumes.volumebinding import plugin as volumebinding
from berth.ranking import proposals
from berth_binder import apicalls, takeover
from berth_binder import cache as binder_cache
from berth_binder import claims as claims_of_binder
from berth_binder.attempts import answers
from berth_binder.attempts import attempt as attempt_of_binder
from berth_binder.attempts import queue as queue_of_attempts
from berth_binder.attempts.pods import PodBinding
from berth_binder.core import BinderCore
from berth_binder.decisions import conflictcheck, preemption
from berth_binder.decisions.verdict import EvictionPlan, Verdict
from berth_binder.effects import AheadMessages
from berth_binder.events import Ack, PutOff
from berth_metrics_collector import samplestore
from berth_metrics_collector.samplestore import SampleStore
from berth_scorer import backlog as scorer_backlog
from berth_scorer import core as scorer_core
from berth_scorer import events as scorer_events
from berth_watcher import mirror, store
from berth_watcher.attempts import Attempts, InFlightWindow
from berth_watcher.queue import requeue
from berth_watcher.queue.requeue import Requeue
from berth_watcher.queue.schedulingqueue import Place, QueuePlugins
from berth_watcher.takeover import TakeoverState
from harness.fakes.memory_bus import MemoryStore
from simulation import faults
from simulation.faults import CLAIMS_LATE, CLAIMS_LOST, STREAM_LOST
from simulation.groupmutations import GROUP_MUTATIONS
from simulation.mutation import Mutation, Replacement
from simulation.simulate import ANOTHER_SCHEDULER, ATTACKS, DEVICES, LARGE_OBJECTS, VOLUMES, Focus

# --- preconditions and checks of the binder


def _no_uid() -> list[Replacement]:
    body = writes.binding_body

    def without(*, uid: str, **more: Any) -> bytes:
        return body(uid="", **more)

    return [(writes, "binding_body", without)]


def _no_recheck() -> list[Replacement]:
    def choose(self: Any, ranked: Any, attempt: Any, pod: Any, profile: Any) -> Any:
        return ranked.candidates[0].node

    return [(conflictcheck.NodeChoice, "choose", choose)]


def _no_fence() -> list[Replacement]:
    async def fence(self: Any) -> tuple[int, int]:
        await self._become_current()
        self.cache.forget_former_epochs()
        return 0, 0

    return [(takeover.Takeover, "_fence", fence)]


def _every_other_consumer() -> list[Replacement]:
    def former(names: Any, epoch: Any) -> list[str]:
        return [name for name in names if name != takeover.consumer_of(epoch)]

    return [(takeover, "former_consumers", former)]


def _old_consumer() -> list[Replacement]:
    return [
        (takeover, "consumer_of", lambda _epoch: "binder-1"),
        (takeover, "former_consumers", lambda _names, _epoch: []),
    ]


def _unknown_pod_is_believed() -> list[Replacement]:
    def current_pod(self: Any, ranked: Any, attempt: Any, read: Any) -> Any:
        return self._cache.pod(attempt.uid) or read or ranked.pod

    return [(conflictcheck.ConflictCheck, "current_pod", current_pod)]


def _no_release_by_list() -> list[Replacement]:
    return [(binder_cache.Cache, "_remove_pods_lacking", lambda _self, _present, _version: None)]


def _freed_after_lost_answer() -> list[Replacement]:
    after = answers.ApiAnswers._after_posting

    def after_posting(self: Any, attempt: Any, answer: Any) -> Any:
        if answer.is_open:
            return Verdict(outcome=Outcome.CONFLICT, reason=Reason.CHANGED, message="no answer")
        return after(self, attempt, answer)

    return [(answers.ApiAnswers, "_after_posting", after_posting)]


def _leadership_unchecked() -> list[Replacement]:
    return [(LeaderSession, "check", lambda _self: None)]


def _acknowledged_before_decision() -> list[Replacement]:
    decide = PodBinding.decide

    def decided(self: Any, attempt: Any, verdict: Any, **more: Any) -> Any:
        return [*(Ack(held=delivery) for delivery in attempt.deliveries), *decide(self, attempt, verdict, **more)]

    return [(PodBinding, "decide", decided)]


def _later_attempts_wait() -> list[Replacement]:
    """A later attempt is answered with a conflict instead of taking over."""

    def join(self: Any, attempt: Any, delivery: Any, now: float) -> Any:
        return [Ack(held=delivery)]

    return [(BinderCore, "_join", join)]


def _silence_for_good() -> list[Replacement]:
    forever = property(lambda self: float("inf") if self.is_silent else 0.0)
    return [(queue_of_attempts.ApiSilence, "may_examine_from", forever)]


def _evicts_unread() -> list[Replacement]:
    """The binder finds no victims of its own: it takes the proposed ones."""

    def plan(self: Any, ranked: Any, proposed: Any, pod: Any, profile: Any) -> Any:
        placed = [self.cache.snapshot.placed(victim.uid) for victim in proposed.victims]
        victims = tuple(found.pod for found in placed if found is not None)
        return EvictionPlan(pod=pod, node=proposed.node, victims=victims, demoted=(), preemption=proposed)

    check = preemption.PreemptionCheck
    return [(check, "verdict", lambda *_: None), (check, "plan", plan)]


def _evicts_where_proposed() -> list[Replacement]:
    """The binder finds its own victims, on the proposed node."""

    def best(self: Any, pod: Any, proposed: Any, profile: Any, _kept: Any) -> Any:
        return framework_preemption.confirm(pod, proposed.node, self.cache.snapshot, profile)

    return [(preemption.PreemptionCheck, "_best_eviction", best)]


def _asks_where_proposed() -> list[Replacement]:
    """The binder asks extenders about its own victims, on the proposed node."""

    def candidates(pod: Any, proposed: str, snapshot: Any, profile: Any, asked: Any) -> list[Any]:
        found = None if asked else framework_preemption.confirm(pod, proposed, snapshot, profile)
        return [] if found is None else [found]

    return [(preemption, "eviction_candidates", candidates)]


def _evicts_unneeded() -> list[Replacement]:
    """The binder does not ask itself whether the pod fits somewhere."""
    check = preemption.PreemptionCheck
    return [(check, "_without_eviction", lambda _self, _pod, _profile: None)]


def _lists_in_conflicts() -> list[Replacement]:
    """A conflict names versions of LISTs and bookmarks too."""

    def versions(self: Any) -> dict[str, str]:
        return {kind: str(version) for kind, version in self._reached.items()}

    return [(binder_cache.Cache, "newest_resource_versions", versions)]


def _held_rooms_are_proposals() -> list[Replacement]:
    return [(proposals.Proposals, "uncertain", lambda self: iter(self._by_uid.values()))]


def _ends_of_waits_unheard() -> list[Replacement]:
    """The end of the nomination is no event either: it wakes the same pods."""
    return [(Requeue, "on_held_room", lambda *_: None), *_end_of_nomination_unheard()]


def _waits_without_nomination() -> list[Replacement]:
    return [(PodBinding, "_nominate_and_wait", PodBinding._wait_for_plugin)]


def _fences_believed() -> list[Replacement]:
    async def ask(self: Any) -> None:
        self._leadership.report_higher(self._cache.highest_fence, seen_in="a fence")

    return [(apicalls.HigherFences, "ask", ask)]


# --- volumes


def _any_volume_taken() -> list[Replacement]:
    promise = writes._promise

    def taken(volume: Any, claim: Any) -> Any:
        free = structs.replace(volume, spec=structs.replace(volume.spec, claim_ref=None))
        patch = promise(free, claim)
        return {**patch, "metadata": {"annotations": patch["metadata"]["annotations"]}}

    return [(writes, "_promise", taken)]


def _volumes_not_awaited() -> list[Replacement]:
    return [(volumebinding, "check_bindings", lambda _volumes, _node: SUCCESS)]


def _new_volumes_unheard() -> list[Replacement]:
    heard = tuple(hint for hint in volumebinding.EVENTS if hint.event.resource is not Resource.PERSISTENT_VOLUME)
    return [(volumebinding, "EVENTS", heard)]


# --- the scorer


def _acknowledged_before_puback() -> list[Replacement]:
    answer = scorer_core.ScorerCore._answer

    def acknowledged(self: Any, held: Any, *rest: Any) -> Any:
        return [scorer_events.AckPending(delivery=held.delivery), *answer(self, held, *rest)]

    return [(scorer_core.ScorerCore, "_answer", acknowledged)]


def _proposals_for_ever() -> list[Replacement]:
    return [
        (proposals.Proposals, "expire", lambda _self, _now: []),
        (proposals.Proposals, "complete_up_to", lambda _self, _watermark: None),
    ]


def _positions_not_awaited() -> list[Replacement]:
    def pop(self: Any, positions: Any, now: float) -> Any:
        return _pop(self, _EVERYWHERE, now)

    _pop = scorer_backlog.Backlog.pop
    return [(scorer_backlog.Backlog, "pop", pop)]


_EVERYWHERE: Final = Positions(cluster=2**50, decisions=2**50, bandwidth=2**50, facts=2**50)


# --- messages and numbers


def _no_term_in_message_id() -> list[Replacement]:
    staged = stages.StagedMessage

    def without(subject: str, data: bytes, message_id: str, headers: Any) -> Any:
        parts = message_id.split(".")
        return staged(subject, data, f"{parts[0]}.{parts[2]}" if len(parts) == 3 else message_id, headers)

    return [(stages, "StagedMessage", without)]


def _numbers_with_the_store() -> list[Replacement]:
    return [(session, "number_on_lease", lambda _lease: 0)]


# --- the watcher


def _ends_are_not_written() -> list[Replacement]:
    add = mirror.Mirror._add

    def add_unwritten(self: Any, name: str) -> Any:
        key = add(self, name)
        key.stored = None
        return key

    return [(mirror.Mirror, "_add", add_unwritten)]


def _own_late_writes_stay() -> list[Replacement]:
    """The end that is written of an object that is not there refuses the late write: that wall is taken away too."""
    on_read = mirror.Mirror.on_read

    def read(self: Any, entry: Any) -> Any:
        if self._writes_enabled:
            self.position = max(self.position, entry.sequence)
            return None
        return on_read(self, entry)

    return [(mirror.Mirror, "on_read", read), *_ends_are_not_written()]


def _queue_before_mirror() -> list[Replacement]:
    def may_start(self: Any, _settled: int) -> bool:
        return self.streams is not None and self.last_difference is not None

    return [(TakeoverState, "may_start_queue", may_start)]


def _large_objects_whole() -> list[Replacement]:
    """What the bus does not take is written again as it is."""
    return [(mirror.Mirror, "on_too_large", lambda self, name, _reason: self.on_write_failed(name))]


def _sort_keys_unguarded() -> list[Replacement]:
    def place(self: Any, queued: Any) -> Place:
        plugin, pod = self._profiles[queued.profile].queue_sort, queued.pod
        return Place(plugin.sort_key(pod, ONE_TIME), plugin.sort_key(pod, queued.timestamp))

    return [(QueuePlugins, "place", place)]


def _one_window() -> list[Replacement]:
    """All profiles share the slots of one."""

    def free(self: Any, now: float) -> dict[str, int]:
        used = sum(self.used().values())
        return {profile: max(0, size - used) for profile, size in self.sizes(now).items()}

    return [(InFlightWindow, "free", free)]


def _end_of_nomination_unheard() -> list[Replacement]:
    events = store._pod_events

    def without(old: Any, new: Any) -> Any:
        return (each for each in events(old, new) if each[0].resource is not Resource.NOMINATION)

    return [(store, "_pod_events", without)]


def _silent_attempts_stay() -> list[Replacement]:
    return [(Attempts, "look_up", lambda _self, _queued, _attempt: [])]


def _held_attempts_keep_their_slots() -> list[Replacement]:
    return [(Attempts, "give_slot_back", lambda _self, _queued: False)]


def _unknown_profiles_are_put_off() -> list[Replacement]:
    receive = BinderCore._receive

    def put_off(self: Any, delivery: Any, now: float) -> Any:
        if delivery.ranked.profile not in self._profiles:
            return [PutOff(held=delivery, reason="")]
        return receive(self, delivery, now)

    return [
        (BinderCore, "_receive", put_off),
        (AheadMessages, "may_wait", lambda *_arguments, **_more: True),
        *_held_attempts_keep_their_slots(),
    ]


def _unknown_profiles_fill_ranked() -> list[Replacement]:
    """The slots come back, and RANKED does not."""
    return _unknown_profiles_are_put_off()[:2]


def _absurd_nodes_break_checks() -> list[Replacement]:
    return [
        (columns, "MOST_PODS", 2**70),
        (filtering, "MOST_COUNTED", 2**70),
        *((each, "checked", lambda _node, check: check()) for each in (filtering, cycle, framework_preemption)),
    ]


def _columns_for_ever() -> list[Replacement]:
    """What pods and nodes have named is kept, without an amount."""

    def keep(self: Any, resource: str, row: int, amount: float) -> None:
        self._amounts.setdefault(resource, {})[row] = amount

    return [(columns.AmountColumns, "_keep", keep)]


def _events_by_number() -> list[Replacement]:
    return [(requeue, "bytes_of", lambda *_objects: 0)]


def _samples_need_no_author() -> list[Replacement]:
    """Whoever has written a sample counts as a living collector."""

    def is_peers(self: SampleStore, stored: Any, _now: float) -> bool:
        return stored.sample is not None and stored.sample.by != self.author

    return [(SampleStore, "_is_peers", is_peers)]


def _own_samples_are_not_corrected() -> list[Replacement]:
    """Whoever names a collector counts as it, also for itself."""

    def is_peers(self: SampleStore, stored: Any, now: float) -> bool:
        if stored.sample is None:
            return False
        return now - self._received_at.get(stored.sample.by, float("-inf")) <= samplestore.PEER_SECONDS

    return [(SampleStore, "_is_peers", is_peers)]


def _orphans_stay() -> list[Replacement]:
    async def find(_self: Any) -> str:
        return ""

    return [(checks.OrphanCheck, "find", find)]


def _positions_stay() -> list[Replacement]:
    return [(MemoryStore, "delete_positions", lambda _self: None)]


# --- the table

BUSY: Final = Focus(nodes=(3, 4), pods=(14, 20), kinds=("plain", "plain", "volume", "other"), acts=(15,))
TAKEOVERS: Final = Focus(
    faults=("kill -9", "pause", "API answers lost", "API cut off", "SIGTERM"),
    fault_counts=(3, 5),
    nodes=(2, 3),
    pods=(14, 20),
    kinds=("plain",),
    acts=(15,),
    binders=(2,),
)
STORES: Final = Focus(
    faults=("NATS lost its store", "pause", "kill -9", "bus cut off"), fault_counts=(3, 5), binders=(2,), watchers=(2,)
)
WATCHES: Final = Focus(faults=("half-open watches", "etcd compacted", "API cut off"), fault_counts=(3,), acts=(15,))
LOSSES: Final = Focus(
    faults=("API answers lost", "API refuses writes", "API restarted"),
    fault_counts=(2, 3),
    acts=(15,),
    nodes=(2, 3),
    pods=(14, 20),
    kinds=("plain",),
)
LATE: Final = Focus(
    faults=("Bindings late", "binder lost in mid-air"),
    fault_counts=(2, 3),
    acts=(15, 30),
    nodes=(2, 3),
    pods=(16, 26),
    kinds=("plain", "plain", "other"),
    binders=(2,),
)
SOON_GONE: Final = Focus(
    fault_counts=(0,),
    acts=(5,),
    nodes=(2, 3),
    pods=(10, 20),
    kinds=("plain", "tolerant", "apart"),
    habits=(0.5,),
    rough=0.0,
)
BUS: Final = Focus(faults=("bus answers lost", "kill -9", "NATS restarted"), fault_counts=(2, 3), acts=(15,))
FULL: Final = Focus(nodes=(3, 4), pods=(18, 26), kinds=("plain", "plain", "port"), acts=(15,), fault_counts=(0, 1, 2))

OLD_VIEWS: Final = Focus(
    faults=("half-open watches", "slow messages", "bus cut off", "NATS lost its store"),
    fault_counts=(2, 3),
    nodes=(3, 4),
    pods=(18, 26),
    kinds=("plain", "plain", "selector"),
    acts=(15, 30),
)
PAUSES: Final = Focus(
    faults=("paused while evicting",),
    fault_counts=(2,),
    acts=(10, 20),
    things=("add_pod", "add_important_pod"),
    nodes=(2, 3),
    pods=(12, 16),
    kinds=("plain",),
    watchers=(1,),
    scorers=(1,),
    binders=(2,),
    variants=("one",),
    seconds=(5.0, 10.0),
)
"""A binder is paused between two requests of an eviction, and another one leads when it goes on."""
IMPORTANT: Final = Focus(
    faults=("watchers behind",),
    fault_counts=(1, 2),
    acts=(8, 15),
    things=("room_for_an_important_pod", "add_pod"),
    nodes=(2, 3),
    pods=(10, 16),
    kinds=("plain",),
    watchers=(1,),
    binders=(1,),
    scorers=(1, 2),
    variants=("one",),
)
"""A full cluster gets room, important pods come, and the watcher has not heard of the room yet."""
MINDS: Final = Focus(
    fault_counts=(0,),
    acts=(15, 25),
    things=("add_pod", "add_pod", "add_important_pod"),
    nodes=(1, 2),
    pods=(6, 12),
    kinds=("plain",),
    watchers=(1,),
    binders=(1,),
    scorers=(1, 2),
    variants=("one",),
    habits=(0.7,),
    graces=(0, 300),
)
"""Important pods are nominated, and deleted again; pods are deleted as soon as they are bound."""
HASTE: Final = Focus(
    fault_counts=(0, 1),
    faults=("slow messages", "kill -9"),
    acts=(15,),
    things=("add_pod", "add_pod", "delete_pod"),
    nodes=(2, 3),
    pods=(10, 16),
    kinds=("plain",),
    watchers=(1,),
    binders=(1,),
    scorers=(1, 2),
    variants=("one",),
    habits=(0.5,),
)
"""Pods are deleted as soon as they are bound: the mirror never shows them."""
HELD: Final = Focus(
    faults=("binder lost in mid-air",),
    fault_counts=(1, 2),
    acts=(15, 25),
    things=("add_pod", "add_pod", "delete_pod", "add_important_pod"),
    nodes=(1, 2),
    pods=(10, 16),
    kinds=("plain",),
    watchers=(1,),
    binders=(2,),
    scorers=(1,),
    variants=("one",),
)
"""Bindings on the way when the binder is lost, and others that want the room."""
DELETED_MEANWHILE: Final = Focus(
    faults=("half-open watches", "API cut off"),
    fault_counts=(2, 3),
    acts=(25,),
    things=("delete_pod", "replace_pod", "add_pod"),
    nodes=(2, 3),
    pods=(10, 16),
    kinds=("plain",),
    watchers=(1,),
    binders=(1,),
    scorers=(1,),
    variants=("one",),
)
"""Pods are deleted while no watch shows it, and a LIST is the first that lacks them."""
REFUSALS: Final = Focus(
    faults=("API refuses, pods deleted",),
    fault_counts=(2, 3),
    acts=(30,),
    things=("add_pod", "add_pod", "add_important_pod"),
    nodes=(3, 5),
    pods=(6, 10),
    kinds=("plain",),
    watchers=(1,),
    binders=(1, 2),
    scorers=(1,),
    variants=("one",),
)
"""The only pods about which the API server would have been asked again are deleted."""
TWO_LEADERS: Final = Focus(
    faults=("binder usurped",),
    fault_counts=(1,),
    acts=(5,),
    nodes=(2, 3),
    pods=(2, 4),
    kinds=("plain", "impossible"),
    watchers=(1,),
    binders=(3, 4),
    scorers=(1,),
    variants=("one",),
    seconds=(1.0, 2.0),
)
"""Two binders lead for a moment, and the one of the lower epoch is slow."""
OLD_NEWS: Final = Focus(
    faults=("scorers behind",),
    fault_counts=(1, 2),
    acts=(10,),
    things=("add_pod", "room_for_an_important_pod"),
    nodes=(2, 3),
    pods=(10, 16),
    kinds=("plain",),
    scorers=(2, 4),
    variants=("one",),
)
"""Scorers that lag propose what others have taken: the conflict asks for positions."""
GONE: Final = Focus(
    faults=("slow messages", "bus cut off", "NATS restarted", "kill -9"),
    fault_counts=(3,),
    acts=(40,),
    things=("add_pod", "add_pod", "delete_pod", "replace_pod"),
    nodes=(3, 5),
    pods=(6, 10),
    kinds=("plain",),
    watchers=(1,),
    binders=(1, 2),
    variants=("one",),
    window_floors=(64,),
)
"""Pods are deleted while their messages are on the way."""
STARTS: Final = Focus(
    fault_counts=(0, 1),
    faults=("NATS lost its store",),
    nodes=(6, 12),
    pods=(4, 8),
    kinds=("plain",),
    variants=("one",),
    rough=1.0,
    warm_up=(1.0, 2.0),
    seconds=(1.0, 2.0),
)
"""Watchers begin while NATS answers late, or stores nothing."""
MANY_DEVICES: Final = replace(
    DEVICES,
    acts=(5, 10),
    pods=(5, 10),
    nodes=(2, 3),
    graces=(0,),
    faults=(CLAIMS_LATE, CLAIMS_LATE, CLAIMS_LOST, "API refuses writes", "API answers lost", "kill -9"),
    fault_counts=(1, 2, 3),
    binders=(1, 2, 2),
    meddling=(0.5,),
)
LATE_CLAIMS: Final = replace(
    MANY_DEVICES,
    faults=("Bindings late", "Bindings late", "API answers lost", "API refuses writes"),
    kinds=("device", "device", "device", "shared"),
    things=("delete_pod", "delete_pod", "delete_pod", "add_pod", "add_pod", "add_pod", "change_node"),
    acts=(20, 30),
    pods=(6, 10),
    fault_counts=(2, 3, 4),
    binders=(1,),
    patient=1.0,
)
"""Writes that land when their pods are gone, and somebody else has the devices."""
CLAIMS_OF_FORMER_LEADERS: Final = replace(
    LATE_CLAIMS,
    faults=(CLAIMS_LOST, CLAIMS_LOST, CLAIMS_LATE),
    fault_counts=(1, 2, 3),
    binders=(2,),
    seconds=(15.0, 25.0),
)
HANDED_OVER: Final = replace(
    LATE_CLAIMS,
    faults=(faults.HANDED_OVER,),
    fault_counts=(2, 4),
    binders=(2,),
    seconds=(5.0, 10.0),
)
RESERVED_ON_LOST_NODES: Final = replace(
    MANY_DEVICES,
    faults=(faults.RESERVED_LOST,),
    fault_counts=(2, 3),
    kinds=("device",),
    nodes=(4, 5),
    seconds=(10.0, 20.0),
)
KEPT_VOLUMES: Final = replace(VOLUMES, acts=(10, 20), pods=(6, 10), nodes=(2, 3), graces=(0,))
"""Pods and strangers want the same volumes."""
STRANGERS: Final = Focus(faults=("strangers' fences",), fault_counts=(2, 3), kinds=("plain", "impossible"), acts=(5,))
WAITING: Final = Focus(fault_counts=(0,), kinds=("volume",), acts=(0,), nodes=(2, 4), pods=(4, 8), rough=0.0)
HOLDING: Final = replace(
    WAITING,
    kinds=("volume", "volume", "plain"),
    acts=(5, 10),
    things=("add_pod", "add_pod", "delete_pod", "touch_pod", "change_node", "remove_node"),
    nodes=(2, 3),
    pods=(6, 14),
)
"""Pods fill nodes while they wait for their volumes, and are deleted, changed, or lose their node meanwhile."""
TRAPS: Final = Focus(fault_counts=(0,), kinds=("trapped", "plain"), acts=(5,), pods=(4, 8), variants=("one",))
FORGOTTEN: Final = Focus(faults=("deliveries forgotten",), fault_counts=(2, 3), kinds=("plain",), acts=(15,))
POSITIONS_ANEW: Final = Focus(
    faults=(STREAM_LOST, STREAM_LOST, "pause"),
    fault_counts=(6, 8),
    acts=(15, 25),
    things=("add_pod", "delete_pod", "finish_pod"),
    nodes=(2, 3),
    pods=(14, 20),
    kinds=("plain",),
    watchers=(1,),
    binders=(1,),
    scorers=(1, 2),
    window_floors=(64,),
    warm_up=(2.0, 4.0),
    seconds=(4.0, 10.0),
    variants=("one",),
)
"""Pods wait for others to be deleted, while attempts about them are in flight and positions begin anew."""
UNKNOWN_PROFILE: Final = Focus(
    fault_counts=(0, 1), variants=("watcher only",), window_floors=(2,), kinds=("plain", "packed"), acts=(5,)
)

SCORER: Final = replace(ATTACKS, faults=("hostile scorer",), fault_counts=(1,), variants=("one",), window_floors=(1, 2))
HOLDS: Final = replace(SCORER, deeds=("take", "put_off", "hold"))
OTHER_PROFILE: Final = replace(SCORER, deeds=("take", "rank_for_another_profile"))
FULL_RANKED: Final = replace(SCORER, deeds=("fill_ranked",))
EVICTIONS: Final = replace(SCORER, deeds=("take", "propose_evictions"), pods=(6, 10), nodes=(2, 3))
CHOICES: Final = replace(
    EVICTIONS,
    acts=(15, 25),
    things=("add_pod", "add_important_pod", "add_important_pod"),
    nodes=(3, 4),
    pods=(10, 16),
    kinds=("plain",),
    window_floors=(64,),
    graces=(0,),
)
"""Important pods, whose evictions cost more or less on this node or that."""

SATURATED: Final = replace(ATTACKS, faults=("hostile collector",), deeds=("saturate",), variants=("live",))
KUBELETS: Final = replace(ATTACKS, faults=("hostile kubelet",), variants=("one",), kinds=("plain",), empties=1)
TENANTS: Final = replace(ATTACKS, faults=("hostile tenant",), variants=("one",), empties=1)

# --- claims of devices


def _devices_not_held() -> list[Replacement]:
    return [(ledger.DeviceLedger, "assume", lambda *_args: None)]


def _claims_not_released() -> list[Replacement]:
    return [(attempt_of_binder.BindingAttempt, "releases", lambda _self: ())]


def _decided_before_release() -> list[Replacement]:
    """The devices are free and the Decision is published while the release is under way."""
    begin = attempt_of_binder.BindingAttempt.begin_releasing
    decide = PodBinding.decide

    def decided(self: Any, attempt: Any, verdict: Any, **more: Any) -> Any:
        releases = attempt.releases()
        is_bound = verdict.outcome is Outcome.BOUND or (verdict.outcome is Outcome.GONE and verdict.node)
        if is_bound or not releases or attempt.may_still_land:
            return decide(self, attempt, verdict, **more)
        effect = begin(attempt, releases)
        attempt.steps.is_released = True
        return [effect, *decide(self, attempt, verdict, **more)]

    return [(PodBinding, "decide", decided)]


def _late_claim_writes_not_voided() -> list[Replacement]:
    begin = attempt_of_binder.BindingAttempt.begin_releasing

    def begun(self: Any, releases: Any) -> Any:
        return structs.replace(begin(self, releases), voids=False)

    return [(attempt_of_binder.BindingAttempt, "begin_releasing", begun)]


def _claims_not_fenced() -> list[Replacement]:
    return [(takeover.Takeover, "_may_change", lambda _self, _claim: False)]


def _claims_not_current() -> list[Replacement]:
    """Only what is fenced is awaited."""
    fence = takeover.Takeover._fence_claims

    async def at_once(*_: object) -> None:
        return

    async def fenced(self: Any) -> None:
        waits, self.informers.become_current = self.informers.become_current, at_once
        try:
            await fence(self)
        finally:
            self.informers.become_current = waits

    return [(takeover.Takeover, "_fence_claims", fenced)]


def _release_not_awaited() -> list[Replacement]:
    after = answers.ApiAnswers._after_releasing

    def released(self: Any, attempt: Any, answer: Any) -> Any:
        return after(self, attempt, structs.replace(answer, version=0))

    return [(answers.ApiAnswers, "_after_releasing", released)]


def _writes_not_awaited() -> list[Replacement]:
    return [(PodBinding, "_unseen", lambda _self, _attempt: [])]


def _claim_versions_ignored() -> list[Replacement]:
    patch, allocate = claims_of_kube._patch_status, claims_of_binder.allocate

    def unversioned(claim: Any) -> Any:
        return structs.replace(claim, metadata=structs.replace(claim.metadata, resource_version=""))

    async def patched(client: Any, claim: Any, status: Any) -> Any:
        return await patch(client, unversioned(claim), status)

    async def allocated(client: Any, claim: Any, *more: Any) -> Any:
        return await allocate(client, unversioned(claim), *more)

    return [(claims_of_kube, "_patch_status", patched), (claims_of_binder, "allocate", allocated)]


def _devices_not_verified() -> list[Replacement]:
    return [(ledger.DeviceLedger, "earlier_owner", lambda _self, _uid: None)]


def _claims_not_freed() -> list[Replacement]:
    return [(conflictcheck.ConflictCheck, "claim_to_free", lambda *_args: None)]


MUTATIONS: Final[dict[str, Mutation]] = {
    "no-uid": Mutation("a Binding carries uid and resourceVersion (5)", 5, _no_uid, is_quick=True),
    "ack-before-puback": Mutation(
        "PENDING is acknowledged after RANKED's PubAck (4)", 5, _acknowledged_before_puback, is_quick=True
    ),
    "ack-before-decision": Mutation(
        "RANKED is acknowledged after the Decision's PubAck (5)", 5, _acknowledged_before_decision, is_quick=True
    ),
    "no-recheck": Mutation(
        "a node must pass all filters on the newest state (5)", 10, _no_recheck, BUSY, is_quick=True
    ),
    "no-term-in-id": Mutation("an attempt's id has the term (1)", 10, _no_term_in_message_id, TAKEOVERS, is_quick=True),
    "old-consumer": Mutation("each epoch reads from a consumer of its own (5)", 30, _old_consumer, TAKEOVERS),
    "no-fence": Mutation("fence (5)", 200, _no_fence, HELD),
    "any-consumer-deleted": Mutation("consumers of lower epochs only (5)", 700, _every_other_consumer, TWO_LEADERS),
    "unknown-pod-believed": Mutation(
        "unknown uid and old resourceVersion is `gone` (5)", 20, _unknown_pod_is_believed, GONE
    ),
    "no-release-by-list": Mutation("release by LIST (5)", 20, _no_release_by_list, DELETED_MEANWHILE),
    "freed-after-lost-answer": Mutation(
        "a reservation is kept after a lost answer (5)", 300, _freed_after_lost_answer, LATE
    ),
    "leadership-unchecked": Mutation(
        "a leader that cannot renew stops before another may begin (5)", 40, _leadership_unchecked, PAUSES
    ),
    "later-attempt-dropped": Mutation(
        "a later attempt takes the reservation over (5)", 300, _later_attempts_wait, LOSSES
    ),
    "silent-for-good": Mutation(
        "a silent API server is asked again by the clock (5; point 2)", 100, _silence_for_good, REFUSALS
    ),
    "victims-believed": Mutation(
        "the binder chooses whom it evicts (5.16)", 100, _evicts_unread, EVICTIONS, is_quick=True
    ),
    "evicts-where-proposed": Mutation(
        "the binder chooses where it evicts (5.16)", 500, _evicts_where_proposed, CHOICES
    ),
    "asks-where-proposed": Mutation(
        "extenders are asked about the binder's own candidates (5.16)",
        500,
        _asks_where_proposed,
        replace(CHOICES, variants=("asked",)),
    ),
    "evicts-unneeded": Mutation(
        "no eviction for a pod that fits by the binder's own cache (5; point 1)", 200, _evicts_unneeded, IMPORTANT
    ),
    "lists-in-conflicts": Mutation(
        "a conflict names versions of objects and events only (3)", 10, _lists_in_conflicts, OLD_NEWS, is_quick=True
    ),
    "held-rooms-are-proposals": Mutation(
        "a proposal of a pod that waits counts like a bound pod (4.6)",
        20,
        _held_rooms_are_proposals,
        HOLDING,
        is_quick=True,
    ),
    "ends-of-waits-unheard": Mutation("the end of a wait is an event (3.10)", 100, _ends_of_waits_unheard, HOLDING),
    "waits-without-nomination": Mutation(
        "a pod is nominated before it waits (5.15)", 10, _waits_without_nomination, HOLDING, is_quick=True
    ),
    "large-objects-whole": Mutation(
        "the mirror has a smaller form of what the bus does not take (3; point 7)",
        10,
        _large_objects_whole,
        LARGE_OBJECTS,
        is_quick=True,
    ),
    "any-volume-taken": Mutation(
        "a volume is kept for one claim: resourceVersion and claimRef are checked (5)",
        200,
        _any_volume_taken,
        KEPT_VOLUMES,
    ),
    "volumes-not-awaited": Mutation(
        "a pod is bound once its claims are (5)", 10, _volumes_not_awaited, KEPT_VOLUMES, is_quick=True
    ),
    "new-volumes-unheard": Mutation(
        "a new volume is an event for pods that wait for one (3)", 20, _new_volumes_unheard, KEPT_VOLUMES, is_quick=True
    ),
    "sort-keys-unguarded": Mutation(
        "a plugin that raises costs its pod only (6; point 8)", 10, _sort_keys_unguarded, TRAPS, is_quick=True
    ),
    "fences-believed": Mutation(
        "a number in a fence deposes nobody (5; point 5)", 20, _fences_believed, STRANGERS, is_quick=True
    ),
    "one-window": Mutation("a window for each profile (3; point 4)", 20, _one_window, UNKNOWN_PROFILE, is_quick=True),
    "proposals-for-ever": Mutation("a proposal ends 30 s after the last word (4)", 50, _proposals_for_ever, HASTE),
    "positions-not-awaited": Mutation(
        "a scorer waits for the positions that a message asks for (4)", 10, _positions_not_awaited, OLD_NEWS
    ),
    "numbers-with-the-store": Mutation("numbers outlive the store (1)", 10, _numbers_with_the_store, STORES),
    "own-late-writes": Mutation("a watcher rewrites what arrives late (3)", 300, _own_late_writes_stay, BUS),
    "ends-of-the-unwritten": Mutation(
        "the end of an object that went before it was written is written (3)", 150, _ends_are_not_written, SOON_GONE
    ),
    "queue-before-mirror": Mutation("first the mirror, then the queue (3; point 1)", 10, _queue_before_mirror, STARTS),
    "end-of-nomination": Mutation("the end of a nomination is an event (3)", 450, _end_of_nomination_unheard, MINDS),
    "silent-attempts": Mutation("a silent attempt is looked up after 10 s (3)", 200, _silent_attempts_stay, BUS),
    "held-attempts-keep-slots": Mutation(
        "an attempt that a work queue holds gives its slots back (3.5)",
        100,
        _held_attempts_keep_their_slots,
        HOLDS,
        is_quick=True,
    ),
    "unknown-profiles-for-ever": Mutation(
        "what only a newer binder may understand has an end (4.7)",
        100,
        _unknown_profiles_are_put_off,
        OTHER_PROFILE,
        is_quick=True,
    ),
    "ranked-filled": Mutation(
        "RANKED keeps room: what a newer binder may understand has a bound in bytes (4.7)",
        500,
        _unknown_profiles_fill_ranked,
        FULL_RANKED,
    ),
    "absurd-nodes": Mutation(
        "a node on which a check breaks costs no pod its place on others (8.6)",
        500,
        _absurd_nodes_break_checks,
        KUBELETS,
    ),
    "columns-for-ever": Mutation(
        "what pods and nodes name ends with its last user (8.6)", 500, _columns_for_ever, TENANTS
    ),
    "events-by-number": Mutation("the watcher keeps events by their bytes (8.6)", 500, _events_by_number, TENANTS),
    "samples-need-no-author": Mutation(
        "a sample without a living author is replaced or removed (2.2)", 20, _samples_need_no_author, SATURATED
    ),
    "own-samples-not-corrected": Mutation(
        "a collector corrects what names it (2.2)", 50, _own_samples_are_not_corrected, SATURATED
    ),
    "orphans-stay": Mutation(
        "a consumer that does not deliver what its stream holds is made anew (2)",
        10,
        _orphans_stay,
        FORGOTTEN,
        is_quick=True,
    ),
    "positions-stay": Mutation(
        "a lost position takes its messages along (ADR 29)", 40, _positions_stay, POSITIONS_ANEW
    ),
    "devices-not-held": Mutation(
        "an allocation in flight counts in the ledger (ADR 67)", 500, _devices_not_held, DEVICES
    ),
    "claims-not-released": Mutation(
        "an attempt that fails takes its writes back (ADR 67)", 500, _claims_not_released, LATE_CLAIMS
    ),
    "decided-before-release": Mutation(
        "claims are released before the Decision (ADR 67)", 500, _decided_before_release, LATE_CLAIMS
    ),
    "late-claim-writes-not-voided": Mutation(
        "a release makes a write without an answer fail (ADR 67)", 500, _late_claim_writes_not_voided, LATE_CLAIMS
    ),
    "claims-not-fenced": Mutation(
        "a takeover fences claims to which a late write could do harm (ADR 67)",
        500,
        _claims_not_fenced,
        CLAIMS_OF_FORMER_LEADERS,
    ),
    "claims-not-current": Mutation(
        "a takeover waits for the watch of claims (ADR 67)", 500, _claims_not_current, HANDED_OVER
    ),
    "release-not-awaited": Mutation(
        "pods with claims wait for the watch to show the last release (ADR 67)", 500, _release_not_awaited, MANY_DEVICES
    ),
    "claim-writes-not-awaited": Mutation(
        "the watch shows a claim's write before the Binding (ADR 67)",
        500,
        _writes_not_awaited,
        MANY_DEVICES,
        is_quick=True,
    ),
    "claim-versions-ignored": Mutation(
        "a status of a claim is written with its resourceVersion (ADR 67)", 500, _claim_versions_ignored, LATE_CLAIMS
    ),
    "devices-not-verified": Mutation(
        "a device that another scheduler gave first is given back (ADR 67)",
        500,
        _devices_not_verified,
        ANOTHER_SCHEDULER,
    ),
    "claims-not-freed": Mutation(
        "a claim that keeps its pod out is freed (ADR 67)", 500, _claims_not_freed, RESERVED_ON_LOST_NODES
    ),
    **GROUP_MUTATIONS,
}

ELSEWHERE: Final[dict[str, str]] = {
    "all members are read before evictions for their group (5.23): needs one that is deleted in the moment of the "
    "evictions, while the binder's watch is behind": (
        "unit/binder/test_groups.py::test_nothing_is_evicted_for_a_group_of_which_the_api_server_has_a_member_no_more"
    ),
    "only a group that this epoch has begun and never seen whole is evicted, one a minute (5.24): off by default": (
        "unit/binder/test_group_reports.py::test_only_a_group_that_this_epoch_has_begun_and_that_has_no_attempt_is_evicted"
    ),
    "a group of two profiles is refused (3.17): runs with groups have one profile": (
        "unit/watcher/test_groups.py::test_two_profiles_are_refused"
    ),
    "groups are published once binder and scorers read their messages (3.17): all services of a run do": (
        "unit/watcher/test_gangs.py::test_group_messages_wait_until_binder_and_scorers_read_them"
    ),
    "a namespace pays a turn for each member (3.18): groups of a run share one namespace": (
        "unit/watcher/test_activepods.py::test_a_group_pays_a_turn_for_each_of_its_members"
    ),
    "a group is as old as the last of what it needs (3.18): needs a leader that goes while the window is full": (
        "unit/watcher/test_gangs.py::test_a_new_leader_has_groups_that_wait_before_pods_that_came_later"
    ),
    "a change in flight wakes its group after the Decision (3.19): needs one that makes it fit, and no later event": (
        "unit/watcher/test_gangs.py::test_what_changes_in_flight_helps_a_group_that_finds_no_room"
    ),
    "a group that has failed falls behind its equals (3.18): needs several that wait for slots at once": (
        "unit/watcher/test_gangs.py::test_a_group_that_has_failed_falls_behind_equals_that_came_later"
    ),
    "the room of a member lost during an attempt helps that pod or group after a second, too (ADR 72): needs an "
    "attempt under way in the moment of the loss": (
        "unit/watcher/test_gangs.py::test_the_room_of_a_member_that_is_lost_during_an_attempt_helps_it_after_a_second"
    ),
    "a PodGroup counts as scheduled once its minimum is bound: what follows from the condition is seldom seen": (
        "unit/binder/test_group_reports.py::test_a_partial_group_gets_a_condition_unless_it_was_whole"
    ),
    "a group that goes as one is evicted whole (ADR 72): a judge looks for what is left, and finds it seldom": (
        "unit/groups/test_evictions.py::test_a_group_that_goes_as_one_goes_whole_where_singles_are_not_enough"
    ),
    "after two conflicts a group goes alone (3.18): a simulated plan takes milliseconds": (
        "unit/watcher/test_groups.py"
        "::test_a_group_goes_when_its_slots_are_free_or_nothing_is_in_flight_and_pays_a_turn_a_member"
    ),
    "after three conflicts a group backs off (3.20): the same": (
        "unit/watcher/test_gangs.py::test_after_three_conflicts_a_group_backs_off"
    ),
    "a group keeps its minimum where equals can go (ADR 72): a judge would have to know the plan of the binder": (
        "unit/groups/test_evictions.py::test_a_loose_group_loses_what_is_beyond_its_minimum_first"
    ),
    "nothing is evicted for a group with a member that never preempts (ADR 72): pods of a run all do": (
        "unit/groups/test_evictions.py::test_groups_for_which_nothing_is_evicted"
    ),
    "a replay makes the same plans (ADR 72): runs are not recorded": (
        "unit/recording/test_replay.py::test_plans_of_groups_are_equal_also_those_during_which_their_scorer_went_on"
    ),
    "a back-off lasts ten times as long as the plan took (3.20): a simulated plan takes milliseconds": (
        "unit/watcher/test_gangs.py::test_a_group_backs_off_for_ten_times_its_plan"
    ),
    "a plan does not depend on where its slices end (4.8): the same": (
        "unit/groups/test_by_chance.py::test_a_plan_does_not_depend_on_where_slices_end"
    ),
    "pods are ranked between the slices of a plan (4.8): the same": (
        "unit/scorer/test_groups.py::test_other_pods_are_ranked_between_the_slices_of_a_plan"
    ),
    "members count as proposals (4.8): without it the binder finds conflicts, and no outcome is wrong": (
        "unit/scorer/test_groups.py::test_a_group_counts_what_was_proposed_before_it_and_pods_count_its_members"
    ),
    "members that no order places are packed (ADR 72): the judge plans as the scorer does": (
        "unit/groups/test_by_chance.py::test_few_members_have_a_plan_wherever_sums_of_one_resource_hold_them"
    ),
    "of four orders one places what another refuses (ADR 72): needs several kinds of members": (
        "unit/groups/test_by_chance.py::test_what_a_small_search_finds_is_found_or_not_called_impossible"
    ),
    "no victim too many (ADR 72): a judge would have to know the plan of the binder": (
        "unit/groups/test_evictions.py::test_a_plan_holds_without_its_victims_and_with_none_of_them"
    ),
    "an allocation is held as long as a pod in flight needs it (ADR 67): needs a pod that gives a shared claim back, "
    "another whose write of it is refused meanwhile, and a third that takes the device before it is repeated": (
        "unit/cluster/test_devices.py::test_a_status_counts_in_place_of_an_assumption_as_long_as_it_shows_an_allocation"
    ),
    "`bus.id` first on each connection (2): a simulated connection never outlives its store": (
        "contract/test_bus_sessions.py::test_a_session_reads_the_bus_id_first"
    ),
    "messages of pods that wait are not counted (5; point 3): needs more than 1,024 pods": (
        "integration/binder/test_progress.py"
        "::test_important_pod_is_bound_behind_more_waiting_pods_than_messages_are_held"
    ),
    "of rankings that no pod waits for few are examined (5.9): about cost": (
        "integration/binder/test_service_under_faults.py::test_of_rankings_that_no_pod_waits_for_few_are_examined"
    ),
    "a ranking that is held is not dropped when it comes again (5.9): needs 256 strays at once": (
        "integration/binder/test_service_under_faults.py"
        "::test_a_ranking_delivered_again_after_its_pod_was_bound_stays_until_the_decision_is_stored"
    ),
    "an attempt on which no scorer works is followed by the next after 10 s (3.5): a run waits for longer": (
        "unit/watcher/test_attempts.py::test_attempt_whose_scorer_goes_is_followed_by_the_next_within_ten_seconds"
    ),
    "a message of PENDING that no pod needs is deleted (3.5): needs a pod that is decided, and its message put off": (
        "integration/watcher/test_orphans.py::test_messages_put_off_for_a_century_end_with_their_pods"
    ),
    "an attempt after one that stayed in PENDING is a suspect (6.4): needs scorers that start for 10 s": (
        "unit/watcher/test_attempts.py::test_attempt_after_one_that_stayed_in_pending_is_ranked_as_a_suspect"
    ),
    "naming nodes that proposals fill (4): needs a cluster that gets exactly full": (
        "unit/ranking/test_ranker.py::test_a_node_that_only_a_proposal_fills_is_named_after_those_with_room"
    ),
    "a node that is gone gets no second POST (5): needs a node that vanishes between two POSTs": (
        "integration/binder/test_lost_bindings.py"
        "::test_pod_goes_to_another_node_once_the_lost_binding_cannot_arrive_any_more"
    ),
    "headers count in the size of a message (2): the bus in memory has no bytes on a wire": (
        "contract/test_bus_queues.py::test_headers_count_for_the_limit_and_a_refusal_costs_no_session"
    ),
    "an event touches those that it may help (3; point 6): about cost": (
        "unit/watcher/test_unschedulable.py::test_event_wakes_exactly_the_pods_whose_hints_say_yes"
    ),
    "an event's work is done in slices (point 6): about cost": (
        "unit/watcher/test_slices.py::test_pods_that_wake_at_one_event_are_moved_in_slices_and_none_is_lost"
    ),
    "the connection that the server cuts within the last bytes below max_payload (point 7): a simulated one has none": (
        "faults/test_large_objects.py::test_a_bound_pod_above_max_payload_is_counted_and_stops_nobody"
    ),
    "a plugin that hangs (point 8): its deadline is of the processor's time": (
        "unit/watcher/test_plugin_failures.py::test_plugin_that_hangs_for_every_pod_is_left_alone_for_a_minute"
    ),
    "writes of a takeover are bounded (point 9): about cost": (
        "unit/watcher/test_takeover.py::test_writes_in_flight_are_bounded"
    ),
    "a refusal frees the room only when no earlier POST is open (point 10)": (
        "unit/binder/test_core.py::test_refusal_frees_the_node_only_once_no_earlier_post_can_land"
    ),
    "streams made anew after a full disk (point 11): the bus in memory gives none up": (
        "integration/bus/test_full_disk.py"
        "::test_when_there_is_room_a_stream_that_was_given_up_is_made_anew_with_all_others"
    ),
    "configurations that differ are named (point 12): changes no pod": (
        "unit/process/test_peers.py::test_a_difference_is_named_by_profile"
    ),
    "`waiting` is repeated every 10 s (5.15): no run without a fault waits for that long": (
        "unit/binder/test_pluginsteps.py::test_permit_wait_publishes_waiting_at_once_and_every_ten_seconds"
    ),
    "a nomination ends with the wait (5.15): the next attempt, milliseconds later, writes or clears it anyway": (
        "unit/binder/test_nominations.py::test_wait_that_ends_without_a_binding_clears_the_nomination"
    ),
    "an answer delivered where others read copies (8.1): the bus in memory has no reply subjects": (
        "integration/bus/test_nats_accounts.py::test_an_answer_of_another_stream_is_no_copy_for_readers"
    ),
    "statistics under another service's name (8.7): the bus in memory has no accounts": (
        "integration/bus/test_nats_accounts.py::test_what_people_read_of_a_service_comes_from_its_own_account"
    ),
    "a recorder's lock that is a link: no file is in a simulation": (
        "unit/recording/test_segments.py::test_a_lock_that_somebody_else_put_there_is_left_alone"
    ),
    "questions as fast as a person sends them (2.11): the answers' budget is in the connection to NATS": (
        "integration/bus/test_nats_accounts.py"
        "::test_questions_as_fast_as_a_person_sends_them_get_so_many_answers_a_second"
    ),
    "limits of NATS itself and its log: the bus in memory has neither": (
        "unit/bus/test_server.py::test_the_log_is_bounded"
    ),
    "a Deployment of 2^31-1 replicas, a line of a watch without end: no file and no wire is in a simulation": (
        "unit/simulate/test_workloads.py::test_too_many_pods_are_refused_before_they_are_made"
    ),
    "the best estimate (point 13): needs hundreds of nodes": (
        "simulation/test_many_scorers.py::test_many_scorers_place_pods_as_one_does"
    ),
}
"""Rules that a simulation cannot show, why, and the test that does."""
