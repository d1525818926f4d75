"""What becomes of pods, from the queue to a node, and how the services are."""

from __future__ import annotations

from typing import Final

from panels import A_PROCESS, PROCESS, Dashboard, Panel, gauge, increase, mean, quantile, quantiles, rate

FINAL: Final = 'outcome!="waiting"'

PIPELINE: Final = Dashboard(
    uid="berth",
    title="berth",
    rows={
        "Throughput": (
            Panel(
                title="Pods bound",
                about="What all of it is for.",
                unit="cps",
                queries={"bound": rate("berth_decisions_total", match='outcome="bound"')},
            ),
            Panel(
                title="Decisions by outcome",
                about="Attempts that ended, and how. A conflict is ranked again; waiting is not an end.",
                unit="cps",
                queries={"{{outcome}}": rate("berth_decisions_total", "outcome")},
                stacked=True,
            ),
            Panel(
                title="Bindings by answer",
                about="What the API server said to Bindings; none: it said nothing in time.",
                unit="cps",
                queries={"{{code}}": rate("berth_bindings_total", "code")},
                stacked=True,
            ),
        ),
        "Latency": (
            Panel(
                title="From the queue to a node",
                about="From when a pod first waits for its turn until it is seen on its node, all attempts together.",
                unit="s",
                queries=quantiles("scheduler_pod_scheduling_sli_duration_seconds"),
            ),
            Panel(
                title="By stage, 99th percentile",
                about="queue: until published; rank: until a scorer's answer is stored; commit: until the Decision is.",
                unit="s",
                queries={"{{stage}}": quantile(0.99, "berth_stage_duration_seconds", "stage")},
            ),
            Panel(
                title="By stage, mean",
                about="What an attempt's time is made of. Stages follow each other, so that they add up.",
                unit="s",
                queries={"{{stage}}": mean("berth_stage_duration_seconds", "stage")},
                stacked=True,
            ),
            Panel(
                title="Attempts by result, 99th percentile",
                about="From the PENDING that asks for an attempt to its Decision.",
                unit="s",
                queries={"{{result}}": quantile(0.99, "scheduler_scheduling_attempt_duration_seconds", "result")},
            ),
            Panel(
                title="Bindings",
                about="From sending a Binding to its answer.",
                unit="s",
                queries=quantiles("berth_binding_duration_seconds"),
            ),
            Panel(
                title="Requests to the API server, 99th percentile",
                about="Until the API server begins to answer.",
                unit="s",
                queries={"{{verb}}": quantile(0.99, "rest_client_request_duration_seconds", "verb")},
            ),
        ),
        "Queue": (
            Panel(
                title="Waiting pods by queue",
                about="active: for their turn; backoff: after a failure; unschedulable: for an event that may help.",
                unit="short",
                queries={"{{queue}}": gauge("scheduler_pending_pods", "queue")},
                stacked=True,
            ),
            Panel(
                title="Arrivals by queue and event",
                about="What brings pods to their queues.",
                unit="cps",
                queries={"{{queue}}: {{event}}": rate("scheduler_queue_incoming_pods_total", "queue", "event")},
            ),
            Panel(
                title="In flight",
                about="Pods on their way between the services, and how many may be.",
                unit="short",
                queries={"in flight": gauge("berth_in_flight_pods"), "window": gauge("berth_window_pods")},
            ),
            Panel(
                title="Unschedulable pods by plugin",
                about="A pod that two plugins refused counts for both.",
                unit="short",
                queries={"{{plugin}}": gauge("scheduler_unschedulable_pods", "plugin")},
            ),
            Panel(
                title="Attempts a pod takes",
                about="1 where nothing gets in the way.",
                unit="short",
                queries={"mean": mean("scheduler_pod_scheduling_attempts")},
            ),
            Panel(
                title="Preemption",
                about="Searches for pods to evict, and pods evicted.",
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
                about="stale: the nodes had more pods by then; no-candidate: none fitted any more.",
                unit="cps",
                queries={"{{reason}}": rate("berth_conflicts_total", "reason")},
                stacked=True,
            ),
            Panel(
                title="Share of attempts",
                about="Attempts that had to be ranked again.",
                unit="percentunit",
                queries={
                    "conflicts": f"{rate('berth_conflicts_total')} / {rate('berth_decisions_total', match=FINAL)}"
                },
            ),
            Panel(
                title="In the binder's hands",
                about="Room that is promised, and requests that await an answer.",
                unit="short",
                queries={
                    "reservations": gauge("berth_reservations"),
                    "on the wire": gauge("berth_bindings_in_flight"),
                },
            ),
        ),
        "Services": (
            Panel(
                title="Leaderships",
                about="The number of who leads; 0: nobody does. It goes up by one with each takeover.",
                unit="none",
                queries={"{{role}}": gauge("berth_leadership_number", "role", how="max")},
            ),
            Panel(
                title="Dead letters",
                about="Messages put aside for people within an hour: `nats stream view dead`.",
                unit="short",
                queries={"{{cause}}": increase("berth_dead_letters_total", "cause", over="1h")},
            ),
            Panel(
                title="Looks at NATS that ended in waiting",
                about="unreachable, missing (nobody has run `berth bus apply`), refused.",
                unit="cps",
                queries={"{{cause}}": rate("berth_bus_waits_total", "cause")},
            ),
            Panel(
                title="Messages by stream",
                about="Published and received; the two of a stream keep step.",
                unit="cps",
                queries={
                    "to {{stream}}": rate("berth_messages_published_total", "stream"),
                    "from {{stream}}": rate("berth_messages_received_total", "stream"),
                },
            ),
            Panel(
                title="Requests to the API server by answer",
                about="Of watcher and binder together.",
                unit="reqps",
                queries={"{{code}}": rate("rest_client_requests_total", "code")},
                stacked=True,
            ),
            Panel(
                title="Events for people",
                about="dropped: more than the budget lets through; Bindings come first.",
                unit="cps",
                queries={"{{result}}": rate("berth_api_events_total", "result")},
            ),
            Panel(
                title="CPU",
                about="Cores, by process. One that is near 1 is at its end; more scorers help, more binders do not.",
                unit="short",
                queries={A_PROCESS: rate("process_cpu_seconds_total", *PROCESS)},
            ),
            Panel(
                title="Memory",
                about="Resident, by process.",
                unit="bytes",
                queries={A_PROCESS: gauge("process_resident_memory_bytes", *PROCESS)},
            ),
            Panel(
                title="Main loop, 99th percentile of its lag",
                about="By how much timers come late, by process; above a second it counts as a stall.",
                unit="s",
                queries={A_PROCESS: quantile(0.99, "berth_main_loop_lag_seconds", *PROCESS)},
            ),
        ),
    },
)
