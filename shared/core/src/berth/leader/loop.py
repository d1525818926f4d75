"""The loop of watcher and binder: a NATS session and a leadership on it; when one ends, both start again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from berth.bus.interface import Bus, BusLostError, Endpoint, Session
from berth.errors import BerthError
from berth.kube.client import KubeClient
from berth.leader.lease import LeaseObservations
from berth.leader.otherschedulers import OtherSchedulers
from berth.leader.session import LeaderSession, NotLeadingError, Role, lead
from berth.lifecycle.process import Process
from berth.lifecycle.sessions import present, sessions
from berth.observability.logging import get_logger

log = get_logger()

PAUSE_SECONDS: Final = 1.0  # After a leadership that ended in an error.

# Work of a leader: returns or raises once the leadership or the session is lost.
ServeLeadership = Callable[[Session, LeaderSession], Awaitable[None]]


async def lead_until_stopped(  # noqa: PLR0913 - the clients, the role, and the work of the leader
    bus: Bus,
    client: KubeClient,
    process: Process,
    *,
    role: Role,
    serve: ServeLeadership,
    stats: Callable[[], dict[str, object]] = dict,
    endpoints: Sequence[Endpoint] = (),
    apply_when_missing: bool = False,
    others: OtherSchedulers | None = None,
) -> None:
    """Lead as ``role`` repeatedly until the process stops.

    ``stats`` and ``endpoints``: answers in NATS's service protocol. ``apply_when_missing``: create missing streams and
    buckets. ``others``: schedulers of the same pods, which block leading.
    """
    current: LeaderSession | None = None
    observations = LeaseObservations()

    def all_stats() -> dict[str, object]:
        if current is None or current.expired():
            return stats()
        seconds = round(process.clock.now() - current.since, 1)
        return {"leading": {"number": current.number, "seconds": seconds}, **stats()}

    async for session in sessions(bus, name=role, process=process, apply_when_missing=apply_when_missing):
        try:
            async with (
                present(session, process, stats=all_stats, endpoints=endpoints),
                lead(
                    role=role,
                    session=session,
                    client=client,
                    process=process,
                    observations=observations,
                    others=others,
                ) as current,
            ):
                await serve(session, current)
        except* NotLeadingError as errors:
            log.info("not leading", reason=_causes(errors))
        except* BusLostError as errors:
            log.warning("leading again on another connection", error=_causes(errors))
        except* BerthError as errors:
            log.warning("leading again after an error", error=_causes(errors))
            await process.sleep(PAUSE_SECONDS)


def _causes(errors: BaseExceptionGroup[BerthError]) -> str:
    """Texts of all errors, nested groups included."""
    texts = (_causes(each) if isinstance(each, BaseExceptionGroup) else str(each) for each in errors.exceptions)
    return "; ".join(dict.fromkeys(texts))
