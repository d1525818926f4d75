"""The metrics of a process: their table, the interface for counting, and its implementation for Prometheus.

A metric has kube-scheduler's name (``scheduler_*``) and labels where the meaning is the same, so that its dashboards
and alerts work; ``berth_*`` otherwise. The type checker refuses a name outside the table.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, Literal, Protocol

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest, metrics_core
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from berth.messages.attempts import Outcome, Reason

Kind = Literal["counter", "gauge", "histogram"]


CounterName = Literal[
    "scheduler_schedule_attempts_total",
    "scheduler_queue_incoming_pods_total",
    "scheduler_preemption_attempts_total",
    "rest_client_requests_total",
    "berth_bus_sessions_total",
    "berth_bus_waits_total",
    "berth_leaderships_total",
    "berth_leaderships_ended_total",
    "berth_stalls_total",
    "berth_orphans_found_total",
    "berth_messages_received_total",
    "berth_messages_published_total",
    "berth_dead_letters_total",
    "berth_strays_dropped_total",
    "berth_undecodable_total",
    "berth_decisions_total",
    "berth_bindings_total",
    "berth_foreign_bindings_total",
    "berth_device_conflicts_total",
    "berth_conflicts_total",
    "berth_api_events_total",
    "berth_relists_total",
    "berth_main_loop_stalls_total",
    "berth_sample_rounds_total",
    "berth_shadow_comparisons_total",
    "berth_shadow_refusals_total",
    "berth_shadow_skipped_total",
    "berth_copies_missed_total",
]


GaugeName = Literal[
    "scheduler_pending_pods",
    "scheduler_cache_size",
    "scheduler_unschedulable_pods",
    "leader_election_master_status",
    "berth_leadership_number",
    "berth_in_flight_pods",
    "berth_window_pods",
    "berth_stalled_pods",
    "berth_mirror_objects",
    "berth_mirror_unsettled_keys",
    "berth_mirror_reduced_objects",
    "berth_unread_kinds",
    "berth_store_refusing",
    "berth_mirror_complete_timestamp_seconds",
    "berth_held_pods",
    "berth_proposals",
    "berth_reservations",
    "berth_bindings_in_flight",
    "berth_group_earmarked_nodes",
    "berth_group_partial",
    "berth_sampled_nodes",
    "berth_sample_age_seconds",
    "berth_sample_maximum_age_seconds",
    "berth_configuration_mismatch",
]


HistogramName = Literal[
    "scheduler_scheduling_attempt_duration_seconds",
    "scheduler_scheduling_algorithm_duration_seconds",
    "scheduler_pod_scheduling_sli_duration_seconds",
    "scheduler_pod_scheduling_attempts",
    "scheduler_framework_extension_point_duration_seconds",
    "scheduler_plugin_execution_duration_seconds",
    "scheduler_preemption_victims",
    "rest_client_request_duration_seconds",
    "berth_stage_duration_seconds",
    "berth_hold_duration_seconds",
    "berth_group_plan_duration_seconds",
    "berth_group_scheduling_sli_duration_seconds",
    "berth_extender_duration_seconds",
    "berth_binding_duration_seconds",
    "berth_view_age_seconds",
    "berth_main_loop_lag_seconds",
    "berth_shadow_points_apart",
    "berth_shadow_ranking_duration_seconds",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One row: kind, label names in order, meaning, and for a histogram the upper bounds of its buckets.

    ``values``: all values of the only label, if they are few and known. Their series begin at 0, because Prometheus
    counts the first event as an increase only if the series existed before.
    """

    kind: Kind
    labels: tuple[str, ...] = ()
    meaning: str
    buckets: tuple[float, ...] = ()
    values: tuple[str, ...] = ()


def _doubling(start: float, count: int) -> tuple[float, ...]:
    return tuple(start * 2**power for power in range(count))


_ATTEMPT: Final = _doubling(0.001, 15)


_SLI: Final = _doubling(0.01, 20)


_PLUGIN: Final = tuple(0.00001 * 1.5**power for power in range(20))


_POINT: Final = _doubling(0.0001, 12)


_REQUEST: Final = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)


METRICS: Final[dict[str, Metric]] = {
    "scheduler_schedule_attempts_total": Metric(
        kind="counter",
        labels=("result", "profile"),
        meaning="Attempts to schedule pods, by result: scheduled, unschedulable, error.",
    ),
    "scheduler_scheduling_attempt_duration_seconds": Metric(
        kind="histogram",
        labels=("result", "profile"),
        meaning="Seconds from an attempt's PENDING to its Decision.",
        buckets=_ATTEMPT,
    ),
    "scheduler_scheduling_algorithm_duration_seconds": Metric(
        kind="histogram", meaning="Seconds to rank all nodes for one pod.", buckets=_ATTEMPT
    ),
    "scheduler_pod_scheduling_sli_duration_seconds": Metric(
        kind="histogram",
        labels=("attempts",),
        meaning="Seconds from a pod's entry into the queue until it is seen bound, without gated time.",
        buckets=_SLI,
    ),
    "scheduler_pod_scheduling_attempts": Metric(
        kind="histogram", meaning="Attempts that it took to bind a pod.", buckets=(1, 2, 4, 8, 16)
    ),
    "scheduler_framework_extension_point_duration_seconds": Metric(
        kind="histogram",
        labels=("extension_point", "status", "profile"),
        meaning="Seconds of all plugins of one extension point, for one pod.",
        buckets=_POINT,
    ),
    "scheduler_plugin_execution_duration_seconds": Metric(
        kind="histogram",
        labels=("plugin", "extension_point", "status"),
        meaning="Seconds of one plugin at one extension point, for one pod and all nodes; sampled.",
        buckets=_PLUGIN,
    ),
    "scheduler_pending_pods": Metric(
        kind="gauge",
        labels=("queue",),
        meaning="Pending pods, by queue: active, backoff, unschedulable, gated. Pods that wait with their PodGroup are "
        "in its queue.",
    ),
    "scheduler_queue_incoming_pods_total": Metric(
        kind="counter",
        labels=("queue", "event"),
        meaning="Pods added to a queue (active, backoff, unschedulable), by the event that caused it.",
    ),
    "scheduler_unschedulable_pods": Metric(
        kind="gauge", labels=("plugin", "profile"), meaning="Unschedulable pods, by the plugin that rejected them."
    ),
    "scheduler_cache_size": Metric(
        kind="gauge",
        labels=("type",),
        meaning="Objects in a Snapshot: nodes, pods, and assumed_pods, whose Binding no watch has shown yet.",
    ),
    "scheduler_preemption_attempts_total": Metric(
        kind="counter", meaning="Rankings without a feasible node in which PostFilter looked for pods to evict."
    ),
    "scheduler_preemption_victims": Metric(
        kind="histogram", meaning="Pods evicted for one pod.", buckets=_doubling(1, 7)
    ),
    "rest_client_requests_total": Metric(
        kind="counter",
        labels=("code", "method", "host"),
        meaning="Requests to the API server, by HTTP status; <error> when no answer came.",
    ),
    "rest_client_request_duration_seconds": Metric(
        kind="histogram",
        labels=("verb", "host"),
        meaning="Seconds until the API server had answered a request; of a watch, until it began.",
        buckets=_REQUEST,
    ),
    "leader_election_master_status": Metric(
        kind="gauge", labels=("name",), meaning="1 while this process leads, 0 while it does not, by the Lease's name."
    ),
    "berth_leadership_number": Metric(
        kind="gauge",
        labels=("role",),
        meaning="The term (watcher) or epoch (binder) that this process leads with; 0 otherwise.",
    ),
    "berth_leaderships_total": Metric(kind="counter", labels=("role",), meaning="Leaderships that began."),
    "berth_leaderships_ended_total": Metric(kind="counter", labels=("role",), meaning="Leaderships that ended."),
    "berth_stalls_total": Metric(
        kind="counter",
        labels=("role",),
        meaning="Leaderships given up because work waited and none was begun.",
        values=("watcher", "binder"),
    ),
    "berth_orphans_found_total": Metric(
        kind="counter",
        labels=("stream",),
        meaning="Times that a stream held messages which its consumer did not deliver. A new consumer delivers them.",
    ),
    "berth_bus_sessions_total": Metric(kind="counter", meaning="Connections to NATS that were opened and verified."),
    "berth_bus_waits_total": Metric(
        kind="counter",
        labels=("cause",),
        meaning="Failed attempts to open a session with NATS: unreachable, missing, refused.",
        values=("unreachable", "missing", "refused"),
    ),
    "berth_messages_received_total": Metric(
        kind="counter", labels=("stream",), meaning="Messages received from a stream."
    ),
    "berth_messages_published_total": Metric(
        kind="counter", labels=("stream",), meaning="Messages published to a stream."
    ),
    "berth_dead_letters_total": Metric(
        kind="counter",
        labels=("cause",),
        meaning="Messages that became dead letters: undecodable, failed.",
        values=("undecodable", "failed"),
    ),
    "berth_strays_dropped_total": Metric(
        kind="counter", meaning="Rankings that the binder dropped unread, because no pod waits for them and many came."
    ),
    "berth_undecodable_total": Metric(
        kind="counter", meaning="Entries and messages that a reader left out since they cannot be decoded."
    ),
    "berth_decisions_total": Metric(
        kind="counter", labels=("outcome", "profile"), meaning="Decisions published, by outcome."
    ),
    "berth_conflicts_total": Metric(
        kind="counter",
        labels=("reason",),
        meaning="Conflicts (a pod is ranked again): no-candidate, changed, proposals, behind, victims, fits, "
        "view, volumes, begun (of a group, too few members are bound).",
        values=tuple(Reason),
    ),
    "berth_stage_duration_seconds": Metric(
        kind="histogram",
        labels=("stage",),
        meaning="Seconds that an attempt spent in a stage: queue (until published), rank, commit.",
        buckets=_ATTEMPT,
    ),
    "berth_in_flight_pods": Metric(
        kind="gauge",
        labels=("profile",),
        meaning="Slots of the window taken by pods published and not yet decided. A costly pod takes several.",
    ),
    "berth_window_pods": Metric(
        kind="gauge",
        labels=("profile",),
        meaning="Slots of a profile's window now: one for most pods in flight, several for a costly one.",
    ),
    "berth_stalled_pods": Metric(
        kind="gauge",
        labels=("profile", "waits_for"),
        meaning="Pods in flight that have waited for a service (scorer, binder) for more than 10 s, by profile.",
    ),
    "berth_mirror_objects": Metric(kind="gauge", labels=("kind",), meaning="Objects in the mirror, by kind."),
    "berth_store_refusing": Metric(
        kind="gauge",
        labels=("stream",),
        meaning="1 while NATS does not store what this process publishes to a stream or bucket: its disk is full.",
    ),
    "berth_mirror_reduced_objects": Metric(
        kind="gauge",
        labels=("kind",),
        meaning="Objects too large or unreadable: in the mirror without what counts, or left out. The log names them.",
    ),
    "berth_mirror_unsettled_keys": Metric(
        kind="gauge", meaning="Keys of the mirror that do not have the API server's newest state yet."
    ),
    "berth_relists_total": Metric(
        kind="counter", labels=("kind",), meaning="LISTs of a kind because its watch could not go on."
    ),
    "berth_unread_kinds": Metric(
        kind="gauge",
        labels=("kind",),
        meaning="1 while berth may not read a kind of devices or groups, or the API server lacks devices, or groups "
        "that it served before. The log names the right.",
    ),
    "berth_mirror_complete_timestamp_seconds": Metric(
        kind="gauge",
        labels=("kind",),
        meaning="Unix time, by NATS's clock, up to which a scorer has read a kind completely.",
    ),
    "berth_view_age_seconds": Metric(
        kind="histogram", meaning="Age of the view on which a pod was ranked.", buckets=_SLI
    ),
    "berth_hold_duration_seconds": Metric(
        kind="histogram",
        meaning="Seconds that a scorer held a pod before ranking it: for its turn, a position of its view, extenders.",
        buckets=_ATTEMPT,
    ),
    "berth_group_plan_duration_seconds": Metric(
        kind="histogram",
        meaning="Seconds from the begin of a group's plan to its end, with what other pods took meanwhile.",
        buckets=_ATTEMPT,
    ),
    "berth_group_scheduling_sli_duration_seconds": Metric(
        kind="histogram",
        meaning="Seconds that a group took from being complete (PodGroup and minimum of members) to its minimum being "
        "bound.",
        buckets=_SLI,
    ),
    "berth_extender_duration_seconds": Metric(
        kind="histogram",
        labels=("extender", "verb", "result"),
        meaning="Seconds that a call of an extender took, a wait for its turn included; result: success or error.",
        buckets=_ATTEMPT,
    ),
    "berth_held_pods": Metric(
        kind="gauge", meaning="Pods that a scorer has received and whose RANKED is not stored yet."
    ),
    "berth_proposals": Metric(kind="gauge", meaning="Proposals that a scorer counts, its own and its peers'."),
    "berth_reservations": Metric(kind="gauge", meaning="Pods that the binder has assumed on a node."),
    "berth_bindings_in_flight": Metric(
        kind="gauge",
        meaning="Requests for pods without an answer yet: Bindings, reads, voids, evictions, writes before a Binding.",
    ),
    "berth_group_earmarked_nodes": Metric(
        kind="gauge", meaning="Nodes that are earmarked for groups that have waited long."
    ),
    "berth_group_partial": Metric(
        kind="gauge", meaning="PodGroups of which a part is bound, and too little, for longer than their timeout."
    ),
    "berth_bindings_total": Metric(
        kind="counter", labels=("code",), meaning="Answers to Bindings, by HTTP status; none when no answer came."
    ),
    "berth_foreign_bindings_total": Metric(
        kind="counter",
        labels=("profile",),
        meaning="Pods of berth's profiles that waited, and got a node from somebody else.",
    ),
    "berth_device_conflicts_total": Metric(
        kind="counter", meaning="Devices that a second claim got, because another scheduler gives them too."
    ),
    "berth_binding_duration_seconds": Metric(
        kind="histogram", meaning="Seconds from sending a Binding to its answer.", buckets=_ATTEMPT
    ),
    "berth_api_events_total": Metric(
        kind="counter",
        labels=("result",),
        meaning="Events and conditions of pods: sent, dropped (over budget), failed.",
        values=("sent", "dropped", "failed"),
    ),
    "berth_sample_rounds_total": Metric(
        kind="counter",
        labels=("query", "result"),
        meaning="Polls of Prometheus or metrics.k8s.io: ok, unreachable, slow, refused, unavailable, nonsense.",
    ),
    "berth_sampled_nodes": Metric(
        kind="gauge",
        labels=("query", "state"),
        meaning="Nodes: fresh (a sample that a profile uses, of any collector); by the last poll known, missing, "
        "duplicate (measured several times); unmatched: exporters without a node.",
    ),
    "berth_sample_age_seconds": Metric(
        kind="gauge", labels=("query",), meaning="Age of the newest sample of any node."
    ),
    "berth_sample_maximum_age_seconds": Metric(
        kind="gauge", labels=("query",), meaning="Age beyond which no profile uses a sample."
    ),
    "berth_configuration_mismatch": Metric(
        kind="gauge",
        labels=("service", "profile"),
        meaning="Processes of another service whose configuration differs in a profile; outside of profiles: empty.",
    ),
    "berth_shadow_comparisons_total": Metric(
        kind="counter",
        labels=("result", "profile"),
        meaning="Pods and groups that a shadow has ranked too, by how it compares: equal, node, refused, "
        "feasible, preemption, error.",
    ),
    "berth_shadow_refusals_total": Metric(
        kind="counter",
        labels=("by", "plugin"),
        meaning="Pods that a plugin of the shadow (by: shadow) or of the live scorers (by: live) keeps from where the "
        "other side would have it.",
    ),
    "berth_shadow_skipped_total": Metric(
        kind="counter",
        labels=("reason",),
        meaning="Live rankings that a shadow did not compare: busy, missed, profile, extenders, live, undecided.",
        values=("busy", "missed", "profile", "extenders", "live", "undecided"),
    ),
    "berth_copies_missed_total": Metric(
        kind="counter",
        meaning="Rankings that did not reach a scorer, and do not count there: NATS sends 5,000, or 16 MiB, in 5 s.",
    ),
    "berth_shadow_points_apart": Metric(
        kind="histogram",
        labels=("profile",),
        meaning="Points by which a shadow's best node is above the live one, by its own scores.",
        buckets=(0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000),
    ),
    "berth_shadow_ranking_duration_seconds": Metric(
        kind="histogram",
        meaning="Seconds that a shadow took to rank all nodes for one pod, or to plan a group.",
        buckets=_ATTEMPT,
    ),
    "berth_main_loop_lag_seconds": Metric(
        kind="histogram", meaning="Delay of a timer of the main loop.", buckets=_ATTEMPT
    ),
    "berth_main_loop_stalls_total": Metric(
        kind="counter", meaning="Times that the main loop was blocked for more than a second."
    ),
}


class Meter(Protocol):
    """The interface for counting. Each call passes all labels of the table by name."""

    def count(self, name: CounterName, value: float = 1, /, **labels: str) -> None: ...

    def set(self, name: GaugeName, value: float, /, **labels: str) -> None: ...

    def clear(self, name: GaugeName, /) -> None:
        """Remove a gauge with all its labels, for example when leading ends."""
        ...

    def observe(self, name: HistogramName, value: float, /, **labels: str) -> None: ...


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class PrometheusMeter(Collector):
    """Counts in its own numbers, which Prometheus' client formats on request.

    A count takes 0.3 µs and an observation 0.5; with the client's own counters 0.7 and 3. Each series is written by one
    thread only.
    """

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._registry.register(self)
        self._series: dict[str, dict[tuple[str, ...], _Series]] = {name: {} for name in METRICS}
        self._by_call: dict[tuple[str, ...], _Series] = {}  # by name and labels as passed
        self._create_known_series()

    def count(self, name: CounterName, value: float = 1, /, **labels: str) -> None:
        self._find(name, labels).value += value

    def set(self, name: GaugeName, value: float, /, **labels: str) -> None:
        self._find(name, labels).value = value

    def clear(self, name: GaugeName, /) -> None:
        """Remove a gauge. A gauge without labels becomes 0, because it is always exported."""
        self._series[name].clear()
        self._by_call = {key: series for key, series in self._by_call.items() if key[0] != name}
        if not METRICS[name].labels:
            self._find(name, {})

    def observe(self, name: HistogramName, value: float, /, **labels: str) -> None:
        series = self._find(name, labels)
        series.value += value
        series.counts[bisect_left(series.bounds, value)] += 1

    def exposition(self) -> bytes:
        return generate_latest(self._registry)

    def collect(self) -> Iterator[metrics_core.Metric]:
        for name, metric in METRICS.items():
            base = name.removesuffix("_total") if metric.kind == "counter" else name
            family = metrics_core.Metric(base, metric.meaning, metric.kind)
            for values, series in list(self._series[name].items()):
                _add_samples(family, name, dict(zip(metric.labels, values, strict=True)), series)
            yield family

    def _create_known_series(self) -> None:
        # Series whose label values are known, and those without labels.
        for name, metric in METRICS.items():
            for labels in [{metric.labels[0]: value} for value in metric.values] if metric.labels else [{}]:
                self._find(name, labels)

    def _find(self, name: str, labels: dict[str, str]) -> _Series:
        key = (name, *labels, *labels.values())
        series = self._by_call.get(key)
        if series is None:
            series = self._by_call[key] = self._make(name, labels)
        return series

    def _make(self, name: str, labels: dict[str, str]) -> _Series:
        metric = METRICS[name]
        if labels.keys() != set(metric.labels):
            raise ValueError(f"counting {name}: want the labels {metric.labels}, got {tuple(labels)}")
        values = tuple(str(labels[label]) for label in metric.labels)
        return self._series[name].setdefault(values, _Series(metric.buckets))


class _Series:
    __slots__ = ("bounds", "counts", "created", "value")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.value = 0.0  # of a histogram: the sum of observations
        self.bounds = bounds
        # Observations above the previous bound and up to this one; the last counts those above all bounds.
        self.counts = [0] * (len(bounds) + 1)
        self.created = time.time()


def _add_samples(family: metrics_core.Metric, name: str, labels: dict[str, str], series: _Series) -> None:
    if family.type == "histogram":
        bounds = (*map(floatToGoString, series.bounds), "+Inf")
        for bound, observations in zip(bounds, accumulate(series.counts), strict=True):
            family.add_sample(f"{name}_bucket", {**labels, "le": bound}, observations)
        family.add_sample(f"{name}_count", labels, sum(series.counts))
        family.add_sample(f"{name}_sum", labels, series.value)
    else:
        family.add_sample(name, labels, series.value)
    if family.type != "gauge":
        family.add_sample(f"{family.name}_created", labels, series.created)


def count_request(meter: Meter, method: str, _path: str, host: str, status: int, seconds: float) -> None:
    """Count a request to the API server, and the time until the head of its answer."""
    meter.count("rest_client_requests_total", code=str(status) if status else "<error>", method=method, host=host)
    meter.observe("rest_client_request_duration_seconds", seconds, verb=method, host=host)


_RESULTS: Final = {
    Outcome.BOUND: "scheduled",
    Outcome.UNSCHEDULABLE: "unschedulable",
    Outcome.PREEMPTING: "unschedulable",
    Outcome.ERROR: "error",
}


def result_of(outcome: Outcome) -> str | None:
    """kube-scheduler's ``result``: ``scheduled``, ``unschedulable`` or ``error``.

    ``None`` for outcomes unknown to it: a conflict, after which the pod is ranked again, and a deleted pod.
    """
    return _RESULTS.get(outcome)
