"""The core's requests to the API server; the answer to each is an event of the core.

Every request may be repeated: after a kill or without an answer the binder starts over and does what is left.
``ApiRequests`` has those of one leadership.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any, Final, TypeVar

import msgspec

from berth.api.meta import ObjectMeta
from berth.api.pod import Pod, is_marked_for_preemption
from berth.clock import Clock
from berth.decoding import version_number
from berth.errors import BerthError, DecodeError
from berth.extenders.client import Extenders, HttpExtender
from berth.extenders.wire import ExtenderError
from berth.framework.interface import KeepVolume, Write
from berth.kube.client import KubeClient
from berth.kube.errors import ApiUnreachableError, Response, missing_right
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
from berth.observability.logging import get_logger, verbose
from berth.observability.metrics import Meter
from berth.observability.tracing import Span, Tracing
from berth.settings.settings import V_STEP
from berth_binder.events import (
    NO_ANSWER,
    Answer,
    ApiRequest,
    BindingAnswer,
    ClearNomination,
    EvictionAnswer,
    EvictPods,
    GetPod,
    PodAnswer,
    PostBinding,
    RequestAnswer,
    RequestFailed,
    VoidBindings,
    VolumesAnswer,
    WriteVolumes,
    leaves_open,
)

log = get_logger()

SETTLE_SECONDS: Final = 5.0
"""How long the end of a leadership waits for answers of the API server. A fence of 20,000 pods takes 36 s and more, and
an API server that does not answer binds nothing meanwhile."""
SLOW_BINDING_SECONDS: Final = (0.1, 0.4, 1.0)
"""How long a pod that an extender says it has bound is looked at again."""
VOLUMES: Final = "pv"
CLAIMS: Final = "pvc"

_NOT_THERE: Final = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY})
"""Answers to a request with a victim's uid when the victim is deleted, or another pod has its name."""

A = TypeVar("A", bound=RequestAnswer)


class _Object(msgspec.Struct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()


_decoder = msgspec.json.Decoder(_Object)


class ApiRequests:
    """The requests of one leadership: each is a task, and ends in an event of the core, or ends the leadership.

    The tasks belong to no group, so that a lost connection to NATS does not cancel what the API server will answer.
    """

    def __init__(  # noqa: PLR0913 - the client, what is counted and how long, and who is told
        self,
        client: KubeClient,
        *,
        epoch: int,
        clock: Clock,
        metrics: Meter,
        binding_timeout: timedelta,
        extenders: Extenders,
        check: Callable[[], None],
        confirm: Callable[[Pod], Awaitable[None]],
        needs_node: Callable[[Pod], bool],
        on_answer: Callable[[Answer | RequestFailed], None],
        on_end: Callable[[], None],
        log_once: Callable[[str], None],
        tracing: Tracing,
        parent_of: Callable[[str], str | None],
    ) -> None:
        """``confirm`` is awaited before each request: whether this epoch may still send one for the pod.

        ``check`` raises when this leadership may not send anything more; ``client`` calls it by itself.

        ``parent_of`` has the ``traceparent`` of a pod's message, by uid.

        ``needs_node`` is asked before each victim is deleted: whether the pod is still known to wait.
        """
        self._client = client
        self._epoch = epoch
        self._clock = clock
        self._metrics = metrics
        self._binding_timeout = binding_timeout
        self._extenders = extenders
        self._check = check
        self._confirm = confirm
        self._needs_node = needs_node
        self._on_answer = on_answer
        self._on_end = on_end
        self._log_once = log_once
        self._tracing = tracing
        self._parent_of = parent_of
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_over = self._left_open = False
        self._is_telling = False
        self._following: ApiRequest | None = None
        """The first request that the core has answered to an answer with, while it is told that answer."""
        self._failed = asyncio.Event()
        self._failure: BaseException | None = None

    @property
    def under_way(self) -> int:
        return len(self._tasks)

    def start(self, request: ApiRequest) -> None:
        if self._is_telling and self._following is None:
            self._following = request
            return
        task = asyncio.create_task(self._send_one_after_the_other(request))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def failed(self) -> None:
        """Wait until a request has ended with an error of the leadership, and raise it."""
        await self._failed.wait()
        if self._failure is not None:
            raise self._failure

    def end_leadership(self) -> None:
        """Nothing follows from the answers any more: the next leader finds what the requests have changed."""
        self._is_over = True

    async def settle(self) -> bool:
        """Wait for the answers to requests on the wire. Returns whether all were answered."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=SETTLE_SECONDS)
        all_answered = not (self._tasks or self._left_open)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        return all_answered

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._failure = self._failure or error
            self._failed.set()
        self._on_end()

    async def _send_one_after_the_other(self, request: ApiRequest) -> None:
        """Send a request, then the one that its answer leads to, such as the next pod's: no task is made for each."""
        following: ApiRequest | None = request
        while following is not None:
            if self._tracing.is_exporting:
                following = await self._traced(following, self._parent_of(following.pod.uid))
            else:
                following = await self._send(following)

    async def _traced(self, request: ApiRequest, parent: str | None) -> ApiRequest | None:
        with self._tracing.span(type(request).__name__, parent=parent) as span:
            span.note("pod", request.pod.key)
            if node := _node_of(request):
                span.note("node", node)
            return await self._send(request, span)

    async def _send(self, request: ApiRequest, span: Span | None = None) -> ApiRequest | None:
        """Send a request. Every one ends in an event of the core: else its place would never be free again.

        Returns a request that follows from it.
        """
        try:
            await self._confirm(request.pod)
            answer = await self._logged_answer_to(request) if verbose(V_STEP) else await self._answer_to(request)
        except BerthError:
            raise  # the leadership is over
        except Exception as exc:  # an answer of another shape, or a bug: a failure of this pod only
            log.exception("a request failed", pod=request.pod.key, uid=request.pod.uid)
            self._left_open = self._left_open or self._is_over
            return self._tell(RequestFailed(uid=request.pod.uid, error=f"{type(exc).__name__}: {exc}"))
        else:
            if span is not None:
                span.note("http.response.status_code", answer.status)
            self._left_open = self._left_open or (self._is_over and answer.is_open)
            return self._tell(answer) if isinstance(answer, Answer) else None

    def _tell(self, answer: Answer | RequestFailed) -> ApiRequest | None:
        if self._is_over:
            return None
        self._is_telling = True
        try:
            self._on_answer(answer)
            return self._following
        finally:
            self._is_telling, self._following = False, None

    async def _logged_answer_to(self, request: ApiRequest) -> RequestAnswer:
        """The same with a line for the request, and one for the answer."""
        about = {"pod": request.pod.key, "uid": request.pod.uid, "request": type(request).__name__}
        about["node"] = _node_of(request)
        log.info("request sent", **about)
        answer = await self._answer_to(request)
        log.info("request answered", **about, status=answer.status, reason=answer.message)
        return answer

    def _answer_to(self, request: ApiRequest) -> Coroutine[Any, Any, RequestAnswer]:
        match request:
            case PostBinding():
                return self._post_binding(request)
            case GetPod():
                return get_pod(self._client, request)
            case VoidBindings():
                return void_bindings(self._client, request, self._epoch)
            case EvictPods():
                return self._evict_pods(request)
            case ClearNomination():
                return self._clear_nomination(request)
            case WriteVolumes():
                return self._write_volumes(request)

    async def _post_binding(self, request: PostBinding) -> BindingAnswer:
        began = self._clock.now()
        extender = self._extenders.binder_of(request.pod) if request.by_extender else None
        answer = None
        if extender is not None:
            answer = await bind_by_extender(self._client, request, extender, self._check, self._clock)
        if answer is None:
            answer = await post_binding(self._client, request, self._binding_timeout)
        count_binding(self._metrics, answer, self._clock.now() - began, profile=request.pod.spec.scheduler_name)
        return answer

    async def _evict_pods(self, request: EvictPods) -> EvictionAnswer:
        answer = await evict_pods(self._client, request, lambda: self._needs_node(request.pod))
        victims = [victim.key for victim in request.victims]
        about = {"pod": request.pod.key, "uid": request.pod.uid, "node": request.node, "victims": victims}
        if answer.pod is not None:
            log.info("evicted pods", **about, status=answer.status)
        else:
            log.warning("could not evict pods", **about, status=answer.status, reason=answer.message)
        return answer

    async def _clear_nomination(self, request: ClearNomination) -> RequestAnswer:
        answer = await clear_nomination(self._client, request)
        if answer.missing_right:
            self._log_once(answer.missing_right)
        return answer

    async def _write_volumes(self, request: WriteVolumes) -> VolumesAnswer:
        return await write_volumes(self._client, request)


def _node_of(request: ApiRequest) -> str:
    """Empty for a request that concerns no single node."""
    node: str = getattr(request, "node", "")
    return node


async def post_binding(client: KubeClient, effect: PostBinding, timeout: timedelta) -> BindingAnswer:  # noqa: ASYNC109 - handed on to the client
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
        )
    except ApiUnreachableError as error:
        return BindingAnswer(uid=metadata.uid, status=NO_ANSWER, message=str(error))
    return _answer(BindingAnswer, metadata.uid, response)


async def bind_by_extender(
    client: KubeClient, effect: PostBinding, extender: HttpExtender, check: Callable[[], None], clock: Clock
) -> BindingAnswer | None:
    """Have the extender bind the pod, and read the pod, whatever the extender has answered.

    ``None``: it has failed and may be ignored, and the pod is not bound.
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
    said = (
        f'extender "{extender.configuration.name}" says that it has bound the pod to {effect.node!r}, and it is unbound'
    )
    return BindingAnswer(uid=effect.pod.uid, status=HTTPStatus.FAILED_DEPENDENCY, failure=failure or said)


async def _bound_by_extender(client: KubeClient, effect: PostBinding) -> BindingAnswer | None:
    """What the pod shows, as if it were the answer to a Binding; ``None``: it is unbound."""
    uid = effect.pod.uid
    found = await get_pod(client, GetPod(pod=effect.pod))
    if found.pod is None:
        return BindingAnswer(uid=uid, status=found.status, message=found.message, missing_right=found.missing_right)
    if found.pod.uid == uid and not found.pod.spec.node_name:
        return None
    is_ours = found.pod.uid == uid and found.pod.spec.node_name == effect.node
    return BindingAnswer(uid=uid, status=HTTPStatus.CREATED if is_ours else HTTPStatus.CONFLICT)


async def get_pod(client: KubeClient, effect: GetPod) -> PodAnswer:
    """GET the pod. One that cannot be decoded counts as rejected: a retry would fail too."""
    metadata = effect.pod.metadata
    try:
        response = await client.call("GET", pod_path(metadata.namespace, metadata.name))
    except ApiUnreachableError as error:
        return PodAnswer(uid=metadata.uid, status=NO_ANSWER, message=str(error))
    return _pod_answer(metadata.uid, response)


async def void_bindings(client: KubeClient, effect: VoidBindings, epoch: int) -> PodAnswer:
    """Fence the pod, so that no Binding of before can land."""
    uid = effect.pod.uid
    try:
        return _pod_answer(uid, await fence(client, effect.pod, epoch))
    except ApiUnreachableError as error:
        return PodAnswer(uid=uid, status=NO_ANSWER, message=str(error))


async def evict_pods(client: KubeClient, effect: EvictPods, is_needed: Callable[[], bool]) -> EvictionAnswer:
    """Evict one victim after another, then nominate the node.

    ``is_needed`` is asked right before each deletion: the preemptor may have gone while a victim before was evicted, or
    marked. Then no further one is deleted, and the answer is that the pod is gone.
    """
    preemptor = effect.pod
    try:
        for victim in effect.victims:
            failure = await _evict(client, victim, preemptor.spec.scheduler_name, is_needed)
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


class _NotNeededError(Exception):
    """The preemptor was deleted, or is bound."""


async def _evict(
    client: KubeClient, victim: Pod, scheduler_name: str, is_needed: Callable[[], bool]
) -> Response | None:
    """Mark and delete the victim; returns the response that failed, ``None`` when the pod terminates or is gone."""
    if victim.metadata.deletion_timestamp is not None:
        return None
    if not is_marked_for_preemption(victim):
        marked = await mark_victim(client, victim, scheduler_name=scheduler_name, time=datetime.now(UTC))
        if not marked.succeeded:
            return None if marked.status in _NOT_THERE else marked
    if not is_needed():
        why = "the pod that it was for needs no node any more"
        await unmark_victim(client, victim, why=why, time=datetime.now(UTC))
        raise _NotNeededError
    deleted = await delete_victim(client, victim)
    if deleted.succeeded or deleted.status in _NOT_THERE:
        return None
    if not leaves_open(deleted.status):
        # It stays: no pod must wait for it.
        await unmark_victim(client, victim, why="the eviction was refused", time=datetime.now(UTC))
    return deleted


async def clear_nomination(client: KubeClient, effect: ClearNomination) -> RequestAnswer:
    """Clear the pod's nominated node. If the request is lost, the pod's next attempt sends it again."""
    uid = effect.pod.uid
    try:
        return _answer(RequestAnswer, uid, await nominate(client, effect.pod, None))
    except ApiUnreachableError as error:
        return RequestAnswer(uid=uid, status=NO_ANSWER, message=str(error))


async def write_volumes(client: KubeClient, effect: WriteVolumes) -> VolumesAnswer:
    """Send the writes in order, up to the first failure."""
    uid = effect.pod.uid
    versions: dict[str, int] = {}
    try:
        for request in effect.requests:
            response = await _write(client, request)
            if not response.succeeded:
                return _answer(VolumesAnswer, uid, response)
            kind = VOLUMES if isinstance(request, KeepVolume) else CLAIMS
            version = version_number(_decoder.decode(response.body).metadata.resource_version)
            versions[kind] = max(versions.get(kind, 0), version)
    except ApiUnreachableError as error:
        return VolumesAnswer(uid=uid, status=NO_ANSWER, message=str(error))
    return VolumesAnswer(uid=uid, status=response.status, versions=versions)


async def _write(client: KubeClient, request: Write) -> Response:
    return await (keep_volume(client, request) if isinstance(request, KeepVolume) else select_node(client, request))


def _pod_answer(uid: str, response: Response) -> PodAnswer:
    if not response.succeeded:
        return _answer(PodAnswer, uid, response)
    try:
        return PodAnswer(uid=uid, status=response.status, pod=decode_pod(response.body))
    except DecodeError as error:
        return PodAnswer(uid=uid, status=HTTPStatus.UNPROCESSABLE_ENTITY, message=str(error))


def _answer(kind: type[A], uid: str, response: Response) -> A:
    """The response as an event, with the reason where it is a rejection."""
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
    """Count the answer to a Binding and its duration, which is also that of the extension point Bind."""
    metrics.observe(
        "scheduler_framework_extension_point_duration_seconds",
        seconds,
        extension_point="Bind",
        status="Success" if answer.succeeded else "Error",
        profile=profile,
    )
    metrics.count("berth_bindings_total", code=str(answer.status) if answer.status else "none")
    metrics.observe("berth_binding_duration_seconds", seconds)
