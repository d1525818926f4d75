"""The main dashboard: pods from the queue to the Binding, and the state of the services."""

from __future__ import annotations

from typing import Final

from panels import (
    A_PROCESS,
    GREEN,
    NONE_IS_RIGHT,
    ONE_IS_RIGHT,
    PROCESS,
    RED,
    YELLOW,
    Dashboard,
    Panel,
    Single,
    gauge,
    increase,
    mean,
    number,
    or_none,
    quantile,
    quantiles,
    rate,
)

FINAL: Final = 'outcome!="waiting"'
ERROR: Final = 'outcome="error"'

PIPELINE: Final = Dashboard(
    uid="berth",
    title="berth",
    singles=(
        Single(
            title="Watchers that lead",
            about="1 is right: at 0 no pod is published.",
            unit="none",
            query=number("berth_leadership_number", match='role="watcher"', above=0),
            steps=ONE_IS_RIGHT,
        ),
        Single(
            title="Binders that lead",
            about="1 is right: at 0 no pod is bound.",
            unit="none",
            query=number("berth_leadership_number", match='role="binder"', above=0),
            steps=ONE_IS_RIGHT,
        ),
        Single(
            title="Pods that wait",
            about="In all queues: ready, in backoff, unschedulable and gated.",
            unit="short",
            query=gauge("scheduler_pending_pods"),
        ),
        Single(
            title="Pods a second",
            about="Pods bound per second.",
            unit="short",
            query=rate("berth_decisions_total", match='outcome="bound"'),
        ),
        Single(
            title="Queue to node, p99",
            about="From a pod's first entry into the active queue until it is bound, 99th percentile.",
            unit="s",
            query=quantile(0.99, "scheduler_pod_scheduling_sli_duration_seconds"),
            steps={0: GREEN, 5: YELLOW, 30: RED},
        ),
        Single(
            title="Errors in an hour",
            about="Decisions with an error, and dead letters.",
            unit="short",
            query=f"({or_none(increase('berth_decisions_total', over='1h', match=ERROR))})"
            f" + ({or_none(increase('berth_dead_letters_total', over='1h'))})",
            steps=NONE_IS_RIGHT,
        ),
    ),
    rows={
        "Throughput": (
            Panel(
                title="Pods bound",
                about="Pods bound per second.",
                unit="cps",
                queries={"bound": rate("berth_decisions_total", match='outcome="bound"')},
            ),
            Panel(
                title="Decisions by outcome",
                about="The binder's Decisions. After a conflict the pod is ranked again; waiting ends no attempt.",
                unit="cps",
                queries={"{{outcome}}": rate("berth_decisions_total", "outcome")},
                stacked=True,
            ),
            Panel(
                title="Bindings by status code",
                about="The API server's responses to Bindings; none: no response in time.",
                unit="cps",
                queries={"{{code}}": rate("berth_bindings_total", "code")},
                stacked=True,
            ),
        ),
        "Latency": (
            Panel(
                title="From the queue to a node",
                about="From a pod's first entry into the active queue until it is bound, all attempts included.",
                unit="s",
                queries=quantiles("scheduler_pod_scheduling_sli_duration_seconds"),
            ),
            Panel(
                title="By stage, 99th percentile",
                about="queue: until PENDING is published; rank: until RANKED is stored; commit: until the Decision is.",
                unit="s",
                queries={"{{stage}}": quantile(0.99, "berth_stage_duration_seconds", "stage")},
            ),
            Panel(
                title="By stage, mean",
                about="The mean time of each stage of an attempt. Stages run one after another, so their times add up.",
                unit="s",
                queries={"{{stage}}": mean("berth_stage_duration_seconds", "stage")},
                stacked=True,
            ),
            Panel(
                title="Attempts by result, 99th percentile",
                about="From an attempt's PENDING message to its Decision.",
                unit="s",
                queries={"{{result}}": quantile(0.99, "scheduler_scheduling_attempt_duration_seconds", "result")},
            ),
            Panel(
                title="Bindings",
                about="From sending a Binding to its response.",
                unit="s",
                queries=quantiles("berth_binding_duration_seconds"),
            ),
            Panel(
                title="Requests to the API server, 99th percentile",
                about="Until the API server begins to respond.",
                unit="s",
                queries={"{{verb}}": quantile(0.99, "rest_client_request_duration_seconds", "verb")},
            ),
        ),
        "Queue": (
            Panel(
                title="Waiting pods by queue",
                about="active: ready to be scheduled; backoff: wait after a failure; unschedulable: wait for an event.",
                unit="short",
                queries={"{{queue}}": gauge("scheduler_pending_pods", "queue")},
                stacked=True,
            ),
            Panel(
                title="Arrivals by queue and event",
                about="Pods that enter each queue, by the event that moved them.",
                unit="cps",
                queries={"{{queue}}: {{event}}": rate("scheduler_queue_incoming_pods_total", "queue", "event")},
            ),
            Panel(
                title="In flight",
                about="Pods with an attempt in flight, the most that may be, and those that wait for a service.",
                unit="short",
                queries={
                    "in flight {{profile}}": gauge("berth_in_flight_pods", "profile"),
                    "window {{profile}}": gauge("berth_window_pods", "profile"),
                    "{{profile}} waits for {{waits_for}}": gauge("berth_stalled_pods", "profile", "waits_for"),
                },
            ),
            Panel(
                title="Unschedulable pods by plugin",
                about="A pod that two plugins rejected counts for both.",
                unit="short",
                queries={"{{plugin}}": gauge("scheduler_unschedulable_pods", "plugin")},
            ),
            Panel(
                title="Attempts per pod",
                about="1 when the first attempt succeeds.",
                unit="short",
                queries={"mean": mean("scheduler_pod_scheduling_attempts")},
            ),
            Panel(
                title="Preemption",
                about="Searches for victims, and victims evicted.",
                unit="cps",
                queries={
                    "searches": rate("scheduler_preemption_attempts_total"),
                    "victims": rate("scheduler_preemption_victims_sum"),
                },
            ),
        ),
        "Conflicts": (
            Panel(
                title="Conflicts by reason",
                about="no-candidate: no candidate fitted any more; proposals: another pod is about to get the room.",
                unit="cps",
                queries={"{{reason}}": rate("berth_conflicts_total", "reason")},
                stacked=True,
            ),
            Panel(
                title="Conflicts per attempt",
                about="The share of attempts that ended in a conflict and were ranked again.",
                unit="percentunit",
                queries={
                    "conflicts": f"{rate('berth_conflicts_total')} / {rate('berth_decisions_total', match=FINAL)}"
                },
            ),
            Panel(
                title="Assumed pods and Bindings in flight",
                about="Pods that the binder's cache assumes, and Bindings that wait for a response.",
                unit="short",
                queries={
                    "assumed pods": gauge("berth_reservations"),
                    "Bindings in flight": gauge("berth_bindings_in_flight"),
                },
            ),
        ),
        "Groups of pods": (
            Panel(
                title="Partly bound for long",
                about="PodGroups with fewer pods bound than their minimum for longer than their timeout.",
                unit="short",
                queries={"groups": gauge("berth_group_partial")},
            ),
            Panel(
                title="Time to whole",
                about="From a group's being complete (its PodGroup and minimum exist) to its minimum being bound.",
                unit="s",
                queries=quantiles("berth_group_scheduling_sli_duration_seconds"),
            ),
            Panel(
                title="Plans",
                about="Plans that scorers make of whole groups. Groups without room are planned again and again.",
                unit="cps",
                queries={"plans": rate("berth_group_plan_duration_seconds_count")},
            ),
            Panel(
                title="A plan",
                about="From the begin of a plan to its end, with what other pods took meanwhile.",
                unit="s",
                queries=quantiles("berth_group_plan_duration_seconds"),
            ),
            Panel(
                title="Begun and not whole",
                about="Attempts that bound some members of a group and not its minimum: the rest is planned at once.",
                unit="cps",
                queries={"attempts": rate("berth_conflicts_total", match='reason="begun"')},
            ),
            Panel(
                title="Earmarked nodes",
                about="Nodes that are kept for groups which have waited long; BERTH_GROUP_EARMARK_SECONDS allows it.",
                unit="short",
                queries={"nodes": gauge("berth_group_earmarked_nodes")},
            ),
        ),
        "Services": (
            Panel(
                title="Leadership terms",
                about="The term of the current leader; 0: no leader. Each takeover raises it by one.",
                unit="none",
                queries={"{{role}}": gauge("berth_leadership_number", "role", how="max")},
            ),
            Panel(
                title="Dead letters",
                about="Messages that became dead letters within an hour. Read them with `nats stream view dead`.",
                unit="short",
                queries={"{{cause}}": increase("berth_dead_letters_total", "cause", over="1h")},
            ),
            Panel(
                title="Failed checks of NATS, by cause",
                about="The service waits and tries again. missing: `berth bus apply` has not been run.",
                unit="cps",
                queries={"{{cause}}": rate("berth_bus_waits_total", "cause")},
            ),
            Panel(
                title="Messages by stream",
                about="Published and received. For each stream the two rates should be close.",
                unit="cps",
                queries={
                    "to {{stream}}": rate("berth_messages_published_total", "stream"),
                    "from {{stream}}": rate("berth_messages_received_total", "stream"),
                },
            ),
            Panel(
                title="Requests to the API server by status code",
                about="Requests of watcher and binder together.",
                unit="reqps",
                queries={"{{code}}": rate("rest_client_requests_total", "code")},
                stacked=True,
            ),
            Panel(
                title="Events by result",
                about="dropped: over the budget for Events, since Bindings have priority.",
                unit="cps",
                queries={"{{result}}": rate("berth_api_events_total", "result")},
            ),
            Panel(
                title="CPU",
                about="Cores per process. A process near 1 is saturated; more scorers help, more binders do not.",
                unit="short",
                queries={A_PROCESS: rate("process_cpu_seconds_total", *PROCESS)},
            ),
            Panel(
                title="Memory",
                about="Resident memory per process.",
                unit="bytes",
                queries={A_PROCESS: gauge("process_resident_memory_bytes", *PROCESS)},
            ),
            Panel(
                title="Lag of the main loop, 99th percentile",
                about="How late timers fire, by process. More than a second counts as a stall.",
                unit="s",
                queries={A_PROCESS: quantile(0.99, "berth_main_loop_lag_seconds", *PROCESS)},
            ),
        ),
    },
)
