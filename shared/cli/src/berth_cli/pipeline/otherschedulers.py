"""Whether another scheduler of the same pods leads in a given cluster (docs/adr/0027)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from berth.errors import BerthError
from berth.leader.samepods import LeaseName
from berth_cli.pipeline.supervisor import Report

_LOOK_SECONDS: Final = 0.5  # between two looks at another scheduler's Lease, which is renewed every 2 s


class OtherSchedulerError(BerthError):
    """Another scheduler of the same pods leads in the cluster; the text names it and the remedy."""


async def check_other_schedulers(
    kubeconfig: Path, leases: Sequence[LeaseName], *, is_allowed: bool, report: Report
) -> None:
    """Check that no scheduler leads by one of these Leases. An unreleased Lease is watched until it expires.

    Raises:
        OtherSchedulerError: one leads, and that is not allowed.
        TemporaryError: no answer.
    """
    from berth.kube.client import KubeClient  # noqa: PLC0415 - aiohttp, as in berth_cli.bus
    from berth.leader.otherschedulers import OtherSchedulers  # noqa: PLC0415 - the same

    async with await KubeClient.connect(str(kubeconfig)) as client:
        others = OtherSchedulers(client, leases, is_allowed=is_allowed, warn=lambda text: report(f"warning: {text}"))
        if (other := await others.in_the_way()) is not None:
            report(str(other))
            other = await others.living(_LOOK_SECONDS)
    if other is not None:
        raise OtherSchedulerError(str(other))
