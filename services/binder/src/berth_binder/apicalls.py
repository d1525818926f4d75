"""Sends the core's requests to the API server; each answer is an event of the core.

Every request may be repeated: after a kill or a missing answer the binder starts over and completes the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any, Final, TypeVar

import msgspec

from berth.api.kinds import PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, POD, RESOURCE_CLAIM, Kind
from berth.api.meta import ObjectMeta
from berth.api.pod import Pod, is_marked_for_preemption
from berth.api.trimming import with_whole
from berth.bus.interface import BusLostError
from berth.clock import Clock
from berth.decoding import version_number
from berth.errors import BerthError, DecodeError, TemporaryError
from berth.extenders.client import Extenders, HttpExtender
from berth.extenders.wire import ExtenderError
from berth.framework.interface import CreateClaim, KeepVolume, ReserveClaim, SelectNode
from berth.kube.client import KubeClient
from berth.kube.errors import ApiUnreachableError, missing_right
from berth.kube.gojson import decoded
from berth.kube.http1 import Response
from berth.kube.writes import (
    bind,
    decode_pod,
    delete_victim,
    fence,
    keep_volume,
    mark_victim,
    nominate,
    pod_path,
    select_node,
    unmark_victim,
)
from berth.leader.session import LeaderSession, NoLongerLeadingError
from berth.lifecycle.coreloop import EffectTasks, Inbox
from berth.lifecycle.process import Process
from berth.messages.attempts import Reason
from berth.observability.logging import get_logger
from berth.observability.metrics import Meter
from berth.settings.settings import V_STEP
from berth_binder.cache import Cache, fence_epoch
from berth_binder.claims import ClaimWriter
from berth_binder.events import (
    NO_ANSWER,
    Answer,
    ApiRequest,
    BindingAnswer,
    ClearNomination,
    Event,
    EvictionAnswer,
    EvictPods,
    GetPod,
    Nominate,
    NominationAnswer,
    NominationCleared,
    PodAnswer,
    PostBinding,
    RehearsalAnswer,
    RehearseBinding,
    ReleaseAnswer,
    ReleaseClaims,
    RequestAnswer,
    RequestFailed,
    VoidBindings,
    WriteObjects,
    WritesAnswer,
    leaves_open,
)

log = get_logger()

# Seconds to wait at the end of a leadership for answers of the API server. A fence of 20,000 pods takes at least 36 s,
# and a silent API server binds nothing meanwhile.
SETTLE_SECONDS: Final = 5.0
# Pauses between reads of a pod that an extender reports as bound, while the API still shows it unbound.
SLOW_BINDING_SECONDS: Final = (0.1, 0.4, 1.0)
# Pause before asking again whether a fence's epoch leads, while there is no answer.
ASK_SECONDS: Final = 1.0

# Answers to a request with a victim's uid if the victim is deleted or another pod has its name.
_NOT_THERE: Final = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY})

A = TypeVar("A", bound=RequestAnswer)


class _Object(msgspec.Struct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()


_decoder = msgspec.json.Decoder(_Object)


class HigherFences:
    """Fences of epochs above the own. Every client with the right to write a pod's status can write one.

    Only the Lease and ``control`` show whether such an epoch leads.
    """

    def __init__(self, leadership: LeaderSession, cache: Cache, clock: Clock) -> None:
        self._leadership = leadership
        self._cache = cache
        self._clock = clock
        self._asked_about = 0  # the highest epoch found not to lead
        self._has_logged = False

    async def confirm(self, pod: Pod) -> None:
        """Before a request for a pod with such a fence, make sure that its epoch does not lead.

        Raises:
            NoLongerLeadingError: it leads.
            BusLostError: the session is lost.
        """
        shown = self._cache.pod(pod.uid) or pod
        epoch = max(fence_epoch(shown), fence_epoch(pod))
        while epoch > self._leadership.number and not await self._disproves(epoch):
            await self._clock.sleep(ASK_SECONDS)

    async def ask(self) -> None:
        """Check such a fence on any pod once. Raises as ``confirm``."""
        highest = self._cache.highest_fence
        if highest > max(self._asked_about, self._leadership.number) and await self._disproves(highest):
            self._asked_about = highest

    async def _disproves(self, epoch: int) -> bool:
        """Whether Lease and ``control`` show that the epoch does not lead."""
        try:
            await self._leadership.confirm()
        except (BusLostError, NoLongerLeadingError):
            raise
        except TemporaryError as error:
            log.warning("cannot check whether the epoch of a fence leads", epoch=epoch, reason=str(error))
            return False
        if not self._has_logged:
            self._has_logged = True
            log.error("ignoring a fence of a higher epoch: no binder leads in it, another client wrote it", epoch=epoch)
        return True


class ApiRequests:
    """Sends the requests of one leadership, each in a task; answers go into the inbox, errors end the loop.

    The tasks are in no task group, so that a lost connection to NATS does not cancel requests that the API server will
    answer.
    """

    def __init__(  # noqa: PLR0913 - the clients, the parts that requests need, and the inbox
        self,
        client: KubeClient,
        process: Process,
        leadership: LeaderSession,
        *,
        fences: HigherFences,
        cache: Cache,
        extenders: Extenders,
        binding_timeout: timedelta,
        inbox: Inbox[Event],
    ) -> None:
        """``client`` checks before each request that the leadership lasts."""
        self._client = client
        self._process = process
        self._leadership = leadership
        self._fences = fences
        self._cache = cache
        self._extenders = extenders
        self._binding_timeout = binding_timeout
        self._inbox = inbox
        self._claims = ClaimWriter(client)
        self._tasks = EffectTasks(inbox.fail)
        self._logs_steps = process.settings.log.verbosity >= V_STEP
        # By uid, the trace of the pod's message.
        self.traceparent_of: Callable[[str], str | None] = lambda _uid: None

    @property
    def under_way(self) -> int:
        return len(self._tasks)

    def start(self, request: ApiRequest) -> None:
        is_traced = self._process.tracing.is_exporting
        self._tasks.start(self._send_traced(request) if is_traced else self._send(request))

    async def settle(self, seconds: float = SETTLE_SECONDS) -> bool:
        """Wait so long for the answers to sent requests. Returns whether all were answered.

        Requests that were not sent because the leadership was over need no answer.
        """
        results = await self._tasks.settle(seconds)
        return not any(isinstance(result, asyncio.CancelledError) for result in results)

    async def _send_traced(self, request: ApiRequest) -> None:
        traceparent = self.traceparent_of(request.pod.uid)
        with self._process.tracing.span(type(request).__name__, parent=traceparent) as span:
            span.note("pod", request.pod.key)
            if node := _node_of(request):
                span.note("node", node)
            answer = await self._send(request)
            if isinstance(answer, RequestAnswer):
                span.note("http.response.status_code", answer.status)

    async def _send(self, request: ApiRequest) -> Answer | RequestFailed:
        """Send a request. Each ends in an event of the core, because otherwise its place would never be free again."""
        answer: Answer | RequestFailed
        try:
            await self._fences.confirm(request.pod)
            answer = await (self._logged_answer_to(request) if self._logs_steps else self._answer_to(request))
        except BerthError:
            raise  # the leadership is over
        except Exception as exc:  # an answer of another shape, or a bug: only this pod fails
            log.exception("request failed", pod=request.pod.key, uid=request.pod.uid)
            answer = RequestFailed(uid=request.pod.uid, error=f"{type(exc).__name__}: {exc}")
        self._inbox.put(answer)
        return answer

    async def _logged_answer_to(self, request: ApiRequest) -> Answer:
        about = {"pod": request.pod.key, "uid": request.pod.uid, "request": type(request).__name__}
        about["node"] = _node_of(request)
        log.info("request sent", **about)
        answer = await self._answer_to(request)
        log.info("request answered", **about, status=answer.status, reason=answer.message)
        return answer

    def _answer_to(self, request: ApiRequest) -> Coroutine[Any, Any, Answer]:  # noqa: PLR0911 - one for each request
        match request:
            case PostBinding():
                return self._post_binding(request)
            case RehearseBinding():
                return rehearse_binding(self._client, request, self._binding_timeout)
            case GetPod():
                return get_pod(self._client, request)
            case VoidBindings():
                return void_bindings(self._client, request, self._leadership.number)
            case EvictPods():
                return self._evict_pods(request)
            case Nominate():
                return write_nomination(self._client, request)
            case ClearNomination():
                return clear_nomination(self._client, request)
            case WriteObjects():
                return write_objects(self._client, self._claims, request)
            case ReleaseClaims():
                return release_claims(self._claims, request)

    async def _post_binding(self, request: PostBinding) -> BindingAnswer:
        now = self._process.clock.now
        began = now()
        extender = self._extenders.binder_of(request.pod) if request.by_extender else None
        answer = None
        if extender is not None:
            answer = await bind_by_extender(
                self._client, request, extender, self._leadership.check, self._process.clock
            )
        if answer is None:
            answer = await post_binding(self._client, request, self._binding_timeout)
        count_binding(self._process.metrics, answer, now() - began, profile=request.pod.spec.scheduler_name)
        return answer

    async def _evict_pods(self, request: EvictPods) -> EvictionAnswer:
        answer = await evict_pods(self._client, request, lambda: self._cache.needs_node(request.pod))
        victims = [victim.key for victim in request.victims]
        about = {"pod": request.pod.key, "uid": request.pod.uid, "node": request.node, "victims": victims}
        if answer.pod is not None:
            log.info("evicted pods", **about, status=answer.status)
        else:
            log.warning("cannot evict pods", **about, status=answer.status, reason=answer.message)
        return answer


def _node_of(request: ApiRequest) -> str:
    """The node that the request concerns; empty if it concerns no single node."""
    node: str = getattr(request, "node", "")
    return node


async def post_binding(client: KubeClient, effect: PostBinding, timeout: timedelta) -> BindingAnswer:  # noqa: ASYNC109 - handed on to the client
    return await _bind(BindingAnswer, client, effect, timeout)


async def rehearse_binding(client: KubeClient, effect: RehearseBinding, timeout: timedelta) -> RehearsalAnswer:  # noqa: ASYNC109 - the same
    """POST the Binding as a dry run: admission and its preconditions answer, and nothing is bound."""
    return await _bind(RehearsalAnswer, client, effect, timeout, is_rehearsal=True)


async def _bind(
    kind: type[A],
    client: KubeClient,
    effect: PostBinding | RehearseBinding,
    timeout: timedelta,  # noqa: ASYNC109 - the same
    *,
    is_rehearsal: bool = False,
) -> A:
    metadata = effect.pod.metadata
    try:
        response = await bind(
            client,
            namespace=metadata.namespace,
            name=metadata.name,
            uid=metadata.uid,
            resource_version=metadata.resource_version,
            node=effect.node,
            timeout=timeout,
            is_rehearsal=is_rehearsal,
        )
    except ApiUnreachableError as error:
        return kind(uid=metadata.uid, status=NO_ANSWER, message=str(error))
    return _answer(kind, metadata.uid, response)


async def bind_by_extender(
    client: KubeClient, effect: PostBinding, extender: HttpExtender, check: Callable[[], None], clock: Clock
) -> BindingAnswer | None:
    """Have the extender bind the pod, then read the pod, even if the extender failed.

    ``None``: the extender failed and is ignorable, and the pod is unbound.
    """
    failure = ""
    try:
        await extender.bind(effect.pod, effect.node, check)
    except ExtenderError as error:
        failure = str(error)
    answer = await _bound_by_extender(client, effect)
    for seconds in () if failure else SLOW_BINDING_SECONDS:
        if answer is not None:
            break
        await clock.sleep(seconds)
        answer = await _bound_by_extender(client, effect)
    if answer is not None or (failure and extender.configuration.ignorable):
        return answer
    unbound = f'extender "{extender.configuration.name}" reported a Binding to {effect.node!r}, but the pod is unbound'
    return BindingAnswer(uid=effect.pod.uid, status=HTTPStatus.FAILED_DEPENDENCY, failure=failure or unbound)


async def _bound_by_extender(client: KubeClient, effect: PostBinding) -> BindingAnswer | None:
    """The pod's state as if it were the answer to a Binding; ``None``: the pod is unbound."""
    uid = effect.pod.uid
    found = await get_pod(client, GetPod(pod=effect.pod))
    if found.pod is None:
        return BindingAnswer(uid=uid, status=found.status, message=found.message, missing_right=found.missing_right)
    if found.pod.uid == uid and not found.pod.spec.node_name:
        return None
    is_ours = found.pod.uid == uid and found.pod.spec.node_name == effect.node
    return BindingAnswer(uid=uid, status=HTTPStatus.CREATED if is_ours else HTTPStatus.CONFLICT)


async def get_pod(client: KubeClient, effect: GetPod) -> PodAnswer:
    """GET the pod. An undecodable pod counts as rejected, because a retry would fail too."""
    metadata = effect.pod.metadata
    try:
        response = await client.request("GET", pod_path(metadata.namespace, metadata.name))
    except ApiUnreachableError as error:
        return PodAnswer(uid=metadata.uid, status=NO_ANSWER, message=str(error))
    answer = _pod_answer(metadata.uid, response)
    if answer.pod is None or not effect.keeps_whole:
        return answer
    return msgspec.structs.replace(answer, pod=with_whole(answer.pod, response.body))


async def void_bindings(client: KubeClient, effect: VoidBindings, epoch: int) -> PodAnswer:
    uid = effect.pod.uid
    try:
        return _pod_answer(uid, await fence(client, effect.pod, epoch))
    except ApiUnreachableError as error:
        return PodAnswer(uid=uid, status=NO_ANSWER, message=str(error))


async def evict_pods(client: KubeClient, effect: EvictPods, is_needed: Callable[[], bool]) -> EvictionAnswer:
    """Evict one victim after another, then nominate the node.

    ``is_needed`` is called right before each deletion, because the preemptor may be deleted or bound meanwhile. Then no
    further victim is deleted, and the answer is 404.
    """
    preemptor = effect.pod
    try:
        for victim in effect.victims:
            failure = await _evict(client, victim, _FOR_PREEMPTOR.format(preemptor.spec.scheduler_name), is_needed)
            if failure is not None:
                return _answer(EvictionAnswer, preemptor.uid, failure)
        response = await nominate(client, preemptor, effect.node)
    except ApiUnreachableError as error:
        return EvictionAnswer(uid=preemptor.uid, status=NO_ANSWER, message=str(error))
    except _NotNeededError:
        message = "the pod needs no node any more"
        return EvictionAnswer(uid=preemptor.uid, status=HTTPStatus.NOT_FOUND, message=message)
    if not response.succeeded:
        return _answer(EvictionAnswer, preemptor.uid, response)
    try:
        return EvictionAnswer(uid=preemptor.uid, status=response.status, pod=decode_pod(response.body))
    except DecodeError as error:
        return EvictionAnswer(uid=preemptor.uid, status=HTTPStatus.UNPROCESSABLE_ENTITY, message=str(error))


async def evict_members(client: KubeClient, pods: Iterable[Pod], is_needed: Callable[[], bool]) -> str:
    """Evict the bound members of a group, one after another, while this is needed. Returns why it ended earlier."""
    try:
        for pod in pods:
            failure = await _evict(client, pod, _OF_PARTIAL_GROUP.format(pod.spec.scheduler_name), is_needed)
            if failure is not None:
                problem = failure.failure()
                return f"{pod.key}: {failure.status} {problem.message or problem.reason}"
    except ApiUnreachableError as error:
        return str(error)
    except _NotNeededError:
        return "its minimum is bound by now"
    return ""


_FOR_PREEMPTOR: Final = "{}: preempting to accommodate a higher priority pod"
_OF_PARTIAL_GROUP: Final = "{}: too few members of its group have a node"


class _NotNeededError(Exception):
    """The preemptor was deleted, or is bound; or a group is whole."""


async def _evict(client: KubeClient, victim: Pod, why: str, is_needed: Callable[[], bool]) -> Response | None:
    """Mark and delete the victim. Returns the failed response, or ``None`` if the victim terminates or is gone."""
    if victim.metadata.deletion_timestamp is not None:
        return None
    if not is_marked_for_preemption(victim):
        marked = await mark_victim(client, victim, why=why, time=datetime.now(UTC))
        if not marked.succeeded:
            return None if marked.status in _NOT_THERE else marked
    if not is_needed():
        await unmark_victim(client, victim, why="the eviction is not needed any more", time=datetime.now(UTC))
        raise _NotNeededError
    deleted = await delete_victim(client, victim)
    if deleted.succeeded or deleted.status in _NOT_THERE:
        return None
    if not leaves_open(deleted.status):
        # the victim stays: no pod may wait for it
        await unmark_victim(client, victim, why="the eviction was refused", time=datetime.now(UTC))
    return deleted


async def write_nomination(client: KubeClient, effect: Nominate) -> NominationAnswer:
    uid = effect.pod.uid
    try:
        response = await nominate(client, effect.pod, effect.node)
        if not response.succeeded:
            return _answer(NominationAnswer, uid, response)
        return NominationAnswer(uid=uid, status=response.status, pod=decode_pod(response.body))
    except ApiUnreachableError as error:
        return NominationAnswer(uid=uid, status=NO_ANSWER, message=str(error))
    except DecodeError as error:
        return NominationAnswer(uid=uid, status=HTTPStatus.UNPROCESSABLE_ENTITY, message=str(error))


async def clear_nomination(client: KubeClient, effect: ClearNomination) -> NominationCleared:
    """Clear the pod's nominated node. If the request is lost, the pod's next attempt repeats it."""
    uid = effect.pod.uid
    try:
        return _answer(NominationCleared, uid, await nominate(client, effect.pod, None))
    except ApiUnreachableError as error:
        return NominationCleared(uid=uid, status=NO_ANSWER, message=str(error))


async def write_objects(client: KubeClient, claims: ClaimWriter, effect: WriteObjects) -> WritesAnswer:
    """Send the writes in order, up to the first failure."""
    uid, pod = effect.pod.uid, effect.pod
    versions: dict[str, int] = {}
    kind: Kind[Any]
    try:
        for request in effect.requests:
            match request:
                case KeepVolume():
                    kind, response = PERSISTENT_VOLUME, await keep_volume(client, request)
                case SelectNode():
                    kind, response = PERSISTENT_VOLUME_CLAIM, await select_node(client, request)
                case ReserveClaim():
                    kind, response = RESOURCE_CLAIM, await claims.reserve(pod, request)
                case CreateClaim():
                    kind, response = RESOURCE_CLAIM, await claims.create(pod, request)
            if response.succeeded and isinstance(request, CreateClaim):
                _note_version(versions, kind, response)
                kind, response = POD, await claims.report(pod, request)
            if not response.succeeded:
                of_claims = isinstance(request, ReserveClaim | CreateClaim)
                answer = _answer(WritesAnswer, uid, response)
                return msgspec.structs.replace(answer, conflict=Reason.CLAIMS if of_claims else Reason.VOLUMES)
            _note_version(versions, kind, response)
    except ApiUnreachableError as error:
        return WritesAnswer(uid=uid, status=NO_ANSWER, message=str(error))
    return WritesAnswer(uid=uid, status=response.status, versions=versions)


async def release_claims(claims: ClaimWriter, effect: ReleaseClaims) -> ReleaseAnswer:
    """Send the writes, up to the first failure. A claim that is gone needs none."""
    uid = effect.pod.uid
    versions: dict[str, int] = {}
    try:
        for request in effect.requests:
            response = await claims.release(effect.pod, request, voids=effect.voids)
            if response.succeeded:
                _note_version(versions, RESOURCE_CLAIM, response)
            elif response.status != HTTPStatus.NOT_FOUND:
                return _answer(ReleaseAnswer, uid, response)
    except ApiUnreachableError as error:
        return ReleaseAnswer(uid=uid, status=NO_ANSWER, message=str(error))
    return ReleaseAnswer(uid=uid, status=HTTPStatus.OK, version=versions.get(RESOURCE_CLAIM.name, 0))


def _note_version(versions: dict[str, int], kind: Kind[Any], response: Response) -> None:
    version = version_number(decoded(_decoder.decode, response.body).metadata.resource_version)
    versions[kind.name] = max(versions.get(kind.name, 0), version)


def _pod_answer(uid: str, response: Response) -> PodAnswer:
    if not response.succeeded:
        return _answer(PodAnswer, uid, response)
    try:
        return PodAnswer(uid=uid, status=response.status, pod=decode_pod(response.body))
    except DecodeError as error:
        return PodAnswer(uid=uid, status=HTTPStatus.UNPROCESSABLE_ENTITY, message=str(error))


def _answer(kind: type[A], uid: str, response: Response) -> A:
    if response.succeeded:
        return kind(uid=uid, status=response.status)
    failure = response.failure()
    return kind(
        uid=uid,
        status=response.status,
        message=failure.message or failure.reason,
        retry_after=response.retry_after,
        missing_right=missing_right(failure) or "",
    )


def count_binding(metrics: Meter, answer: BindingAnswer, seconds: float, *, profile: str) -> None:
    """Count the answer to a Binding and its duration, which is also the duration of the extension point Bind."""
    metrics.observe(
        "scheduler_framework_extension_point_duration_seconds",
        seconds,
        extension_point="Bind",
        status="Success" if answer.succeeded else "Error",
        profile=profile,
    )
    metrics.count("berth_bindings_total", code=str(answer.status) if answer.status else "none")
    metrics.observe("berth_binding_duration_seconds", seconds)
