"""/livez, /readyz and /metrics over HTTP, on the main loop: when that hangs, /livez does not answer, as it should."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from berth.process.exits import UsageError
from berth.process.health import Health
from berth.process.metrics import CONTENT_TYPE, PrometheusMeter
from berth.process.settings import HealthSettings

SHUTDOWN_SECONDS = 0.5
"""How long a slow reader of /metrics may hold up the end of the process."""


class HealthPortError(UsageError):
    """The health port cannot be listened on."""


@asynccontextmanager
async def health_server(settings: HealthSettings, health: Health, meter: PrometheusMeter) -> AsyncIterator[int]:
    """Serve until left; yields the port.

    Raises:
        HealthPortError: somebody else has the port.
    """
    runner = web.AppRunner(_application(health, meter), access_log=None, shutdown_timeout=SHUTDOWN_SECONDS)
    await runner.setup()
    try:
        yield await _listen(runner, settings)
    finally:
        await runner.cleanup()


async def _listen(runner: web.AppRunner, settings: HealthSettings) -> int:
    try:
        await web.TCPSite(runner, settings.host, settings.port).start()
    except OSError as exc:
        where = f"listening on health.port {settings.port} of {settings.host!r}"
        raise HealthPortError(f"{where}: {exc.strerror}: choose another with --health-port") from exc
    return int(runner.addresses[0][1])


def _application(health: Health, meter: PrometheusMeter) -> web.Application:
    async def livez(_request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def readyz(request: web.Request) -> web.Response:
        text = health.verbose() if "verbose" in request.query else health.summary()
        return web.Response(text=text, status=200 if health.is_ready else 503)

    async def metrics(_request: web.Request) -> web.Response:
        return web.Response(body=meter.exposition(), headers={"Content-Type": CONTENT_TYPE})

    application = web.Application()
    application.router.add_get("/livez", livez)
    application.router.add_get("/readyz", readyz)
    application.router.add_get("/metrics", metrics)
    return application
