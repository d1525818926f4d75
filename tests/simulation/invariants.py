"""What must hold at every step, judged from outside: by what reaches the API server and by what the streams hold.

A process is held to what it could know: the revisions that its own watches had shown when it sent a request. What
changed later at the API server excuses it; what it has sent itself does not.
"""

from __future__ import annotations

import bisect
import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from enum import Enum
from http import HTTPStatus
from typing import Any, Final

import msgspec
import numpy as np

from berth.api.kinds import POD_DISRUPTION_BUDGET
from berth.api.pod import Pod, is_gated, priority_of
from berth.api.podgroups import group_of
from berth.bus.interface import MESSAGE_ID, PubAck, StoredMessage
from berth.bus.jetstream import TTL
from berth.bus.topology import BANDWIDTH, CLUSTER, DEAD, DECISIONS, PENDING, RANKED, bucket_prefix, bucket_stream
from berth.framework.profile import Profile
from berth.groups.planner import plan_at_once
from berth.groups.question import GroupQuestion
from berth.kube.http1 import Response
from berth.messages.attempts import Outcome, Preemption, Reason
from berth.messages.earmarks import Earmark
from berth.messages.encoding import SCHEMA
from berth.messages.groupattempts import GROUP_SCHEMA, subject_name
from berth.messages.subjects import unescape
from berth_binder.events import ApiRequest as BinderRequest
from berth_binder.events import PostBinding, ReleaseClaims
from berth_sim.apiserver.kinds import NODES, PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, PODS
from simulation.api import ApiRequest
from simulation.configurations import NETWORK_QUERY, SECOND, SMALL_NOTES, TRAP
from simulation.devices import DeviceInvariants
from simulation.earmarks import EarmarkInvariants
from simulation.groups import GroupInvariants
from simulation.loop import OWNER
from simulation.truth import Truth, decoded, is_present, requests_of, simulated, truth_of
from simulation.world import World

BUDGETS: Final = simulated(POD_DISRUPTION_BUDGET)
BOUND_SECONDS: Final = 25.0
"""Within which a pod that a hostile client has not touched is bound while it acts: as in a run without any fault."""
VISIBLE_SECONDS: Final = 1.0
"""What has been so for this long, a scheduler with full knowledge knows."""
UNTOLD_SECONDS: Final = 5.0
"""For so long others' proposals may keep a pod out without a condition: each ends within milliseconds, or waits."""
SELECTED_NODE: Final = "volume.kubernetes.io/selected-node"


class Invariants:
    """Watches one world."""

    def __init__(self, world: World, schedulers: frozenset[str]) -> None:
        self._world = world
        self._api = world.api
        self._schedulers = schedulers
        self._profiles: Mapping[str, Profile] | None = None
        self._times: list[float] = [0.0]
        self._revisions: list[int] = [self._api.store.revision]
        self._bound_on: dict[str, str] = {}
        self._bound_revision: dict[str, int] = {}
        self._deleted_at: dict[str, int] = {}
        """By uid, the revision at which a pod was deleted."""
        self._posted: dict[str, str] = {}
        """Pods with a Binding on its way: uid and node."""
        self._known_at_first: dict[tuple[str, str, str], Mapping[str, int]] = {}
        """By uid, node and resourceVersion of a Binding."""
        self._bound_by_us: dict[str, Pod] = {}
        """By uid, as they were when they were bound."""
        self._evictions: dict[str, tuple[str, str]] = {}
        """By victim's uid: the preemptor's uid, and the node."""
        self._chosen_at: dict[str, float] = {}
        """By victim's uid, when a binder has chosen it for this preemptor."""
        self._questions: dict[str, GroupQuestion | None] = {}
        """By victim's uid, the group for which it was chosen."""
        self._plans: dict[str, list[Pod]] = {}
        """By preemptor's uid, the victims that a binder has chosen and of which it has deleted none."""
        self._preempting: dict[str, tuple[str, float]] = {}
        """By preemptor's uid, the node on which a binder last began to evict for it, and when."""
        self._waits_since: dict[str, float] = {}
        """By uid, since when a pod could be bound while a hostile client acts."""
        self._node_history: dict[str, list[tuple[int, dict[str, Any] | None]]] = {}
        """By name, every state of a node with its revision. The store forgets them when it is compacted."""
        self._judged_at: tuple[int, Mapping[str, Earmark]] = (-1, {})
        self._could_be_bound: dict[str, str] = {}
        """What could be bound at this revision of the API server, beside these earmarks."""
        self.bindings = 0
        self.evictions = 0
        self.devices: DeviceInvariants | None = None
        self.groups: GroupInvariants | None = None
        self.earmarks: EarmarkInvariants | None = None
        self._api.observers.append(self._on_request)
        self._api.answered.append(self._on_answer)
        self.messages = Messages(world)
        for kind in (PODS, NODES):
            self._api.store.table(kind).listeners[self._on_change] = None
        self._api.store.table(PERSISTENT_VOLUMES).listeners[self._on_volume] = None

    # --- hooks

    def sending(self, request: BinderRequest, seen: Mapping[str, int]) -> None:
        """A binder sends a request; ``seen`` are the revisions that its watches have shown."""
        match request:
            case PostBinding():
                self._posting(request.pod, request.node, seen)
            case ReleaseClaims() if self.devices is not None:
                self.devices.releasing(request.pod.uid)

    def _posting(self, pod: Pod, node: str, seen: Mapping[str, int]) -> None:
        """The node of a Binding is chosen.

        One whose answer is lost is sent again to the same node, whatever has become of the node, since the lost one may
        still arrive (docs/protocol.md, 5). So the knowledge at the first one counts.
        """
        is_repeated = self._posted.get(pod.uid) == node or pod.uid in self._bound_by_us  # an answer was lost
        self._posted[pod.uid] = node
        if self.groups is not None:
            self.groups.posting(pod, node, is_repeated=is_repeated)
        if self.earmarks is not None:
            self.earmarks.posting(pod, node)
        self._known_at_first.setdefault((pod.uid, node, pod.metadata.resource_version), dict(seen))

    def examining(self, pod: Pod, seen: Mapping[str, int]) -> None:
        """A binder looks for a node for a pod, or for pods to evict."""
        if self._world.loop.time() - OWNER.get().resumed_at < VISIBLE_SECONDS:
            return  # what its watch received during a pause is not taken over yet
        gone = self._deleted_at.get(pod.uid)
        if gone is not None and gone <= min(seen.get("pods", 0), self.revision_before(VISIBLE_SECONDS)):
            self._world.problem(f"a node is looked for, for {pod.key}, whose deletion the binder's watch has shown")

    def _seen(self, request: ApiRequest) -> Mapping[str, int]:
        """What the sender of a Binding knew when it chose the node."""
        metadata, node = request.body.get("metadata") or {}, request.body["target"]["name"]
        key = (metadata.get("uid", ""), node, metadata.get("resourceVersion", ""))
        return self._known_at_first.get(key, request.seen)

    def evicting(self, preemptor: Pod, node: str, victims: list[Pod]) -> None:
        """A binder begins to evict."""
        for victim in victims:
            if self._evictions.get(victim.uid, ("", ""))[0] != preemptor.uid:
                self._chosen_at[victim.uid] = self._world.now
                self._questions[victim.uid] = self.groups and self.groups.question_of(preemptor, OWNER.get())
            self._evictions[victim.uid] = (preemptor.uid, node)
        self._plans[preemptor.uid] = victims
        self._preempting[preemptor.uid] = node, self._world.now

    def _on_change(self, change: Any) -> None:
        self._times.append(self._world.now)
        self._revisions.append(change.revision)
        if not change.key[0]:
            value = change.after.value if change.after is not None else None
            self._node_history.setdefault(change.key[1], []).append((change.revision, value))
        if change.key[0] and change.after is not None:
            self._check_move(change)
        elif change.key[0]:
            self._deleted_at[change.before.value["metadata"]["uid"]] = change.revision

    def _on_volume(self, change: Any) -> None:
        before, after = (_claim_of(stored.value) if stored else "" for stored in (change.before, change.after))
        if before and after and before != after:
            self._world.problem(f"volume {change.key[1]}, which is kept for claim {before}, is given to {after}")

    def _check_move(self, change: Any) -> None:
        pod = change.after.value
        uid, node = pod["metadata"]["uid"], pod["spec"].get("nodeName", "")
        before = self._bound_on.get(uid, "")
        if before and before != node:
            self._world.problem(f"pod {change.key[1]} moved from {before} to {node or 'nowhere'}")
        if node and not before:
            self._bound_on[uid] = node
            self._bound_revision[uid] = change.revision

    def revision_before(self, seconds: float) -> int:
        """The newest revision that was already there so many seconds ago."""
        at = bisect.bisect_right(self._times, self._world.now - seconds) - 1
        return self._revisions[max(0, at)]

    # --- requests

    def _on_request(self, request: ApiRequest) -> None:
        if request.route.kind is not PODS or request.is_dry:
            return
        if request.route.subresource == "binding":
            self._check_binding(request)
        elif request.method == "DELETE":
            self._check_eviction(request)

    def _check_binding(self, request: ApiRequest) -> None:
        metadata, name = request.body.get("metadata") or {}, request.route.name
        if not metadata.get("uid") or not metadata.get("resourceVersion"):
            self._world.problem(f"a Binding of {name} without the pod's uid and resourceVersion")

    def _on_answer(self, request: ApiRequest, response: Response) -> None:
        if request.route.kind is not PODS or request.route.subresource != "binding" or request.is_dry:
            return
        if response.status == HTTPStatus.CREATED:
            self._on_bound(request)
        elif response.status in (HTTPStatus.CONFLICT, HTTPStatus.NOT_FOUND, HTTPStatus.UNPROCESSABLE_ENTITY):
            # The pod has a later version, is gone or refused: no Binding with what this one knew can succeed any more.
            self._posted.pop((request.body.get("metadata") or {}).get("uid", ""), None)

    def _on_bound(self, request: ApiRequest) -> None:
        self.bindings += 1
        stored = self._api.store.table(PODS).items[request.route.key]
        pod = stored.value
        uid, node = pod["metadata"]["uid"], pod["spec"]["nodeName"]
        wanted = (request.body.get("metadata") or {}).get("uid")
        self._posted.pop(uid, None)
        self._bound_by_us[uid] = decoded(stored)
        name = request.route.name
        if wanted and wanted != uid:
            self._world.problem(f"{name}: a Binding of {wanted} bound {uid}, which has its name")
        if pod["spec"].get("schedulerName") not in ("berth", SECOND):
            self._world.problem(f"{name} is bound, a pod of scheduler {pod['spec'].get('schedulerName')!r}")
        self._check_room(request, node)
        self._check_node(request, pod, node)
        self._check_volumes(pod, node)

    def _node_states(self, request: ApiRequest, node: str) -> list[dict[str, Any]]:
        """The node as it is, and as the sender knew it."""
        seen = self._seen(request).get("nodes", 0)
        states = self._node_history.get(node, [])
        known = [value for revision, value in states if revision <= seen][-1:]
        return [value for value in (*known, *(value for _, value in states[-1:])) if value is not None]

    def _check_room(self, request: ApiRequest, node: str) -> None:
        states = self._node_states(request, node)
        if not states:
            self._world.problem(f"{request.route.name} is bound to {node}, which does not exist")
            return
        offers = [requests_of(_as_container(state)) for state in states]
        room = [max(offer[0] for offer in offers), max(offer[1] for offer in offers)]
        pods_allowed = max(int(float(state["status"]["allocatable"]["pods"])) for state in states)
        used, names = [0.0, 0.0, 0], []
        seen = self._seen(request).get("pods", 0)
        for stored in self._api.store.table(PODS).in_order():
            pod = stored.value
            if pod["spec"].get("nodeName") != node or not is_present(pod) or not self._counts(pod, seen):
                continue
            names.append(stored.key[1])
            used = [have + more for have, more in zip(used, requests_of(pod), strict=True)]
        if used[0] > room[0] + 1e-6 or used[1] > room[1] + 1 or used[2] > pods_allowed:
            self._world.problem(
                f"node {node} is over by the Binding of {request.route.name}: {used} of {room}, {pods_allowed} pods: "
                f"{', '.join(names)}"
            )

    def _counts(self, pod: Mapping[str, Any], seen: int) -> bool:
        """A pod that berth has bound itself counts; one that others have bound, once the sender has seen it."""
        uid = pod["metadata"]["uid"]
        return uid in self._bound_by_us or self._bound_revision.get(uid, 0) <= seen

    def _check_node(self, request: ApiRequest, pod: Mapping[str, Any], node: str) -> None:
        """Taints, cordons and selectors, by what the sender knew."""
        spec = pod["spec"]
        tolerated = {toleration.get("key") for toleration in spec.get("tolerations") or []}
        wanted = spec.get("nodeSelector") or {}

        def accepts(state: dict[str, Any]) -> bool:
            labels = state["metadata"].get("labels") or {}
            taints = [taint for taint in state["spec"].get("taints") or [] if taint["effect"] != "PreferNoSchedule"]
            return (
                not state["spec"].get("unschedulable")
                and all(taint["key"] in tolerated for taint in taints)
                and all(labels.get(key) == value for key, value in wanted.items())
            )

        states = self._node_states(request, node)
        if states and not any(accepts(state) for state in states):
            self._world.problem(f"{request.route.name} is bound to {node}, which does not accept it")

    def _check_volumes(self, pod: Mapping[str, Any], node: str) -> None:
        """Every claim has its volume, and the node has access to it. A claim that has one keeps it."""
        claims, volumes = (self._api.store.table(kind).items for kind in (PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES))
        for each in pod["spec"].get("volumes") or []:
            name = (each.get("persistentVolumeClaim") or {}).get("claimName")
            claim = claims.get((pod["metadata"].get("namespace", ""), name))
            if claim is None:
                continue
            volume = volumes.get(("", claim.value["spec"].get("volumeName", "")))
            if volume is None:
                self._world.problem(f"{pod['metadata']['name']} is bound to {node} before {name} has a volume")
            elif node not in _nodes_of(volume.value):
                self._world.problem(
                    f"{pod['metadata']['name']} is bound to {node}, which has no access to {volume.key[1]}"
                )

    # --- evictions

    def _check_eviction(self, request: ApiRequest) -> None:
        stored = self._api.store.table(PODS).items.get(request.route.key)
        uid = ((request.body or {}).get("preconditions") or {}).get("uid", "")
        if stored is None or stored.value["metadata"]["uid"] != uid or uid not in self._evictions:
            if stored is not None and uid not in self._evictions:
                self._world.problem(f"{request.route.name} is deleted by {request.process.name} for no pod")
            return
        if "deletionTimestamp" in stored.value["metadata"]:
            return
        self.evictions += 1
        preemptor_uid, node = self._evictions[uid]
        victim = decoded(stored)
        if self.groups is not None:
            self.groups.evicted(victim)
        self._judge(request, victim, preemptor_uid, node)

    def _judge(self, request: ApiRequest, victim: Pod, preemptor_uid: str, node: str) -> None:
        if any(request.seen.get(kind.plural, 0) < self._api.store.table(kind).floor for kind in (PODS, NODES)):
            return  # compacted: what the binder knew cannot be told any more
        now = self._known(request, 0.0)
        preemptor = now.pods.get(preemptor_uid)
        if preemptor is None and self._deleted_at.get(preemptor_uid, self._api.store.revision) > request.seen["pods"]:
            return  # its watch has not shown the pod yet: it has read it
        if preemptor is None or preemptor.spec.node_name or preemptor.metadata.deletion_timestamp:
            self._world.problem(f"{victim.key} is evicted for {preemptor_uid}, which needs no node any more")
            return
        if priority_of(victim) >= priority_of(preemptor):
            self._world.problem(f"{victim.key} is evicted for {preemptor.key}, which is not more important")
        profile = self.profile_of(preemptor)
        if (question := self._questions[victim.uid]) is not None:
            self._judge_group(request, victim, question, now)
            return
        free = {each.node for each in now.rank(preemptor, profile).candidates}
        if not free:
            self._check_cost(request, preemptor, now)
            return
        # A slow API server is sent what was chosen before there was room.
        earlier = self._known(request, max(VISIBLE_SECONDS, self._world.now - self._chosen_at[victim.uid]))
        before = earlier.pods.get(preemptor_uid)
        free &= {each.node for each in earlier.rank(preemptor, profile).candidates} if before else set()
        free -= set(self.messages.reserved.values())
        free -= self.messages.measured_by_hostile(VISIBLE_SECONDS)
        if free:
            self._world.problem(f"{victim.key} on {node} is evicted for {preemptor.key}, which fits {sorted(free)}")

    def _judge_group(self, request: ApiRequest, victim: Pod, question: GroupQuestion, now: Truth) -> None:
        """Evictions for a group make room for all that it needs, which has none without them."""
        profile, key = self.profile_of(question.members[0]), question.group.key
        of_group = [] if question.group.priority is None else [question.group.priority]
        if priority_of(victim) >= min([*of_group, *map(priority_of, question.members)]):
            self._world.problem(f"{victim.key} is evicted for group {key}, of which a member is not more important")
        self.groups.goes_as_one(victim, now)
        if self._world.now - self._chosen_at[victim.uid] > VISIBLE_SECONDS or self.groups.is_api_slow:
            return  # the choice is an old one: the API server has refused the eviction, or others have come in a stream
        members = {pod.uid for pod in question.members}
        victims = {uid for uid, (preemptor, _) in self._evictions.items() if preemptor in members}
        victims |= self.messages.victims_for.get((key.namespace, key.name), set())
        earlier = self._known(request, VISIBLE_SECONDS)
        known = (now, self._known(request, self._world.now - self._chosen_at[victim.uid]), earlier)
        if self._world.is_calm:
            proposed = self.messages.victims_for.get((key.namespace, key.name), set())
            former = {uid for uid, pod in now.pods.items() if pod.metadata.deletion_timestamp} - proposed
            for each, uid in itertools.product(known, sorted(former)):
                each.snapshot.remove_pod(uid)
        are_there = all(pod.uid in earlier.pods for pod in question.members)  # else some came after the choice
        if are_there and all(plan_at_once(question, each.snapshot, profile).is_found for each in known):
            self._world.problem(f"{victim.key} is evicted for group {key}, which fits once what is going has gone")
        for each in known:
            going = [pod.uid for pod in each.pods.values() if pod.metadata.deletion_timestamp or pod.uid in victims]
            for uid in going:
                each.snapshot.remove_pod(uid)
        # What its minResources ask for beyond its members nobody keeps free for it while victims are evicted.
        bare = replace(question, group=msgspec.structs.replace(question.group, min_resources={}))
        if not any(plan_at_once(bare, each.snapshot, profile).is_found for each in known):
            self._world.problem(
                f"{victim.key} is evicted for group {key}, which does not fit without the victims either"
            )

    def _check_cost(self, request: ApiRequest, preemptor: Pod, now: Truth) -> None:
        """One scheduler would evict no less important pods, and no fewer, elsewhere."""
        plan = self._plans.pop(preemptor.uid, [])
        if not plan or self._api.store.table(BUDGETS).items or self.messages.measured_by_hostile(VISIBLE_SECONDS):
            return
        for truth in (now, self._known(request, VISIBLE_SECONDS)):
            found = truth.rank(preemptor, self.profile_of(preemptor), may_preempt=True).nomination
            if found is None or not found.victims or found.node in self._reserved_for_others(preemptor):
                return
            cheapest = _cost(truth.pods[uid] for uid in found.victims)
            if cheapest >= _cost(plan):
                return
        self._world.problem(
            f"{', '.join(pod.key for pod in plan)} are evicted for {preemptor.key} at {_cost(plan)}, which {cheapest} "
            f"on {found.node} would have cost"
        )

    def _reserved_for_others(self, preemptor: Pod) -> set[str]:
        """Nodes on which the binder counts a preemptor: by a Decision, or by one that it stores only after evicting."""
        begun = {
            node
            for uid, (node, at) in self._preempting.items()
            if uid != preemptor.uid and self._world.now - at <= VISIBLE_SECONDS
        }
        return begun | set(self.messages.reserved.values())

    def _known(self, request: ApiRequest, seconds: float) -> Truth:
        """The cluster as the sender knew it, or could have known it so many seconds ago.

        What it wrote into claims it knows before its watch shows it: devices are as they are, or as it saw them then.
        """
        before = self.revision_before(seconds) if seconds else self._api.store.revision
        seen = ["pods", "nodes", "persistentvolumes", "persistentvolumeclaims"]
        if seconds:
            seen += ["resourceclaims", "resourceslices", "deviceclasses"]
        revisions = {plural: min(request.seen.get(plural, 0), before) for plural in seen}
        seen_pods = revisions["pods"]
        own = [pod for uid, pod in self._bound_by_us.items() if self._deleted_at.get(uid, seen_pods + 1) > seen_pods]
        placed = self.placed() if self.groups is None else {**self.groups.assumed(request.process), **self.placed()}
        return truth_of(self._api.store, kinds=self._world.read_kinds, revisions=revisions, placed=placed, read=own)

    def placed(self) -> dict[str, str]:
        """Pods that count on a node though the API does not show it yet."""
        return {**self._bound_on, **self._posted}

    def profile_of(self, pod: Pod) -> Profile:
        if self._profiles is None:
            self._profiles = self._world.fresh_profiles()
        return self._profiles[pod.spec.scheduler_name]

    # --- the end

    def unbound(self) -> list[Pod]:
        """Pods of berth's profiles that wait and are not gated."""
        pods = (decoded(stored) for stored in self._api.store.table(PODS).in_order())
        return [
            pod
            for pod in pods
            if pod is not None
            and not pod.spec.node_name
            and not pod.metadata.deletion_timestamp
            and pod.spec.scheduler_name in self._schedulers
            and pod.status.phase not in ("Succeeded", "Failed")
            and not is_gated(pod)
        ]

    def could_be_bound(self) -> dict[str, str]:
        """Waiting pods that one scheduler would bind now, or for which it would evict, and where."""
        earmarks = self.earmarks.standing() if self.earmarks is not None else {}
        state = self._api.store.revision, earmarks
        if state != self._judged_at:
            self._judged_at, self._could_be_bound = state, self._find_what_could_be_bound(earmarks)
        return self._could_be_bound

    def _find_what_could_be_bound(self, earmarks: Mapping[str, Earmark]) -> dict[str, str]:
        waiting = self.unbound()
        if not waiting:
            return {}
        now = truth_of(self._api.store, kinds=self._world.read_kinds)
        now.snapshot.earmarks = earmarks
        found = {}
        if self.groups is not None:
            found |= self.groups.placeable(now, self.profile_of(waiting[0]), self._waits_for_volumes)
            groups = self.groups.groups()
            waiting = [pod for pod in waiting if self.groups.is_single(pod, groups)]
        for pod in waiting:
            if self._waits_for_volumes(pod) or (pod.metadata.labels or {}).get(TRAP) or _is_large(pod.metadata.labels):
                continue
            ranking = now.rank(pod, self.profile_of(pod), may_preempt=True)
            if ranking.candidates:
                found[pod.key] = ranking.candidates[0].node
            elif ranking.nomination is not None and not self._victims_going(ranking.nomination.victims):
                found[pod.key] = f"{ranking.nomination.node} after evictions"
        return found

    def _victims_going(self, victims: Any) -> bool:
        pods = {stored.value["metadata"]["uid"]: stored.value for stored in self._api.store.table(PODS).in_order()}
        return any("deletionTimestamp" in pods[uid]["metadata"] for uid in victims if uid in pods)

    def _waits_for_volumes(self, pod: Pod) -> bool:
        """Whether its claims are being provisioned: the binder waits for them, for as long as it takes."""
        names = {
            volume.persistent_volume_claim.claim_name
            for volume in pod.spec.volumes or ()
            if volume.persistent_volume_claim
        }
        if not names:
            return False
        claims = self._api.store.table(PERSISTENT_VOLUME_CLAIMS).items
        kept = {_claim_of(stored.value) for stored in self._api.store.table(PERSISTENT_VOLUMES).in_order()}
        found = [claims.get((pod.metadata.namespace, name)) for name in names]
        return any(
            claim is None
            or (
                not claim.value["spec"].get("volumeName")
                and (
                    SELECTED_NODE in (claim.value["metadata"].get("annotations") or {})
                    or claim.value["metadata"]["uid"] in kept
                )
            )
            for claim in found
        )

    def look_on(self) -> None:
        """A pod that no hostile client has touched is bound though one acts."""
        world, could = self._world, self.could_be_bound()
        waiting = {pod.uid: pod.key for pod in self.unbound() if pod.key in could and pod.uid not in world.touched}
        self._waits_since = {uid: self._waits_since.get(uid, world.now) for uid in waiting}
        for uid, since in self._waits_since.items():
            if world.now - since > BOUND_SECONDS:
                world.problem(f"{waiting[uid]} waits for {BOUND_SECONDS:g} s while a hostile client acts on others")
                world.touched[uid] = world.now

    def is_done(self) -> bool:
        """Whether nothing is left to do. It ends at the first thing that is, and ranks no pod after it."""
        is_settled = not self._unsettled() and not self._mirror_problems() and not self._untold()
        return is_settled and not self._nomination_problems() and not self._leaks() and not self.could_be_bound()

    def left_to_do(self) -> list[str]:
        """What the services have not done yet, though they could."""
        return [
            *(f"{pod} is not bound and fits on {node}" for pod, node in self.could_be_bound().items()),
            *(f"nobody has settled {message}" for message in self._unsettled()),
            *(f"the mirror {sentence}" for sentence in self._mirror_problems()),
            *self._leaks(),
            *(f"{pod} is not bound, and its condition does not say why" for pod in self._untold()),
            *self._nomination_problems(),
        ]

    def _leaks(self) -> list[str]:
        return [] if self.devices is None else self.devices.leaks(self.messages.reserved)

    def _untold(self) -> list[str]:
        """Waiting pods without a condition that autoscalers read, where no fault has lost it."""
        if not self._world.is_calm:
            return []
        return [
            pod.key
            for pod in self.unbound()
            if not self._is_reserved(pod)
            and not _is_large(pod.metadata.labels)
            and not any(each.type == "PodScheduled" and each.status == "False" for each in pod.status.conditions or ())
        ]

    def _nomination_problems(self) -> list[str]:
        """Nominations that no pod waits for."""
        if not self._world.is_calm:
            return []
        return [
            f"{pod.key} is still nominated to {pod.status.nominated_node_name}, and does not wait for it"
            for pod in self.unbound()
            if pod.status.nominated_node_name
            and not self._is_reserved(pod)
            and self.messages.last.get(pod.uid) != Outcome.PREEMPTING
        ]

    def _is_reserved(self, pod: Pod) -> bool:
        """Whether its room is taken while it, or its group, waits."""
        reserved = self.messages.reserved
        return pod.uid in reserved or (self.groups is not None and pod.uid in self.groups.uids(reserved))

    def _unsettled(self) -> list[str]:
        """Messages that no service has settled, except those of pods that wait for their volumes."""
        pods = [pod for pod in self.unbound() if self._waits_for_volumes(pod)]
        groups = {key for pod in pods if (key := group_of(pod)) is not None}
        waiting = {f"{pod.metadata.namespace}.{pod.metadata.name}" for pod in pods}
        waiting |= {f"{key.namespace}.{subject_name(key)}" for key in groups}
        return [
            f"{name} {stored.subject}"
            for name in (PENDING, RANKED)
            for stored in self._stored(name)
            if unescape(".".join(stored.subject.split(".")[3:])) not in waiting
            and self._is_known(stored.subject)
            # One of a schema that only a newer binder may know stays in RANKED for two minutes.
            and (name == PENDING or _read(stored.data).schema in (SCHEMA, GROUP_SCHEMA))
        ]

    def _is_known(self, subject: str) -> bool:
        """Whether the services of the run can settle it: one that no service understands waits for one that does."""
        parts = subject.split(".")
        return parts[2] in self._schedulers and parts[-1] != "evil"

    def _mirror_problems(self) -> list[str]:
        """Where the bucket ``cluster`` differs from the cluster."""
        prefix = bucket_prefix(CLUSTER)
        last = {stored.subject.removeprefix(prefix): stored for stored in self._stored(bucket_stream(CLUSTER))}
        keys = {key for key, stored in last.items() if stored.data and key.split(".")[0] in ("node", "pod")}
        wanted = {f"node.{stored.key[1]}" for stored in self._api.store.table(NODES).in_order()}
        for pod in self._world.pods():
            if is_present(pod) and (pod["spec"].get("nodeName") or pod["status"].get("nominatedNodeName")):
                wanted.add(f"pod.{pod['metadata']['uid']}")
        return [*(f"lacks {key}" for key in sorted(wanted - keys)), *(f"has {key}" for key in sorted(keys - wanted))]

    def wrong_samples(self) -> list[str]:
        """Samples of hostile clients that count, and nodes that a collector measures without a sample."""
        stored = {each.subject.removeprefix(SAMPLES): each for each in self._stored(bucket_stream(BANDWIDTH))}
        standing = {node for node, each in stored.items() if each.data and not each.headers.get(TTL)}
        nodes = {each.key[1] for each in self._api.store.table(NODES).in_order()}
        forged = standing & self.messages.measured_by_hostile(0.0)
        lost = (self.messages.measured & nodes) - standing
        return [
            *(f"{node} has the sample of a hostile client" for node in sorted(forged)),
            *(f"{node} has no sample, and had one" for node in sorted(lost)),
        ]

    def heavy(self) -> list[str]:
        """Parts of services that keep more than all streams of such a run have, a few times over."""
        newest = [(each, {type(part): part for part in each.process.parts}) for each in self._world.services]
        return [
            f"{service.process.name} keeps {kept} bytes in {kind.__name__}"
            for service, parts in newest
            for kind, part in parts.items()
            if (kept := weight(part)) > MOST_BYTES
        ]

    def kept(self) -> list[str]:
        """Tables of the services that have not become empty, although no pod is left."""
        found = {}
        for service in self._world.services:
            if not service.life.health.is_working:
                continue
            for part in {type(part): part for part in service.process.parts}.values():
                for path, size in sizes(part, type(part).__name__):
                    if size > MOST_KEPT and not path.endswith(NOT_OF_PODS):
                        found[f"{service.process.name} keeps {size} entries in {path}"] = None
        return list(found)

    def _stored(self, stream: str) -> list[StoredMessage]:
        """What a stream holds; nothing, as long as it does not exist."""
        found = self._world.bus._store._streams.get(stream)
        return list(found.all_after(0)) if found is not None else []


class Messages:
    """What must hold of the messages: nothing is acknowledged before its effect is stored one step further on."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._stored_as: dict[tuple[str, str], str] = {}
        """By stream and message id, the attempt in the message."""
        self._attempts: set[tuple[str, str]] = set()
        """By stream, the attempts that it has had."""
        self._dead: set[str] = set()
        self._measured_by_hostile: dict[str, float] = {}
        """By node, when a hostile client's sample was last the one that counted."""
        self.measured: set[str] = set()
        """Nodes of which a collector has written a sample."""
        self._decided: dict[str, tuple[int, int]] = {}
        """By uid, the highest attempt with a final Decision."""
        self.reserved: dict[str, str] = {}
        """The nodes of pods that wait with a place taken: the API server shows them on none yet."""
        self.outcomes: dict[str, int] = {}
        self.last: dict[str, str] = {}
        """By uid, the outcome of the last Decision."""
        self.victims_for: dict[tuple[str, str], set[str]] = {}
        """By namespace and name of a PodGroup, which may be remade, the pods whose eviction its last plan proposes."""
        self._ranked_at: dict[str, float] = {}
        """By uid, when the last attempt was ranked: a Decision may take long while the API server is slow."""
        self._kept_out_since: dict[str, float] = {}
        """By uid, since when each ranking says that only others' proposals keep the pod out."""
        self.devices: DeviceInvariants | None = None
        world.bus.on_stored += [self._on_forged, self._on_stored]
        world.bus.on_settled.append(self._on_settled)
        world.bus.on_wiped.append(self._on_wiped)
        world.bus.on_messages_lost.append(self._on_wiped)

    def _on_wiped(self) -> None:
        self._stored_as.clear()
        self._attempts.clear()
        self._dead.clear()
        self._decided.clear()

    def _on_stored(self, subject: str, data: bytes, headers: Mapping[str, str], ack: PubAck) -> None:
        if ack.stream not in (PENDING, RANKED, DECISIONS, DEAD):
            return
        if ack.stream == DEAD:
            self._dead |= set() if self._world.is_served_to_hostile() else {".".join(subject.split(".")[2:])}
            return
        attempt, outcome = _attempt_in(data)
        if ack.stream == RANKED:
            self._note_victims(_read(data))
            self._ranked_at[_order(attempt)[0]] = self._world.now
        if not ack.duplicate:
            self._attempts.add((ack.stream, attempt))
        known = self._stored_as.setdefault((ack.stream, headers.get(MESSAGE_ID, "")), attempt)
        if ack.duplicate and known != attempt and attempt and attempt not in self._world.stolen:
            self._world.problem(f"{ack.stream} dropped attempt {attempt} as a duplicate of {known}")
        if not ack.duplicate:
            self._world.note("bus", ack.stream, f"{subject} {attempt} {outcome}")
        if ack.stream == DECISIONS and not ack.duplicate:
            self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
            self._check_decision(subject, _read(data))
        if ack.stream == DECISIONS and outcome == "waiting":
            self.reserved[_order(attempt)[0]] = _read(data).node
        elif ack.stream == DECISIONS:
            uid, order = _order(attempt)
            self.reserved.pop(uid, None)
            self._decided[uid] = max(order, self._decided.get(uid, (0, 0)))

    def _note_victims(self, ranked: _Attempt) -> None:
        if ranked.schema == GROUP_SCHEMA and ranked.group is not None:
            victims = ranked.preemption.victims if ranked.preemption is not None else []
            self.victims_for[ranked.group.namespace, ranked.group.name] = {victim.uid for victim in victims}

    def _on_forged(self, subject: str, data: bytes, headers: Mapping[str, str], ack: PubAck) -> None:
        """Notice what a hostile client says of pods and nodes, and who measures a node again."""
        is_forged, node = self._world.is_served_to_hostile(), subject.removeprefix(SAMPLES)
        if subject.startswith(SAMPLES) and (is_forged or node in self._measured_by_hostile):
            self._measured_by_hostile[node] = float("inf") if is_forged else self._world.now
        if subject.startswith(SAMPLES) and not is_forged and data:
            self.measured.add(node)
        if is_forged and ack.stream == RANKED:
            for attempt in filter(None, (_attempt_in(data)[0], headers.get(MESSAGE_ID))):
                self._world.stolen.add(attempt)
                self._world.touched[attempt.partition(".")[0]] = self._world.now

    def measured_by_hostile(self, seconds: float) -> set[str]:
        """Nodes of which a hostile client's sample counts, or did so many seconds ago: such data is believed."""
        return {node for node, until in self._measured_by_hostile.items() if until >= self._world.now - seconds}

    def _check_decision(self, subject: str, decision: _Attempt) -> None:
        """A pod that others' proposals keep out for long while some pod waits must be told.

        One that waits for long must be nominated.
        """
        uid, (_, number) = _order(decision.attempt)
        self.last[uid] = decision.outcome
        if number == MOST_ATTEMPTS and OF_GROUPS in subject:
            self._world.problem(f"{subject} is tried without end")
        if self.devices is not None and decision.outcome == Outcome.UNSCHEDULABLE:
            self.devices.judge_refusal(subject, uid, decision.message)
        if decision.outcome == Outcome.ERROR and self._world.is_only_attacked:
            self._check_error(subject, uid)
        if self._world.is_calm and decision.repeat:
            self._check_nomination(uid, decision.node)
        if decision.reason != Reason.PROPOSALS:
            self._kept_out_since.pop(uid, None)
            return
        ranked_at = self._ranked_at.get(uid, self._world.now)
        since = self._kept_out_since.setdefault(uid, ranked_at)
        is_due = ranked_at - since > UNTOLD_SECONDS and not self._world.network.is_slow
        if self._world.is_calm and self.reserved and is_due:
            self._world.problem(f"{subject} was kept out by proposals for {UNTOLD_SECONDS:g} s, and not told so")

    def _check_error(self, subject: str, uid: str) -> None:
        """A node, a pod or a message of somebody else costs a pod no error."""
        pod = next((each for each in self._world.pods() if each["metadata"]["uid"] == uid), None)
        is_unlucky = uid in self._world.api.denied or (self.devices is not None and uid in self.devices.unlucky)
        if pod is None or uid in self._world.touched or is_unlucky:
            return
        labels = pod["metadata"].get("labels", {})
        if TRAP not in labels and not _is_large(labels):
            self._world.problem(f"{subject} is an error, and nothing is wrong with the pod")

    def _check_nomination(self, uid: str, node: str) -> None:
        for pod in self._world.pods():
            nominated = pod["status"].get("nominatedNodeName", "")
            if pod["metadata"]["uid"] == uid and not pod["spec"].get("nodeName") and nominated != node:
                self._world.problem(f"{pod['metadata']['name']} waits on {node}, nominated to {nominated or 'no node'}")

    def _on_settled(self, stream: str, stored: StoredMessage) -> None:
        attempt, _ = _attempt_in(stored.data)
        if not attempt or ".".join(stored.subject.split(".")[2:]) in self._dead:
            return
        if attempt in self._world.stolen:
            return
        if stream == PENDING and (RANKED, attempt) not in self._attempts:
            self._world.problem(f"PENDING {attempt} is acknowledged, and RANKED does not have it")
        uid, order = _order(attempt)
        if stream == RANKED and self._decided.get(uid, (0, 0)) < order:
            self._world.problem(f"RANKED {attempt} is acknowledged without a final Decision")


class _GroupName(msgspec.Struct):
    namespace: str = ""
    name: str = ""


class _Attempt(msgspec.Struct):
    schema: int = 0
    attempt: str = ""
    outcome: str = ""
    node: str = ""
    reason: str = ""
    message: str = ""
    repeat: int = 0
    preemption: Preemption | None = None
    group: _GroupName | None = None


def _read(data: bytes) -> _Attempt:
    try:
        return msgspec.json.decode(data, type=_Attempt)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return _Attempt()


def _attempt_in(data: bytes) -> tuple[str, str]:
    found = _read(data)
    return found.attempt, found.outcome


def _order(attempt: str) -> tuple[str, tuple[int, int]]:
    uid, _, rest = attempt.partition(".")
    term, _, number = rest.partition(".")
    return uid, (int(term or 0), int(number or 0))


SAMPLES: Final = f"{bucket_prefix(BANDWIDTH)}{NETWORK_QUERY}."
MOST_KEPT: Final = 2
MOST_ATTEMPTS: Final = 150
"""Of a group in a term: more than back-offs leave room for in the longest run."""
OF_GROUPS: Final = ".=7E"
"""In the subject of a message about a group."""
NOT_OF_PODS: Final = tuple(
    f".{name}"
    for name in (
        "_advanced_at",
        "always",
        "_bound_at",
        "_by_query",
        "_classes",
        "_columns",
        "_complete",
        "_decided",
        "_decided._by_uid",
        "_decoders",
        "_derived",
        "_entries",
        "_events",
        "_expired",
        "_free",
        "_group_sizes",
        "_handlers",
        "_registered_events",
        "_keys",
        "_namespaces",
        "_keys_of_row",
        "_marks",
        "_namespaces",
        "_newest_versions",
        "_nodes",
        "_objects",
        "_orders",
        "_reached",
        "_remove",
        "_rows",
        "_setters",
        "_stage_sizes",
        "_terms",
        "_terms._cached",
        "_terms._groups",
        "_timers",
        "_upsert",
        "_waiting",
        "allocatable",
        "incoming",
        "names",
        "requested",
        "versions",
        "stalled._pods",
        "_waiting._rejected",
        "_written",
    )
)
"""Tables that may keep more: the first line has limits of their own, the others are by node, kind, plugin or event."""


def sizes(thing: Any, path: str, depth: int = 0) -> Iterator[tuple[str, int]]:
    """The tables of an object of berth and of its parts, with the number of their entries."""
    for name in _names_of(thing):
        value = getattr(thing, name, None)
        if isinstance(value, dict | set | list | deque):
            yield f"{path}.{name}", len(value)
        elif type(value).__module__.startswith("berth") and depth < DEEPEST and not isinstance(value, Enum):
            yield from sizes(value, f"{path}.{name}", depth + 1)


DEEPEST: Final = 3


def weight(thing: object) -> int:
    """About how many bytes a part of a service keeps: of texts and arrays, and some for each object."""
    total, seen, left = 0, set[int](), [thing]
    while left:
        one = left.pop()
        if one is None or id(one) in seen or isinstance(one, bool | int | float | type | Enum):
            continue
        seen.add(id(one))
        total += ENTRY_BYTES
        if isinstance(one, str | bytes):
            total += len(one)
        elif isinstance(one, np.ndarray):
            total += one.nbytes
        elif isinstance(one, Mapping):
            left += one.keys()
            left += one.values()
        elif isinstance(one, list | tuple | set | frozenset | deque):
            left += one
        elif isinstance(one, msgspec.Struct) or (type(one).__module__.startswith("berth") and not callable(one)):
            left += (getattr(one, name, None) for name in _names_of(one))
    return total


ENTRY_BYTES: Final = 64
MOST_BYTES: Final = 12 * 1024 * 1024
"""Streams have 1 MiB each, a log of events has 1 MiB as JSON, and an object takes about three times its JSON."""


def _names_of(thing: object) -> Iterator[str]:
    yield from getattr(thing, "__dict__", {})
    for each in type(thing).__mro__:
        slots = getattr(each, "__slots__", ())
        yield from (slots,) if isinstance(slots, str) else slots


def _cost(victims: Iterable[Pod]) -> tuple[int, int, int]:
    """Upstream's order without budgets: the most important victim, the sum, the number."""
    priorities = [priority_of(pod) for pod in victims]
    return max(priorities), sum(priority + 2**31 for priority in priorities), len(priorities)


def _is_large(labels: Mapping[str, str] | None) -> bool:
    """Whether no message may have room for a pod with these: then berth says so, and binds it if one has."""
    return sum(len(name) + len(value) for name, value in (labels or {}).items()) > SMALL_NOTES


def _claim_of(volume: Mapping[str, Any]) -> str:
    """The uid of the claim for which a volume is kept."""
    return str((volume["spec"].get("claimRef") or {}).get("uid") or "")


def _nodes_of(volume: Mapping[str, Any]) -> list[str]:
    """The nodes that have access to a volume of these clusters."""
    (term,) = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
    return list(term["matchExpressions"][0]["values"])


def _as_container(node: Mapping[str, Any]) -> dict[str, Any]:
    """The node's allocatable amounts, in the form of a pod's requests."""
    return {"spec": {"containers": [{"resources": {"requests": node["status"]["allocatable"]}}]}}
