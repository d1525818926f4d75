"""The pods that a simulation is asked about: each once, each one that a scheduler would take up."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from berth.api.pod import Pod, is_finished
from berth.cli.creation.defaults import scheduler_of
from berth.cli.objects import Found, Identity


def pods_to_place(
    asked: Iterable[Found[Pod]], *, schedulers: Collection[str], problems: list[str]
) -> dict[Identity, Found[Pod]]:
    """The pods in the order of their files; what keeps one from being placed is added to ``problems``."""
    pods: dict[Identity, Found[Pod]] = {}
    for one in asked:
        before = pods.setdefault(one.identity, one)
        if before is one:
            problems.extend(f"{one.where}: {problem}" for problem in _obstacles(one.thing))
        else:
            problems.append(f"{one.where}: is in {before.where} already: a pod is placed once")
    problems.extend(_strangers(pods.values(), schedulers))
    return pods


def pending(pods: Iterable[Found[Pod]], *, schedulers: Collection[str]) -> list[Found[Pod]]:
    """Those of a cluster that wait for one of these schedulers."""
    return [one for one in pods if scheduler_of(one.thing) in schedulers and _waits(one.thing)]


def _waits(pod: Pod) -> bool:
    return not pod.spec.node_name and not is_finished(pod) and not pod.metadata.deletion_timestamp


def _obstacles(pod: Pod) -> Iterator[str]:
    """Why nobody would schedule the pod."""
    if pod.spec.node_name:
        yield f"spec.nodeName: is on {pod.spec.node_name!r} already: take the field out to ask where it would go"
    if is_finished(pod):
        yield f"status.phase: {pod.status.phase!r} is the end of a pod: take the status out to ask about it anew"
    elif pod.metadata.deletion_timestamp:
        yield "metadata.deletionTimestamp: a pod that is being deleted is not placed: leave it out"


def _strangers(pods: Iterable[Found[Pod]], schedulers: Collection[str]) -> Iterator[str]:
    """Whose pods no profile places, a line a scheduler: there may be thousands of them."""
    by_scheduler: dict[str, list[str]] = {}
    for one in pods:
        scheduler = scheduler_of(one.thing)
        if scheduler not in schedulers:
            by_scheduler.setdefault(scheduler, []).append(one.where)
    for scheduler, (first, *others) in by_scheduler.items():
        yield (
            f"{first}{f' and {len(others)} more' if others else ''}: spec.schedulerName: no profile has the name "
            f"{scheduler!r}, there are {', '.join(schedulers)}: name a configuration that has it with --config"
        )


def namesakes(pods: Iterable[Found[Pod]]) -> Iterator[str]:
    """Which pods have one uid and two names: it is the uid that tells pods apart."""
    by_uid: dict[str, Found[Pod]] = {}
    for one in pods:
        before = by_uid.setdefault(one.thing.uid, one)
        if before.identity != one.identity:
            yield f"{one.where}: metadata.uid: is that of {before.where} too: take it out where the pod is a copy"
