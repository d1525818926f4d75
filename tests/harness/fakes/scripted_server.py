"""An HTTP server with a handler of the test, for answers that a real API server does not give on demand."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def scripted_server(handler: Handler) -> AsyncIterator[str]:
    """Answer every request by the handler; yields the URL."""
    runner = web.ServerRunner(web.Server(handler, access_log=None, handler_cancellation=True), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    try:
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


async def stream(request: web.Request, *chunks: bytes, then: asyncio.Event | None = None) -> web.StreamResponse:
    """Send chunks one by one. Then end the answer, or leave it open without data until `then` is set."""
    response = web.StreamResponse()
    await response.prepare(request)
    for chunk in chunks:
        await response.write(chunk)
    if then is not None:
        await then.wait()
    return response


def cut(request: web.Request) -> None:
    """Break the connection without an end of the answer."""
    if request.transport is not None:
        request.transport.abort()
