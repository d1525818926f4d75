"""The client of the API server, created from a service's settings."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from berth.kube.client import KubeClient
from berth.observability.logging import log_request
from berth.observability.metrics import Meter, count_request
from berth.settings.settings import V_MESSAGE, Settings


@asynccontextmanager
async def kube_client(settings: Settings, *, name: str, meter: Meter) -> AsyncIterator[KubeClient]:
    """Client of the API server, closed at the end. Requests are counted in client-go's metrics, and logged at V(6).

    Raises:
        KubeconfigError: unusable configuration; the text contains the remedy.
    """
    kube, count = settings.kube, partial(count_request, meter)

    def count_and_log(method: str, path: str, host: str, status: int, seconds: float) -> None:
        count(method, path, host, status, seconds)
        log_request(method, path, status, seconds)

    listener = count_and_log if settings.log.verbosity >= V_MESSAGE else count
    async with await KubeClient.connect(
        kube.kubeconfig, user_agent=f"berth-{name}", qps=kube.qps, burst=kube.burst, listener=listener
    ) as client:
        yield client
